"""The time that is left for the end of an attempt: the log, the metrics, the outputs and, in any case, the exit."""

from __future__ import annotations

import time
from collections.abc import Callable

# Seconds reserved for the exit, if there are that many: the next attempt waits for it.
_EXIT_S = 2.0
# The exit is tried for at least this long, however late it is.
_LEAST_S = 0.2


class ShutdownBudget:
    """Bounded by `limit_s`, or by a deadline once there is one. A deadline may come at any time, and only move closer.

    `deadline` returns it in monotonic seconds, or None.
    """

    def __init__(
        self,
        limit_s: float,
        deadline: Callable[[], float | None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadline = deadline
        self._monotonic = monotonic
        self._exit_by_s = self._flush_by_s = monotonic() + limit_s
        # True once a deadline is in force, as of the last call.
        self.has_deadline = False

    def exit_by_s(self) -> float:
        """The monotonic time by which the exit must be written."""
        self.refresh()
        return max(self._exit_by_s, self._monotonic() + _LEAST_S)

    def flush_by_s(self) -> float:
        """The monotonic time by which everything before the exit must be over, done or not."""
        self.refresh()
        return self._flush_by_s

    def share_s(self, part: float = 1.0) -> float:
        """This part of the time that is left before the exit."""
        return max(0.0, self.flush_by_s() - self._monotonic()) * part

    def refresh(self) -> None:
        """Take a new deadline into account."""
        deadline_s = self._deadline()
        if deadline_s is None or deadline_s >= self._exit_by_s:
            return
        self.has_deadline = True
        self._exit_by_s = deadline_s
        left_s = max(0.0, deadline_s - self._monotonic())
        self._flush_by_s = min(self._flush_by_s, deadline_s - min(_EXIT_S, left_s / 2))
