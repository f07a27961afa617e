"""Copies of single files of a save: made on disk, or as an open handle where the file will be replaced by a rename."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import stat
import time
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.checkpoints.folder_snapshot import File, Files, Signature, copy_stable, pinned_path, signature_of
from stoker.agent.checkpoints.unreadable_files import closed_folder, naming_unreadable
from stoker.agent.confinement import opened_folder
from stoker.store.base import FileChanged

# Limits for the copies of one save: bytes, and a share of the free disk.
MAX_BYTES = 256 * 1024 * 1024
_FREE_DISK_SHARE = 0.1
_MAX_HANDLES = 64
# The most files that are held open while they are sent; more are held by hard links, which need no handle.
MAX_SENT_HANDLES = 256
_TOO_MANY_HANDLES = (errno.EMFILE, errno.ENFILE)
# Errors of `link` where links are not supported, not allowed, or used up.
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS, errno.ENOSPC)


class SaveTooLarge(Exception):
    """A changed file is too large to be copied."""


@dataclass(frozen=True, eq=False)
class FileCopy:
    """The bytes of a file at one moment. They are freed when the last reference to this object is dropped."""

    path: Path
    copied_ns: int
    # The signature of a file that is held open instead of copied.
    held: Signature | None = None

    def is_intact(self) -> bool:
        """Return False if a file that is held open has been written since."""
        if self.held is None:
            return True
        try:
            # A rename or an unlink changes ctime alone, so ctime is not compared.
            return Signature.of(self.path.stat())[:4] == self.held[:4]
        except OSError:
            return False


@dataclass(frozen=True, eq=False)
class SaveCopy:
    """The folder at one moment, without its logs. `begun_at` is when the save that led to it was begun.

    Files that are not in `copies` were not written since watching began, and are taken from the folder.
    """

    files: Files
    copies: Mapping[str, FileCopy]
    taken_at: float
    begun_at: float


class FileCopier:
    """Copies the changed files of one folder into `scratch`, within the limits of this module."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._folder = folder
        self.scratch = scratch
        self._count = 0

    def copy_changed(
        self,
        files: Files,
        *,
        earlier: Files,
        copies: Mapping[str, FileCopy],
        renamed: set[str],
        committed: Mapping[str, Signature],
    ) -> dict[str, FileCopy]:
        """Return the bytes of all files that changed since watching began and are in no commit.

        `earlier` and `copies` are the files and their copies after the previous burst; `renamed` are the files that
        were renamed into place. Raises SaveTooLarge; FileChanged or OSError where a file changed again.
        """
        result: dict[str, FileCopy] = {}
        budget = min(MAX_BYTES, int(_FREE_DISK_SHARE * shutil.disk_usage(self._folder).free))
        handles = 0
        # The newest files first: copies of older files give way to them.
        for file in sorted(files.values(), key=lambda file: -file.signature.newest_ns):
            path, known = file.path, earlier.get(file.path)
            if file.link is not None or committed.get(path) == file.signature:
                continue
            if known is not None and known.signature == file.signature:
                # Unchanged since the previous burst. A file without a copy, or beyond the budget, is taken from the
                # folder.
                if path in copies and file.size <= budget:
                    result[path] = copies[path]
                    budget -= file.size if result[path].held is None else 0
                continue
            if path in renamed and handles < _MAX_HANDLES:
                handles += 1
                result[path] = self.hold(file)
            elif file.size > budget:
                raise SaveTooLarge(path)
            else:
                budget -= file.size
                result[path] = self.copy(file)
        return result

    def copy(self, file: File) -> FileCopy:
        """Copy the file to scratch. Raises FileChanged."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._count += 1
        # The end of the name is kept, because format checks depend on it.
        target = self.scratch / f"{self._count}-{file.path.rpartition('/')[2][-100:]}"
        copy = FileCopy(target, time.time_ns())
        weakref.finalize(copy, _remove, target)
        if not copy_stable(self._folder / file.path, file, target):
            raise FileChanged(file.path)
        return copy

    def hold(self, file: File) -> FileCopy:
        """Hold the file open. Raises FileChanged, FileUnreadable.

        A program that renames files into place replaces them the same way: the bytes stay as long as a handle is open.
        """
        source = self._folder / file.path
        with naming_unreadable(file.path), pinned_path(source, file) as found:
            handle = os.open(found, os.O_RDONLY | os.O_CLOEXEC)
        copy = FileCopy(Path(f"/proc/self/fd/{handle}"), time.time_ns(), file.signature)
        weakref.finalize(copy, os.close, handle)
        if signature_of(source, file) != file.signature:
            raise FileChanged(file.path)
        return copy

    def hold_all(self, files: Collection[File], *, may_link: bool) -> dict[str, FileCopy] | None:
        """Hold the bytes of these files while they are sent, so that the program may replace or remove the files.

        With `may_link`, many files are held by hard links, which changes their ctime. Returns None where they cannot be
        held: too many files, no links on this disk, or not enough free disk. Raises FileChanged, FileUnreadable, or
        OSError where a file changed or is gone.
        """
        closed = next((file for file in files if stat.S_ISDIR(file.mode)), None)
        if closed is not None:
            raise closed_folder(closed.path)
        if not self.has_room(sum(file.size for file in files)):
            return None
        soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        few = len(files) <= MAX_SENT_HANDLES and (soft_limit < 0 or len(files) <= soft_limit // 4)
        try:
            if few:
                return {file.path: self.hold(file) for file in files}
            return {file.path: self._link(file) for file in files} if may_link else None
        except OSError as error:
            if error.errno in (_TOO_MANY_HANDLES if few else _NO_LINKS):
                return None
            raise

    def has_room(self, size: int) -> bool:
        """Return True if so many bytes can be held while the program writes two more saves of that size.

        A save that is replaced while it is held takes the space of one save more; the program must not run out of disk.
        """
        return 2 * size <= shutil.disk_usage(self._folder).free

    def _link(self, file: File) -> FileCopy:
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._count += 1
        target = self.scratch / str(self._count)
        with pinned_path(self._folder / file.path, file) as found, opened_folder(self.scratch) as scratch:
            target.unlink(missing_ok=True)
            # Only with a folder's handle does Python let the system follow the link in /proc.
            os.link(found, target.name, dst_dir_fd=scratch, follow_symlinks=True)
        copy = FileCopy(target, time.time_ns(), file.signature)
        weakref.finalize(copy, _remove, target)
        return copy


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
