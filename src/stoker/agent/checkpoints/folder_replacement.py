"""Make a checkpoint folder equal to a checkpoint, and delete nothing that Stoker did not write.

The folder may be absolute and outlive its node: then it contains what earlier attempts left, and perhaps files of
people. A restore therefore distinguishes four kinds of files:

| a file that is not part of the checkpoint | what happens to it |
|---|---|
| older than the first start of this job in the folder | stays in place |
| written by a restore, unchanged since | deleted |
| the same bytes are in the store, in a checkpoint of this job | deleted |
| anything else: newer than the last commit, or put there by a person | moved aside, never deleted |

Files that a checkpoint replaces are treated in the same way. Files that the job's patterns do not select are ignored.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from stoker.agent.checkpoints.folder_snapshot import MAX_DEPTH
from stoker.agent.checkpoints.save_protocol import LOCK
from stoker.store.safe_extraction import Extraction

# The prefix of Stoker's own files in a checkpoint folder. They are never committed (`folder_snapshot.IGNORED_NAMES`).
OWN = ".stoker-folder."
_STAGING = ".tmp-restoring-"
# The folder for files that are moved aside, if there is no place beside the checkpoint folder.
REPLACED = ".tmp-replaced"
_CHUNK = 1024 * 1024

Digests = Collection[tuple[int, str]]


@dataclass
class FolderRecord:
    """Knowledge about a folder from earlier attempts of the job: since when it is used, and what restores wrote.

    `path` is the file that stores it; None: it is not stored, and every file in the folder counts as newer.
    """

    path: Path | None = None
    since_ns: int = 0
    restored: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> FolderRecord:
        """Read the record at `path`, or make a new one: the job uses the folder from now on. Raises OSError."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            tree = json.loads(path.read_text(encoding="utf-8"))
            restored = {str(name): [int(part) for part in stamp] for name, stamp in tree["restored"].items()}
            return cls(path, int(tree["since_ns"]), restored)
        record = cls(path)
        record.write()
        # Taken from the clock that stamps files, which may be a tick behind the system clock.
        record.since_ns = path.stat().st_mtime_ns
        record.write()
        return record

    def write(self) -> None:
        if self.path is None:
            return
        draft = self.path.with_name(f"{OWN}draft")
        draft.write_text(json.dumps({"since_ns": self.since_ns, "restored": self.restored}), encoding="utf-8")
        draft.replace(self.path)


def replace_contents(
    new: Path | None,
    folder: Path,
    record: FolderRecord,
    stored: Callable[[], Digests],
    chosen: Callable[[str], bool] = lambda _path: True,
) -> list[str]:
    """Put the files below `new` into `folder`, replacing those that earlier attempts left there; None: no files.

    `stored` gives size and SHA-256 of the files in checkpoints of this job. It is called only where needed, before
    anything changes. `chosen` says which files are checkpoints at all. Returns the paths that were moved aside. Links
    are never followed. Raises OSError, and the errors of `stored`.
    """
    wanted = dict(_files(new)) if new is not None else {}
    times = _folder_times(new) if new is not None else {}
    there = [(path, status) for path, status in _files(folder) if path in wanted or chosen(path)]
    unknown = [path for path, status in there if record.restored.get(path) != _stamp_of(status)]
    digests = stored() if unknown else ()
    aside = _Aside(folder)
    for path, status in there:
        _clear(folder, path, status, record, digests, aside, replaced=path in wanted)
    _drop_empty(folder, record, chosen)
    _make_way(folder, wanted, aside)
    if new is not None:
        with Extraction(new, follow=False) as source, Extraction(folder) as target:
            for path in wanted:
                target.move_from(source, path)
            for path, modified_ns in times.items():
                # Scripts look for the newest folder, so folders keep their times.
                target.make_folder(path, modified_ns)
    record.restored = {path: _stamp_of((folder / path).lstat()) for path in wanted}
    record.write()
    return aside.moved


