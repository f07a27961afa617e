"""Copies of the last whole save, made by a real thread that hears real events; and those events."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checkpoint_world import World, checkpoints, memory_store, restored_content

from stoker.agent.checkpoints import file_copies
from stoker.agent.checkpoints.folder_events import EventsLost, FolderEvent, FolderEvents
from stoker.agent.checkpoints.folder_snapshot import FolderView, Signature, scan
from stoker.agent.checkpoints.save_copies import SaveCopies
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.processes import WritableFiles
from stoker.store.base import FileChanged, Store

DIED = TrainingEnd("died")
LIMIT_S = 60.0
NEVER_S = 10_000.0


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


@pytest.fixture
def store() -> Store:
    return memory_store()


@pytest.fixture
def world(tmp_path: Path, store: Store) -> Iterator[World]:
    """The folder never settles, and is never busy for long enough."""
    world = World(tmp_path, store, monotonic=time.monotonic, settle_s=NEVER_S, busy_s=NEVER_S)
    world.sync = world.make()
    world.sync.start()
    until(lambda: copies_of(world).calm_s(0.0) is not None)
    yield world
    world.sync.close()


def copies_of(world: World) -> SaveCopies:
    copies = world.sync._rounds.chooser.copies
    assert copies is not None
    return copies


def save(world: World, **files: bytes) -> None:
    """One save, and a pause that is long enough for whatever watches."""
    seen = copies_of(world).bursts
    for name, content in files.items():
        # The agent sees an open file as such: a pause between its truncation and its first byte is no end of a save.
        world.open = {f"{name}.bin"}
        (world.folder / f"{name}.bin").write_bytes(content)
        world.open = set()
    until(lambda: copies_of(world).bursts > seen)


def die(world: World) -> None:
    world.alive = False
    world.sync.final(LIMIT_S, DIED)


def newest(world: World, back: Path) -> dict[str, bytes]:
    return restored_content(world.store, back) if checkpoints(world.store) else {}


def content(step: int) -> bytes:
    return bytes([step]) * 1000


def test_a_program_that_is_killed_in_a_save_goes_on_from_the_one_before(world: World, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(world, model=content(step), optimizer=content(step))
    (world.folder / "model.bin").write_bytes(content(4)[:500])
    die(world)
    assert newest(world, tmp_path / "back") == {"model.bin": content(3), "optimizer.bin": content(3)}


def test_a_program_that_is_killed_between_saves_loses_one_at_most(world: World, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(world, weights=content(step))
    die(world)
    assert newest(world, tmp_path / "back") == {"weights.bin": content(2)}


def test_a_program_that_is_killed_in_its_second_save_has_none_that_is_known(world: World, tmp_path: Path) -> None:
    save(world, weights=content(1))
    (world.folder / "weights.bin").write_bytes(content(2)[:500])
    die(world)
    assert newest(world, tmp_path / "back") == {}


def test_a_hard_link_that_is_being_replaced(world: World, tmp_path: Path) -> None:
    """Killed after the old link was removed: the folder lacks what every save has."""
    for step in (1, 2, 3):
        seen = copies_of(world).bursts
        save_linked(world, step)
        until(lambda seen=seen: copies_of(world).bursts > seen)
    (world.folder / "step-4.bin").write_bytes(content(4))
    (world.folder / "last.bin").unlink()
    die(world)
    found = newest(world, tmp_path / "back")
    assert found["last.bin"] == content(3)
    assert set(found) == {"step-1.bin", "step-2.bin", "step-3.bin", "last.bin"}


def save_linked(world: World, step: int) -> None:
    (world.folder / f"step-{step}.bin").write_bytes(content(step))
    (world.folder / "last.bin").unlink(missing_ok=True)
    (world.folder / "last.bin").hardlink_to(world.folder / f"step-{step}.bin")


def test_a_file_that_only_some_saves_write_costs_no_save(world: World, tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(world, last=content(step), **({"best": content(step)} if step == 3 else {}))
    (world.folder / "last.bin").write_bytes(b"")
    die(world)
    assert newest(world, tmp_path / "back") == {"last.bin": content(4), "best.bin": content(3)}


def test_nothing_is_copied_while_a_file_is_open(world: World, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(world, weights=content(step))
    seen = copies_of(world).bursts
    world.open = {"weights.bin"}
    (world.folder / "weights.bin").write_bytes(content(4)[:500])
    time.sleep(0.3)
    assert copies_of(world).bursts == seen
    world.open = set()
    (world.folder / "weights.bin").write_bytes(content(4))
    until(lambda: copies_of(world).bursts > seen)
    (world.folder / "weights.bin").write_bytes(content(5)[:500])
    die(world)
    assert newest(world, tmp_path / "back") == {"weights.bin": content(4)}


def test_a_file_that_is_renamed_into_its_place_is_not_copied(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large it is."""
    monkeypatch.setattr(file_copies, "MAX_BYTES", 10)
    for step in (1, 2, 3):
        seen = copies_of(world).bursts
        part = world.folder / f"random-{os.urandom(4).hex()}"
        part.write_bytes(content(step))
        part.replace(world.folder / "weights.bin")
        until(lambda seen=seen: copies_of(world).bursts > seen)
    (world.folder / "weights.new").write_bytes(content(4))
    (world.folder / "weights.new").replace(world.folder / "weights.bin")
    (world.folder / "weights.new").write_bytes(content(5)[:10])
    die(world)
    assert newest(world, tmp_path / "back") == {"weights.bin": content(3)}


