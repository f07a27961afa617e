"""The environments of one machine: each is built once by one process, and used by any number of processes.

    <root>/<key>/         the environment
    <root>/<key>.ready    written last; the fingerprint of the complete environment
    <root>/<key>.lock     locked for writing during build and removal, for reading during use

A process that dies leaves no lock. An environment without `.ready` is incomplete and is built again. So is one that was
modified since: a training may install into its environment, and a disk that lost power may have kept names without
contents.

Each user that containers run as has its own such folder below it, `<root>/of-<uid>`.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stoker.agent.confinement import open_plain, opened_folder, read_plain, replace_plain
from stoker.agent.environment.archive import fingerprint

# An environment that was unused for this long is removed.
UNUSED_FOR_S = 30 * 86400.0
_POLL_S = 0.1
# Far more than a fingerprint has.
_MAX_READY_BYTES = 64 * 1024
# A process that waits longer than this logs the reason.
_LOG_WAIT_AFTER_S = 1.0
# Readers that only check the fingerprint are done by then: a modified environment that is still locked is in use.
_IN_USE_AFTER_S = 2.0


class EnvironmentInUse(Exception):
    """The environment was modified and a process uses it, so that it cannot be rebuilt in place."""


class EnvironmentLock:
    """A lock on an environment: this process may use it until release, or must build it if it is not `complete`."""

    def __init__(self, cache: LocalCache, key: str, handle: int, *, complete: bool, modified: bool = False) -> None:
        self.key = key
        self.folder = cache.folder(key)
        self.complete = complete
        # The environment existed, but was modified after it was built.
        self.modified = modified
        self._cache = cache
        self._handle: int | None = handle

    def finish(self) -> None:
        """Mark the environment as built, and let other processes use it."""
        assert self._handle is not None
        self._cache.mark_complete(self.key)
        self.complete = True
        fcntl.flock(self._handle, fcntl.LOCK_SH)

    def abandon(self) -> None:
        """Remove the incomplete environment from the disk, and let another process build it."""
        with suppress(OSError):
            self._cache.clear(self.key)
        self.release()

    def release(self) -> None:
        """End this process's use of the environment. Repeating is harmless."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class LocalCache:
    """The folder of this machine's environments."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, key: str) -> Path:
        return self.root / key

    def contains(self, key: str) -> bool:
        """Tell if the environment is marked as complete. Its contents are not checked."""
        return self._path(key, "ready").exists()

    def acquire(self, key: str, check: Callable[[], None], say: Callable[[str], None]) -> EnvironmentLock:
        """Wait until the environment is complete, or until this process may build it: then its folder does not exist.

        `check` is called meanwhile, and may raise. Raises EnvironmentInUse, OSError.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        began_s = time.monotonic()
        in_use_since_s: float | None = None
        logged = False
        while True:
            lock, modified = self._try(key)
            if lock is not None:
                return lock
            now_s = time.monotonic()
            in_use_since_s = (in_use_since_s or now_s) if modified else None
            if in_use_since_s is not None and now_s - in_use_since_s > _IN_USE_AFTER_S:
                raise EnvironmentInUse(key)
            if not (logged or modified) and now_s - began_s > _LOG_WAIT_AFTER_S:
                say("another node on this machine is building the same environment; waiting for it")
                logged = True
            check()
            # Two processes that try at the same moment block each other; the random pause keeps them from meeting
            # again.
            time.sleep(_POLL_S * random.uniform(0.5, 1.5))

    def _try(self, key: str) -> tuple[EnvironmentLock | None, bool]:
        """Try to lock the environment for use or for building.

        The second result: it is marked complete, but was modified.
        """
        # A container may write to the folder: its links are not followed, here and below.
        handle = open_plain(self._path(key, "lock"), os.O_RDWR | os.O_CREAT, mode=0o600)
        modified = False
        try:
            if self._flock(key, handle, fcntl.LOCK_SH):
                if self._is_intact(key):
                    os.utime(self._path(key, "ready"), follow_symlinks=False)
                    return EnvironmentLock(self, key, handle, complete=True), False
                modified = self._path(key, "ready").exists()
            fcntl.flock(handle, fcntl.LOCK_UN)
            if self._flock(key, handle, fcntl.LOCK_EX):
                # Another process may have built it between the two locks.
                if self._is_intact(key):
                    fcntl.flock(handle, fcntl.LOCK_SH)
                    return EnvironmentLock(self, key, handle, complete=True), False
                modified = self._path(key, "ready").exists()
                self.clear(key)
                return EnvironmentLock(self, key, handle, complete=False, modified=modified), modified
        except BaseException:  # an abort, too, must not leave the lock behind; raised again
            os.close(handle)
            raise
        os.close(handle)
        return None, modified

    def _flock(self, key: str, handle: int, how: int) -> bool:
        try:
            fcntl.flock(handle, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # A lock file that was removed meanwhile protects nothing.
        try:
            return os.path.samestat(os.fstat(handle), self._path(key, "lock").stat())
        except FileNotFoundError:
            return False

    def mark_complete(self, key: str) -> None:
        """Record that the environment is complete. The caller holds the lock for writing."""
        data = fingerprint(self.folder(key)).encode()
        with opened_folder(self.root) as root:
            replace_plain(root, f"{key}.ready", data, draft=f"{key}.draft")

    def _is_intact(self, key: str) -> bool:
        """Tell if the environment is complete and unmodified."""
        try:
            return read_plain(self._path(key, "ready"), _MAX_READY_BYTES) == fingerprint(self.folder(key)).encode()
        except OSError:
            return False

    def clear(self, key: str) -> None:
        """Remove the environment from the disk. The caller holds the lock for writing. Raises OSError."""
        for suffix in ("ready", "draft"):
            self._path(key, suffix).unlink(missing_ok=True)
        folder = self.folder(key)
        if folder.exists():
            shutil.rmtree(folder)

    def prune(self, unused_for_s: float = UNUSED_FOR_S) -> list[str]:
        """Remove environments that were unused for this long, and return their keys.

        Those that cannot be removed stay.
        """
        removed = []
        for path in self.root.glob("*.lock"):
            key = path.name.removesuffix(".lock")
            try:
                used_at = max(file.stat().st_mtime for file in (path, self._path(key, "ready")) if file.exists())
                if time.time() - used_at < unused_for_s:
                    continue
                handle = open_plain(path, os.O_RDWR)
                try:
                    if self._flock(key, handle, fcntl.LOCK_EX):
                        self.clear(key)
                        path.unlink()
                        removed.append(key)
                finally:
                    os.close(handle)
            except OSError:
                continue
        return removed

    def _path(self, key: str, suffix: str) -> Path:
        return self.root / f"{key}.{suffix}"


def create_user_cache(environments: Path, uid: int, gid: int) -> Path:
    """Create the user's own folder: the user must not modify shared environments, nor may others use the user's.

    Raises OSError.
    """
    folder = environments / f"of-{uid}"
    # A container may have put a link there: its target is not given away.
    with opened_folder(environments, folder.name, make=True) as handle:
        os.fchown(handle, uid, gid)
        # Marks the folder as used, even if nothing is added to it.
        os.utime(handle)
    environments.chmod(stat.S_IMODE(environments.stat().st_mode) | 0o111)
    return folder


def prune_user_caches(environments: Path) -> None:
    """Remove environments of all users that were unused for `UNUSED_FOR_S`. Those that cannot be removed stay.

    A user without environments also loses its copy of uv, once that is as old.
    """
    for folder in environments.glob("of-*"):
        with suppress(OSError):
            # Read before the pruning, which changes the folder's time.
            idle_s = time.time() - folder.stat().st_mtime
            LocalCache(folder).prune()
            if idle_s >= UNUSED_FOR_S and not any(folder.glob("*.lock")):
                shutil.rmtree(folder)
