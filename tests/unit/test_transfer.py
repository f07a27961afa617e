"""Copying bytes and hashing them: everything arrives once, in order, however short single calls are."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.store import hashed_copy
from stoker.store.hashed_copy import BUFFER_SIZE, clone, copy_hashed, copy_in_kernel, read_into, rewind, write_from

SIZES = [0, 1, BUFFER_SIZE - 1, BUFFER_SIZE, BUFFER_SIZE + 1, 9 * BUFFER_SIZE + 7]


def described(data: bytes) -> tuple[str, int]:
    return hashlib.sha256(data).hexdigest(), len(data)


@contextmanager
def two_files(folder: Path, data: bytes) -> Iterator[tuple[int, int]]:
    """One with these bytes, and an empty one."""
    (folder / "source").write_bytes(data)
    source = os.open(folder / "source", os.O_RDONLY)
    target = os.open(folder / "target", os.O_RDWR | os.O_CREAT)
    try:
        yield source, target
    finally:
        os.close(source)
        os.close(target)


def hashers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sha256"]


@pytest.mark.parametrize("size", SIZES)
def test_everything_read_is_written_in_order_and_hashed(size: int) -> None:
    data = os.urandom(size)
    position = 0
    written = bytearray()

    def read(buffer: memoryview) -> int:
        nonlocal position
        part = data[position : position + len(buffer)]
        buffer[: len(part)] = part
        position += len(part)
        return len(part)

    assert copy_hashed(read, written.extend) == described(data)
    assert bytes(written) == data


@pytest.mark.parametrize("size", SIZES)
def test_files_are_copied_whole_though_each_call_moves_a_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    data = os.urandom(size)
    readv, write = os.readv, os.write
    monkeypatch.setattr(os, "readv", lambda file, buffers: readv(file, [buffers[0][:100_000]]))
    monkeypatch.setattr(os, "write", lambda file, buffer: write(file, buffer[:70_000]))
    with two_files(tmp_path, data) as (source, target):
        assert copy_hashed(read_into(source), write_from(target)) == described(data)
    assert (tmp_path / "target").read_bytes() == data


def test_a_buffer_is_filled_up_to_the_end_of_the_file(tmp_path: Path) -> None:
    with two_files(tmp_path, b"0123456789") as (source, _):
        read, buffer = read_into(source), memoryview(bytearray(6))
        assert [read(buffer), bytes(buffer[:6])] == [6, b"012345"]
        assert [read(buffer), bytes(buffer[:4])] == [4, b"6789"]
        assert read(buffer) == 0


@pytest.mark.parametrize("size", [10, 3 * BUFFER_SIZE])
@pytest.mark.parametrize("side", ["read", "write"])
def test_an_error_passes_through_and_ends_the_hashing(tmp_path: Path, size: int, side: str) -> None:
    with two_files(tmp_path, bytes(size)) as (source, target):
        genuine = read_into(source)
        calls = 0

        def read(buffer: memoryview) -> int:
            nonlocal calls
            calls += 1
            if side == "read" and calls == 2:
                raise OSError(errno.EIO, "unreadable")
            return genuine(buffer)

        def write(buffer: memoryview) -> None:
            if side == "write":
                raise OSError(errno.ENOSPC, "full")
            write_from(target)(buffer)

        with pytest.raises(OSError, match="unreadable" if side == "read" else "full"):
            copy_hashed(read, write)
    assert hashers() == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stride", [100_000, 16 << 20])
def test_the_kernel_copies_everything_and_what_arrived_is_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, stride: int
) -> None:
    data = os.urandom(size)
    genuine = os.copy_file_range
    monkeypatch.setattr(os, "copy_file_range", lambda source, target, most: genuine(source, target, min(most, stride)))
    with two_files(tmp_path, data) as (source, target):
        assert copy_in_kernel(source, target, flush=False) == described(data)
    assert (tmp_path / "target").read_bytes() == data
    assert hashers() == []


@pytest.mark.parametrize("flush", [True, False])
def test_a_copy_by_the_kernel_is_flushed_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: bool
) -> None:
    flushed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append((file, os.fstat(file).st_size)))
    with two_files(tmp_path, b"12345") as (source, target):
        assert copy_in_kernel(source, target, flush=flush) == described(b"12345")
        assert flushed == ([(target, 5)] if flush else [])


@pytest.mark.parametrize("call", ["copy_file_range", "preadv", "fsync"])
def test_a_copy_by_the_kernel_that_fails_is_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, call, fail)
    with two_files(tmp_path, b"12345") as (source, target):
        assert copy_in_kernel(source, target, flush=True) is None
    assert hashers() == []


def test_a_filesystem_that_copies_less_than_there_is_has_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, counts = os.copy_file_range, iter([4, 0])

    def short(source: int, target: int, _: int) -> int:
        count = next(counts)
        return genuine(source, target, count) if count else 0

    monkeypatch.setattr(os, "copy_file_range", short)
    with two_files(tmp_path, b"12345") as (source, target):
        assert copy_in_kernel(source, target, flush=False) is None


def test_a_copy_that_failed_is_begun_anew(tmp_path: Path) -> None:
    with two_files(tmp_path, b"12345") as (source, target):
        os.write(target, os.read(source, 3) + b"more than there is")
        rewind(source, target)
        assert os.fstat(target).st_size == 0
        assert copy_hashed(read_into(source), write_from(target)) == described(b"12345")
    assert (tmp_path / "target").read_bytes() == b"12345"


def test_blocks_are_shared_where_the_filesystem_can_do_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the call is Linux's own: `FICLONE` of `linux/fs.h`."""
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(hashed_copy.fcntl, "ioctl", lambda *words: asked.append(words))
    with two_files(tmp_path, b"12345") as (source, target):
        assert clone(source, target) is True
        assert asked == [(target, getattr(fcntl, "FICLONE", 0x40049409), source)]

        def unable(*_: object) -> int:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

        monkeypatch.setattr(hashed_copy.fcntl, "ioctl", unable)
        assert clone(source, target) is False