def test_a_save_that_is_too_large_to_copy_is_not_kept(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_copies, "MAX_BYTES", 1500)
    for step in (1, 2, 3):
        save(world, model=content(step), optimizer=content(step))
    (world.folder / "model.bin").write_bytes(content(4)[:500])
    die(world)
    assert newest(world, tmp_path / "back") == {}


def test_copies_take_no_more_than_two_saves(world: World) -> None:
    for step in range(1, 9):
        save(world, weights=content(step))
    saves = world.scratch / "saves"
    assert 1 <= len(list(saves.iterdir())) <= 3
    world.sync.close()
    assert not list(saves.iterdir())


def test_a_folder_that_never_settles_is_committed_from_copies(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store, monotonic=time.monotonic, settle_s=1.0, busy_s=NEVER_S, spacing_s=0.0)
    world.sync = world.make()
    world.sync.start()
    until(lambda: copies_of(world).calm_s(0.0) is not None)
    step = 0
    while not checkpoints(store):
        step = step % 200 + 1
        save(world, model=content(step), optimizer=content(step))
    world.sync.close()
    found = newest(world, tmp_path / "back")
    assert found["model.bin"] == found["optimizer.bin"]


def test_what_was_written_but_not_read_of_yet_is_no_calm(world: World) -> None:
    copies = copies_of(world)
    with copies._lock:
        events = copies._events
        assert events is not None
        # Nothing can be read meanwhile.
        (world.folder / "weights.bin").write_bytes(b"1")
        assert events.pending()
    until(lambda: not events.pending())
    until(lambda: (copies.calm_s(time.monotonic()) or 0.0) > 0.05)
    written_at = time.monotonic()
    (world.folder / "weights.bin").write_bytes(b"2")
    calm_s = copies.calm_s(written_at)
    assert calm_s is not None
    assert calm_s <= 0.0


def test_events_tell_of_writes_renames_and_new_folders(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    events = FolderEvents(tmp_path)
    (tmp_path / "old" / "a").write_bytes(b"1")
    assert {event.path for event in events.read()} == {"old/a"}
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "b").write_bytes(b"1")
    assert {"new", "new/b"} <= {event.path for event in events.read()}
    (tmp_path / "new").rename(tmp_path / "step-1")
    assert events.read() == [FolderEvent("new", gone=True), FolderEvent("step-1", "new"), FolderEvent("step-1/b")]
    (tmp_path / "step-1" / "b").write_bytes(b"2")
    assert {event.path for event in events.read()} == {"step-1/b"}
    (tmp_path / "step-1" / "b").unlink()
    assert events.read() == [FolderEvent("step-1/b", gone=True)]
    assert not events.wait(0)
    assert not events.pending()
    events.interrupt()
    assert events.wait(None)
    events.close()


