"""The policy and the store's clock, as a governor that runs for months reads them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest

from stoker.core.governor_settings import DEFAULT
from stoker.model.errors import StoreDenied
from stoker.policy import versions
from stoker.policy.reader import PolicyReader
from stoker.store.base import Meta
from stoker.store.store_clock import read_clock
from stoker.testing.memory_store import MemoryStore


def _now() -> datetime:
    return datetime.now(timezone.utc)


def test_rules_that_were_refused_once_are_read_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(clock=_now)
    versions.write(store, "sagemaker: {regions: [us-east-1]}", "me", "")
    reader = PolicyReader(store, DEFAULT)

    def refuse(*_: object, **__: object) -> None:
        raise StoreDenied("403")

    with monkeypatch.context() as patch:
        patch.setattr(store, "get", refuse)
        assert "403" in reader.read().policy_error
    found = reader.read()
    assert found.policy_error == "" and found.policy.sagemaker is not None


def test_governors_that_share_a_name_do_not_take_each_others_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is done between the first one's write and its look."""
    store = MemoryStore(clock=_now)
    look: Callable[[str], Meta | None] = store.head
    nested = threading.Lock()

    def rival(key: str) -> Any:
        if nested.acquire(blocking=False):
            read_clock(store, "aws-lambda", time.monotonic)
        return look(key)

    monkeypatch.setattr(store, "head", rival)
    read_clock(store, "aws-lambda", time.monotonic)
    assert nested.locked() and not list(store.list("probes/"))
