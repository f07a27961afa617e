"""What a folder of plain files needs beyond the system calls: whole reads, durable names, locks, told-apart errors."""
# Paths are strings here: building a Path costs more than most of these calls.
# ruff: noqa: PTH108, PTH116

from __future__ import annotations

import errno
import fcntl
import os
import stat

from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable

# The path leads nowhere, for whichever of its parts.
ABSENT = (FileNotFoundError, NotADirectoryError)

_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
# The key's own fault: too long for a file's name, or in the way of another one.
_IMPOSSIBLE = frozenset({errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EINVAL, errno.ELOOP, errno.EXDEV})


def translated(error: OSError, url: str) -> StoreError:
    reason = error.strerror or str(error)
    if error.errno in _DENIED:
        return StoreDenied(f"{url} cannot be used: {reason} ({error.filename or 'the folder'})")
    if error.errno in _IMPOSSIBLE:
        return StoreError(f"{url}: {reason} ({error.filename})")
    return StoreUnavailable(f"{url} failed: {reason}")


def read_all(file: int, size: int) -> bytes:
    # One byte more than expected, so that the usual case ends without another call.
    data = os.read(file, size + 1)
    if len(data) >= size:
        return data[:size]
    parts = [data]
    while missing := size - sum(map(len, parts)):
        if not (data := os.read(file, missing)):
            break
        parts.append(data)
    return b"".join(parts)


def is_taken(path: str) -> bool:
    try:
        status = os.stat(path, follow_symlinks=False)
    except ABSENT:
        return False
    if not stat.S_ISREG(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "something that is no file is in the way", path)
    return True


def holds_any(folder: str) -> bool:
    """Whether there is a file anywhere below. A crashed writer may have left folders with nothing in them."""
    inner: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    return True
                if entry.is_dir(follow_symlinks=False):
                    inner.append(entry.path)
    except FileNotFoundError:
        return False
    return any(holds_any(path) for path in inner)


def flush_folder(folder: str) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    except OSError as error:
        # Some network filesystems cannot flush a folder; they are durable in their own way or not at all.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(file)


def lock(file: int) -> bool:
    """Hold the file's lock until it is closed. False when another holds it, or locks cannot be had here."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove_unlocked(path: str) -> None:
    """Remove a file unless a living writer holds its lock; the kernel drops the locks of the dead."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if lock(file):
            os.unlink(path)
    finally:
        os.close(file)
