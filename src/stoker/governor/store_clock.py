"""The store's clock, without a request for each reading.

A governor writes a record of its pass, reads back the store's time of that write, and counts on from there with its own
monotonic clock. So ages are never computed between the clocks of two machines.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from stoker.model import codec, keys
from stoker.model.errors import StoreUnavailable
from stoker.store.base import Store
from stoker.store.job_log import new_token

# A plan is applied within seconds, or minutes where launches are slow. One that is older comes from a computer that
# slept, or from a process that was stopped: its reasons may not hold any more.
FRESH_S = 120.0

# A clock that counts while the computer sleeps. On Linux the monotonic clock does not; on other systems CLOCK_MONOTONIC
# does, and `time.monotonic` does not.
_WITH_SLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def with_sleep() -> float:
    """Seconds on a clock that goes on while the computer sleeps."""
    return time.clock_gettime(_WITH_SLEEP)


@dataclass(frozen=True)
class PassRecord:
    """`governors/<id>.json`: the governor's last pass. Its time is the object's Last-Modified."""

    governor: str
    pid: int
    active: int
    # Distinguishes two passes within one second.
    token: str = ""


@dataclass(frozen=True)
class StoreClock:
    """The store's time at one moment, counted on by the monotonic clock.

    `monotonic` stands still while the computer sleeps, so ages are too small after a sleep, never too large. The next
    pass reads the store's time again.
    """

    base: datetime
    base_s: float
    monotonic: Callable[[], float]

    def now(self) -> datetime:
        return self.base + timedelta(seconds=self.monotonic() - self.base_s)


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


def governor_name() -> str:
    """The governor's name, one for each computer. Governors that share it overwrite each other's record, which loses
    nothing."""
    return "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname())[:60] or "unnamed"


def record_pass(store: Store, name: str, active: int, monotonic: Callable[[], float]) -> StoreClock:
    """Write the record of a pass that starts now, and take the store's time from it."""
    return _stamp(store, keys.governor(name), PassRecord(name, os.getpid(), active, new_token()), monotonic)


def read_clock(store: Store, name: str, monotonic: Callable[[], float]) -> StoreClock:
    """The store's time for a command that only reads: the object that is written for it is deleted again."""
    # A unique key: governors in a cloud share a name, and often a process id.
    key = f"{keys.PROBES}{name}-{os.getpid()}-{new_token()}"
    try:
        return _stamp(store, key, PassRecord(name, os.getpid(), active=0), monotonic)
    finally:
        store.delete([key])


def _stamp(store: Store, key: str, record: PassRecord, monotonic: Callable[[], float]) -> StoreClock:
    store.put(key, codec.dumps(record))
    found = store.head(key)
    # Read after both replies: slow replies make this clock late, so ages are too small, never too large. That holds
    # also where a write of an earlier pass landed between the two.
    base_s = monotonic()
    if found is None:
        raise StoreUnavailable(f"{key}: written, and then not there")
    return StoreClock(base=found.modified, base_s=base_s, monotonic=monotonic)


def last_pass(store: Store) -> datetime | None:
    """When any governor last made a pass, by the store's clock."""
    return max((meta.modified for meta in store.list(keys.GOVERNORS)), default=None)
