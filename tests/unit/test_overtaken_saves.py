"""Saves that the script replaces or removes before the store has taken them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import World, assert_sound, blobs, checkpoints, content, needed, restored_content, write
from test_sync import Meddling

from stoker.agent.checkpoints import file_copies
from stoker.agent.checkpoints.file_copies import FileCopier
from stoker.store.base import Store

store, memory = checkpoint_world.store, checkpoint_world.memory

FILES = 4


class SlowerThanTheScript(World):
    """A world whose script calls `next_save` with a number while each save is sent, after every third file."""

    def __init__(self, root: Path, store: Store, next_save: Callable[[int], None], **options: object) -> None:
        super().__init__(root, Meddling(store, self._meddle), **options)  # type: ignore[arg-type]
        self.next_save = next_save
        self.saved = self.sent = 0
        # Files are sent by several threads; the script makes one save at a time.
        self._one_save = threading.Lock()

    def _meddle(self, _source: Path) -> None:
        with self._one_save:
            self.sent += 1
            if self.sent % 3 == 0:
                self.saved += 1
                self.next_save(self.saved)


def save_last(world: World, number: int) -> None:
    world.save("last", {f"f{n}": f"{number}-{n}" for n in range(FILES)}, step=number)


def is_of_one_save(found: dict[str, bytes]) -> bool:
    return len(found) == FILES and len({data.partition(b"-")[0] for data in found.values()}) == 1


# ── Saves that the script asks for ────────────────────────────────────────────────────────────────────────────────────


def check_progress(world: World, store: Store, tmp_path: Path) -> None:
    status = world.sync.status()
    assert status.commits >= 10 and status.waiting <= 2 and status.error is None
    assert len(list((world.channel / "commits").iterdir())) <= 2, "requests that are superseded are answered"
    for checkpoint in checkpoints(store):
        found = restored_content(store, tmp_path / "back", checkpoint.key)
        assert is_of_one_save(found) and f"{checkpoint.step}-".encode() in found["last/f0"]
    assert_sound(store)


@pytest.mark.parametrize("handles", [file_copies.MAX_SENT_HANDLES, 0])
def test_a_save_of_the_same_name_each_time_is_committed_while_the_store_is_slower_than_the_script(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, handles: int
) -> None:
    """Held by open handles or, where there are too many files, by hard links."""
    monkeypatch.setattr(file_copies, "MAX_SENT_HANDLES", handles)
    world = SlowerThanTheScript(tmp_path, store, lambda number: save_last(world, number))
    world.begin()
    save_last(world, 0)
    world.tick(rounds=20)
    check_progress(world, store, tmp_path)
    assert not any((world.scratch / "held").glob("*")), "what was held is freed"
    assert [path.name for path in world.folder.iterdir()] == ["last"]


def test_the_same_where_the_script_removes_its_save_before_it_makes_the_next(tmp_path: Path, store: Store) -> None:
    def replace(number: int) -> None:
        shutil.rmtree(world.folder / "last")
        save_last(world, number)

    world = SlowerThanTheScript(tmp_path, store, replace)
    world.begin()
    save_last(world, 0)
    world.tick(rounds=20)
    assert world.sync.status().commits >= 10
    for checkpoint in checkpoints(store):
        assert is_of_one_save(restored_content(store, tmp_path / "back", checkpoint.key))


def test_a_save_of_which_files_are_removed_meanwhile_is_no_checkpoint(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script is removing the save: one file is gone before the agent sees it, the others follow."""
    world = World(tmp_path, Meddling(store, lambda _source: shutil.rmtree(world.folder / "old", ignore_errors=True)))  # type: ignore[arg-type]
    world.begin()
    world.save("old", {"a": "1", "b": "1"})
    (world.folder / "old/a").unlink()
    world.tick(rounds=4)
    assert checkpoints(store) == [] and world.sync.status().waiting == 0


def test_a_file_that_the_script_adds_to_its_save_is_committed_with_it(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    world.save("step-1", {"model": "1"})
    write(world.folder / "step-1/eval.json", "{}")
    world.tick()
    assert restored_content(store, tmp_path / "back") == {"step-1/model": b"1", "step-1/eval.json": b"{}"}


def test_without_free_disk_nothing_is_held_and_the_job_is_told_once(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileCopier, "has_room", lambda _self, size: size == 0)
    said: list[str] = []
    world = SlowerThanTheScript(tmp_path, store, lambda number: save_last(world, number), say=said.append)
    world.begin()
    save_last(world, 0)
    world.tick(rounds=20)
    assert checkpoints(store) == [] and world.sync.status().waiting <= 2
    assert len(said) == 1 and "the save last was replaced or removed before the store had taken it" in said[0]
    world.next_save = lambda _number: None
    world.tick(rounds=5)
    assert is_of_one_save(restored_content(store, tmp_path / "back"))


def test_so_much_free_disk_is_asked_for_that_the_script_can_save_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copier = FileCopier(tmp_path, tmp_path / "held")
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    assert copier.has_room(50) and not copier.has_room(51)


# ── A script that knows nothing of Stoker ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["renamed", "written in place"])
def test_a_plain_save_of_the_same_name_is_committed_while_the_store_is_slower(
    tmp_path: Path, store: Store, how: str
) -> None:
    def save(number: int) -> None:
        for n in range(FILES):
            path = world.folder / f"last-{'abcd'[n]}.bin"
            data = f"{number}-{n}".encode()
            if how == "renamed":
                draft = path.with_name(f"{path.name}.tmp")
                draft.write_bytes(data)
                draft.replace(path)
            else:
                path.write_bytes(data)

    world = SlowerThanTheScript(tmp_path, store, save, spacing_s=0.0)
    world.begin()
    save(0)
    world.tick(rounds=200)
    assert world.sync.status().commits >= 10
    for checkpoint in checkpoints(store):
        assert is_of_one_save(restored_content(store, tmp_path / "back", checkpoint.key))
    world.next_save = lambda _number: None
    world.settle()
    assert restored_content(store, tmp_path / "back") == content(world.folder)
    assert blobs(store) == needed(store)


def test_after_a_notice_the_newest_plain_save_goes_before_one_that_was_replaced(tmp_path: Path, store: Store) -> None:
    def replace(_source: Path) -> None:
        with one_thread:
            if not noticed:
                noticed.append(True)
                world.sync.hurry(30.0)
                for n in range(64):
                    write(world.folder / f"draft-{n}.tmp", f"2-{n}" + "x" * 100)
                    (world.folder / f"draft-{n}.tmp").replace(world.folder / f"{n}.bin")

    noticed: list[bool] = []
    one_thread = threading.Lock()
    world = World(tmp_path, Meddling(store, replace))  # type: ignore[arg-type]
    world.begin()
    for n in range(64):
        write(world.folder / f"{n}.bin", f"1-{n}" + "x" * 100)
    world.settle()
    assert len(checkpoints(store)) == 1
    assert restored_content(store, tmp_path / "back")["0.bin"].startswith(b"2-0")
