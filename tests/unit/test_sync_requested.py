"""Checkpoints that a script asks to be committed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_world
import pytest
from checkpoint_world import (
    World,
    blobs,
    checkpoints,
    restored_content,
    write,
)
from test_sync import Meddling

from stoker.agent.checkpoints import commit_queue, requested_commits
from stoker.agent.checkpoints.commit_queue import CommitRequest
from stoker.agent.checkpoints.requested_commits import pick
from stoker.store.base import Store, StoredFile
from stoker.testing.memory_store import MemoryStore

# Fixtures that all tests of checkpoints share.
store, memory, world = checkpoint_world.store, checkpoint_world.memory, checkpoint_world.world


def answers(world: World) -> dict[int, dict[str, object]]:
    found = [json.loads(path.read_text()) for path in (world.channel / "commits.done").glob("*.json")]
    return {answer["sequence"]: answer for answer in found}


def test_a_save_is_committed_at_once_and_answered(world: World, tmp_path: Path) -> None:
    world.save("step-1", {"model": "1", "left.tmp": "also"}, step=1)
    world.write(loose="not part of it")
    world.tick()
    (checkpoint,) = checkpoints(world.store)
    assert (checkpoint.name, checkpoint.step) == ("step-1", 1)
    assert answers(world)[1]["key"] == checkpoint.key
    assert restored_content(world.store, tmp_path / "back") == {
        "step-1/model": b"1",
        "step-1/left.tmp": b"also",
    }
    world.settle()
    assert len(checkpoints(world.store)) == 1


def test_it_tells_that_it_sends_while_it_does(
    memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may wait for that, and do nothing itself."""
    world, seen, put_file = World(tmp_path, memory).begin(), [], memory.put_file

    def slowly(source: Path, key: Callable[[str], str]) -> StoredFile:
        seen.append(world.sync.is_sending)
        return put_file(source, key)

    monkeypatch.setattr(memory, "put_file", slowly)
    world.save("step-1", {"model": "1"}, step=1)
    assert not world.sync.is_sending
    world.tick()
    assert seen and all(seen) and not world.sync.is_sending


