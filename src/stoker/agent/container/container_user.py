"""The user that a container runs as, where it is another one than the agent's."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from stoker.agent.container.engine import FIELD
from stoker.agent.container.host_devices import HostCapabilities
from stoker.agent.environment.local_cache import create_user_cache
from stoker.model.errors import SetupFailed
from stoker.processes.unmounting import mounted_below


class ContainerUser:
    """Lets the user of a container write to folders of the agent. Does nothing for the agent's own user."""

    def __init__(self, engine: str, pipes: Path) -> None:
        self._engine = engine
        self._pipes = pipes
        self._transfer: OwnershipTransfer | None = None
        # The folder for environments of this user; None for the agent's own user.
        self.environments: Path | None = None

    def adopt(self, init: int, host: HostCapabilities, environments: Path | None) -> None:
        """Make sure that the agent can save, signal and clean up after the user of the container's first process.

        `environments` is the folder with the environments of all jobs. Raises SetupFailed.
        """
        try:
            seen = os.stat(f"/proc/{init}")  # noqa: PTH116 - no path
        except OSError:
            raise SetupFailed(
                f"{FIELD}: {self._engine} does not run on this machine: its processes are not visible here", user=True
            ) from None
        if seen.st_uid == host.uid:
            return
        if not host.privileged:
            raise SetupFailed(
                f"{FIELD}.run.user: only root could save and remove what another user of the container writes, and "
                f"this agent is the user {host.uid}; leave it out",
                user=True,
            )
        self._transfer = OwnershipTransfer(seen.st_uid, seen.st_gid)
        if environments is not None:
            self.environments = create_user_cache(environments, seen.st_uid, seen.st_gid)

    @property
    def tools(self) -> tuple[Path, ...]:
        """The folder of tools in the folder of the user's environments, if it has one."""
        return (self.environments / "tools",) if self.environments is not None else ()

    def give(self, *folders: Path) -> None:
        """Let the user write to these folders and all in them. Raises SetupFailed."""
        if self._transfer is None:
            return
        for folder in folders:
            top = folder.resolve()
            try:
                # A mounted bucket has no owner to change, and the pipes belong to the agent.
                self._transfer.give(top, {*mounted_below(top), str(self._pipes.resolve())} - {str(top)})
            except OSError as error:
                raise SetupFailed(
                    f"{FIELD}: {error.filename or top} cannot be given to the user of the container: {error.strerror}",
                    user=True,
                ) from error


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
