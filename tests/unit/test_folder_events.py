"""Events of a folder: of folders that are renamed, come and go, and where the kernel has none."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_world import write

from stoker.agent.checkpoints import folder_events
from stoker.agent.checkpoints.folder_events import EventsLost, FolderEvent, FolderEvents


@pytest.fixture
def events(tmp_path: Path) -> Iterator[FolderEvents]:
    write(tmp_path / "old/deep/a", "1")
    events = FolderEvents(tmp_path)
    yield events
    events.close()


def paths(events: FolderEvents) -> set[str]:
    return {event.path for event in events.read()}


def test_all_folders_below_are_watched_from_the_start(events: FolderEvents, tmp_path: Path) -> None:
    assert not events.pending()
    write(tmp_path / "old/deep/a", "2")
    assert events.pending()
    assert events.wait(None)
    assert paths(events) == {"old/deep/a"}
    write(tmp_path / "top", "1")
    assert paths(events) == {"top"}


def test_files_of_a_folder_that_was_renamed_are_told_by_their_new_names(events: FolderEvents, tmp_path: Path) -> None:
    write(tmp_path / "older/b", "1")
    events.read()
    (tmp_path / "old").rename(tmp_path / "step-1")
    found = events.read()
    assert found[:2] == [FolderEvent("old", gone=True), FolderEvent("step-1", "old")]
    assert {event.path for event in found[2:]} == {"step-1/deep", "step-1/deep/a"}
    write(tmp_path / "step-1/deep/a", "2")
    assert paths(events) == {"step-1/deep/a"}
    write(tmp_path / "older/b", "2")
    assert paths(events) == {"older/b"}


def test_a_folder_that_comes_with_files_tells_of_them(events: FolderEvents, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    write(outside / "inner/b", "1")
    outside.rename(tmp_path / "new")
    assert events.read() == [FolderEvent("new"), FolderEvent("new/inner"), FolderEvent("new/inner/b")]
    write(tmp_path / "new/inner/b", "2")
    assert paths(events) == {"new/inner/b"}


def test_a_link_to_a_folder_is_not_followed(events: FolderEvents, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    write(outside / "b", "1")
    (tmp_path / "link").symlink_to(outside)
    assert events.read() == [FolderEvent("link")]
    write(outside / "b", "2")
    assert not events.pending()


def test_a_folder_that_is_gone_before_it_is_read_of_hurts_nothing(events: FolderEvents, tmp_path: Path) -> None:
    write(tmp_path / "brief/inner/b", "1")
    shutil.rmtree(tmp_path / "brief")
    write(tmp_path / "old/deep/a", "2")
    found = events.read()
    assert FolderEvent("brief") in found and FolderEvent("brief", gone=True) in found
    assert FolderEvent("old/deep/a") in found
    shutil.rmtree(tmp_path / "old")
    assert FolderEvent("old", gone=True) in events.read()
    write(tmp_path / "top", "1")
    assert paths(events) == {"top"}


def test_a_folder_inside_that_vanishes_while_it_is_added_hurts_nothing(
    events: FolderEvents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = events._add

    def vanish(path: str) -> int:
        if path == "new/brief":
            raise FileNotFoundError(path)
        return add(path)

    monkeypatch.setattr(events, "_add", vanish)
    outside = tmp_path.parent / f"{tmp_path.name}-coming"
    for name in ("brief", "other"):
        write(outside / name / "b", "1")
    outside.rename(tmp_path / "new")
    assert {"new/brief", "new/other", "new/other/b"} <= paths(events)


def test_a_wait_ends_when_its_time_has_passed(events: FolderEvents) -> None:
    assert events.wait(0.001) is False
    assert events.wait(-5.0) is False


def test_what_was_lost_is_said(events: FolderEvents, monkeypatch: pytest.MonkeyPatch) -> None:
    overflow = folder_events._HEADER.pack(-1, 0x4000, 0, 0)
    monkeypatch.setattr(folder_events.os, "read", lambda _handle, _size: overflow)
    with pytest.raises(EventsLost, match="events were lost"):
        events.read()


def test_a_folder_that_was_renamed_itself_is_not_heard_any_more(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    events = FolderEvents(folder)
    folder.rename(tmp_path / "renamed")
    with pytest.raises(EventsLost):
        events.read()
    events.close()


def test_too_many_folders_are_not_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_events, "MAX_FOLDERS", 3)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    events = FolderEvents(tmp_path)
    (tmp_path / "c").mkdir()
    with pytest.raises(EventsLost, match="more than 3 folders"):
        events.read()
    events.close()
    with pytest.raises(EventsLost):
        FolderEvents(tmp_path)


class _UsedUp:
    """A C library whose kernel has no watches left."""

    def inotify_init1(self, _flags: int) -> int:
        return os.eventfd(0)

    def inotify_add_watch(self, _handle: int, _path: bytes, _mask: int) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1


@pytest.mark.parametrize(("library", "problem"), [(_UsedUp(), errno.ENOSPC), (object(), None)])
def test_where_the_kernel_has_no_watches_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: object, problem: int | None
) -> None:
    monkeypatch.setattr(folder_events.ctypes, "CDLL", lambda *_arguments, **_options: library)
    with pytest.raises(OSError) as refused:
        FolderEvents(tmp_path)
    assert refused.value.errno == problem
    assert isinstance(refused.value, EventsLost) is (problem is None)


def test_an_interrupt_lasts(events: FolderEvents) -> None:
    events.interrupt()
    assert events.wait(None)
    events.read()
    assert events.wait(0.0)
    assert not events.pending(), "it is no event"