def test_a_commit_that_cannot_be_answered_is_made_once(
    memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the same save would be committed again and again, and older checkpoints pruned for it."""
    world = World(tmp_path, memory, keep=2).begin()
    world.save("step-1", {"model": "1"}, step=1)
    world.tick()

    def on_a_full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(commit_queue, "replace_plain", on_a_full_disk)
        world.save("step-2", {"model": "2"}, step=2)
        world.settle()
        assert [one.name for one in checkpoints(memory)] == ["step-1", "step-2"]
        assert "No space left" in (world.sync.status().error or "")
        world.save("step-3", {"model": "3"}, step=3)
        world.settle()
        assert [one.name for one in checkpoints(memory)] == ["step-1", "step-2", "step-3"]
    world.settle()
    assert world.sync.status().error is None
    assert [one.name for one in checkpoints(memory)] == ["step-2", "step-3"]
    assert answers(world)[3]["key"] == checkpoints(memory)[-1].key and 2 in answers(world)


def test_the_end_waits_for_no_answer_that_cannot_be_written(
    memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, memory, monotonic=time.monotonic).begin()
    world.save("step-1", {"model": "1"}, step=1)

    def on_a_full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(commit_queue, "replace_plain", on_a_full_disk)
    began_s = time.monotonic()
    saved = world.sync.final(60.0)
    assert saved is not None and saved.name == "step-1"
    assert time.monotonic() - began_s < 30.0
    assert world.sync.status().unsynced_bytes == 0 and len(checkpoints(memory)) == 1


def test_saves_are_committed_in_order(world: World) -> None:
    for number in range(3):
        world.save(f"step-{number}", {"model": f"{number}"})
        world.tick()
    assert [one.name for one in checkpoints(world.store)] == ["step-0", "step-1", "step-2"]


def test_if_the_store_is_slow_the_newest_goes_first_and_older_ones_are_passed_over(world: World) -> None:
    for number in range(5):
        world.save(f"step-{number}", {"model": f"{number}"})
    world.tick()
    assert [one.name for one in checkpoints(world.store)] == ["step-4"]
    status = world.sync.status()
    assert (status.waiting, status.skipped) == (0, 4)
    assert set(answers(world)) == {1, 2, 3, 4, 5}
    assert [number for number, answer in answers(world).items() if answer["key"]] == [5]


def test_a_save_replaced_by_one_of_the_same_name_never_lends_it_its_bytes(world: World, tmp_path: Path) -> None:
    world.save("last", {"model": "1"}, step=1, sharded=True)
    world.save("last", {"model": "2"}, step=2, sharded=True)
    world.tick(rounds=4)
    (checkpoint,) = checkpoints(world.store)
    assert (checkpoint.step, checkpoint.manifests[0].generation) == (2, 2)
    assert restored_content(world.store, tmp_path / "back") == {"last/model": b"2"}


def test_a_save_replaced_while_it_is_sent_is_committed_whole_and_then_the_next_one(
    tmp_path: Path, store: Store
) -> None:
    replaced = False

    def meddle(source: Path) -> None:
        nonlocal replaced
        if not replaced:
            replaced = True
            world.save("last", {"a": "2", "b": "2"}, step=2)

    world = World(tmp_path, Meddling(store, meddle))  # type: ignore[arg-type]
    world.begin()
    world.save("last", {"a": "1", "b": "1"}, step=1)
    world.tick(rounds=4)
    first, second = checkpoints(store)
    assert (first.step, second.step) == (1, 2)
    assert restored_content(store, tmp_path / "first", first.key) == {"last/a": b"1", "last/b": b"1"}
    assert restored_content(store, tmp_path / "second", second.key) == {"last/a": b"2", "last/b": b"2"}


def test_a_save_that_was_removed_is_answered(world: World) -> None:
    world.save("gone", {"model": "1"})
    for path in sorted((world.folder / "gone").rglob("*"), reverse=True):
        path.unlink()
    (world.folder / "gone").rmdir()
    world.tick()
    assert answers(world)[1]["key"] is None
    assert checkpoints(world.store) == []


@pytest.mark.parametrize("junk", ["", "[]", '{"sequence": 7, "name": "../x", "number": 1}', '{"sequence": "a"}'])
def test_what_is_no_request_is_removed(world: World, junk: str) -> None:
    write(world.channel / "commits" / "00000007.json", junk)
    world.save("real", {"model": "1"})
    world.tick(rounds=2)
    assert [one.name for one in checkpoints(world.store)] == ["real"]
    assert not (world.channel / "commits" / "00000007.json").exists()


def test_old_saves_are_removed_from_the_folder_but_nothing_else_is(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store, keep=2).begin()
    write(world.folder / "mine" / "notes", "keep this")
    for number in range(4):
        world.save(f"step-{number}", {"model": f"{number}"})
        world.tick()
    names = {path.name for path in world.folder.iterdir()}
    assert names == {"mine", "step-2", "step-3"}


def test_sharded_saves_are_passed_over_alike_on_ranks_of_different_speed(tmp_path: Path, memory: MemoryStore) -> None:
    ranks = [World(tmp_path, memory, rank=rank, nodes=3, keep=100).begin() for rank in range(3)]
    # Rank r commits once in 3 + r saves.
    for number in range(1, 34):
        for rank in ranks:
            rank.save(f"step-{number}", {f"shard-{rank.rank}": f"{number}"}, sharded=True)
            if number % (3 + rank.rank) == 0:
                rank.tick()
    assert len(checkpoints(memory)) >= 3


def test_the_roundest_goes_first_and_the_last_at_the_end() -> None:
    waiting = [CommitRequest(n, f"s{n}", n, generation=n) for n in range(5, 12)]
    assert pick(waiting, final=False).sequence == 8
    assert pick(waiting, final=True).sequence == 11
    assert pick(waiting[:1], final=False).sequence == 5
    plain = [CommitRequest(n, f"s{n}", n) for n in range(5, 12)]
    assert pick(plain, final=False).sequence == 11


def test_only_rank_0_commits_what_is_not_sharded(tmp_path: Path, store: Store) -> None:
    ranks = [World(tmp_path, store, rank=rank, nodes=2).begin() for rank in range(2)]
    for rank in ranks:
        rank.save("step-1", {"model": "1"})
        rank.tick(rounds=3)
    (checkpoint,) = checkpoints(store)
    assert set(checkpoint.manifests) == {0}
    assert answers(ranks[1])[1]["key"] is None
    assert blobs(store, rank=1) == set()


# ── Saves that change at the wrong moment ─────────────────────────────────────────────────────────────────────────────


def hold_lock(world: World) -> int:
    """As a script that is stopped in the middle of a save."""
    handle = os.open(world.channel / ".stoker-lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def test_a_save_whose_folder_has_no_name_yet_waits(
    memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_queue, "_LOCK_S", 0.0)
    world = World(tmp_path, memory).begin()
    world.save("last", {"model": "1"})
    (world.folder / "last").rename(world.folder / ".coming")
    handle = hold_lock(world)
    world.tick(rounds=3)
    assert answers(world) == {} and world.sync.status().waiting == 1
    (world.folder / ".coming").rename(world.folder / "last")
    os.close(handle)
    world.tick()
    assert [one.name for one in checkpoints(memory)] == ["last"]


def test_a_save_whose_folder_never_got_its_name_is_passed_over_at_the_end(
    memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_queue, "_LOCK_S", 0.0)
    world = World(tmp_path, memory, monotonic=time.monotonic).begin()
    world.save("last", {"model": "1"})
    (world.folder / "last").rename(world.folder / ".coming")
    handle = hold_lock(world)
    began_s = time.monotonic()
    assert world.sync.final(60.0) is None
    os.close(handle)
    assert time.monotonic() - began_s < 30.0
    (answer,) = answers(world).values()
    assert (answer["key"], answer["note"]) == (None, "replaced or removed before it was committed")
    assert checkpoints(memory) == [] and world.sync.status().skipped == 1


def test_a_save_that_is_replaced_while_it_is_read_lends_its_number_to_no_other(
    memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, scan, replaced = World(tmp_path, memory).begin(), requested_commits.scan, list[bool]()

    def replacing(*words: Any, **options: Any) -> Any:
        if not replaced:
            replaced.append(True)
            world.save("last", {"model": "2"}, step=2)
        return scan(*words, **options)

    world.save("last", {"model": "1"}, step=1)
    monkeypatch.setattr(requested_commits, "scan", replacing)
    world.tick(rounds=4)
    (checkpoint,) = checkpoints(memory)
    assert replaced and checkpoint.step == 2
    assert restored_content(memory, tmp_path / "back") == {"last/model": b"2"}


def test_a_save_whose_folder_cannot_be_listed_is_not_committed_without_its_files(
    memory: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, memory).begin()
    world.save("last", {"model": "1"})
    with monkeypatch.context() as closed:
        closed.setattr(requested_commits, "scan", lambda *_words, **_options: {})
        world.tick()
    why = "last: the agent cannot read this folder; make it readable (chmod)"
    assert world.sync.status().held_back == f"the save last is not committed: {why}"
    assert checkpoints(memory) == []
    world.clock.advance(10.0)
    world.tick()
    assert len(checkpoints(memory)) == 1 and world.sync.status().held_back is None


def test_a_save_that_is_written_while_it_is_sent_is_sent_again(memory: MemoryStore, tmp_path: Path) -> None:
    """Into its files: a handle or a link that holds them shows the new bytes as well."""
    changed: list[bool] = []

    def meddle(_source: Path) -> None:
        if not changed:
            changed.append(True)
            for name in ("a", "b"):
                (world.folder / "last" / name).write_text("2")

    world = World(tmp_path, Meddling(memory, meddle)).begin()  # type: ignore[arg-type]
    world.save("last", {"a": "1", "b": "1"})
    world.tick(rounds=3)
    (checkpoint,) = checkpoints(memory)
    assert restored_content(memory, tmp_path / "back", checkpoint.key) == {"last/a": b"2", "last/b": b"2"}
