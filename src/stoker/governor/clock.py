"""The store's clock, without asking the store each time.

A governor writes down its pass, reads back when the store says that was, and from there counts with its own monotonic
clock. So ages are never taken between two machines' clocks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from stoker import codec, layout
from stoker.errors import StoreUnavailable
from stoker.log import new_token
from stoker.store import Store


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
    """The store's time at one moment, carried on."""

    base: datetime
    base_s: float
    monotonic: Callable[[], float]

    def now(self) -> datetime:
        return self.base + timedelta(seconds=self.monotonic() - self.base_s)


def governor_name() -> str:
    """One name a computer: governors that share it overwrite one another's record, which loses nothing."""
    return "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname())[:60] or "unnamed"


def record_pass(store: Store, name: str, active: int, monotonic: Callable[[], float]) -> StoreClock:
    """Write down that this governor passes now, and take the store's time from it."""
    return _stamp(store, layout.governor(name), PassRecord(name, os.getpid(), active, new_token()), monotonic)


def read_clock(store: Store, name: str, monotonic: Callable[[], float]) -> StoreClock:
    """The store's time for somebody who only looks: what has to be written for it is taken away again."""
    # Everybody's own: governors in a cloud share a name, and often the number of their process.
    key = layout.probe(f"{name}-{os.getpid()}-{new_token()}")
    try:
        return _stamp(store, key, PassRecord(name, os.getpid(), active=0), monotonic)
    finally:
        store.delete([key])


def _stamp(store: Store, key: str, record: PassRecord, monotonic: Callable[[], float]) -> StoreClock:
    store.put(key, codec.dumps(record))
    # After the reply: a slow one makes this clock late, and ages too small, never too large.
    base_s = monotonic()
    found = store.head(key)
    if found is None:
        raise StoreUnavailable(f"{key}: written, and then not there")
    return StoreClock(base=found.modified, base_s=base_s, monotonic=monotonic)


def last_pass(store: Store) -> datetime | None:
    """When any governor last passed, by the store's clock."""
    return max((meta.modified for meta in store.list(layout.GOVERNORS)), default=None)
