"""The age of an observation: decisions from an old one are not carried out."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

# A plan is applied within seconds, or minutes where launches are slow. One that is older comes from a computer that
# slept, or from a process that was stopped: its reasons may not hold any more.
FRESH_S = 120.0

# A clock that counts while the computer sleeps. On Linux the monotonic clock does not; on other systems CLOCK_MONOTONIC
# does, and `time.monotonic` does not.
_WITH_SLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def with_sleep() -> float:
    """Seconds on a clock that goes on while the computer sleeps."""
    return time.clock_gettime(_WITH_SLEEP)


class Freshness:
    """The age of an observation, including time in which the computer slept or the process was stopped."""

    def __init__(self, began: datetime, with_sleep: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._began = began
        self._with_sleep = with_sleep
        self._monotonic = monotonic
        self._began_s = (with_sleep(), monotonic())
        self._seen_s = self._began_s[0]

    def observed(self) -> datetime:
        """Complete the observation. Returns when it began, by the store's clock: the time to decide as of.

        Observing many jobs may take long, which does not count as age; sleep during it does.
        """
        now_s = self._with_sleep()
        slept_s = (now_s - self._began_s[0]) - (self._monotonic() - self._began_s[1])
        self._seen_s = now_s - max(0.0, slept_s)
        return self._began

    def still(self) -> bool:
        """Return whether decisions from this observation may still be carried out."""
        return self._with_sleep() - self._seen_s <= FRESH_S
