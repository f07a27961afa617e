"""Files of the checkpoint folder that the agent cannot read: they hold back their own unit, and nothing else."""

from __future__ import annotations

import errno
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import World, checkpoints, ordinary_permissions, restored_content, write

from stoker.agent.checkpoints import commit_queue, file_copies
from stoker.agent.checkpoints.folder_snapshot import scan
from stoker.agent.checkpoints.unreadable_files import FileUnreadable, naming_unreadable
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.store.base import Store, StoredFile, StoreError

store = checkpoint_world.store


@pytest.fixture(autouse=True)
def permissions_count() -> Iterator[None]:
    with ordinary_permissions():
        yield


@pytest.fixture
def heard() -> list[str]:
    return []


@pytest.fixture
def world(tmp_path: Path, store: Store, heard: list[str]) -> World:
    return World(tmp_path, store, say=heard.append).begin()


WHY = "the agent cannot read it (Permission denied); make it readable (chmod), or write it to another folder"


# ── A script that knows nothing of Stoker ─────────────────────────────────────────────────────────────────────────────


def test_only_the_unit_of_the_file_is_held_back_until_it_can_be_read(
    world: World, heard: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world.write(step_1__model="1")
    world.settle()
    world.write(step_2__model="2", step_2__secret="2")
    (world.folder / "step_2/secret.pt").chmod(0)
    world.settle()
    assert len(checkpoints(world.store)) == 1
    status = world.sync.status()
    assert status.error is None
    assert status.held_back == f"step_2/secret.pt is not part of the checkpoint: {WHY}"
    assert heard == [status.held_back], "once"
    assert not any("cannot be brought to the store" in message for message in caplog.messages)
    world.write(step_3__model="3")
    world.settle()
    assert restored_content(world.store, tmp_path / "back") == {"step_1/model.pt": b"1", "step_3/model.pt": b"3"}
    (world.folder / "step_2/secret.pt").chmod(0o600)
    world.settle()
    assert restored_content(world.store, tmp_path / "back")["step_2/secret.pt"] == b"2"
    assert world.sync.status().held_back is None and len(heard) == 1


def test_at_the_end_the_same(world: World, tmp_path: Path) -> None:
    world.write(a__model="1", b__secret="1")
    (world.folder / "b/secret.pt").chmod(0)
    end = world.make(monotonic=time.monotonic)
    end.begin()
    began_s = time.monotonic()
    end.final(30.0, TrainingEnd("finished"))
    assert time.monotonic() - began_s < 10.0
    assert restored_content(world.store, tmp_path / "back") == {"a/model.pt": b"1"}
    assert end.status().held_back == f"b/secret.pt is not part of the checkpoint: {WHY}"
    assert set(end.uncommitted()) == {"b/secret.pt"}, "it is named among what was not kept"


def test_a_log_that_cannot_be_read_holds_back_its_unit_too(world: World, tmp_path: Path) -> None:
    world.write(a__model="1")
    write(world.folder / "train.log", "1\n")
    (world.folder / "train.log").chmod(0)
    world.settle()
    assert restored_content(world.store, tmp_path / "back") == {"a/model.pt": b"1"}
    assert (world.sync.status().held_back or "").startswith("train.log is not part of the checkpoint: ")


@pytest.mark.parametrize("mode", [0, 0o400, 0o200, 0o100])
def test_a_folder_that_cannot_be_read_makes_no_smaller_save(world: World, tmp_path: Path, mode: int) -> None:
    """Its files cannot be seen: without this the save would be committed without them."""
    world.write(step_1__model="1", step_1__optimizer__state="1", other__model="1")
    (world.folder / "step_1/optimizer").chmod(mode)
    world.settle()
    assert restored_content(world.store, tmp_path / "back") == {"other/model.pt": b"1"}
    held_back = world.sync.status().held_back or ""
    assert held_back.startswith("step_1/optimizer") and "cannot read" in held_back
    (world.folder / "step_1/optimizer").chmod(0o700)
    world.settle()
    assert len(restored_content(world.store, tmp_path / "back")) == 3


class FailingDisk:
    """A store whose uploads fail while they read a file of this name."""

    def __init__(self, store: Store, name: str, tries: int = 1000) -> None:
        self._store = store
        self.name: str | None = name
        self.tries, self._most = 0, tries

    def put_file(self, source: Path, key: Callable[[str], str]) -> StoredFile:
        named = source.readlink() if source.is_relative_to("/proc/self/fd") else source
        if named.name == self.name and self.tries < self._most:
            self.tries += 1
            raise OSError(errno.EIO, "Input/output error", str(source))
        return self._store.put_file(source, key)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_a_file_on_a_failing_disk_is_named_left_out_and_tried_again(
    tmp_path: Path, store: Store, heard: list[str]
) -> None:
    disk = FailingDisk(store, "bad.pt")
    world = World(tmp_path, disk, say=heard.append).begin()  # type: ignore[arg-type]
    world.write(a__model="1", b__bad="1")
    world.settle()
    assert restored_content(store, tmp_path / "back") == {"a/model.pt": b"1"}
    told = "b/bad.pt is not part of the checkpoint: the agent cannot read it (Input/output error); "
    assert heard == [f"{told}write it anew, or remove it"]
    assert world.sync.status().error is None and disk.tries == 1
    disk.name = None
    world.tick(rounds=200)
    assert set(restored_content(store, tmp_path / "back")) == {"a/model.pt", "b/bad.pt"}


@pytest.mark.parametrize("plain", [True, False])
def test_the_end_waits_a_moment_for_a_disk_that_comes_back(tmp_path: Path, store: Store, plain: bool) -> None:
    disk = FailingDisk(store, "bad.pt", tries=3)
    world = World(tmp_path, disk, monotonic=lambda: 20 * time.monotonic())  # type: ignore[arg-type]
    world.begin()
    if plain:
        world.write(a__model="1", b__bad="1")
    else:
        world.save("a", {"model.pt": "1"})
        world.save("b", {"bad.pt": "1"})
    world.sync.final(1000.0, TrainingEnd("finished"))
    assert "b/bad.pt" in restored_content(store, tmp_path / "back")
    assert disk.tries == 3 and world.sync.status().held_back is None


# ── Saves that the script asks for ────────────────────────────────────────────────────────────────────────────────────


def test_a_save_with_such_a_file_waits_and_others_are_committed(world: World, heard: list[str], tmp_path: Path) -> None:
    world.save("step-1", {"model": "1"})
    world.save("step-2", {"model": "2", "secret": "2"})
    (world.folder / "step-2/secret").chmod(0)
    world.tick(rounds=30)
    assert [one.name for one in checkpoints(world.store)] == ["step-1"]
    told = f"the save step-2 is not committed: step-2/secret: {WHY}"
    assert (world.sync.status().held_back, world.sync.status().error, heard) == (told, None, [told])
    (world.folder / "step-2/secret").chmod(0o600)
    world.tick(rounds=30)
    assert [one.name for one in checkpoints(world.store)] == ["step-1", "step-2"]
    assert world.sync.status().held_back is None and world.sync.status().waiting == 0


def test_a_newer_save_takes_its_place(world: World) -> None:
    world.save("step-1", {"secret": "1"})
    (world.folder / "step-1/secret").chmod(0)
    world.tick(rounds=3)
    world.save("step-2", {"model": "2"})
    world.tick(rounds=3)
    status = world.sync.status()
    assert [one.name for one in checkpoints(world.store)] == ["step-2"]
    assert (status.waiting, status.held_back) == (0, None)


@pytest.mark.parametrize("handles", [file_copies.MAX_SENT_HANDLES, 0])
@pytest.mark.parametrize(
    ("locked", "mode"),
    [
        *((folder, mode) for folder in ("last", "last/sub") for mode in (0, 0o100, 0o400)),
        *((file, 0) for file in ("last/.stoker-checkpoint.json", "last/model")),
    ],
)
def test_a_save_of_which_something_cannot_be_read_is_not_one_that_was_removed(
    world: World, heard: list[str], locked: str, mode: int, handles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose processes write for themselves alone, beside an agent that is another user."""
    world.save("last", {"model": "1", "sub/optimizer": "1"})
    monkeypatch.setattr(file_copies, "MAX_SENT_HANDLES", handles)
    (world.folder / locked).chmod(mode)
    world.tick(rounds=30)
    assert checkpoints(world.store) == [] and world.sync.status().waiting == 1
    assert len(heard) == 1 and heard[0].startswith("the save last is not committed: last")
    (world.folder / locked).chmod(0o700)
    world.tick(rounds=30)
    assert [one.name for one in checkpoints(world.store)] == ["last"]


def test_what_was_said_about_a_save_that_is_gone_is_taken_back(world: World) -> None:
    world.save("step-1", {"secret": "1"})
    (world.folder / "step-1/secret").chmod(0)
    world.tick(rounds=3)
    assert world.sync.status().held_back is not None
    shutil.rmtree(world.folder / "step-1")
    world.tick(rounds=3)
    status = world.sync.status()
    assert (status.waiting, status.held_back, status.unsynced_bytes) == (0, None, 0)


def test_a_commit_that_could_not_be_answered_is_answered_beside_such_a_save(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_a_full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(commit_queue, "replace_plain", on_a_full_disk)
        world.save("step-1", {"model": "1"})
        world.tick(rounds=3)
        world.save("step-2", {"secret": "2"})
        (world.folder / "step-2/secret").chmod(0)
        world.tick(rounds=30)
    world.tick(rounds=80)
    assert len(checkpoints(world.store)) == 1
    assert [path.name for path in (world.channel / "commits").iterdir()] == ["00000002.json"]


def test_the_end_does_not_wait_for_such_a_save_and_it_is_kept_as_outputs(world: World) -> None:
    world.save("step-1", {"model": "1", "secret": "1"})
    (world.folder / "step-1/secret").chmod(0)
    end = world.make(monotonic=time.monotonic)
    end.begin()
    began_s = time.monotonic()
    end.final(30.0, TrainingEnd("finished"))
    assert time.monotonic() - began_s < 10.0
    assert checkpoints(world.store) == [] and end.status().unsynced_bytes > 0
    assert {"step-1/model", "step-1/secret"} <= set(end.uncommitted())
    assert end.loose() == {}


# ── Which errors count ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("number", "counts"), [(errno.EACCES, True), (errno.EIO, True), (errno.EMFILE, False)])
def test_errors_of_the_agent_itself_say_nothing_about_the_file(number: int, counts: bool) -> None:
    with pytest.raises(FileUnreadable if counts else OSError), naming_unreadable("a/b"):
        raise OSError(number, "no")


@pytest.mark.parametrize(
    ("error", "told"), [(StoreError("gone"), "brought to the store"), (OSError(24, "no"), "committed")]
)
def test_the_store_is_blamed_for_its_own_failures_alone(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture, error: Exception, told: str
) -> None:
    class Failing(FailingDisk):
        def put_file(self, source: Path, key: Callable[[str], str]) -> StoredFile:
            raise error

    world = World(tmp_path, Failing(store, "")).begin()  # type: ignore[arg-type]
    world.save("step-1", {"model": "1"})
    with caplog.at_level(logging.WARNING):
        world.tick()
    assert [message for message in caplog.messages if message.startswith(f"checkpoints cannot be {told} now: ")]


def test_scans_for_other_purposes_leave_such_folders_out(tmp_path: Path) -> None:
    write(tmp_path / "top/sub/a", "1")
    (tmp_path / "top/sub").chmod(0)
    assert scan(tmp_path / "top") == {}
    assert set(scan(tmp_path / "top", closed_folders=True)) == {"sub/"}
