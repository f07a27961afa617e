"""The age of a checkpoint counts from when its save was begun, by the node's own clock, and not from its commit."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from checkpoint_world import World, memory_store, write

from stoker.agent.checkpoints.file_numbers import newest_generation
from stoker.agent.checkpoints.folder_snapshot import File, Signature
from stoker.agent.checkpoints.save_copies import SaveCopies
from stoker.agent.checkpoints.write_history import WriteHistory
from stoker.testing.memory_store import MemoryStore


@pytest.fixture
def memory() -> MemoryStore:
    return memory_store()


def age_of_newest(world: World) -> float:
    age_s = world.sync.status().last_age_s
    assert age_s is not None
    return age_s


def until_commit(world: World, number: int) -> float:
    """Run rounds until so many commits are made; return the time that this took."""
    began_s = world.clock.s
    while world.sync.status().commits < number:
        world.tick()
        assert world.clock.s - began_s < 200.0
    return world.clock.s - began_s


def test_the_time_until_a_folder_has_settled_is_not_saved(tmp_path: Path, memory: MemoryStore) -> None:
    world = World(tmp_path, memory).begin()
    world.tick()
    world.write(model="1")
    took_s = until_commit(world, 1)
    assert took_s >= 2.0 and took_s <= age_of_newest(world) <= took_s + 0.5


def test_the_writing_of_a_save_is_not_saved(tmp_path: Path, memory: MemoryStore) -> None:
    """A file that takes ten seconds to be written, and then a small one, hold the state from when they were begun."""
    world = World(tmp_path, memory).begin()
    world.write(model="1")
    until_commit(world, 1)
    world.tick(rounds=20)
    began_s = world.clock.s
    world.open = {"model.pt"}
    for size in range(1, 11):
        world.write(model="2" * size)
        world.tick(rounds=2)
    world.open = set()
    world.write(optimizer="1")
    until_commit(world, 2)
    elapsed_s = world.clock.s - began_s
    assert elapsed_s >= 12.0 and elapsed_s <= age_of_newest(world) <= elapsed_s + 0.5


def test_of_several_numbered_saves_in_one_commit_the_newest_counts(tmp_path: Path, memory: MemoryStore) -> None:
    world = World(tmp_path, memory, settle_s=5.0).begin()
    world.tick()
    for epoch in (1, 2, 3):
        began_s = world.clock.s
        world.write(**{f"epoch-{epoch}": "1"})
        world.tick(rounds=4)
    until_commit(world, 1)
    elapsed_s = world.clock.s - began_s
    assert elapsed_s <= age_of_newest(world) <= elapsed_s + 0.5
    assert newest_generation(["a/epoch-1.pt", "a/epoch-2.pt", "rank0.pt", "rank1.pt", "x"]) == {
        "a/epoch-2.pt",
        "rank0.pt",
        "rank1.pt",
        "x",
    }


def test_a_save_that_was_asked_for_counts_from_its_first_file(tmp_path: Path, memory: MemoryStore) -> None:
    world = World(tmp_path, memory, monotonic=time.monotonic).begin()
    world.save("step-1", {"a": "1", "b": "2"})
    old_s = time.time() - 30.0
    os.utime(world.folder / "step-1/a", (old_s, old_s))
    world.sync.tick()
    assert 30.0 <= age_of_newest(world) < 60.0
    world.save("step-2", {"a": "1"})
    ancient_s = time.time() - 3000.0
    os.utime(world.folder / "step-2/a", (ancient_s, ancient_s))
    world.sync.tick()
    assert world.sync.status().commits == 2
    assert 30.0 <= age_of_newest(world) < 60.0, "a copied file is no older than the checkpoint before"
    world.save("step-3", {"a": "3"})
    ahead_s = time.time() + 3000.0
    os.utime(world.folder / "step-3/a", (ahead_s, ahead_s))
    world.sync.tick()
    assert 0.0 <= age_of_newest(world) < 20.0


# ── The parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def look(history: WriteHistory, at: float, **sizes: int) -> None:
    files = {path: File(path, Signature(1, 7, size, size, size), 0o644) for path, size in sizes.items()}
    history.note_files(files, at)


def test_a_save_began_after_the_scan_before_its_first_write() -> None:
    history = WriteHistory(settle_s=2.0, patience_s=5.0)
    look(history, 100.0, old=1)
    look(history, 110.0, old=1, a=1)
    look(history, 111.0, old=1, a=2)
    look(history, 112.0, old=1, a=2, b=1)
    assert history.save_span({"a", "b"}) == (100.0, 112.0)
    assert history.save_span({"b"}) == (111.0, 112.0)
    look(history, 120.0, old=1, a=2, b=1, c=1)
    assert history.save_span({"a", "b", "c"}) == (100.0, 120.0), "the scan before c was the one that found b"
    look(history, 125.0, old=1, a=2, b=1, c=1)
    look(history, 130.0, old=1, a=2, b=1, c=1, d=1)
    assert history.save_span({"a", "b", "c", "d"}) == (125.0, 130.0), "a save of its own"
    assert history.save_span({"a", "b", "c", "d"}, pause_s=6.0) == (100.0, 130.0), "one save with a pause"
    assert history.save_span({"old"}) == (100.0, 100.0)
    assert history.save_span({"unknown"}) is None and history.save_span(set()) is None


def test_after_a_commit_only_later_writes_count() -> None:
    history = WriteHistory(settle_s=2.0, patience_s=5.0)
    look(history, 100.0, a=1, b=1)
    look(history, 101.0, a=2, b=1)
    history.note_commit({"a", "b"})
    look(history, 120.0, a=2, b=2)
    assert history.save_span({"a", "b"}) == (101.0, 120.0), "a is as it was committed"
    look(history, 121.0, a=3, b=3)
    look(history, 125.0, a=4, b=3)
    assert history.save_span({"a"}) == (121.0, 125.0), "begun anew after a calm moment"
    assert history.save_span({"a", "b"}) == (101.0, 125.0), "b was written just before a was begun"
    look(history, 130.0, a=4, b=5)
    assert history.save_span({"a", "b"}) == (121.0, 130.0)


def test_a_save_began_with_the_burst_that_wrote_it_under_a_temporary_name(tmp_path: Path) -> None:
    copies = SaveCopies.__new__(SaveCopies)
    world = World(tmp_path, memory_store(), monotonic=time.monotonic)
    SaveCopies.__init__(
        copies, world.sync._options.view, tmp_path / "scratch", logs=tuple, committed=dict, max_quiet_s=1.0
    )
    assert copies.burst_begin(5.0, 6.0) == 5.0
    copies._spans.extend([(1.0, 2.0), (3.0, 5.5), (5.8, 9.0), (20.0, 21.0)])
    assert copies.burst_begin(5.0, 6.0) == 3.0
    assert copies.burst_begin(10.0, 11.0) == 10.0
    copies._observed.begun_at = 30.0
    assert copies.burst_begin(31.0, 32.0) == 30.0
    assert copies.burst_begin(22.0, 23.0) == 22.0


def test_a_file_that_is_renamed_into_its_place_was_begun_under_its_temporary_name(tmp_path: Path) -> None:
    world = World(tmp_path, memory_store(), monotonic=time.monotonic, settle_s=0.5)
    world.sync.start()
    try:
        time.sleep(0.5)
        began_s = time.monotonic()
        draft = world.folder / "model.pt.tmp"
        with draft.open("wb") as writer:
            for _ in range(40):
                writer.write(b"x" * 1000)
                writer.flush()
                time.sleep(0.03)
        draft.replace(world.folder / "model.pt")
        while not world.sync.status().commits:
            assert time.monotonic() - began_s < 30.0
            time.sleep(0.05)
        assert age_of_newest(world) >= time.monotonic() - began_s - 0.5
    finally:
        world.sync.close()


def test_a_save_from_copies_counts_from_its_burst(tmp_path: Path) -> None:
    world = World(tmp_path, memory_store(), monotonic=time.monotonic, settle_s=2.0, spacing_s=0.2)
    world.sync.start()
    try:
        copies = world.sync._rounds.chooser.copies
        assert copies is not None
        began_s, number = time.monotonic(), 0
        while (whole := copies.newest()) is None or not world.sync.status().commits:
            assert time.monotonic() - began_s < 60.0
            number += 1
            write(world.folder / "a.bin", f"{number:08d}")
            write(world.folder / "b.bin", f"{number:08d}")
            time.sleep(0.3)
        assert began_s <= whole.begun_at < whole.taken_at
        assert 0.0 < age_of_newest(world) <= time.monotonic() - began_s
    finally:
        world.sync.close()
