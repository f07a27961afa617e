"""Write files below one folder, under names from a store, an archive or a job. No link is ever followed.

The folder is opened once. From there each part of a path is opened relative to the folder above it, and only if it is a
real folder: a link that an earlier extraction left, or that another process creates at this moment, is not followed. A
new file is written under a temporary name and then renamed, so that links, hard links, pipes and devices of that name
are replaced and never opened.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from stoker.model.errors import UserError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Bounds the retries against a process that keeps swapping folders for links.
_TRIES = 100
_COMPARED_BYTES = 1024 * 1024
# Folder with a path for each handle, for calls that accept only paths.
_HANDLES = "/proc/self/fd" if Path("/proc/self/fd").exists() else "/dev/fd"


class PathObstructed(UserError):
    """Something in the folder is in the way of the extraction, or a path is invalid."""


def inner_parts(path: str) -> tuple[str, ...]:
    """Split a relative path that stays below its folder. Raises PathObstructed for any other path."""
    parts = tuple(path.split("/"))
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise PathObstructed(f"{path!r} is not a path below a folder")
    return parts


class Extraction:
    """The target folder of an extraction, created if absent. A context manager; threads may share it.

    `follow`: the folder itself may be a link, because a person named it. `replaced` gets the path of each plain file
    with other contents that `Staging` replaces. Raises OSError for errors of the disk.
    """

    def __init__(self, folder: Path, *, follow: bool = True, replaced: list[str] | None = None) -> None:
        self.folder = folder
        self.replaced = replaced
        folder.mkdir(parents=True, exist_ok=True)
        self._root = os.open(folder, _FOLDER & ~os.O_NOFOLLOW if follow else _FOLDER)

    def __enter__(self) -> Extraction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the handle; safe to repeat. Not while a thread uses it: its number may be reused for another file."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    @contextmanager
    def parent(self, path: str, *, make: bool = True, replace: bool = True) -> Iterator[tuple[int, str]]:
        """Open the parent folder of `path`, and return its handle and the last part of the path.

        `make`: missing folders are created, also (`replace`) in place of links. Without `make` both cases raise
        OSError; without `replace` a link raises PathObstructed.
        """
        *folders, name = inner_parts(path)
        handle = os.dup(self._root)
        try:
            for number, part in enumerate(folders):
                if make:
                    inner = self._enter(handle, part, "/".join(folders[: number + 1]), replace)
                else:
                    inner = os.open(part, _FOLDER, dir_fd=handle)
                os.close(handle)
                handle = inner
            yield handle, name
        finally:
            os.close(handle)

    def make_folder(self, path: str, modified_ns: int | None = None) -> None:
        """Create a folder if absent. Safe to repeat."""
        with self.parent(path) as (handle, name):
            inner = self._enter(handle, name, path)
            try:
                if modified_ns is not None:
                    os.utime(inner, ns=(modified_ns, modified_ns))
            finally:
                os.close(inner)

    def create(self, path: str, mode: int = 0o666) -> int:
        """Create a file and return its handle. Raises FileExistsError if anything has that name, including a link."""
        with self.parent(path) as (handle, name):
            return os.open(name, _NEW, mode, dir_fd=handle)

    def create_anew(self, path: str, mode: int = 0o666) -> int:
        """Create a file in place of anything with that name except a folder, and return its handle."""
        with self.parent(path) as (handle, name):
            for _ in range(_TRIES):
                try:
                    return os.open(name, _NEW, mode, dir_fd=handle)
                except FileExistsError:
                    self._unlink(handle, name, path)
        raise PathObstructed(f"{self.folder / path}: another process keeps changing it")

    def open_file(self, path: str) -> int:
        """Open an existing plain file for reading and writing. Raises OSError for anything else."""
        with self.parent(path, make=False) as (handle, name):
            # Non-blocking, because opening a pipe would wait forever.
            found = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
        status = os.fstat(found)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            return found
        os.close(found)
        raise OSError(errno.EEXIST, "is not a plain file of its own", path)

    def make_link(self, path: str, target: str) -> None:
        """Create a link. Raises FileExistsError if anything has that name."""
        with self.parent(path) as (handle, name):
            os.symlink(target, name, dir_fd=handle)

    def move_from(self, other: Extraction, path: str) -> None:
        """Move a file or link from another folder to the same path here, replacing anything with that name."""
        with other.parent(path, make=False) as (there, name), self.parent(path) as (here, _):
            try:
                os.rename(name, name, src_dir_fd=there, dst_dir_fd=here)
            except IsADirectoryError:
                raise self.in_the_way(path) from None

    def keep_from(self, other: Extraction, path: str, kept: str) -> bool:
        """Move anything from another folder to the path `kept` here. False: something is already there, or in the
        way."""
        try:
            with other.parent(path, make=False) as (there, name), self.parent(kept, replace=False) as (here, new):
                if _is_there(here, new):
                    return False
                os.rename(name, new, src_dir_fd=there, dst_dir_fd=here)
        except PathObstructed:
            return False
        return True

    def write(self, path: str, data: bytes, mode: int | None = None) -> None:
        """Write a small file atomically, replacing anything with that name."""
        with self.staging() as staging:
            with staging.new_file("0") as file:
                file.write_bytes(data)
            staging.place("0", path, mode=mode)

    @contextmanager
    def staging(self, prefix: str = ".tmp-fetch-") -> Iterator[Staging]:
        """A temporary folder inside, for files without their final names. Removed at the end."""
        name = f"{prefix}{secrets.token_hex(6)}"
        os.mkdir(name, 0o700, dir_fd=self._root)
        try:
            staging = Staging(self, os.open(name, _FOLDER, dir_fd=self._root))
            try:
                yield staging
            finally:
                staging.close()
        finally:
            with suppress(OSError):
                os.rmdir(name, dir_fd=self._root)

    def _enter(self, handle: int, name: str, path: str, replace: bool = True) -> int:
        """Open the folder `name` in the folder `handle`. A link of that name is replaced by a real folder."""
        for _ in range(_TRIES):
            try:
                return os.open(name, _FOLDER, dir_fd=handle)
            except FileNotFoundError:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=handle)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                if replace and _is_link(handle, name):
                    self._unlink(handle, name, path)
                elif not _is_folder(handle, name):
                    raise PathObstructed(
                        f"{self.folder / path} is there and is not a folder; remove it, or name another folder"
                    ) from None
        raise PathObstructed(f"{self.folder / path}: another process keeps changing it")

    def _unlink(self, handle: int, name: str, path: str) -> None:
        try:
            os.unlink(name, dir_fd=handle)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            if not _is_folder(handle, name):
                raise
            raise self.in_the_way(path) from None

    def in_the_way(self, path: str) -> PathObstructed:
        return PathObstructed(
            f"{self.folder / path} is a folder, and a file is to be there; remove it, or name another"
        )


class Staging:
    """Files of an extraction under temporary names, until they are moved to their paths."""

    def __init__(self, extraction: Extraction, handle: int) -> None:
        self._extraction = extraction
        self._handle = handle
        self._made: dict[str, int] = {}

    def close(self) -> None:
        """Delete the files that were not moved to a path."""
        handle, self._handle = self._handle, -1
        with suppress(OSError):
            for name in os.listdir(handle):  # noqa: PTH208 - a handle has no path
                with suppress(OSError):
                    os.unlink(name, dir_fd=handle)
        os.close(handle)

    @contextmanager
    def new_file(self, name: str) -> Iterator[Path]:
        """Create a file, and return a path that refers to its handle, whatever happens to its name. Valid within the
        block."""
        file = os.open(name, _NEW, 0o666, dir_fd=self._handle)
        try:
            self._made[name] = os.fstat(file).st_ino
            yield Path(_HANDLES, str(file))
        finally:
            os.close(file)

    def read(self, name: str, limit: int) -> bytes:
        """Read the beginning of a file. Raises OSError if another process replaced it."""
        file = self._open(name)
        try:
            return os.pread(file, limit, 0)
        finally:
            os.close(file)

    def place(self, name: str, path: str, *, mode: int | None = None, modified_ns: int | None = None) -> None:
        """Move a file to its path, replacing anything with that name except a folder."""
        file = self._open(name)
        try:
            if mode is not None:
                os.fchmod(file, mode)
            if modified_ns is not None:
                os.utime(file, ns=(modified_ns, modified_ns))
            replaced = self._extraction.replaced
            if replaced is not None and self._differs(file, path):
                replaced.append(path)
        finally:
            os.close(file)
        self._rename(name, path)

    def place_link(self, path: str, target: str) -> None:
        """Create a link, replacing anything with that name except a folder."""
        name = f"link-{secrets.token_hex(6)}"
        os.symlink(target, name, dir_fd=self._handle)
        if self._extraction.replaced is not None:
            with self._extraction.parent(path) as (handle, last), suppress(FileNotFoundError):
                if stat.S_ISREG(os.stat(last, dir_fd=handle, follow_symlinks=False).st_mode):
                    self._extraction.replaced.append(path)
        self._rename(name, path)

    def _differs(self, file: int, path: str) -> bool:
        """Return whether a plain file with other contents is at the path."""
        with self._extraction.parent(path) as (handle, name):
            try:
                old = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
            except OSError:
                return False
        try:
            status = os.fstat(old)
            if not stat.S_ISREG(status.st_mode):
                return False
            return status.st_size != os.fstat(file).st_size or not _are_equal(old, file)
        finally:
            os.close(old)

    def _rename(self, name: str, path: str) -> None:
        with self._extraction.parent(path) as (handle, last):
            try:
                os.rename(name, last, src_dir_fd=self._handle, dst_dir_fd=handle)
            except IsADirectoryError:
                raise self._extraction.in_the_way(path) from None

    def _open(self, name: str) -> int:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._handle)
        if os.fstat(file).st_ino == self._made.get(name):
            return file
        os.close(file)
        raise OSError(errno.ESTALE, "another process replaced it", name)


def _are_equal(one: int, other: int) -> bool:
    """Return whether two open files have the same bytes."""
    place = 0
    while data := os.pread(one, _COMPARED_BYTES, place):
        if data != os.pread(other, _COMPARED_BYTES, place):
            return False
        place += len(data)
    return True


def _is_there(handle: int, name: str) -> bool:
    return _mode(handle, name) != 0


def _is_link(handle: int, name: str) -> bool:
    return stat.S_ISLNK(_mode(handle, name))


def _is_folder(handle: int, name: str) -> bool:
    """Return whether it is a folder, or was deleted meanwhile."""
    mode = _mode(handle, name)
    return mode == 0 or stat.S_ISDIR(mode)


def _mode(handle: int, name: str) -> int:
    """The mode of what has this name, which says its kind; 0 if nothing has it."""
    try:
        return os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0