def test_events_of_a_folder_that_is_gone_are_not_heard(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    events = FolderEvents(folder)
    shutil.rmtree(folder)
    with pytest.raises(EventsLost):
        events.read()
    events.close()
    with pytest.raises(FileNotFoundError):
        FolderEvents(folder)


class Copying:
    """Copies of a folder that are made when the test says so, without a thread."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "folder"
        self.folder.mkdir()
        self.committed: dict[str, Signature] = {}
        self.copies = SaveCopies(
            FolderView(self.folder, lambda _: WritableFiles({}, frozenset())),
            root / "copies",
            logs=tuple,
            committed=lambda: self.committed,
            max_quiet_s=1.0,
        )

    def write(self, *names: str, size: int = 100, renamed: bool = False) -> None:
        for name in names:
            (self.folder / name).write_bytes(os.urandom(size))
            if renamed:
                self.copies._observed.renamed.add(name)

    def keep(self) -> dict[str, str]:
        """What is kept of each file that changed: a copy, or an open handle."""
        files = scan(self.folder)
        kept = self.copies._copy_changed(files)
        state = self.copies._observed
        state.files, state.copies, state.renamed = files, kept, set()
        for path, one in kept.items():
            assert one.path.read_bytes() == (self.folder / path).read_bytes()
            assert one.is_intact() is True
        return {path: "copied" if one.held is None else "held" for path, one in sorted(kept.items())}


@pytest.fixture
def copying(tmp_path: Path) -> Copying:
    return Copying(tmp_path)


def test_files_that_were_renamed_into_their_place_are_held_up_to_a_number(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_copies, "_MAX_HANDLES", 2)
    copying.write("a", "b", "c", renamed=True)
    copying.write("d")
    assert sorted(copying.keep().values()) == ["copied", "copied", "held", "held"]


def test_what_is_as_it_was_is_not_copied_again_and_what_is_committed_not_at_all(copying: Copying) -> None:
    copying.write("a", "b", "c")
    (copying.folder / "link").symlink_to("a")
    copying.committed["c"] = scan(copying.folder)["c"].signature
    assert copying.keep() == {"a": "copied", "b": "copied"}
    before = dict(copying.copies._observed.copies)
    copying.write("b")
    assert copying.keep() == {"a": "copied", "b": "copied"}
    assert copying.copies._observed.copies["a"] is before["a"]
    assert copying.copies._observed.copies["b"] is not before["b"]


def test_what_was_there_before_it_was_watched_is_taken_from_the_folder(copying: Copying) -> None:
    copying.write("old")
    copying.copies._observed.files = scan(copying.folder)
    copying.write("new")
    assert copying.keep() == {"new": "copied"}


@pytest.mark.parametrize(("free", "kept"), [(2000, True), (1999, False)])
def test_copies_take_a_tenth_of_the_free_disk_and_no_more(
    copying: Copying, monkeypatch: pytest.MonkeyPatch, free: int, kept: bool
) -> None:
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(file_copies.shutil, "disk_usage", lambda _folder: usage)
    copying.write("a", "b", size=100)
    if kept:
        assert copying.keep() == {"a": "copied", "b": "copied"}
    else:
        with pytest.raises(file_copies.SaveTooLarge):
            copying.keep()


def test_copies_of_the_burst_before_count_and_give_way_to_what_is_new(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_copies, "MAX_BYTES", 250)
    copying.write("old")
    copying.keep()
    copying.write("new")
    assert copying.keep() == {"new": "copied", "old": "copied"}
    copying.write("newer")
    assert copying.keep() == {"new": "copied", "newer": "copied"}, "the oldest is too much"
    copying.write("large", size=251)
    with pytest.raises(file_copies.SaveTooLarge):
        copying.keep()
    copying.write("large", size=251, renamed=True)
    assert copying.keep()["large"] == "held"


def test_a_copy_goes_when_nothing_refers_to_it(copying: Copying, tmp_path: Path) -> None:
    copying.write("a")
    copying.write("held", renamed=True)
    copying.keep()
    assert len(list((tmp_path / "copies").iterdir())) == 1
    handle = copying.copies._observed.copies["held"].path
    assert handle.exists()
    (copying.folder / "held").unlink()
    (copying.folder / "a").unlink()
    copying.keep()
    assert list((tmp_path / "copies").iterdir()) == []
    assert not handle.exists() or handle.readlink() != copying.folder / "held (deleted)"


def test_a_file_that_changes_while_it_is_kept_is_not(copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
    copying.write("a")
    stale = scan(copying.folder)["a"]
    copying.write("a", size=101)
    for keep in (copying.copies._copier.copy, copying.copies._copier.hold):
        with pytest.raises(FileChanged):
            keep(stale)
    now = scan(copying.folder)["a"]
    monkeypatch.setattr(file_copies, "signature_of", lambda _path, _file: None)
    with pytest.raises(FileChanged):
        copying.copies._copier.hold(now)


def test_a_process_that_wrote_and_ended_makes_a_save_doubtful_but_a_worker_that_came_and_went_does_not(
    copying: Copying,
) -> None:
    doubtful = []
    for number, members in enumerate(({1, 2}, {1, 3}, {1}, {1}, set())):
        copying.write("model", size=100 + number)
        files = scan(copying.folder)
        copying.copies._close(files, copying.copies._copy_changed(files), frozenset(members))
        last = copying.copies._observed.bursts.last
        assert last is not None
        doubtful.append(last.suspect)
    assert doubtful == [False, False, False, False, True]


def test_a_folder_that_is_watched_anew_has_no_save_that_might_turn_out_to_be_whole(copying: Copying) -> None:
    copying.write("model")
    files = scan(copying.folder)
    copying.copies._close(files, copying.copies._copy_changed(files), frozenset())
    assert copying.copies._observed.candidate is not None
    copying.copies._observed = copying.copies._new_observation()
    assert copying.copies._observed.candidate is None
    assert copying.keep() == {"model": "copied"}


def test_what_lies_there_when_the_watch_begins_is_not_copied(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store, monotonic=time.monotonic, settle_s=NEVER_S, busy_s=NEVER_S)
    (world.folder / "old.bin").write_bytes(b"old")
    world.sync = world.make()
    world.sync.start()
    until(lambda: copies_of(world).calm_s(0.0) is not None)
    for step in range(1, 4):
        save(world, model=content(step))
    kept = copies_of(world).newest()
    assert kept is not None
    assert (set(kept.files), set(kept.copies)) == ({"old.bin", "model.bin"}, {"model.bin"})
    world.sync.close()


def test_only_a_write_ends_the_calm(copying: Copying) -> None:
    events = FolderEvents(copying.folder)
    assert copying.copies._read(events) == []
    assert copying.copies._wrote_at is None
    copying.write("model")
    assert {event.path for event in copying.copies._read(events)} == {"model"}
    assert copying.copies._wrote_at is not None
    events.close()
