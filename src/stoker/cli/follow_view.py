"""Follow a job on the terminal: its lines, what was decided, and one line at the bottom that tells how it is."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

import click

from stoker.cli.format import legible
from stoker.cli.safe_terminal import harmless
from stoker.cli.status_line import Status, status_of
from stoker.cli.timeline import Teller
from stoker.model.job_state import JobState, fold
from stoker.model.log_entries import Closed, Ended
from stoker.read.logs import Line, NodeLog, follow
from stoker.read.node_chunks import node_logs
from stoker.store import job_log
from stoker.store.base import Store

_STATUS_NEAR_S = 0.5
_STATUS_FAR_S = 5.0
# What is said to be out of date is looked at again no sooner.
_STALE_S = 0.5
_CLEAR = "\r\x1b[K"
# A progress bar leaves so much to the status.
_LEAST_ROOM = 40


class Screen:
    """Where lines go. On a terminal a status stays below them; elsewhere there is none, and no colour."""

    def __init__(self, out: TextIO, *, prefix: bool, live: bool) -> None:
        self._out = out
        self._prefix = prefix
        self._live = live
        # A file gets what was printed, to the byte; a terminal would do what it is told.
        self._terminal = out.isatty()
        # What stands in the last line now.
        self._shown = ""
        # The last line that ended with a carriage return: a progress bar, shown with the status.
        self._bar = ""

    def line(self, line: Line) -> None:
        if self._live and line.end == "\r":
            self._bar = legible(line.text).strip()
            return
        self._bar = ""
        self.clear()
        prefix = f"[{line.rank}] " if self._prefix else ""
        # A line that was never ended would run into the status, or into the next node's.
        text = harmless(line.text) if self._terminal else line.text
        self._out.write(f"{prefix}{text}{line.end or chr(10)}")

    def event(self, text: str) -> None:
        self.clear()
        self._out.flush()
        click.secho(f"[stoker] {legible(text)}", dim=True, err=True)

    @property
    def room(self) -> int:
        """How many columns there are for the status."""
        wide = _columns()
        return max(wide - len(self._bar) - 3, min(wide, _LEAST_ROOM)) if self._bar else wide

    def status(self, text: str) -> None:
        flat = f"{text} │ {self._bar}" if self._bar else text
        if not self._live or flat == self._shown:
            return
        wide = _columns()
        # Not through click, which cannot overwrite a line: so NO_COLOR is minded here.
        sys.stderr.write(_CLEAR + (flat[:wide] if os.environ.get("NO_COLOR") else click.style(flat[:wide], dim=True)))
        sys.stderr.flush()
        self._shown = flat

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._shown = ""

    def flush(self) -> None:
        self._out.flush()


def _columns() -> int:
    """All but the last, in which a terminal would begin another line."""
    return shutil.get_terminal_size().columns - 1


class Follower:
    """Reads a job's log as it grows, tells what was decided, and prints what its nodes print."""

    def __init__(
        self,
        store: Store,
        job: str,
        screen: Screen,
        *,
        rank: int | None = None,
        attempt: int | None = None,
        events: bool = True,
        since: int = 0,
    ) -> None:
        self.state: JobState | None = None
        self._store = store
        self._job = job
        self._screen = screen
        self._rank = rank
        self._attempt = attempt
        self._events = events
        # Decisions up to this one are old: told now, they would stand above lines that were printed before them.
        self._since = since
        self._teller = Teller()
        self._looked = 0.0
        # Something was told that the status does not know yet.
        self._stale = False
        self._told = Status()
        # Ends of attempts and of the job are told after the last lines that were printed before them.
        self._held: list[str] = []

    def run(self, tail: int | None = None, sleep: Callable[[float], object] = time.sleep) -> None:
        """Print until the job has ended."""

        def pause(seconds: float) -> None:
            self._screen.flush()
            if self.state is None or self.state.ended is None:
                self._tell_held()
            self._screen.status(self._status().fitted(self._screen.room))
            sleep(seconds)

        try:
            for line in follow(self._store, self._job, self._watch, tail=tail, sleep=pause):
                self._screen.line(line)
                # Who prints may train by now.
                self._stale |= not self._told.running
            self._tell_held()
        except BaseException:
            # A terminal that is gone must not replace the reason for leaving with its own error.
            with suppress(OSError):
                self._screen.clear()
                self._screen.flush()
            raise
        self._screen.clear()
        self._screen.flush()

    def _watch(self) -> tuple[Sequence[NodeLog], bool]:
        for entry in job_log.entries(self._store, self._job, self.state.seq + 1 if self.state else 1):
            self.state = fold(self._job, [entry], self.state)
            self._stale = True
            if self._events and entry.seq > self._since:
                told = self._teller.take(entry, self.state, time.monotonic())
                if self._held or isinstance(entry.event, (Closed, Ended)):
                    self._held += told
                else:
                    self._tell(told)
        self._tell(self._teller.due(time.monotonic()))
        if self.state is None:
            return [], True  # Removed while it was followed.
        return node_logs(self.state, self._rank, self._attempt), self.state.ended is not None

    def _tell_held(self) -> None:
        held, self._held = self._held, []
        self._tell(held)

    def _tell(self, lines: list[str]) -> None:
        for text in lines:
            self._screen.event(text)

    def _status(self) -> Status:
        usual_s = _STATUS_NEAR_S if self._store.near else _STATUS_FAR_S
        if time.monotonic() - self._looked >= (_STALE_S if self._stale else usual_s):
            self._looked, self._stale = time.monotonic(), False
            before = self._told.waiting
            self._told = status_of(self._store, self._job, self.state) if self.state is not None else Status()
            if self._events and self._told.waiting not in ("", before):
                self._tell([f"waits: {self._told.waiting}"])
        return self._told
