"""The store's clock, without asking the store each time.

A governor writes down its pass, reads back when the store says that was, and from there counts with its own monotonic
clock. So ages are never taken between two machines' clocks.
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
# slept, or from a process that was stopped: its reasons may be gone.
FRESH_S = 120.0

# Counts while the computer sleeps, as the monotonic clock does not on Linux. Elsewhere CLOCK_MONOTONIC counts then, and
# `time.monotonic` does not.
_WITH_SLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def with_sleep() -> float:
    """Seconds on a clock that goes on while the computer sleeps."""
    return time.clock_gettime(_WITH_SLEEP)


@dataclass(frozen=True)
class PassRecord:
    """`governors/<id>.json`: who passed. When is the object's Last-Modified."""

    governor: str
    pid: int
    active: int
    # Tells two passes of one second apart.
    token: str = ""


@dataclass(frozen=True)
class StoreClock:
    """The store's time at one moment, carried on.

    `monotonic` stands still while the computer sleeps, so what was observed before does not look old after: ages are
    too small then, never too large. The next pass takes the store's time anew.
    """

    base: datetime
    base_s: float
    monotonic: Callable[[], float]

    def now(self) -> datetime:
        return self.base + timedelta(seconds=self.monotonic() - self.base_s)


class Freshness:
    """How old an observation is, the time included in which the computer slept or the process was stopped."""

    def __init__(self, began: datetime, with_sleep: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._began = began
        self._with_sleep = with_sleep
        self._monotonic = monotonic
        self._began_s = (with_sleep(), monotonic())
        self._seen_s = self._began_s[0]

    def observed(self) -> datetime:
        """The observation is complete. Answers when it began, by the store's clock: the time to decide as of.

        Observing many jobs may take long and ages nothing; sleeping meanwhile does.
        """
        now_s = self._with_sleep()
        slept_s = (now_s - self._began_s[0]) - (self._monotonic() - self._began_s[1])
        self._seen_s = now_s - max(0.0, slept_s)
        return self._began

    def still(self) -> bool:
        """Whether decisions that rest on it may be carried out."""
        return self._with_sleep() - self._seen_s <= FRESH_S


def governor_name() -> str:
    """One name a computer: governors that share it overwrite one another's record, which loses nothing."""
    return "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname())[:60] or "unnamed"


def record_pass(store: Store, name: str, active: int, monotonic: Callable[[], float]) -> StoreClock:
    """Write down that this governor passes now, and take the store's time from it."""
    return _stamp(store, keys.governor(name), PassRecord(name, os.getpid(), active, new_token()), monotonic)


def read_clock(store: Store, name: str, monotonic: Callable[[], float]) -> StoreClock:
    """The store's time for somebody who only looks: what has to be written for it is taken away again."""
    # Everybody's own: governors in a cloud share a name, and often the number of their process.
    key = keys.probe(f"{name}-{os.getpid()}-{new_token()}")
    try:
        return _stamp(store, key, PassRecord(name, os.getpid(), active=0), monotonic)
    finally:
        store.delete([key])


def _stamp(store: Store, key: str, record: PassRecord, monotonic: Callable[[], float]) -> StoreClock:
    store.put(key, codec.dumps(record))
    found = store.head(key)
    # After both replies: slow ones make this clock late, and ages too small, never too large. Also where a write of an
    # earlier pass landed between the two.
    base_s = monotonic()
    if found is None:
        raise StoreUnavailable(f"{key}: written, and then not there")
    return StoreClock(base=found.modified, base_s=base_s, monotonic=monotonic)


def last_pass(store: Store) -> datetime | None:
    """When any governor last passed, by the store's clock."""
    return max((meta.modified for meta in store.list(keys.GOVERNORS)), default=None)
