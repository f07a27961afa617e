"""Give folders to the user that a container runs as, so that its commands can write there."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

# A file that is added within the same clock tick as a check does not change the folder's modification time.
_TICK_NS = 1_000_000_000


class OwnershipTransfer:
    """Gives folders to one user. Folders that did not change since the last call cost one `fstat` each.

    It works on open handles and never follows links: a user who owns a part already could replace it with a link
    meanwhile.
    """

    def __init__(self, uid: int, gid: int) -> None:
        self._uid = uid
        self._gid = gid
        # By device and inode: the last modification time, and the subfolders.
        self._known: dict[tuple[int, int], tuple[int, tuple[str, ...]]] = {}

    def give(self, top: Path, excluded: Set[str] = frozenset()) -> None:
        """Give a folder with all contents to the user, except these paths. Files that vanish meanwhile are ignored.

        Raises OSError for a file whose owner may not be changed.
        """
        with suppress(FileNotFoundError):
            handle = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._give(handle, str(top), excluded)
            finally:
                os.close(handle)

    def _give(self, folder: int, path: str, excluded: Set[str]) -> None:
        found = os.fstat(folder)
        if found.st_uid != self._uid:
            os.fchown(folder, self._uid, self._gid)
        key, known = (found.st_dev, found.st_ino), self._known.get((found.st_dev, found.st_ino))
        if known is not None and known[0] == found.st_mtime_ns:
            below = known[1]
        else:
            below = self._give_files(folder, path, excluded)
            if time.time_ns() - found.st_mtime_ns > _TICK_NS:
                self._known[key] = (found.st_mtime_ns, below)
        for name in below:
            inner = _open_folder(folder, name) if f"{path}/{name}" not in excluded else None
            if inner is not None:
                try:
                    self._give(inner, f"{path}/{name}", excluded)
                finally:
                    os.close(inner)

    def _give_files(self, folder: int, path: str, excluded: Set[str]) -> tuple[str, ...]:
        """Give the files in a folder to the user. Returns the names of its subfolders."""
        below = []
        with os.scandir(folder) as entries:
            for entry in entries:
                # No `stat` for excluded paths: a mounted bucket may never answer.
                if f"{path}/{entry.name}" in excluded:
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        below.append(entry.name)
                    elif status.st_uid != self._uid:
                        os.chown(entry.name, self._uid, self._gid, dir_fd=folder, follow_symlinks=False)
        return tuple(below)


def _open_folder(above: int, name: str) -> int | None:
    """Open a subfolder. None: it is gone, or is no longer a folder."""
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        # With O_NOFOLLOW, ELOOP means a link.
        if error.errno != errno.ELOOP:
            raise
        return None
