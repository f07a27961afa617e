"""Checkpoints while the store is away, or its replies are lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import (
    JOB,
    World,
    assert_sound,
    blobs,
    checkpoints,
    manifest_keys,
    memory_store,
    needed,
    restored_content,
)

from stoker.model import keys
from stoker.store.base import Store
from stoker.testing.memory_store import Fault, MemoryStore

# Fixtures that all tests of checkpoints share.
store, memory, world = checkpoint_world.store, checkpoint_world.memory, checkpoint_world.world


def test_an_outage_is_waited_out(tmp_path: Path, memory: MemoryStore) -> None:
    world = World(tmp_path, memory.client()).begin()
    assert isinstance(world.store, MemoryStore)
    world.store.outage(True)
    world.write(model="1")
    world.settle()
    status = world.sync.status()
    assert status.error is not None and "StoreUnavailable" in status.error
    assert status.unsynced_bytes == 1
    world.write(model="2")
    world.store.outage(False)
    world.settle()
    assert restored_content(memory, tmp_path / "back") == {"model.pt": b"2"}
    assert world.sync.status().error is None
    assert world.sync.status().unsynced_bytes == 0


def test_a_store_that_is_down_is_not_hammered(tmp_path: Path, memory: MemoryStore) -> None:
    world = World(tmp_path, memory.client()).begin()
    assert isinstance(world.store, MemoryStore)
    world.store.outage(True)
    world.save("step-1", {"model": "1"})
    world.tick(rounds=7200, every_s=0.5)
    # Two files at a time, every 30 seconds, and a little more often at the beginning.
    assert sum(world.store.counts.values()) < 2 * 3600 / 30 + 20


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("mode", ["folder", "save"])
def test_whichever_call_fails_no_manifest_lacks_a_blob_and_none_is_doubled(
    tmp_path: Path, after: bool, mode: str
) -> None:
    """Fail each call in turn, before or after its effect."""
    for failing in range(60):
        memory = memory_store()
        calls = iter(range(10**9))

        def faults(method: str, key: str, calls: Iterator[int] = calls, failing: int = failing) -> Fault | None:
            return Fault(after=after) if next(calls) == failing else None

        client = memory.client(faults)
        world = World(tmp_path / f"{failing}", client, keep=1).begin()
        for number in range(3):
            if mode == "folder":
                world.write(**{"model": f"{number}", f"extra_{number}": "x"})
            else:
                world.save(f"step-{number}", {"model": f"{number}", "same": "x"})
            world.tick(rounds=10, every_s=4.0)
            assert_sound(memory)
        newest = restored_content(memory, tmp_path / f"back-{failing}")
        assert newest["model.pt" if mode == "folder" else "step-2/model"] == b"2"
        # Another round removes what a failed pruning left.
        client.faults = None
        world.sync._rounds.pruning.pruner._rounds = 0
        world.sync._rounds.pruning.pruner.prune()
        assert len(manifest_keys(memory)) == 1
        assert blobs(memory) == needed(memory)
        if next(calls) <= failing:
            return
    raise AssertionError("there are more calls than were failed")


def test_a_commit_whose_reply_was_lost_is_one_commit(tmp_path: Path, memory: MemoryStore) -> None:
    lost = iter([Fault(after=True)])
    client = memory.client(lambda method, _key: next(lost, None) if method == "create" else None)
    world = World(tmp_path, client).begin()
    world.write(model="1")
    world.settle()
    assert manifest_keys(memory) == ["00000001/000001-model"]
    assert world.sync.status().commits == 1


def test_an_ordinal_that_is_taken_is_passed_by(world: World) -> None:
    world.store.create(keys.manifest(JOB, "00000001/000001-step-0"), b"somebody's")
    for number in range(2):
        world.save(f"step-{number}", {"model": "1"})
        world.tick(rounds=2)
    assert manifest_keys(world.store) == ["00000001/000002-step-0", "00000001/000003-step-1"]


def test_ordinals_go_on_where_the_store_is(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    world.write(a="1")
    world.settle()
    world.begin()
    world.write(b="1")
    world.settle()
    assert [one.place.ordinal for one in checkpoints(store)] == [1, 2]


def test_an_error_that_no_one_expected_does_not_end_the_last_commit(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, memory, monotonic=time.monotonic, settle_s=1000.0).begin()
    world.write(model="1")
    needs_no_leader, failed = world.sync._rounds.needs_no_leader, list[bool]()

    def failing() -> bool:
        if not failed:
            failed.append(True)
            raise RuntimeError("a bug")
        return needs_no_leader()

    monkeypatch.setattr(world.sync._rounds, "needs_no_leader", failing)
    world.sync.final(60.0)
    assert failed and restored_content(memory, tmp_path / "back") == {"model.pt": b"1"}
    assert world.sync.status().error is None


def test_a_notice_during_the_last_commit_hurries_it(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried, went_on = list[float](), threading.Event()

    def faults(method: str, _key: str) -> Fault | None:
        if method == "put_file":
            went_on.wait(60)
        return None

    world = World(tmp_path, memory.client(faults), monotonic=time.monotonic, settle_s=1000.0).begin()
    world.write(model="1")
    began_s, asked = time.monotonic(), list[bool]()

    def until_s() -> float:
        asked.append(True)
        if len(asked) > 30:
            went_on.set()  # Too late.
        return began_s + (1000.0 if len(asked) <= 2 else 100.0)

    def hurry(seconds: float) -> None:
        hurried.append(seconds)
        went_on.set()

    monkeypatch.setattr(world.sync, "hurry", hurry)
    assert world.sync.final(None, until_s=until_s) is not None
    (seconds,) = hurried
    assert 40.0 < seconds <= 100.0
