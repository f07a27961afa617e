"""Follow a job: show its log lines, the decisions about it, and its status, on any screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from stoker.model.job_state import JobState, fold
from stoker.model.log_entries import Closed, Ended
from stoker.read.decision_text import NewsFeed
from stoker.read.logs import NodeLog, follow
from stoker.read.node_chunks import node_logs
from stoker.read.safe_text import legible
from stoker.read.screens import Screen
from stoker.read.status_line import Status, status_of, waiting_reason
from stoker.store import job_log
from stoker.store.base import Store

_STATUS_LOCAL_S = 0.5
_STATUS_REMOTE_S = 5.0
# The least time between two readings of a status that is out of date.
_STALE_S = 0.5


class Follower:
    """Reads a job's log as it grows, and shows its decisions and the lines that its nodes print."""

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
        """`events` shows decisions; only those after entry `since`.

        Older decisions would stand above lines that were printed before them.
        """
        self.state: JobState | None = None
        self._store = store
        self._job = job
        self._screen = screen
        self._rank = rank
        self._attempt = attempt
        self._events = events
        self._since = since
        self._news = NewsFeed()
        self._read_at_s = 0.0
        # Something was shown that the status does not know yet.
        self._stale = False
        self._status = Status()
        self._waiting = ""
        # Ends of attempts and of the job are shown after the last lines that were printed before them.
        self._held_news: list[str] = []

    def run(self, tail: int | None = None, sleep: Callable[[float], object] = time.sleep) -> None:
        """Show lines and decisions until the job has ended."""

        def pause(seconds: float) -> None:
            self._screen.flush()
            if self.state is None or self.state.ended is None:
                self._show_held_news()
            self._refresh()
            if self._screen.shows_status:
                self._screen.status(self._status.fitted(self._screen.room))
            sleep(seconds)

        try:
            for line in follow(self._store, self._job, self._watch, tail=tail, sleep=pause):
                self._screen.line(line)
                # A node that prints may train by now.
                self._stale |= not self._status.running
            self._show_held_news()
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
                news = self._news.take(entry, self.state, time.monotonic())
                if self._held_news or isinstance(entry.event, (Closed, Ended)):
                    self._held_news += news
                else:
                    self._show(news)
        self._show(self._news.due(time.monotonic()))
        if self.state is None:
            return [], True  # The job was removed while it was followed.
        return node_logs(self.state, self._rank, self._attempt), self.state.ended is not None

    def _show_held_news(self) -> None:
        held, self._held_news = self._held_news, []
        self._show(held)

    def _show(self, lines: list[str]) -> None:
        for text in lines:
            self._screen.event(text)

    def _refresh(self) -> None:
        """When it is due, read the status where it is shown, and show a new reason for waiting."""
        if self.state is None:
            return  # The store has not answered yet.
        usual_s = _STATUS_LOCAL_S if self._store.is_local else _STATUS_REMOTE_S
        now_s = time.monotonic()
        if now_s - self._read_at_s < (_STALE_S if self._stale else usual_s):
            return
        self._read_at_s, self._stale = now_s, False
        before, self._waiting = self._waiting, ""
        if self._screen.shows_status:
            self._status = status_of(self._store, self._job, self.state)
            self._waiting = self._status.waiting
        elif self._events and self.state.queued:
            self._waiting = legible(waiting_reason(self._store, self._job))
        if self._events and self._waiting not in ("", before):
            self._show([f"waits: {self._waiting}"])