def make_staging(folder: Path) -> Path:
    """Make an empty folder for files on their way into `folder`: inside it, because it may be a mount point.

    Staging folders of interrupted restores are removed.
    """
    for left in folder.glob(f"{_STAGING}*"):
        shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=_STAGING, dir=folder))


class FolderInUse(Exception):
    """Another job uses this folder at the moment."""

    def __init__(self, job: str) -> None:
        super().__init__(job)
        self.job = job


def hold_folder(folder: Path, job: str) -> int:
    """Lock an absolute folder for this job, for as long as the returned handle is open or this process lives.

    An earlier attempt of the same job may still hold the lock: it has stopped training. Raises FolderInUse, OSError.
    """
    handle = os.open(folder / f"{OWN}in-use", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        other = os.read(handle, 200).decode(errors="replace")
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


def _clear(
    folder: Path,
    path: str,
    status: os.stat_result,
    record: FolderRecord,
    stored: Digests,
    aside: _Aside,
    *,
    replaced: bool,
) -> None:
    file = folder / path
    if record.restored.get(path) == _stamp_of(status) or _is_stored(file, status, stored):
        file.unlink(missing_ok=True)
    elif replaced or status.st_mtime_ns >= record.since_ns:
        aside.take(path)


def _is_stored(file: Path, status: os.stat_result, stored: Digests) -> bool:
    if stat.S_ISLNK(status.st_mode):
        text = os.fsencode(file.readlink())
        return (len(text), hashlib.sha256(text).hexdigest()) in stored
    if not stat.S_ISREG(status.st_mode) or not any(size == status.st_size for size, _ in stored):
        return False
    digest = hashlib.sha256()
    try:
        with file.open("rb") as reader:
            while chunk := reader.read(_CHUNK):
                digest.update(chunk)
    except OSError:
        return False
    return (status.st_size, digest.hexdigest()) in stored


def _files(folder: Path, below: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Yield everything below a folder that is not a folder. Follows no link."""
    try:
        entries = sorted(os.scandir(folder / below if below else folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        if (not below and _is_own(entry.name)) or below.count("/") >= MAX_DEPTH:
            continue
        path = f"{below}/{entry.name}" if below else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _files(folder, path)
        else:
            with suppress(FileNotFoundError):
                yield path, entry.stat(follow_symlinks=False)


def _is_own(name: str) -> bool:
    return name.startswith((OWN, _STAGING)) or name in (LOCK, REPLACED)


def _drop_empty(folder: Path, record: FolderRecord, chosen: Callable[[str], bool]) -> None:
    """Remove folders that are empty now: scripts that look for the newest save would find them."""
    for top, below, files in os.walk(folder, topdown=False):
        current = Path(top)
        path = current.relative_to(folder).as_posix()
        if current == folder or _is_own(PurePosixPath(path).parts[0]) or files or not chosen(path):
            continue
        if any(os.path.lexists(current / name) for name in below):
            continue
        with suppress(OSError):
            if current.stat().st_mtime_ns >= record.since_ns:
                current.rmdir()


def _make_way(folder: Path, wanted: Collection[str], aside: _Aside) -> None:
    """Move aside entries that have the name of a checkpoint file or folder, but are of the other kind."""
    for path in wanted:
        for parent in reversed(PurePosixPath(path).parents[:-1]):
            if os.path.lexists(folder / parent) and ((folder / parent).is_symlink() or not (folder / parent).is_dir()):
                aside.take(str(parent))
        if (folder / path).is_dir() and not (folder / path).is_symlink():
            aside.take(path)


def _folder_times(folder: Path) -> dict[str, int]:
    """Return the modification time of each folder below, the innermost first."""
    return {
        Path(top).relative_to(folder).as_posix(): Path(top).stat().st_mtime_ns
        for top, _, _ in os.walk(folder, topdown=False)
        if Path(top) != folder
    }


def _stamp_of(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns]
