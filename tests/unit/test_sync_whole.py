"""A unit of the checkpoint folder is committed whole, or stays as it was: rules that need no real process."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import JOB, Gang, World, age, checkpoints, restored_content, write

from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.store.base import Store
from stoker.store.checkpoints import list_checkpoints
from stoker.testing.memory_store import MemoryStore

LIMIT_S = 60.0
DIED = TrainingEnd("died")

# Fixtures that all tests of checkpoints share.
store, memory, world = checkpoint_world.store, checkpoint_world.memory, checkpoint_world.world


def write_json(world: World, path: str, step: int, *, at_s: float | None = None) -> None:
    write(world.folder / path, json.dumps({"step": step}))
    if at_s is not None:
        os.utime(world.folder / path, (at_s, at_s))


def steps(store: Store, back: Path) -> dict[str, int]:
    return {path: json.loads(data)["step"] for path, data in restored_content(store, back).items()}


def test_a_file_that_fails_its_check_holds_its_unit_back(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_json(world, "model.json", 1)
    write_json(world, "step-1/state.json", 1)
    world.settle()
    write(world.folder / "model.json", '{"step": 2')
    write_json(world, "step-2/state.json", 2)
    with caplog.at_level(logging.WARNING):
        world.settle()
        world.settle()
    assert steps(world.store, tmp_path / "back") == {"model.json": 1, "step-1/state.json": 1, "step-2/state.json": 2}
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == "model.json is not part of the checkpoint: its JSON is cut off"
    assert world.sync.status().held_back == told
    write_json(world, "model.json", 3)
    world.settle()
    assert steps(world.store, tmp_path / "again")["model.json"] == 3
    assert world.sync.status().held_back is None


def test_a_file_that_was_opened_and_no_more_is_waited_for_but_not_for_ever(world: World, tmp_path: Path) -> None:
    """Its writer was killed, and what had started it takes a while to end."""
    write(world.folder / "model.bin", b"1" * 100)
    world.settle()
    write(world.folder / "model.bin", b"")
    world.tick(rounds=20)
    assert restored_content(world.store, tmp_path / "back") == {"model.bin": b"1" * 100}
    world.alive = False
    world.sync.final(LIMIT_S, DIED)
    assert restored_content(world.store, tmp_path / "again") == {"model.bin": b"1" * 100}


def test_a_file_that_stays_empty_is_committed_in_the_end(world: World, tmp_path: Path) -> None:
    write(world.folder / "model.bin", b"1" * 100)
    world.settle()
    write(world.folder / "model.bin", b"")
    world.settle()
    assert restored_content(world.store, tmp_path / "back") == {"model.bin": b""}


def test_a_broken_file_alone_makes_no_checkpoint(world: World) -> None:
    write(world.folder / "model.json", '{"step": 1')
    world.settle()
    world.sync.final(LIMIT_S)
    assert checkpoints(world.store) == []


def test_two_saves_since_the_last_commit_are_not_mixed(world: World, tmp_path: Path) -> None:
    """Every file differs from the last commit, and yet they are of two saves."""
    now_s = time.time()
    for n, (model, optimizer) in enumerate([(1, 1), (2, 2), (3, 2)]):
        write_json(world, "model.json", model, at_s=now_s + 2 * n)
        write_json(world, "optimizer.json", optimizer, at_s=now_s + (2 * n + 1 if n < 2 else 3))
        if n == 0:
            world.settle()
        world.tick()
    world.alive = False
    world.sync.final(LIMIT_S, DIED)
    assert steps(world.store, tmp_path / "back") == {"model.json": 1, "optimizer.json": 1}


def test_a_program_that_fails_between_two_files_and_takes_long_to_end(world: World, tmp_path: Path) -> None:
    """The folder has settled by then; what is missing will never come."""
    for step, names in ((1, ("a", "b", "c")), (2, ("a", "b"))):
        for name in names:
            write_json(world, f"step-{step}/{name}.json", step)
        world.tick(rounds=20)
    world.alive = False
    world.sync.final(LIMIT_S, DIED)
    assert set(steps(world.store, tmp_path / "back").values()) == {1}


def test_a_save_with_fewer_files_than_before_is_waited_for_but_not_for_ever(world: World, tmp_path: Path) -> None:
    write_json(world, "model.json", 1)
    write_json(world, "config.json", 1)
    world.settle()
    write_json(world, "model.json", 2)
    world.tick(rounds=40)
    assert len(checkpoints(world.store)) == 1
    world.tick(rounds=40)
    assert steps(world.store, tmp_path / "back") == {"model.json": 2, "config.json": 1}
    # Now it is known that a save writes one file.
    write_json(world, "model.json", 3)
    world.tick(rounds=10)
    assert len(checkpoints(world.store)) == 3


def test_what_a_save_consists_of_is_known_after_a_restart(tmp_path: Path, store: Store) -> None:
    first = World(tmp_path, store).begin()
    for step in (1, 2, 3):
        write_json(first, f"step-{step}.json", step)
        first.settle()
    second = World(tmp_path, store, claim=2).restore_newest().begin()
    write_json(second, "step-4.json", 4)
    second.tick(rounds=10)
    assert len(checkpoints(store)[-1].manifests[0].files) == 4


def test_which_file_a_save_writes_last_is_known_after_a_restart(tmp_path: Path, store: Store) -> None:
    now_s = time.time()
    names = ("z.json", "y.json", "x.json", "w.json")
    first = World(tmp_path, store).begin()
    for n, name in enumerate(names):
        write_json(first, f"step-1/{name}", 1, at_s=now_s - 100 + n)
    first.settle()
    second = World(tmp_path, store, claim=2).restore_newest().begin()
    second.tick()
    for n, name in enumerate(names):
        write_json(second, f"step-2/{name}", 2, at_s=now_s + n)
    second.sync.final(LIMIT_S, DIED)
    assert len(restored_content(store, tmp_path / "back")) == 8


def test_links_do_not_lead_to_what_is_held_back(world: World, tmp_path: Path) -> None:
    write_json(world, "step-1/state.json", 1)
    (world.folder / "latest").symlink_to("step-1")
    world.settle()
    write(world.folder / "step-2/state.json", '{"step"')
    age(world.folder / "step-2", 1.0)
    world.tick()
    (world.folder / "latest").unlink()
    (world.folder / "latest").symlink_to("step-2")
    world.sync.final(LIMIT_S, DIED)
    back = tmp_path / "back"
    restored_content(world.store, back)
    assert (back / "latest").readlink() == Path("step-1")


def test_a_removed_save_stays_while_another_is_held_back(world: World, tmp_path: Path) -> None:
    """What is held back may name it."""
    write_json(world, "step-1/state.json", 1)
    write(world.folder / "latest.json", '{"step": 1}')
    world.settle()
    (world.folder / "step-1/state.json").unlink()
    (world.folder / "step-1").rmdir()
    write_json(world, "step-2/state.json", 2)
    write(world.folder / "latest.json", '{"st')
    world.settle()
    back = restored_content(world.store, tmp_path / "back")
    assert back["latest.json"] == b'{"step": 1}' and "step-1/state.json" in back


# ── Several ranks ─────────────────────────────────────────────────────────────────────────────────────────────────────


def ranks_that_saved(tmp_path: Path, store: Store) -> list[World]:
    ranks: list[World] = []
    told = Gang()
    for rank in range(2):
        world = World(tmp_path, store, rank=rank, nodes=2, gang=told.link(rank), lead_finished=lambda: True)
        ranks.append(world.begin())
        write_json(world, f"shard-{rank}.json", 1)
    for _ in range(80):
        for world in ranks:
            world.tick()
    assert len(checkpoints(store)) == 1
    for world in ranks:
        write_json(world, f"shard-{world.rank}.json", 2)
        write_json(world, f"side-{world.rank}/state.json", 2)
    return ranks


@pytest.mark.parametrize("torn", [0, 1])
def test_a_rank_with_a_torn_shard_joins_no_save(tmp_path: Path, store: Store, torn: int) -> None:
    """Its older shard beside the newer one of another rank would be one checkpoint of two saves."""
    ranks = ranks_that_saved(tmp_path, store)
    write(ranks[torn].folder / f"shard-{torn}.json", '{"step"')
    for world in ranks:
        world.sync.final(LIMIT_S)
    complete = [one for one in list_checkpoints(store, JOB) if one.complete]
    assert len(complete) == 1
    assert restored_content(store, tmp_path / "back", complete[0].key)["shard-0.json"] == b'{"step": 1}'


# ── A restarted agent ─────────────────────────────────────────────────────────────────────────────────────────────────


def recovered(world: World) -> World:
    world.options |= {"monotonic": time.monotonic, "recovering": True, "settle_s": 2.0}
    world.restored = None
    world.sync = world.make()
    return world


@pytest.mark.parametrize("whole", [True, False])
def test_a_restarted_agent_rescues_what_is_shown_to_be_whole(tmp_path: Path, memory: MemoryStore, whole: bool) -> None:
    world = World(tmp_path, memory).begin()
    for name in ("model", "optimizer"):
        write_json(world, f"step-1/{name}.json", 1)
    world.settle()
    age(world.folder, 60)
    write_json(world, "step-2/model.json", 2)
    if whole:
        write_json(world, "step-2/optimizer.json", 2)
    recovered(world).sync.final(LIMIT_S)
    units = {path.partition("/")[0] for path in restored_content(memory, tmp_path / "back")}
    assert units == ({"step-1", "step-2"} if whole else {"step-1"})


@pytest.mark.parametrize("rested_s", [0.0, 10.0])
def test_a_restarted_agent_does_not_mix_two_saves(tmp_path: Path, memory: MemoryStore, rested_s: float) -> None:
    world = World(tmp_path, memory).begin()
    for name in ("model", "optimizer"):
        write_json(world, f"{name}.json", 1)
    world.settle()
    age(world.folder, 60)
    write_json(world, "model.json", 2, at_s=time.time() - rested_s)
    recovered(world).sync.final(LIMIT_S)
    assert steps(memory, tmp_path / "back") == {"model.json": 1, "optimizer.json": 1}


def save_as_lightning(world: World, step: int, last: str) -> None:
    write_json(world, f"step={step}.json", step)
    write_json(world, f"{last}.json", step)
    for old in world.folder.glob("step=*.json"):
        if int(old.stem.partition("=")[2]) < step - 20:
            old.unlink()


def test_a_program_that_saves_under_another_name_after_a_resume_is_committed(
    memory: MemoryStore, tmp_path: Path
) -> None:
    """Lightning keeps the `last.ckpt` that it resumed from, and writes `last-v1.ckpt` from then on."""
    first = World(tmp_path, memory).begin()
    for step in (20, 40, 60):
        save_as_lightning(first, step, "last")
        first.tick(rounds=12)
    second = World(tmp_path, memory, claim=2).restore_newest().begin()
    for step in (80, 100, 120, 140, 160):
        save_as_lightning(second, step, "last-v1")
        second.tick(rounds=12)
        # Saves come more often than the 30 s that missing files are waited for.
        if step > 80:
            assert steps(memory, tmp_path / f"back-{step}")["last-v1.json"] == step


def test_a_folder_that_lacks_a_file_of_earlier_saves_counts_once_the_next_one_has_begun(
    memory: MemoryStore, tmp_path: Path
) -> None:
    world = World(tmp_path, memory).begin()
    write_json(world, "checkpoint-1/model.json", 1)
    write_json(world, "checkpoint-1/scaler.json", 1)
    world.settle()
    for step in (2, 3, 4, 5, 6):
        write_json(world, f"checkpoint-{step}/model.json", step)
        world.tick(rounds=20)
        if step > 2:
            (world.folder / f"checkpoint-{step - 2}/model.json").unlink()
    assert "checkpoint-5/model.json" in steps(memory, tmp_path / "back")


def test_shards_of_one_save_are_not_taken_for_the_next_save(memory: MemoryStore, tmp_path: Path) -> None:
    world = World(tmp_path, memory).begin()
    now_s = time.time() - 60
    for shard in range(4):
        write_json(world, f"shard-{shard}.json", 1, at_s=now_s + shard / 100)
    write_json(world, "index.json", 1, at_s=now_s + 1)
    world.settle()
    now_s += 10
    for shard in range(4):
        write_json(world, f"shard-{shard}.json", 2, at_s=now_s + shard / 100)
        world.tick(rounds=20)
        assert set(steps(memory, tmp_path / f"back-{shard}").values()) == {1}
    write_json(world, "index.json", 2, at_s=now_s + 1)
    world.tick(rounds=12)
    assert set(steps(memory, tmp_path / "back").values()) == {2}
