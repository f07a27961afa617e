"""Copy bytes and take their sha256 in the same pass."""

from __future__ import annotations

import fcntl
import hashlib
import os
import queue
import threading
from collections.abc import Callable

# Large enough that system calls and hand-overs cost nothing, small enough to stay in the processor's cache.
BUFFER_SIZE = 1 << 18
# How far reading may run ahead of hashing.
_BUFFERS = 4
# How much the kernel copies in one call, before the hasher is told.
_STRIDE = 16 << 20
# `ioctl_ficlone(2)`: the target shares the source's blocks, where the filesystem can do that (XFS, btrfs).
_FICLONE = 0x40049409

Read = Callable[[memoryview], int]
Write = Callable[[memoryview], None]


def copy_hashed(read: Read, write: Write) -> tuple[str, int]:
    """Move everything from `read` to `write`; the sha256 and the number of exactly those bytes.

    `read` fills the buffer and answers how much, 0 at the end. Whatever the two raise passes through.
    """
    buffer = memoryview(bytearray(BUFFER_SIZE))
    count = read(buffer)
    if count < BUFFER_SIZE:
        # Most files are small; a thread would cost more than it saves.
        digest, size = hashlib.sha256(), 0
        while count:
            digest.update(buffer[:count])
            write(buffer[:count])
            size += count
            count = read(buffer)
        return digest.hexdigest(), size
    return _copy_beside(buffer, read, write)


def _copy_beside(first: memoryview, read: Read, write: Write) -> tuple[str, int]:
    """Hash on a second thread. `first` is full already."""
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
            # Hashed and written at the same time; it is filled again only after both, since this thread does the
            # writing before it asks for the next free one.
            full.put((buffer, count))
            write(buffer[:count])
            size += count
            buffer = free.get()
            count = read(buffer)
    finally:
        full.put(None)
        hasher.join()
    return digest.hexdigest(), size


def copy_in_kernel(source: int, target: int, *, flush: bool) -> tuple[str, int] | None:
    """Let the kernel copy one open file to another, new one, while a second thread hashes what arrived.

    The sha256 and size of `target`'s bytes, flushed to the disk meanwhile if asked; None where this cannot be done or
    anything fails: whose fault it was shows when the bytes are copied by hand, from the beginning.
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
            arrived.put(size)
        if flush:
            os.fsync(target)
    except OSError:
        failed = True
    finally:
        arrived.put(None)
        hasher.join()
    # Some filesystems answer that there is nothing to copy when they cannot tell.
    if failed or size < os.fstat(source).st_size:
        return None
    return digest.hexdigest(), size


def rewind(source: int, target: int) -> None:
    """Back to the beginning, and nothing copied."""
    os.lseek(source, 0, os.SEEK_SET)
    os.lseek(target, 0, os.SEEK_SET)
    os.ftruncate(target, 0)


def clone(source: int, target: int) -> bool:
    """Make the open file `target` share the blocks of `source`. False where that cannot be had."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def read_into(file: int) -> Read:
    """Fill the buffer from an open file, whole unless the file ends: callers take a short read for a small file."""

    def read(buffer: memoryview) -> int:
        count = 0
        while count < len(buffer) and (got := os.readv(file, [buffer[count:]])):
            count += got
        return count

    return read


def write_from(file: int) -> Write:
    """Write the buffer to an open file, whole."""

    def write(buffer: memoryview) -> None:
        while buffer:
            buffer = buffer[os.write(file, buffer) :]

    return write
