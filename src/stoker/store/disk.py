"""System calls of the folder store: complete reads, durable names, locks and mapped errors."""
# Paths are strings here: building a Path costs more than most of these calls.
# ruff: noqa: PTH108, PTH116

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Collection
from datetime import datetime, timezone
from pathlib import Path

from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.store.base import Meta

# Some part of the path does not exist.
# Later times (from the year 5138 on) count as this one.
_LATEST_S = 1e11
ABSENT = (FileNotFoundError, NotADirectoryError)

_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
# Errors of the key itself: too long for a file name, or in conflict with another key.
_IMPOSSIBLE = frozenset({errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EINVAL, errno.ELOOP, errno.EXDEV})


def translated(error: OSError, url: str) -> StoreError:
    reason = error.strerror or str(error)
    if error.errno in _DENIED:
        return StoreDenied(f"{url} cannot be used: {reason} ({error.filename or 'the folder'})")
    if error.errno in _IMPOSSIBLE:
        return StoreError(f"{url}: {reason} ({error.filename})")
    return StoreUnavailable(f"{url} failed: {reason}")


def meta_of(key: str, status: os.stat_result) -> Meta:
    """The metadata of an object, from the status of its file."""
    return Meta(
        key=key,
        size=status.st_size,
        modified=_modified(status.st_mtime),
        # Each write creates a new file, so the inode changes even if two writes fall into one tick of the clock.
        etag=f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}",
    )


def _modified(at_s: float) -> datetime:
    """The time of the last write. Any process of this user can set it, also to one that no calendar has."""
    return datetime.fromtimestamp(max(0.0, min(at_s, _LATEST_S)), timezone.utc)


def read_all(file: int, size: int) -> bytes:
    # One byte more than expected, so that the usual case needs no second call.
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
    """Return whether there is a file anywhere below. A crashed writer may have left empty folders."""
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


def holds_other_than(root: Path, names: Collection[str]) -> bool:
    """Return whether the folder exists and has an entry besides these."""
    try:
        with os.scandir(root) as entries:
            return any(entry.name not in names for entry in entries)
    except OSError:
        # The folder is absent, or not readable.
        return root.is_dir()


def flush_folder(folder: str) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    except OSError as error:
        # Some network filesystems cannot flush a folder.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(file)


def lock(file: int) -> bool:
    """Lock the file until it is closed. False if another process has the lock, or locks are not supported."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove_unlocked(path: str) -> None:
    """Remove a file unless a live writer holds its lock; the kernel releases the locks of dead processes."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if lock(file):
            os.unlink(path)
    finally:
        os.close(file)


def remove_stale(folder: str, now: float, after_s: float) -> None:
    """Remove partial files of crashed writers. `now` is by the filesystem's clock, which also dated those files."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if now - entry.stat(follow_symlinks=False).st_mtime > after_s:
                    remove_unlocked(entry.path)
            except OSError:
                # Already gone, or owned by another user.
                continue
