"""Follow a job on the terminal: its lines, what was decided, and one line at the bottom that tells how it is."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TextIO

import click

from stoker import facts, log
from stoker.cli.printing import ago, as_of, dollars, harmless, legible, number
from stoker.cli.timeline import Teller, checkpoint_name
from stoker.core.costs import job_cost
from stoker.fold import JobState, fold
from stoker.model import Heartbeat, Known
from stoker.reading.logs import Line, NodeLog, follow
from stoker.store import Store
from stoker.summary import phase_of

_STATUS_NEAR_S = 0.5
_STATUS_FAR_S = 5.0
_CLEAR = "\r\x1b[K"
# Metrics that fit beside the rest.
_MOST_METRICS = 3


def node_logs(state: JobState, rank: int | None = None, attempt: int | None = None) -> list[NodeLog]:
    """The nodes whose logs make up the job's, narrowed where asked."""
    return [
        NodeLog(attempt=claim.attempt, claim=claim.number, rank=node.rank, instance=node.instance)
        for claim in state.attempts
        for node in claim.launched or ()
        if claim.attempt is not None and rank in (None, node.rank) and attempt in (None, claim.attempt)
    ]


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

    def status(self, text: str) -> None:
        flat = f"{text} │ {self._bar}" if self._bar else text
        if not self._live or flat == self._shown:
            return
        wide = shutil.get_terminal_size().columns - 1
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
        self._text = ""

    def run(self, tail: int | None = None, sleep: Callable[[float], object] = time.sleep) -> None:
        """Print until the job has ended."""

        def pause(seconds: float) -> None:
            self._screen.flush()
            self._screen.status(self._status())
            sleep(seconds)

        try:
            for line in follow(self._store, self._job, self._watch, tail=tail, sleep=pause):
                self._screen.line(line)
        finally:
            self._screen.clear()
            self._screen.flush()

    def _watch(self) -> tuple[Sequence[NodeLog], bool]:
        for entry in log.entries(self._store, self._job, self.state.seq + 1 if self.state else 1):
            self.state = fold(self._job, [entry], self.state)
            if self._events and entry.seq > self._since:
                self._tell(self._teller.take(entry, self.state, time.monotonic()))
        self._tell(self._teller.due(time.monotonic()))
        if self.state is None:
            return [], True  # Removed while it was followed.
        return node_logs(self.state, self._rank, self._attempt), self.state.ended is not None

    def _tell(self, lines: list[str]) -> None:
        for text in lines:
            self._screen.event(text)

    def _status(self) -> str:
        if time.monotonic() - self._looked >= (_STATUS_NEAR_S if self._store.near else _STATUS_FAR_S):
            self._looked = time.monotonic()
            self._text = status_text(self._store, self._job, self.state) if self.state is not None else ""
        return self._text


def status_text(store: Store, job: str, state: JobState) -> str:
    """`running · attempt 2 · step 413 · loss 0.12 · checkpoint step-400 3.1 s ago · $0.01`."""
    told = {claim.number: facts.read_claim(store, job, claim) for claim in state.open_claims}
    heard = [
        node.heartbeat.value
        for nodes in told.values()
        for node in nodes
        if isinstance(node.heartbeat, Known) and node.heartbeat.value is not None
    ]
    now = datetime.now(timezone.utc)
    parts = [job, phase_of(state, told)]
    if state.attempts:
        parts.append(f"attempt {len(state.attempts)}")
    parts += _beat_parts([beat.value for beat in heard], now)
    old = as_of(max((beat.modified for beat in heard), default=None), now)
    if old:
        parts.append(old)
    cost = job_cost(state, now).spent
    if cost:
        parts.append(dollars(cost))
    return legible(" · ".join(parts))


def _beat_parts(beats: list[Heartbeat], now: datetime) -> list[str]:
    if not beats:
        return []
    # While one attempt saves and the next waits, the one that trained tells more.
    beat = max(beats, key=lambda beat: beat.trained_s)
    parts = []
    if beat.step is not None:
        parts.append(f"step {beat.step}")
    shown = [(name, value) for name, value in beat.metrics.items() if name != "step"]
    parts += [f"{name} {number(value)}" for name, value in shown[:_MOST_METRICS]]
    if beat.checkpoint is not None:
        parts.append(f"checkpoint {beat.checkpoint.name} {ago(beat.checkpoint.committed_at, now)}")
    elif beat.restored_from is not None:
        parts.append(f"from {checkpoint_name(beat.restored_from)}")
    elif beat.trained_s > 0:
        parts.append("no checkpoint yet")
    return parts
