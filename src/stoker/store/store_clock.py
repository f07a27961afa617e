"""The store's clock, without a request for each reading.

An object is written, the store's time of that write is read back, and the monotonic clock of this process counts on
from there. So ages are never computed between the clocks of two machines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from stoker.model import keys
from stoker.model.errors import StoreUnavailable
from stoker.store.base import Store
from stoker.store.job_log import new_token


@dataclass(frozen=True)
class StoreClock:
    """The store's time at one moment, counted on by the monotonic clock.

    `monotonic` stands still while the computer sleeps, so ages are too small after a sleep, never too large.
    """

    base: datetime
    base_s: float
    monotonic: Callable[[], float]

    def now(self) -> datetime:
        return self.base + timedelta(seconds=self.monotonic() - self.base_s)


def read_clock(store: Store, name: str = "", monotonic: Callable[[], float] = time.monotonic) -> StoreClock:
    """The store's clock for a command that writes no record of its own: the object written for it is deleted again.

    `name` is part of that object's key. Raises StoreError.
    """
    # A unique key: governors in a cloud share a name, and often a process id.
    key = f"{keys.PROBES}{name or 'clock'}-{os.getpid()}-{new_token()}"
    try:
        return stamp(store, key, b"", monotonic)
    finally:
        store.delete([key])


def read_time(store: Store) -> datetime:
    """The store's time now, or a little earlier: ages computed from it are too small, never too large.

    Raises StoreError.
    """
    return read_clock(store).base


def stamp(store: Store, key: str, data: bytes, monotonic: Callable[[], float]) -> StoreClock:
    """Write an object, and take the store's time from it. Raises StoreError."""
    store.put(key, data)
    found = store.head(key)
    # Read after both replies: slow replies make this clock late, so ages are too small, never too large. That holds
    # also where an earlier write to the same key landed between the two.
    base_s = monotonic()
    if found is None:
        raise StoreUnavailable(f"{key}: written, and then not there")
    return StoreClock(base=found.modified, base_s=base_s, monotonic=monotonic)
