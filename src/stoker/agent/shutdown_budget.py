"""The time that is left for the end of an attempt: the log, the metrics, the outputs and, in any case, the exit."""

from __future__ import annotations

import time
from collections.abc import Callable

# Seconds reserved for the exit, if there are that many: the next attempt waits for it.
_EXIT_S = 2.0
# The exit is tried for at least this long, however late it is.
_LEAST_S = 0.2


class ShutdownBudget:
    """Ends after `limit_s` without progress, or at a deadline once there is one, whichever is sooner.

    `deadline` returns the deadline in monotonic seconds, or None. It may come at any time, and only move closer.
    `progress` returns a count; while it changes, the limit begins anew. Without it, `limit_s` is the whole time.
    """

    def __init__(
        self,
        limit_s: float,
        deadline: Callable[[], float | None],
        monotonic: Callable[[], float] = time.monotonic,
        progress: Callable[[], int] = lambda: 0,
    ) -> None:
        self._limit_s = limit_s
        self._deadline = deadline
        self._monotonic = monotonic
        self._progress = progress
        self._count = progress()
        self._limit_by_s = monotonic() + limit_s
        # The end by the deadline in force, and the time by which everything before the exit must be over then.
        self._deadline_s = self._flush_deadline_s = float("inf")
        # True once a deadline is in force, as of the last call.
        self.has_deadline = False

    def exit_by_s(self) -> float:
        """The monotonic time by which the exit must be written."""
        self.refresh()
        return max(min(self._limit_by_s, self._deadline_s), self._monotonic() + _LEAST_S)

    def flush_by_s(self) -> float:
        """The monotonic time by which everything before the exit must be over, done or not."""
        self.refresh()
        return min(self._limit_by_s, self._flush_deadline_s)

    def share_s(self, part: float = 1.0) -> float:
        """This part of the time that is left before the exit."""
        return max(0.0, self.flush_by_s() - self._monotonic()) * part

    def refresh(self) -> None:
        """Take progress and a new deadline into account."""
        count = self._progress()
        if count != self._count:
            self._count, self._limit_by_s = count, self._monotonic() + self._limit_s
        deadline_s = self._deadline()
        if deadline_s is None or deadline_s >= min(self._limit_by_s, self._deadline_s):
            return
        self.has_deadline = True
        self._deadline_s = deadline_s
        left_s = max(0.0, deadline_s - self._monotonic())
        self._flush_deadline_s = min(self._flush_deadline_s, deadline_s - min(_EXIT_S, left_s / 2))
