"""The environments of one machine: each is made once, by one, and used by as many as like.

    <shelf>/<key>/         the environment
    <shelf>/<key>.ready    written last; the fingerprint of what was made
    <shelf>/<key>.lock     locked for writing while it is made or removed, for reading while it is used

Whoever dies leaves no lock. What has no `.ready` was left half made, and is made again. So is what was changed since: a
training may install into the environment that it runs in, and a disk that lost power may have kept names without files.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stoker.agent.environment.archive import fingerprint

# What nobody used for so long is removed.
UNUSED_FOR_S = 30 * 86400.0
_LOOK_EVERY_S = 0.1
# Then somebody who waits is told what for.
_WORTH_TELLING_S = 1.0
# Others who only look are out of the way by then: whoever still holds a changed one trains with it.
_LOOKED_S = 2.0


class InUse(Exception):
    """It is not what was made, and somebody trains with it, so that it cannot be made anew in its place."""


class Held:
    """An environment that this process may use for as long as it holds it, or has to make if it is not `complete`."""

    def __init__(self, shelf: Shelf, key: str, lock: int, *, complete: bool, changed: bool = False) -> None:
        self.key = key
        self.folder = shelf.folder(key)
        self.complete = complete
        # It was there, and was not what had been made.
        self.changed = changed
        self._shelf = shelf
        self._lock: int | None = lock

    def finish(self) -> None:
        """It is made. From here on others may use it, too."""
        assert self._lock is not None
        self._shelf.mark(self.key)
        self.complete = True
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def abandon(self) -> None:
        """It could not be made: nothing of it stays on the disk, and it is somebody else's turn."""
        with suppress(OSError):
            self._shelf.clear(self.key)
        self.release()

    def release(self) -> None:
        """Nobody of this process uses it any more. Repeating is harmless."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class Shelf:
    """The folder that they are in."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, key: str) -> Path:
        return self.root / key

    def knows(self, key: str) -> bool:
        """Whether it is there, as far as a look tells."""
        return self._path(key, "ready").exists()

    def hold(self, key: str, check: Callable[[], None], say: Callable[[str], None]) -> Held:
        """Wait until it is there, or until it is this process's turn to make it: then its folder is not there.

        `check` is asked meanwhile, and may raise. Raises InUse, OSError.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        began_s = time.monotonic()
        in_use_s: float | None = None
        said = False
        while True:
            held, changed = self._try(key)
            if held is not None:
                return held
            now_s = time.monotonic()
            in_use_s = (in_use_s or now_s) if changed else None
            if in_use_s is not None and now_s - in_use_s > _LOOKED_S:
                raise InUse(key)
            if not (said or changed) and now_s - began_s > _WORTH_TELLING_S:
                say("another node on this machine is making the same environment; waiting for it")
                said = True
            check()
            # Two that look at the same moment are in each other's way; they should not meet again.
            time.sleep(_LOOK_EVERY_S * random.uniform(0.5, 1.5))

    def _try(self, key: str) -> tuple[Held | None, bool]:
        """The environment, if it is there or can be made; and whether it is there and not what was made."""
        lock = os.open(self._path(key, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        changed = False
        try:
            if self._lock(key, lock, fcntl.LOCK_SH):
                if self._is_whole(key):
                    self._path(key, "ready").touch()
                    return Held(self, key, lock, complete=True), False
                changed = self._path(key, "ready").exists()
            fcntl.flock(lock, fcntl.LOCK_UN)
            if self._lock(key, lock, fcntl.LOCK_EX):
                # Somebody may have come between the two.
                if self._is_whole(key):
                    fcntl.flock(lock, fcntl.LOCK_SH)
                    return Held(self, key, lock, complete=True), False
                changed = self._path(key, "ready").exists()
                self.clear(key)
                return Held(self, key, lock, complete=False, changed=changed), changed
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        return None, changed

    def _lock(self, key: str, lock: int, how: int) -> bool:
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # One that was removed meanwhile locks nothing.
        try:
            return os.path.samestat(os.fstat(lock), self._path(key, "lock").stat())
        except FileNotFoundError:
            return False

    def mark(self, key: str) -> None:
        """Say that it is whole. Whoever calls holds the lock for writing."""
        draft = self._path(key, "draft")
        draft.write_text(fingerprint(self.folder(key)))
        draft.replace(self._path(key, "ready"))

    def _is_whole(self, key: str) -> bool:
        """Whether it is what was made."""
        try:
            return self._path(key, "ready").read_text() == fingerprint(self.folder(key))
        except OSError:
            return False

    def clear(self, key: str) -> None:
        """Take it off the disk. Whoever calls holds the lock for writing. Raises OSError."""
        for suffix in ("ready", "draft"):
            self._path(key, suffix).unlink(missing_ok=True)
        folder = self.folder(key)
        if folder.exists():
            shutil.rmtree(folder)

    def prune(self, unused_for_s: float = UNUSED_FOR_S) -> list[str]:
        """Remove what nobody used for long. Answers the keys. What cannot be removed stays."""
        gone = []
        for path in self.root.glob("*.lock"):
            key = path.name.removesuffix(".lock")
            try:
                used_at = max(one.stat().st_mtime for one in (path, self._path(key, "ready")) if one.exists())
                if time.time() - used_at < unused_for_s:
                    continue
                lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    if self._lock(key, lock, fcntl.LOCK_EX):
                        self.clear(key)
                        path.unlink()
                        gone.append(key)
                finally:
                    os.close(lock)
            except OSError:
                continue
        return gone

    def _path(self, key: str, suffix: str) -> Path:
        return self.root / f"{key}.{suffix}"
