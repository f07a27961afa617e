"""Copy bytes and compute their sha256 in the same pass."""

from __future__ import annotations

import fcntl
import hashlib
import os
import queue
import threading
from collections.abc import Callable

# Large enough that system calls and hand-overs cost little, small enough for the processor's cache.
BUFFER_SIZE = 1 << 18
# How far reading may run ahead of hashing.
_BUFFERS = 4
# Bytes that the kernel copies in one call, before the hasher is notified.
_STRIDE = 16 << 20
# `ioctl_ficlone(2)`: the target shares the source's blocks, where the filesystem can do that (XFS, btrfs).
FICLONE = 0x40049409

Read = Callable[[memoryview], int]
Write = Callable[[memoryview], None]


def copy_hashed(read: Read, write: Write) -> tuple[str, int]:
    """Copy everything from `read` to `write`, and return the sha256 and the number of exactly those bytes.

    `read` fills the buffer and returns the count, 0 at the end. Exceptions of both pass through.
    """
    buffer = memoryview(bytearray(BUFFER_SIZE))
    count = read(buffer)
    if count < BUFFER_SIZE:
        # Most files are small, and a thread would cost more than it saves.
        digest, size = hashlib.sha256(), 0
        while count:
            digest.update(buffer[:count])
            write(buffer[:count])
            size += count
            count = read(buffer)
        return digest.hexdigest(), size
    return _copy_beside(buffer, read, write)


def _copy_beside(first: memoryview, read: Read, write: Write) -> tuple[str, int]:
    """Copy with the hashing on a second thread. `first` is already full."""
    digest, size = hashlib.sha256(), 0
    full: queue.SimpleQueue[tuple[memoryview, int] | None] = queue.SimpleQueue()
    free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
    for _ in range(_BUFFERS - 1):
        free.put(memoryview(bytearray(BUFFER_SIZE)))

    def hash_on() -> None:
        while (filled := full.get()) is not None:
            buffer, count = filled
            digest.update(buffer[:count])
            free.put(buffer)

    hasher = threading.Thread(target=hash_on, name="sha256", daemon=True)
    hasher.start()
    try:
        buffer, count = first, len(first)
        while count:
            # The buffer is hashed and written at the same time, and reused only after both: this thread writes before
            # it takes the next free buffer.
            full.put((buffer, count))
            write(buffer[:count])
            size += count
            buffer = free.get()
            count = read(buffer)
    finally:
        full.put(None)
        hasher.join()
    return digest.hexdigest(), size


def copy_in_kernel(
    source: int, target: int, moved: Callable[[int], None] = lambda _: None, *, flush: bool
) -> tuple[str, int] | None:
    """Let the kernel copy one open file to another, new one, while a second thread hashes the copied bytes.

    `moved` gets the size of each part. Returns the sha256 and size of `target`'s bytes, flushed to the disk if asked.
    None if this is not possible or fails: the caller then copies from the beginning, which shows whether source or
    target is at fault.
    """
    digest = hashlib.sha256()
    arrived: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    failed = False

    def hash_on() -> None:
        nonlocal failed
        buffer = memoryview(bytearray(BUFFER_SIZE))
        position = 0
        try:
            while (end := arrived.get()) is not None:
                while position < end and (
                    count := os.preadv(target, [buffer[: min(BUFFER_SIZE, end - position)]], position)
                ):
                    digest.update(buffer[:count])
                    position += count
        except OSError:
            failed = True

    hasher = threading.Thread(target=hash_on, name="sha256", daemon=True)
    hasher.start()
    size = 0
    try:
        while count := os.copy_file_range(source, target, _STRIDE):
            size += count
            moved(count)
            arrived.put(size)
        if flush:
            os.fsync(target)
    except OSError:
        failed = True
    finally:
        arrived.put(None)
        hasher.join()
    # Some filesystems report nothing to copy if they do not support the call.
    if failed or size < os.fstat(source).st_size:
        return None
    return digest.hexdigest(), size


def rewind(source: int, target: int) -> None:
    """Seek both files to the beginning, and empty the target."""
    os.lseek(source, 0, os.SEEK_SET)
    os.lseek(target, 0, os.SEEK_SET)
    os.ftruncate(target, 0)


def clone(source: int, target: int) -> bool:
    """Make the open file `target` share the blocks of `source`. False if the filesystem does not support that."""
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError:
        return False
    return True


def read_into(file: int) -> Read:
    """Fill the buffer from an open file, completely unless the file ends: callers rely on that to recognise small
    files."""

    def read(buffer: memoryview) -> int:
        count = 0
        while count < len(buffer) and (got := os.readv(file, [buffer[count:]])):
            count += got
        return count

    return read


def write_from(file: int) -> Write:
    """Write the whole buffer to an open file."""

    def write(buffer: memoryview) -> None:
        while buffer:
            buffer = buffer[os.write(file, buffer) :]

    return write


class SourceFailed(Exception):
    """Carries an error of the source past the mapping of the store's errors."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def copy_file(source: int, target: int, moved: Callable[[int], None] = lambda _: None) -> tuple[str, int]:
    """Copy an open file and hash the copied bytes in one pass; shares blocks if the filesystem can.

    `moved` gets the size of each part.
    """
    if clone(source, target):
        return copy_hashed(_counted(read_into(target), moved), discard)
    if is_large(source) and (copied := copy_in_kernel(source, target, moved, flush=True)):
        return copied
    rewind(source, target)
    read = read_into(source)

    def checked(buffer: memoryview) -> int:
        try:
            return read(buffer)
        except OSError as error:
            raise SourceFailed(error) from error

    return copy_hashed(_counted(checked, moved), write_from(target))


def _counted(read: Read, moved: Callable[[int], None]) -> Read:
    def counted(buffer: memoryview) -> int:
        count = read(buffer)
        moved(count)
        return count

    return counted


def is_large(file: int) -> bool:
    return os.fstat(file).st_size > BUFFER_SIZE


def discard(_: memoryview) -> None:
    """Write nowhere: the bytes of a clone exist already, and are only hashed."""
