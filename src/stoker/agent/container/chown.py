"""Folders that are handed to whoever a container runs as: who writes there must be allowed to."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

# What is put into a folder in the same tick of the clock as it was looked at does not change the folder's time.
_TICK_NS = 1_000_000_000


class Giving:
    """Gives folders to one user. Folders that nothing came into since the last time cost one look each.

    Through handles, and never through a link: whoever has a part already could put one in its place meanwhile.
    """

    def __init__(self, uid: int, gid: int) -> None:
        self._uid = uid
        self._gid = gid
        # By device and number: when it was changed last, and the folders in it.
        self._known: dict[tuple[int, int], tuple[int, tuple[str, ...]]] = {}

    def give(self, top: Path, but: Set[str] = frozenset()) -> None:
        """A folder with everything in it, `but` what lies at these paths. What vanishes meanwhile does not matter.

        Raises OSError for what may not be given.
        """
        with suppress(FileNotFoundError):
            handle = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._give(handle, str(top), but)
            finally:
                os.close(handle)

    def _give(self, folder: int, path: str, but: Set[str]) -> None:
        found = os.fstat(folder)
        if found.st_uid != self._uid:
            os.fchown(folder, self._uid, self._gid)
        key, known = (found.st_dev, found.st_ino), self._known.get((found.st_dev, found.st_ino))
        if known is not None and known[0] == found.st_mtime_ns:
            below = known[1]
        else:
            below = self._give_files(folder, path, but)
            if time.time_ns() - found.st_mtime_ns > _TICK_NS:
                self._known[key] = (found.st_mtime_ns, below)
        for name in below:
            inner = _open_folder(folder, name) if f"{path}/{name}" not in but else None
            if inner is not None:
                try:
                    self._give(inner, f"{path}/{name}", but)
                finally:
                    os.close(inner)

    def _give_files(self, folder: int, path: str, but: Set[str]) -> tuple[str, ...]:
        """Everything in a folder that is no folder. Answers those."""
        below = []
        with os.scandir(folder) as entries:
            for entry in entries:
                # Not even asked what it is: a bucket that is mounted may never answer.
                if f"{path}/{entry.name}" in but:
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        below.append(entry.name)
                    elif status.st_uid != self._uid:
                        os.chown(entry.name, self._uid, self._gid, dir_fd=folder, follow_symlinks=False)
        return tuple(below)


def _open_folder(above: int, name: str) -> int | None:
    """None: it is gone, or something else is there now."""
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        # A link, as O_NOFOLLOW tells.
        if error.errno != errno.ELOOP:
            raise
        return None
