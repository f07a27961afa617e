"""Make a checkpoint folder equal to a checkpoint, and delete nothing that Stoker did not write.

The folder may be absolute and outlive its node: then it contains what earlier attempts left, and perhaps files of
people. A restore treats each file by the first row that fits:

| a file in the folder | what happens to it |
|---|---|
| was there before the job first started, and is unchanged | stays in place |
| was there before the job first started, and was changed | moved aside, never deleted |
| written by a restore, unchanged since | deleted |
| the same bytes are in the store under the same path, in a checkpoint of this job | deleted |
| anything else: newer than the last commit, or put there by a person | moved aside, never deleted |

A file that the checkpoint replaces cannot stay in place: it is moved aside, unless the checkpoint has the same bytes
for it or one of the rows says that it is deleted. Files that the job's patterns do not select are ignored.

The training may write to the folder while it is restored, perhaps in a container. So everything goes by handle, and no
link is followed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from stoker.agent.checkpoints.folder_record import OWN, REPLACED, STAGING, FolderRecord, stamp_of, walk
from stoker.agent.confinement import handle_path, open_plain, opened_folder
from stoker.store.safe_extraction import Extraction

_CHUNK = 1024 * 1024
_MAX_OWNER_BYTES = 200

# The files in a job's checkpoints: size and SHA-256 of each content that a path has in one of them.
StoredFiles = Mapping[str, Collection[tuple[int, str]]]


def replace_contents(
    new: Path | None,
    folder: Path,
    record: FolderRecord,
    stored: Callable[[], StoredFiles],
    chosen: Callable[[str], bool] = lambda _path: True,
) -> list[str]:
    """Put the files below `new` into `folder`, replacing those that earlier attempts left there; None: no files.

    `stored` gives the files in checkpoints of this job. It is called only where needed, before anything changes.
    `chosen` says which files are checkpoints at all. Returns the paths that were moved aside. Links are never followed.
    Raises OSError, and the errors of `stored`.
    """
    wanted, times = _new_files(new)
    with Extraction(folder) as target:
        there = {path: status for path, status in _files(folder) if path in wanted or chosen(path)}
        unknown = [path for path, status in there.items() if not record.explains(path, status)]
        known = stored() if unknown else {}
        aside = _Aside(folder)
        for path, status in there.items():
            match _fate(target, path, status, record, known, _Replacement(new, wanted.get(path))):
                case "deleted":
                    with target.parent(path, make=False) as (parent, name), suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=parent)
                case "aside":
                    aside.take(path)
                case "stays":
                    pass
        _drop_empty(folder, record, chosen)
        _make_way(target, wanted, aside)
        if new is not None:
            with Extraction(new) as source:
                for path in wanted:
                    target.move_from(source, path)
                for path, modified_ns in times.items():
                    # Scripts look for the newest folder, so folders keep their times.
                    target.make_folder(path, modified_ns)
        record.forget(aside.moved)
        record.restored = {path: stamp_of(_status(target, path)) for path in wanted}
    record.write()
    return aside.moved


@contextmanager
def staging_folder(folder: Path) -> Iterator[Path]:
    """Give an empty folder for files on their way into `folder`, and remove it at the end. The path is its handle's.

    It lies inside the folder, because that may be a mount point. Staging folders of interrupted restores are removed.
    """
    with opened_folder(folder) as handle:
        for left in os.listdir(handle):  # noqa: PTH208 - a handle has no path
            if left.startswith(STAGING):
                shutil.rmtree(handle_path(handle) / left, ignore_errors=True)
        name = f"{STAGING}{secrets.token_hex(6)}"
        os.mkdir(name, 0o700, dir_fd=handle)
        try:
            with opened_folder(handle_path(handle), name) as inner:
                yield handle_path(inner)
        finally:
            shutil.rmtree(handle_path(handle) / name, ignore_errors=True)


class FolderInUse(Exception):
    """Another job uses this folder at the moment."""

    def __init__(self, job: str) -> None:
        super().__init__(job)
        self.job = job


def hold_folder(folder: Path, job: str) -> int:
    """Lock an absolute folder for this job, for as long as the returned handle is open or this process lives.

    An earlier attempt of the same job may still hold the lock: it has stopped training. Raises FolderInUse, OSError.
    """
    handle = open_plain(folder / f"{OWN}in-use", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        other = os.read(handle, _MAX_OWNER_BYTES).decode(errors="replace")
        if other != job:
            os.close(handle)
            raise FolderInUse(other) from None
        return handle
    os.truncate(handle, 0)
    os.write(handle, job.encode())
    return handle


class _Aside:
    """A folder for files that must not be lost. Files in it are never replaced."""

    def __init__(self, folder: Path) -> None:
        self._of = folder
        self.folder = folder.with_name(f".{folder.name}.replaced")
        self.moved: list[str] = []

    def take(self, path: str) -> None:
        try:
            self._move(path)
        except OSError:
            # The folder is a mount point: use a folder inside it, with a name that is never committed.
            self.folder = self._of / REPLACED
            self._move(path)
        self.moved.append(path)

    def _move(self, path: str) -> None:
        """Move to a free name; a file or link in place of a parent folder makes a name taken, too."""
        with Extraction(self._of) as source, Extraction(self.folder, follow=False) as target:
            number = 0
            while not target.keep_from(source, path, f"{number}/{path}" if number else path):
                number += 1


def _fate(
    target: Extraction,
    path: str,
    status: os.stat_result,
    record: FolderRecord,
    stored: StoredFiles,
    replacement: _Replacement,
) -> Literal["stays", "deleted", "aside"]:
    """Decide by the table of this module. A file that has the bytes of its replacement stays until it is replaced."""
    if path in record.before:
        if replacement.status is None:
            return "stays" if record.is_unchanged(path, status) else "aside"
        return "stays" if replacement.is_same(target, path, status) else "aside"
    if record.restored.get(path) == stamp_of(status) or _is_stored(target, path, status, stored):
        return "deleted"
    return "aside"


@dataclass(frozen=True)
class _Replacement:
    """The file that the checkpoint has below `new` for a path; without a status it has none."""

    new: Path | None
    status: os.stat_result | None

    def is_same(self, target: Extraction, path: str, status: os.stat_result) -> bool:
        """Return whether the file in the folder and this one are both plain files, or both links, of equal content."""
        other = self.status
        if self.new is None or other is None or status.st_size != other.st_size:
            return False
        if stat.S_IFMT(status.st_mode) != stat.S_IFMT(other.st_mode):
            return False
        digest = _digest(target, path, status)
        with Extraction(self.new) as source:
            return digest is not None and digest == _digest(source, path, other)


def _is_stored(target: Extraction, path: str, status: os.stat_result, stored: StoredFiles) -> bool:
    contents = stored.get(path, ())
    if not any(size == status.st_size for size, _ in contents):
        return False
    digest = _digest(target, path, status)
    return digest is not None and (status.st_size, digest) in contents


def _digest(folder: Extraction, path: str, status: os.stat_result) -> str | None:
    """Return the digest of a plain file or of the text of a link; None for anything else, and if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with folder.parent(path, make=False) as (parent, name):
            if stat.S_ISLNK(status.st_mode):
                return hashlib.sha256(os.fsencode(os.readlink(name, dir_fd=parent))).hexdigest()
            with os.fdopen(open_plain(name, os.O_RDONLY, parent), "rb") as reader:
                while chunk := reader.read(_CHUNK):
                    digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield everything below a folder that is not a folder."""
    with opened_folder(folder) as handle:
        for path, status in walk(handle):
            if not stat.S_ISDIR(status.st_mode):
                yield path, status


def _new_files(new: Path | None) -> tuple[dict[str, os.stat_result], dict[str, int]]:
    """Return the files below a folder, and the modification time of each folder, the innermost first."""
    files: dict[str, os.stat_result] = {}
    times: dict[str, int] = {}
    if new is not None:
        with opened_folder(new) as handle:
            for path, status in walk(handle):
                if stat.S_ISDIR(status.st_mode):
                    times[path] = status.st_mtime_ns
                else:
                    files[path] = status
    return files, times


def _drop_empty(folder: Path, record: FolderRecord, chosen: Callable[[str], bool]) -> None:
    """Remove folders that are empty now: scripts that look for the newest save would find them."""
    with opened_folder(folder) as handle, Extraction(folder) as top:
        for path, status in walk(handle):
            if stat.S_ISDIR(status.st_mode) and path not in record.folders_before and chosen(path):
                with suppress(OSError), top.parent(path, make=False) as (parent, name):
                    os.rmdir(name, dir_fd=parent)


def _make_way(target: Extraction, wanted: Mapping[str, object], aside: _Aside) -> None:
    """Move aside entries that have the name of a checkpoint file or folder, but are of the other kind."""
    free: set[str] = set()
    for path in wanted:
        for parent in map(str, reversed(PurePosixPath(path).parents[:-1])):
            if parent not in free and _is_folder(target, parent) is False:
                aside.take(parent)
            free.add(parent)
        if _is_folder(target, path):
            aside.take(path)


def _is_folder(target: Extraction, path: str) -> bool | None:
    """Return whether it is a folder, and no link; None if there is nothing."""
    try:
        return stat.S_ISDIR(_status(target, path).st_mode)
    except FileNotFoundError:
        return None


def _status(target: Extraction, path: str) -> os.stat_result:
    with target.parent(path, make=False) as (parent, name):
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
