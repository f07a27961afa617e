"""Keep the agent's reads and writes for a container inside the folders that the container may write to.

A link that a process in a container creates names a path of the container. The agent runs outside, where the same path
is another file, such as /etc/shadow of the machine. So for jobs in containers no link is followed out of those folders.

The functions are also for files that any training may replace (its metrics, its requests), in a container or not.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: a pipe in the place of a file would block its reader for ever.
_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_HANDLES = Path("/proc/self/fd")
# Bounds the retries against a process that keeps creating and removing a file.
_TRIES = 100


def open_plain(path: str | Path, flags: int, dir_fd: int | None = None, mode: int = 0o666) -> int:
    """Open a plain file. Follows no link and waits for no pipe. Raises OSError for anything else."""
    if flags & os.O_CREAT:
        for _ in range(_TRIES):
            with suppress(FileExistsError):
                return os.open(path, flags | os.O_EXCL | _PLAIN, mode, dir_fd=dir_fd)
            with suppress(FileNotFoundError):
                return open_plain(path, flags & ~os.O_CREAT, dir_fd)
    # Checked before it is opened: opening a device has effects, such as starting a watchdog.
    pinned = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        kind = os.fstat(pinned).st_mode
        if stat.S_ISLNK(kind):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "is not a plain file", str(path))
        return os.open(handle_path(pinned), flags | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(pinned)


def handle_path(handle: int) -> Path:
    """Return a path that leads to this open file or folder, whatever happens to its name. Valid while it is open."""
    return _HANDLES / str(handle)


def read_plain(path: str | Path, limit: int, dir_fd: int | None = None) -> bytes:
    """Read a plain file of at most `limit` bytes. Raises OSError for a larger one, and for anything else."""
    with os.fdopen(open_plain(path, os.O_RDONLY, dir_fd), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data


def replace_plain(folder: int, name: str, data: bytes, mode: int = 0o666, *, draft: str | None = None) -> None:
    """Write a small file into an open folder, and replace any file with that name. It appears whole.

    A link with that name, or with the draft's, is replaced and never written through. Raises OSError.
    """
    draft = draft or f".{name}.tmp"
    with suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=folder)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, mode, dir_fd=folder)
    try:
        while data:
            data = data[os.write(handle, data) :]
    finally:
        os.close(handle)
    os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def opened_folder(path: Path, below: str | None = None, *, make: bool = False) -> Iterator[int]:
    """Open a folder, or the folder `below` in it, which must not be a link. Raises OSError."""
    handle = os.open(path, _FOLDER)
    try:
        if below is None:
            yield handle
            return
        if make:
            with suppress(FileExistsError):
                os.mkdir(below, dir_fd=handle)
        inner = os.open(below, _FOLDER | os.O_NOFOLLOW, dir_fd=handle)
    finally:
        os.close(handle)
    try:
        yield inner
    finally:
        os.close(inner)


class Confinement:
    """The folders that a container writes to: `anchors`.

    The outermost of them are mounts in the container: it can replace their contents, but not the folders themselves.

    `say` writes a message to the user, once, about a link that is not followed.
    """

    def __init__(self, anchors: Iterable[Path], say: Callable[[str], None]) -> None:
        self._anchors = tuple(anchors)
        self._say = say
        self._lock = threading.Lock()
        self._said = False

    def open(self, folder: Path, *, make: bool = False) -> int:
        """Open a folder without following a link below its anchor. Raises OSError."""
        anchor = self._anchor(folder)
        handle = os.open(anchor, _FOLDER)
        for name in folder.relative_to(anchor).parts:
            try:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, dir_fd=handle)
                inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=handle)
            except NotADirectoryError:
                self._leave_out_folder(handle, name, folder)
                raise
            finally:
                os.close(handle)
            handle = inner
        return handle

    def make(self, folder: Path) -> None:
        """Create a folder if absent. Does nothing where a link or a file is in the way. Raises OSError."""
        self._anchor(folder).mkdir(parents=True, exist_ok=True)
        with suppress(NotADirectoryError):
            os.close(self.open(folder, make=True))

    def _anchor(self, folder: Path) -> Path:
        return min((one for one in self._anchors if folder.is_relative_to(one)), key=lambda one: len(one.parts))

    def leave_out(self, path: str, target: str) -> None:
        """Warn the user that the link at `path` is not followed."""
        with self._lock:
            said, self._said = self._said, True
        if not said:
            self._say(
                f"warning: {path} is left out: it is a link to {target}, outside the folders that the container shares "
                "with its machine; let the script write the file itself. This warning appears once for all such links"
            )

    def _leave_out_folder(self, parent: int, name: str, folder: Path) -> None:
        try:
            target = os.readlink(name, dir_fd=parent)
        except OSError:
            return  # A file, not a link.
        self.leave_out(folder.name, target)
