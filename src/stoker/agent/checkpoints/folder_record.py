"""The record of a checkpoint folder: what was there before the job first started, and what restores wrote.

The record of an absolute folder lies inside it, where the training can write. So it is opened by handle, follows no
link, and is bounded in size.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from stoker.agent.checkpoints.folder_snapshot import OPEN_FOLDER
from stoker.agent.checkpoints.save_protocol import LOCK
from stoker.agent.confinement import opened_folder, read_plain, replace_plain
from stoker.model import codec
from stoker.model.errors import CodecError

# The prefix of Stoker's own files in a checkpoint folder. They are never committed (`folder_snapshot.IGNORED_NAMES`).
OWN = ".stoker-folder."
STAGING = ".tmp-restoring-"
# The folder for files that are moved aside, if there is no place beside the checkpoint folder.
REPLACED = ".tmp-replaced"
# About 600,000 paths. A new record uses half of it at most: what restores wrote is added later.
MAX_RECORD_BYTES = 64 * 1024 * 1024
_DRAFT = f"{OWN}draft"

# Size and modification time of a file.
Stamp = tuple[int, int]


# The maximum depth of folders: a deeper path is a program's mistake.
_MAX_DEPTH = 200


class TooManyFiles(Exception):
    """The folder has more files than a record can name."""


@dataclass
class FolderRecord:
    """Knowledge about a folder from earlier attempts of the job.

    `path` is the file that stores it; None: it is not stored, and no file counts as older than the job. Only paths are
    compared, and the stamps of equal paths: the age of a file says little, because copies keep the times of their
    originals, and clocks are set.
    """

    path: Path | None = None
    # The files and folders from before the job first started here.
    before: dict[str, Stamp] = field(default_factory=dict)
    folders_before: frozenset[str] = frozenset()
    # The files that the last restore wrote.
    restored: dict[str, Stamp] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, folder: Path, chosen: Callable[[str], bool] = lambda _path: True) -> FolderRecord:
        """Read the record at `path`. Without a valid one, record what is in `folder` now: the job has just started.

        `chosen` says which files are checkpoints at all. Raises OSError, TooManyFiles.
        """
        with suppress(OSError, CodecError, ValueError, LookupError, TypeError, AttributeError, OverflowError):
            with opened_folder(path.parent) as parent:
                tree = codec.parse(read_plain(path.name, MAX_RECORD_BYTES, parent))
            folders = frozenset(str(name) for name in tree["folders_before"])
            return cls(path, _stamps(tree["before"]), folders, _stamps(tree["restored"]))
        record = cls(path)
        folders_before = set()
        with opened_folder(folder) as handle:
            for found, status in walk(handle):
                if stat.S_ISDIR(status.st_mode):
                    folders_before.add(found)
                elif chosen(found):
                    record.before[found] = stamp_of(status)
        record.folders_before = frozenset(folders_before)
        if len(record._encode()) > MAX_RECORD_BYTES // 2:
            raise TooManyFiles(f"{len(record.before):,} files and {len(folders_before):,} folders")
        record.write()
        return record

    def write(self) -> None:
        """Store the record. Raises OSError."""
        if self.path is None:
            return
        with opened_folder(self.path.parent) as parent:
            replace_plain(parent, self.path.name, self._encode(), draft=_DRAFT)

    def is_unchanged(self, path: str, status: os.stat_result) -> bool:
        """Return whether this file was there before the job first started, and is unchanged."""
        return self.before.get(path) == stamp_of(status)

    def explains(self, path: str, status: os.stat_result) -> bool:
        """Return whether this record alone decides what happens to a file, without the checkpoints in the store."""
        return path in self.before or self.restored.get(path) == stamp_of(status)

    def forget(self, moved: Collection[str]) -> None:
        """Forget files and folders from before the job that are not there any more, with everything below them."""
        gone = set(moved)

        def stays(path: str) -> bool:
            return path not in gone and not any(str(parent) in gone for parent in PurePosixPath(path).parents)

        if gone:
            self.before = {path: stamp for path, stamp in self.before.items() if stays(path)}
            self.folders_before = frozenset(path for path in self.folders_before if stays(path))

    def _encode(self) -> bytes:
        tree = {"before": self.before, "folders_before": sorted(self.folders_before), "restored": self.restored}
        return json.dumps(tree).encode()


def walk(handle: int, below: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Yield everything below an open folder, without Stoker's own files at its top; a folder after its contents.

    Works by handles, so that a folder that is replaced by a link meanwhile leads nowhere else. Folders that may not be
    read count as empty.
    """
    with os.scandir(handle) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if (not below and is_own(entry.name)) or below.count("/") >= _MAX_DEPTH:
            continue
        path = f"{below}/{entry.name}" if below else entry.name
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _walk_folder(handle, entry.name, path)
        yield path, status


def _walk_folder(parent: int, name: str, path: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        handle = os.open(name, OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        yield from walk(handle, path)
    finally:
        os.close(handle)


def is_own(name: str) -> bool:
    """Return whether this name at the top of a checkpoint folder is Stoker's own."""
    return name.startswith((OWN, STAGING)) or name in (LOCK, REPLACED)


def stamp_of(status: os.stat_result) -> Stamp:
    return (status.st_size, status.st_mtime_ns)


def _stamps(tree: dict[str, list[int]]) -> dict[str, Stamp]:
    return {str(path): (int(size), int(modified_ns)) for path, (size, modified_ns) in tree.items()}
