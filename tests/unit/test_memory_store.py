"""The store that tests are made of must fail exactly as it is told to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from stoker.model.errors import StoreDenied, StoreUnavailable
from stoker.testing.memory_store import Fault, MemoryStore

START = datetime(2030, 1, 1, tzinfo=timezone.utc)


def clock() -> datetime:
    return START


def test_time_is_the_clocks_and_every_put_changes_the_etag() -> None:
    now = START
    store = MemoryStore(lambda: now)
    store.put("k", b"x")
    first = store.head("k")
    now += timedelta(hours=1)
    store.put("k", b"x")
    second = store.head("k")
    assert first is not None and second is not None
    assert (first.modified, second.modified) == (START, START + timedelta(hours=1))
    assert first.etag != second.etag


def test_a_fault_before_has_no_effect_and_one_after_loses_only_the_reply() -> None:
    faults: dict[tuple[str, str], Fault] = {}
    store = MemoryStore(clock, faults=lambda operation, key: faults.pop((operation, key), None))
    faults["create", "k"] = Fault()
    with pytest.raises(StoreUnavailable):
        store.create("k", b"x")
    assert store.get("k") is None
    faults["create", "k"] = Fault(after=True)
    with pytest.raises(StoreUnavailable):
        store.create("k", b"x")
    assert store.create("k", b"y") is False
    found = store.get("k")
    assert found is not None
    assert found.data == b"x"
    faults["put", "k"] = Fault(error=StoreDenied("no"))
    with pytest.raises(StoreDenied):
        store.put("k", b"z")


def test_a_delete_may_stop_halfway() -> None:
    store = MemoryStore(clock)
    for key in ("a", "b", "c"):
        store.put(key, b"")
    store.faults = lambda operation, key: Fault() if (operation, key) == ("delete", "b") else None
    with pytest.raises(StoreUnavailable):
        store.delete(["a", "b", "c"])
    assert [meta.key for meta in store.list("")] == ["b", "c"]


def test_errors_of_a_listing_come_out_of_the_loop() -> None:
    store = MemoryStore(clock)
    store.outage(True)
    listing = store.list("")
    with pytest.raises(StoreUnavailable):
        next(listing)


def test_an_outage_is_one_clients_and_passes(tmp_path: Path) -> None:
    store = MemoryStore(clock)
    other = store.client()
    store.put("k", b"x")
    store.outage(True)
    calls: list[Callable[[], object]] = [
        lambda: store.get("k"),
        lambda: store.get_from("k", 0),
        lambda: store.head("k"),
        lambda: store.put("k", b""),
        lambda: store.create("j", b""),
        lambda: list(store.list("")),
        lambda: store.folders(""),
        lambda: store.delete(["k"]),
        lambda: store.put_file(Path(__file__), lambda digest: digest),
        lambda: store.get_file("k", tmp_path / "out"),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable):
            call()
    assert [meta.key for meta in other.list("")] == ["k"]
    store.outage(False)
    assert store.get("k") == other.get("k")


def test_calls_are_counted_for_each_client() -> None:
    store = MemoryStore(clock)
    other = store.client()
    store.put("k", b"")
    store.get("k")
    store.get("none")
    other.get("k")
    assert store.counts == {"put": 1, "get": 2}
    assert other.counts == {"get": 1}
