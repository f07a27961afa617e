"""The records of governors' passes, from which other processes see that a governor works."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from stoker.model import codec, keys
from stoker.store.base import Store
from stoker.store.job_log import new_token
from stoker.store.store_clock import StoreClock, stamp


@dataclass(frozen=True)
class PassRecord:
    """`governors/<id>.json`: the governor's last pass. Its time is the object's Last-Modified."""

    governor: str
    pid: int
    active: int
    # Distinguishes two passes within one second.
    token: str = ""


def governor_name() -> str:
    """The governor's name, one for each computer. Governors that share it overwrite each other's record, which loses
    nothing."""
    return "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname())[:60] or "unnamed"


def record_pass(store: Store, name: str, active: int, monotonic: Callable[[], float]) -> StoreClock:
    """Write the record of a pass that starts now, and take the store's time from it."""
    record = PassRecord(name, os.getpid(), active, new_token())
    return stamp(store, keys.governor(name), codec.dumps(record), monotonic)


def last_pass(store: Store) -> datetime | None:
    """When any governor last made a pass, by the store's clock."""
    return max((meta.modified for meta in store.list(keys.GOVERNORS)), default=None)
