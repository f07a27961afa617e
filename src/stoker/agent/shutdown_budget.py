"""How long there is for what comes last: the log, the metrics, the outputs and, in any case, the exit."""

from __future__ import annotations

import time
from collections.abc import Callable

# What the exit keeps for itself, where there is that much: the next attempt waits for it.
_EXIT_S = 2.0
# The exit is tried at least for this long, however late it is.
_LEAST_S = 0.2


class Closing:
    """Bounded by its own limit, or by a deadline once there is one. That may come at any time, and only move closer.

    `pressed` gives the deadline in monotonic seconds, or None.
    """

    def __init__(
        self,
        limit_s: float,
        pressed: Callable[[], float | None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pressed = pressed
        self._monotonic = monotonic
        self._limit_at_s = monotonic() + limit_s
        self._exit_by_s = self._limit_at_s
        self._rest_by_s = self._limit_at_s
        self.pressing = False

    def exit_by_s(self) -> float:
        """When the exit must be written."""
        self._look()
        return max(self._exit_by_s, self._monotonic() + _LEAST_S)

    def rest_by_s(self) -> float:
        """When everything before the exit must be over, done or not."""
        self._look()
        return self._rest_by_s

    def share_s(self, part: float = 1.0) -> float:
        """That part of the time there still is for what comes before the exit."""
        return max(0.0, self.rest_by_s() - self._monotonic()) * part

    def _look(self) -> None:
        deadline_s = self._pressed()
        if deadline_s is None or deadline_s >= self._exit_by_s:
            return
        self.pressing = True
        self._exit_by_s = deadline_s
        left_s = max(0.0, deadline_s - self._monotonic())
        self._rest_by_s = min(self._rest_by_s, deadline_s - min(_EXIT_S, left_s / 2))
