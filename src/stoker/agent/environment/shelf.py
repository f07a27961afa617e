"""The environments of one machine: each is made once, by one, and used by as many as like.

    <shelf>/<key>/         the environment
    <shelf>/<key>.json     what is in it
    <shelf>/<key>.ready    written last; names the boot of the machine in which it was last seen whole
    <shelf>/<key>.lock     locked for writing while it is made or removed, for reading while it is used

Whoever dies leaves no lock. What has no `.ready` was left half made, and is made again.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from stoker.agent.environment.archive import Listing, is_whole
from stoker.errors import CodecError
from stoker.processes.identity import boot_id

# What nobody used for so long is removed.
UNUSED_FOR_S = 30 * 86400.0
_LOOK_EVERY_S = 0.1
# Then somebody who waits is told what for.
_WORTH_TELLING_S = 1.0


class Held:
    """An environment that this process may use for as long as it holds it, or has to make if it is not `complete`."""

    def __init__(self, shelf: Shelf, key: str, lock: int, complete: bool) -> None:
        self.key = key
        self.folder = shelf.folder(key)
        self.complete = complete
        self._shelf = shelf
        self._lock: int | None = lock

    def finish(self, listing: Listing) -> None:
        """It is made. From here on others may use it, too."""
        assert self._lock is not None
        self._shelf.mark(self.key, listing)
        self.complete = True
        fcntl.flock(self._lock, fcntl.LOCK_SH)

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

    def hold(self, key: str, check: Callable[[], None], say: Callable[[str], None]) -> Held:
        """Wait until it is there, or until it is this process's turn to make it: then its folder is not there.

        `check` is asked meanwhile, and may raise. Raises OSError.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        began_s = time.monotonic()
        said = False
        while True:
            held = self._try(key)
            if held is not None:
                return held
            if not said and time.monotonic() - began_s > _WORTH_TELLING_S:
                say("another node on this machine is making the same environment; waiting for it")
                said = True
            check()
            # Two that look at the same moment are in each other's way; they should not meet again.
            time.sleep(_LOOK_EVERY_S * random.uniform(0.5, 1.5))

    def _try(self, key: str) -> Held | None:
        lock = os.open(self._path(key, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if self._lock(key, lock, fcntl.LOCK_SH) and self._is_ready(key):
                self._path(key, "ready").touch()
                return Held(self, key, lock, True)
            fcntl.flock(lock, fcntl.LOCK_UN)
            if self._lock(key, lock, fcntl.LOCK_EX):
                # Somebody may have come between the two.
                if self._is_ready(key):
                    fcntl.flock(lock, fcntl.LOCK_SH)
                    return Held(self, key, lock, True)
                self._clear(key)
                return Held(self, key, lock, False)
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        return None

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

    def mark(self, key: str, listing: Listing) -> None:
        """Say that it is whole. Whoever calls holds the lock for writing."""
        self._path(key, "json").write_bytes(listing.dump())
        draft = self._path(key, "draft")
        draft.write_text(boot_id())
        draft.replace(self._path(key, "ready"))

    def _is_ready(self, key: str) -> bool:
        ready = self._path(key, "ready")
        try:
            if ready.read_text() == boot_id():
                return True
            # The machine was started anew: a disk that lost power may have kept the names of files, and not the files.
            if not is_whole(self.folder(key), Listing.load(self._path(key, "json").read_bytes())):
                return False
            ready.write_text(boot_id())
        except (OSError, CodecError):
            return False
        return True

    def _clear(self, key: str) -> None:
        self._path(key, "ready").unlink(missing_ok=True)
        self._path(key, "json").unlink(missing_ok=True)
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
                        self._clear(key)
                        path.unlink()
                        gone.append(key)
                finally:
                    os.close(lock)
            except OSError:
                continue
        return gone

    def _path(self, key: str, suffix: str) -> Path:
        return self.root / f"{key}.{suffix}"
