"""What a folder of plain files needs of the disk: short reads, errors told apart, locks of the living."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.store import disk
from stoker.store.base import open_store


@pytest.mark.parametrize("chunk", [1, 3, 4, 100])
def test_a_file_is_read_whole_however_short_the_reads_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    read = os.read
    monkeypatch.setattr(disk.os, "read", lambda file, size: read(file, min(size, chunk)))
    file = os.open(tmp_path / "f", os.O_RDONLY)
    try:
        assert disk.read_all(file, 10) == b"0123456789"
    finally:
        os.close(file)


@pytest.mark.parametrize(("size", "found"), [(4, b"0123"), (10, b"0123456789"), (12, b"0123456789"), (0, b"")])
def test_no_more_than_was_asked_for_is_read_and_less_where_there_is_less(
    tmp_path: Path, size: int, found: bytes
) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    file = os.open(tmp_path / "f", os.O_RDONLY)
    try:
        assert disk.read_all(file, size) == found
    finally:
        os.close(file)


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (errno.EACCES, StoreDenied, "file:///s cannot be used: Permission denied (/s/k)"),
        (errno.EROFS, StoreDenied, "file:///s cannot be used: Read-only file system (/s/k)"),
        (errno.ENAMETOOLONG, StoreError, "file:///s: File name too long (/s/k)"),
        (errno.ENOSPC, StoreUnavailable, "file:///s failed: No space left on device"),
        (errno.EIO, StoreUnavailable, "file:///s failed: Input/output error"),
    ],
)
def test_errors_of_the_disk_are_told_apart(number: int, kind: type[StoreError], text: str) -> None:
    found = disk.translated(OSError(number, os.strerror(number), "/s/k"), "file:///s")
    assert type(found) is kind and str(found) == text


def test_an_error_without_a_name_is_told_all_the_same() -> None:
    assert "(the folder)" in str(disk.translated(OSError(errno.EPERM, "not permitted"), "file:///s"))
    assert str(disk.translated(OSError("odd"), "file:///s")) == "file:///s failed: odd"


def test_a_name_is_taken_by_a_file_and_in_the_way_of_anything_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert disk.is_taken(str(tmp_path / "file"))
    assert not disk.is_taken(str(tmp_path / "none")) and not disk.is_taken(str(tmp_path / "file" / "below"))
    for other in ("folder", "link"):
        with pytest.raises(IsADirectoryError, match="in the way"):
            disk.is_taken(str(tmp_path / other))


def test_empty_folders_hold_nothing(tmp_path: Path) -> None:
    assert not disk.holds_any(str(tmp_path / "never"))
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "link").symlink_to(tmp_path)
    assert not disk.holds_any(str(tmp_path / "a")), "links are no files, and are not followed"
    (tmp_path / "a" / "b" / "f").touch()
    assert disk.holds_any(str(tmp_path / "a")) and disk.holds_any(str(tmp_path / "a" / "b"))


@pytest.mark.parametrize(("number", "raises"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_folder_that_cannot_be_flushed_is_let_pass_and_one_that_failed_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, raises: bool
) -> None:
    flushed: list[int] = []

    def fail(file: int) -> None:
        flushed.append(file)
        raise OSError(number, "fsync")

    monkeypatch.setattr(disk.os, "fsync", fail)
    if raises:
        with pytest.raises(OSError):
            disk.flush_folder(str(tmp_path))
    else:
        disk.flush_folder(str(tmp_path))
    with pytest.raises(OSError):
        os.fstat(flushed[0])


def test_what_a_living_writer_holds_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.touch()
    writer = os.open(path, os.O_RDWR)
    fcntl.flock(writer, fcntl.LOCK_EX)
    disk.remove_unlocked(str(path))
    assert path.exists()
    other = os.open(path, os.O_RDWR)
    assert not disk.lock(other)
    os.close(other)
    os.close(writer)
    disk.remove_unlocked(str(path))
    assert not path.exists()


def test_a_link_to_a_folder_in_a_store_leads_nowhere(tmp_path: Path) -> None:
    store = open_store((tmp_path / "store").as_uri())
    store.put("a/k", b"x")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("s")
    (tmp_path / "store" / "a" / "link").symlink_to(tmp_path / "outside")
    assert [meta.key for meta in store.list("")] == ["a/k"]
    assert store.folders("a/") == []
