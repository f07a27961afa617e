"""What a container that runs as another user is given: once, what is new later, and nothing else."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.agent.container.container_user import OwnershipTransfer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives anything away")

USER = 12345


def owners(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_uid for path in folder.rglob("*")}


def test_everything_but_what_is_named_and_never_through_a_link(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine / "a" / "b", mine / "mounted" / "c", other):
        folder.mkdir(parents=True)
    (mine / "a" / "file").touch()
    (other / "file").touch()
    (mine / "link").symlink_to(other)
    (mine / "a" / "dangling").symlink_to("nothing")
    OwnershipTransfer(USER, USER).give(mine, {f"{mine}/mounted"})
    assert owners(mine) == {
        "a": USER,
        "a/b": USER,
        "a/file": USER,
        "a/dangling": USER,
        "link": USER,
        "mounted": 0,
        "mounted/c": 0,
    }
    assert mine.stat().st_uid == USER and (mine.stat().st_gid, other.stat().st_uid) == (USER, 0)
    assert owners(other) == {"file": 0}
    OwnershipTransfer(USER, USER).give(tmp_path / "nothing")


def test_what_is_new_is_given_and_the_rest_is_not_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old" / "deep").mkdir(parents=True)
    (tmp_path / "old" / "deep" / "file").touch()
    _age(tmp_path)
    giving = OwnershipTransfer(USER, USER)
    giving.give(tmp_path)
    looked: list[int] = []
    scandir = os.scandir

    def look(folder: Any) -> Any:
        if isinstance(folder, int):
            looked.append(folder)
        return scandir(folder)

    monkeypatch.setattr("stoker.agent.container.container_user.os.scandir", look)
    giving.give(tmp_path)
    assert not looked
    (tmp_path / "old" / "deep" / "new").touch()
    giving.give(tmp_path)
    assert len(looked) == 1 and set(owners(tmp_path).values()) == {USER}
    # What came in since is too young to be relied on.
    (tmp_path / "old" / "deep" / "newer").touch()
    giving.give(tmp_path)
    assert len(looked) == 2 and set(owners(tmp_path).values()) == {USER}


def test_a_folder_that_changed_just_now_is_looked_at_again_though_its_time_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two changes within one tick of the file system's clock leave the same time."""
    folder = tmp_path / "young"
    folder.mkdir()
    now_ns = folder.stat().st_mtime_ns + 1000
    monkeypatch.setattr("stoker.agent.container.container_user.time.time_ns", lambda: now_ns)
    giving = OwnershipTransfer(USER, USER)
    giving.give(tmp_path)
    seen = folder.stat()
    (folder / "file").touch()
    os.utime(folder, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    giving.give(tmp_path)
    assert owners(tmp_path) == {"young": USER, "young/file": USER}


def _age(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (time.time() - 60, time.time() - 60))


def test_what_others_replace_meanwhile_does_no_harm(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"f{number}").touch()
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            draft = tmp_path / ".notice.tmp"
            draft.write_text("x")
            draft.replace(tmp_path / "notice")
            (tmp_path / "folder").mkdir()
            (tmp_path / "folder").rmdir()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(300):
            OwnershipTransfer(USER, USER).give(tmp_path)
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize(("number", "passed"), [(errno.ENOENT, True), (errno.ELOOP, True), (errno.EMFILE, False)])
def test_a_folder_that_is_one_no_more_is_passed_over_and_one_that_cannot_be_opened_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, passed: bool
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "file").touch()
    opened = os.open

    def failing(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "sub":
            raise OSError(number, os.strerror(number))
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", failing)
    if passed:
        OwnershipTransfer(USER, USER).give(tmp_path)
        assert (tmp_path / "file").stat().st_uid == USER
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            OwnershipTransfer(USER, USER).give(tmp_path)
