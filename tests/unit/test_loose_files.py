"""Files that a script which uses `stoker.train` writes into the checkpoint folder itself."""

from __future__ import annotations

import time
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import World, checkpoints, write

from stoker.agent import job_folders
from stoker.agent.checkpoints.folder_snapshot import Selection
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.agent.output_files import Baseline
from stoker.model.node_config import NodePaths
from stoker.model.spec import Checkpoints, Spec
from stoker.store.base import Store

store, memory, world = checkpoint_world.store, checkpoint_world.memory, checkpoint_world.world


@pytest.fixture
def listening(tmp_path: Path, store: Store) -> tuple[World, list[str]]:
    heard: list[str] = []
    return World(tmp_path, store, say=heard.append, is_output=lambda path: path == "named.pt").begin(), heard


def test_files_outside_of_saves_are_found_and_saves_are_not(world: World) -> None:
    world.save("step-1", {"model": "1", "sub/optimizer": "1"}, step=1)
    world.tick()
    assert world.sync.loose() == {}
    world.write(best="the best model", mine__eval="1,2")
    (world.folder / "half.tmp").touch()
    world.save("step-2", {"model": "2"}, step=2)
    assert set(world.sync.loose()) == {"best.pt", "mine/eval.pt"}, "a save that waits is none of them"
    world.tick()
    assert set(world.sync.loose()) == {"best.pt", "mine/eval.pt"}


def test_one_that_was_being_written_at_the_end_is_perhaps_unfinished(world: World) -> None:
    world.save("step-1", {"model": "1"})
    world.write(best="1", cut="1")
    (world.folder / "eval.json").write_text('{"loss": [1, 2')
    world.tick()
    end = world.make(monotonic=time.monotonic)
    end.begin()
    world.open = {"cut.pt"}
    end.before_kill()
    end.final(10.0, TrainingEnd("died"))
    assert set(end.loose()) >= {"best.pt", "cut.pt", "eval.json"}
    assert set(end.torn()) == {"cut.pt", "eval.json"}


def test_a_script_that_never_asks_for_a_commit_has_none(world: World) -> None:
    world.write(best="the best model")
    world.settle()
    assert world.sync.loose() == {} and len(checkpoints(world.store)) == 1


def test_a_file_that_is_added_to_a_save_or_changed_in_it_after_the_commit_is_found(world: World) -> None:
    world.save("step-1", {"model": "1", "config": "1"})
    world.tick()
    write(world.folder / "step-1/eval.json", "{}")
    write(world.folder / "step-1/config", "another")
    assert set(world.sync.loose()) == {"step-1/eval.json", "step-1/config"}


def test_what_was_restored_is_in_a_checkpoint_and_what_the_script_adds_is_not(tmp_path: Path, store: Store) -> None:
    """The first attempt saved plainly beside its saves, and a commit of the folder has these files."""
    first = World(tmp_path, store).begin()
    first.write(base="weights", best="1")
    first.settle()
    second = World(tmp_path, store, claim=2).restore_newest().begin()
    second.save("step-1", {"model": "1"})
    second.tick()
    assert second.sync.loose() == {}
    second.write(best="2, and better")
    second.tick()
    assert set(second.sync.loose()) == {"best.pt"}
    third = World(tmp_path, store, claim=3).restore_newest().begin()
    third.save("step-2", {"model": "2"})
    assert third.sync.loose() == {}
    write(third.folder / "step-1/eval.json", "{}")
    assert set(third.sync.loose()) == {"step-1/eval.json"}
    third.save("step-1", {"model": "1 anew"})
    assert third.sync.loose() == {}, "a save that waits"


def test_files_of_plain_commits_before_the_first_request_are_found(world: World) -> None:
    """Such a checkpoint is removed when there are newer ones."""
    world.write(best="the best model")
    world.settle()
    world.save("step-1", {"model": "1"})
    world.tick()
    assert set(world.sync.loose()) == {"best.pt"}


def test_packed_code_in_the_folder_is_none_of_them(tmp_path: Path, store: Store) -> None:
    selection = Selection(was_there=lambda folder, file: file.path == "base.pt" and folder.name == "checkpoints")
    world = World(tmp_path, store, selection=selection).begin()
    world.save("step-1", {"model": "1"})
    world.write(base="packed", best="1")
    world.tick()
    assert set(world.sync.loose()) == {"best.pt"}


def test_an_agent_that_was_restarted_finds_them_too(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    world.save("step-1", {"model": "1"})
    world.write(best="the best model")
    world.tick()
    after = world.make(recovering=True, monotonic=time.monotonic)
    after.final(10.0)
    assert set(after.loose()) == {"best.pt"}


def test_the_job_is_told_once_while_it_trains(listening: tuple[World, list[str]]) -> None:
    world, heard = listening
    world.save("step-1", {"model": "1"})
    world.write(best="1", passing="1", named="1", a="1", b="1", c="1")
    world.tick()
    (world.folder / "passing.pt").unlink()
    assert heard == []
    world.tick(rounds=70)
    assert len(heard) == 1
    assert heard[0].startswith(
        "in no checkpoint: checkpoints/a.pt, checkpoints/b.pt, checkpoints/best.pt and 1 more. The script uses "
        "train.checkpoint, and only what it writes in such a block is restored"
    )
    world.write(another="1")
    world.tick(rounds=200)
    assert len(heard) == 1


def test_a_job_without_such_files_is_told_nothing(listening: tuple[World, list[str]]) -> None:
    world, heard = listening
    for step in range(5):
        world.save(f"step-{step}", {"model": "1"})
        world.write(named="1")
        world.tick(rounds=70)
    assert heard == []


def test_they_are_outputs_within_the_bound_and_the_rest_is_named(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path / "node", store, monotonic=time.monotonic).begin()
    paths = NodePaths(tmp_path / "root")
    folder = paths.code / "checkpoints"
    folder.mkdir(parents=True)
    world.folder.rmdir()
    world.folder.symlink_to(folder)
    world.save("step-1", {"model": "1"})
    world.write(best="the best model", large="x" * 1000, refused="1")
    world.sync.tick()
    world.sync.final(10.0, TrainingEnd("finished"))
    spec = Spec(name="job", run="true", outputs=("out", "!checkpoints/refused.pt"), checkpoints=Checkpoints())
    files = job_folders.output_files(paths, spec, Baseline())
    files._most_bytes = 500
    loose = world.sync.loose()
    files.keep_saves(folder, loose, world.sync.torn(), loose)
    kept, skipped = files.beside(files.declared())
    assert set(kept) == {"checkpoints/best.pt"} and files.loose == {folder / "best.pt", folder / "large.pt"}
    assert [one.path for one in skipped] == ["checkpoints/large.pt"]


@pytest.mark.parametrize(
    ("path", "known"), [("best.pt", True), ("old/best.pt", False), ("cache/x", True), ("other.pt", False)]
)
def test_files_that_outputs_names_or_excludes_need_no_warning(tmp_path: Path, path: str, known: bool) -> None:
    outputs = ("checkpoints/best.pt", "!checkpoints/cache")
    spec = Spec(name="job", run="true", outputs=outputs)
    assert job_folders.is_output(NodePaths(tmp_path), spec, path) is known
    elsewhere = Spec(name="job", run="true", outputs=outputs, checkpoints=Checkpoints(dir="/absolute"))
    assert not job_folders.is_output(NodePaths(tmp_path), elsewhere, path)
