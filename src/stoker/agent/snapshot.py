"""Look at a folder that others write to, and find what of it can be committed.

A script that knows nothing of Stoker gives no sign when a save is whole. So the folder is watched: it is *settled* when
nothing was written for a while and no process has a file of it open for writing. Where that never comes about, files
that change are copied in a quiet moment, and what is being written is left out.

**A save is never mixed.** What lies in one top-level folder is one unit, and so are the plain files beside the folders.
A unit with a file that is being written stays as it was in the last commit, or is left out if it was not in it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import translate
from pathlib import Path
from typing import NamedTuple

from stoker.checkpoints import safe_link, safe_path
from stoker.model import BlobRef
from stoker.saves import LOCK

log = logging.getLogger(__name__)

IGNORED = ("*.tmp", ".tmp-*", "*.partial", LOCK)
# A folder that has been changing for so long is committed from copies …
BUSY_S = 30.0
# … made when nobody touched a file for this long, several ticks of the clock that files are stamped with; if such a
# moment does not come for as long again, of any file that nobody has open.
CALM_S = 0.25
# A file held open for so long that has hardly grown is a log: any beginning of it is whole.
STREAM_S = 60.0
STREAM_BYTES = 64 * 1024 * 1024

_FICLONE = 0x40049409
_PLAIN_CHARS = 1000
_NUMBERED = re.compile(r"([^0-9]*)([0-9]+)([^0-9]*)")


class Signature(NamedTuple):
    """Equal before and after: the same bytes, unless written within one tick of the filesystem's clock."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Signature:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    @property
    def newest_ns(self) -> int:
        return max(self.modified_ns, self.changed_ns)


class File(NamedTuple):
    """A file of the folder. `link` is where a link inside the folder points; others are read through."""

    path: str
    signature: Signature
    mode: int
    link: str | None = None

    @property
    def size(self) -> int:
        return self.signature.size if self.link is None else len(self.link.encode())


Files = dict[str, File]


def scan(folder: Path, ignored: Collection[str] = IGNORED) -> Files:
    """Every file under `folder`, by its path relative to it. What vanishes meanwhile is left out."""
    pattern = re.compile("|".join(translate(name) for name in ignored) if ignored else r"(?!)")
    return {file.path: file for file in _scan(os.fspath(folder), "", pattern)}


def _scan(folder: str, below: str, ignored: re.Pattern[str]) -> Iterator[File]:
    try:
        entries = list(os.scandir(f"{folder}/{below}" if below else folder))
    except OSError:
        return
    for entry in entries:
        if ignored.match(entry.name):
            continue
        path = f"{below}/{entry.name}" if below else entry.name
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _scan(folder, path, ignored)
                continue
            found = entry.stat(follow_symlinks=False)
            file = File(path, Signature.of(found), found.st_mode)
            if stat.S_ISLNK(found.st_mode):
                read = _read_link(folder, path, file)
                if read is None:
                    continue
                file = read
        except OSError:
            continue
        # Most names are plain; looking closer at each takes as long as all the rest.
        plain = len(path) <= _PLAIN_CHARS and path.isascii()
        if (stat.S_ISREG(file.mode) or file.link is not None) and (plain or safe_path(path)):
            yield file


def _read_link(folder: str, path: str, file: File) -> File | None:
    """A link inside the folder stays one; one that leads to a file outside is read as that file."""
    here = Path(folder, path)
    target = os.fspath(here.readlink())
    if target.startswith(folder + "/"):
        target = os.path.relpath(target, here.parent)
    if safe_link(path, target):
        return file._replace(link=target)
    found = here.stat()
    if not stat.S_ISREG(found.st_mode):
        log.warning("%s is left out: a link out of the checkpoint folder", path)
        return None
    return File(path, Signature.of(found), found.st_mode)


def signature_of(path: Path, file: File) -> Signature | None:
    """What the file's signature is now; None when it is gone."""
    try:
        # What was read through a link is compared through it.
        return Signature.of(path.stat() if file.link is None else path.lstat())
    except OSError:
        return None


def copy_stable(source: Path, file: File, target: Path) -> bool:
    """Copy a file that may be written any moment, sharing its blocks where the filesystem can. False: it changed."""
    if signature_of(source, file) != file.signature:
        return False
    with source.open("rb") as reader, target.open("wb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            shutil.copyfileobj(reader, writer, 1024 * 1024)
    return signature_of(source, file) == file.signature and target.stat().st_size == file.size


def unit_of(path: str) -> str:
    """The top-level folder a path lies in; empty for the plain files beside them."""
    top, separator, _ = path.partition("/")
    return top if separator else ""


def leave_out(
    files: Mapping[str, File], blocked: Collection[str], last: Mapping[str, BlobRef]
) -> tuple[Files, dict[str, BlobRef]]:
    """What may be committed while `blocked` are being written: files as they are, and parts of the last commit.

    A plain file at the top that is new is left out alone: beside it lie other saves, not other parts of this one.
    """
    units = {unit_of(path) for path in blocked if unit_of(path) or path in last}
    single = set(blocked)
    taken = {path: file for path, file in files.items() if unit_of(path) not in units and path not in single}
    carried = {path: blob for path, blob in last.items() if unit_of(path) in units}
    return taken, carried


def _number_of(unit: str) -> tuple[str, int] | None:
    """`checkpoint-200` is number 200 of its kind. None: not exactly one number, or no folder."""
    found = _NUMBERED.fullmatch(unit)
    return (f"{found[1]}#{found[3]}", int(found[2])) if found else None


@dataclass(frozen=True)
class Choice:
    """What to commit: files of the folder, those of them to copy first, and what stays as it was committed.

    `streams` are the logs among them, which say nothing about what was saved.
    """

    files: Files
    copies: frozenset[str]
    carried: dict[str, BlobRef]
    streams: frozenset[str]


class FolderWatch:
    """Remembers when each file was seen to change. Not thread-safe.

    `open_files` gives the files under the folder that are open for writing.
    """

    def __init__(
        self,
        folder: Path,
        open_files: Callable[[], Collection[Path]],
        *,
        settle_s: float,
        busy_s: float = BUSY_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._open_files = open_files
        self._settle_s = settle_s
        self._busy_s = busy_s
        self._foreign: Mapping[str, Signature] = {}
        self._monotonic = monotonic
        self.files: Files = {}
        # What the last commit holds: how its files looked in the folder, and as what they are kept.
        self.committed: dict[str, Signature] = {}
        self.last: dict[str, BlobRef] = {}
        self._changed_at: dict[str, float] = {}
        self._removed_at = float("-inf")
        # Rest is measured up to here: what happened since the last look is not known.
        self._looked_at = float("-inf")
        self._open: frozenset[str] = frozenset()
        # When a file was first seen open, never closed since, and how large it was.
        self._opened: dict[str, tuple[float, int, int]] = {}
        self._dirty: Files = {}
        self.dirty_bytes = 0
        self._dirty_since: float | None = None

    def look(self) -> None:
        """Scan the folder. Raises nothing: what cannot be read is not there."""
        self._looked_at = now = self._monotonic()
        found = scan(self._folder)
        before, self.files = (
            self.files,
            {path: file for path, file in found.items() if self._foreign.get(path) != file.signature},
        )
        for path, file in self.files.items():
            known = before.get(path)
            if known is None or known.signature != file.signature:
                self._changed_at[path] = now
        for path in before.keys() - self.files.keys():
            self._changed_at.pop(path, None)
            self._removed_at = now
        self._compare()
        if not self._dirty:
            self._dirty_since = None
            return
        if self._dirty_since is None:
            self._dirty_since = now
        self._note_open(now)

    def set_foreign(self, foreign: Mapping[str, Signature]) -> None:
        """These files are not this rank's to commit, as long as they look like this."""
        self._foreign = foreign
        self.files = {path: file for path, file in self.files.items() if path not in foreign}
        self._compare()

    def dirty(self) -> dict[str, File]:
        """The files that were not in the last commit as they were when last looked at."""
        return self._dirty

    def settled(self) -> Choice | None:
        """The folder as it is, if nothing moves in it. Logs that are held open are copied."""
        streams = self._streams()
        if self._hot(streams) or self._looked_at - self._removed_at < self._settle_s:
            return None
        return Choice(dict(self.files), frozenset(streams), {}, frozenset(streams))

    def choose(self) -> Choice | None:
        """What to commit now; None when there is nothing new or nothing whole.

        What grows in a log alone is no reason to commit; neither is a file that was removed, since a script may
        remove its old save before it writes the new one.
        """
        streams = self._streams()
        news = self.dirty().keys() - streams
        if not news:
            return None
        choice = self.settled()
        if choice is not None:
            return choice
        waited_s = 0.0 if self._dirty_since is None else self._looked_at - self._dirty_since
        if waited_s < self._busy_s:
            return None
        hot = self._hot(streams)
        closed = hot - self._open
        moving = any(self._looked_at - self._changed_at[path] < CALM_S for path in closed)
        if moving and waited_s < 2 * self._busy_s:
            return None
        files, carried = leave_out(self.files, hot - closed, self.last)
        if not news & files.keys():
            return None
        copies = frozenset((closed | streams) & files.keys())
        return Choice(files, copies, carried, frozenset(streams))

    def choose_final(self, still_open: Collection[str], *, anyway: bool = False) -> Choice | None:
        """What to commit when nobody writes any more; files in `still_open` may be half written.

        None when there is nothing new, unless it is wanted `anyway`.
        """
        streams = self._streams()
        files, carried = leave_out(self.files, set(still_open) - streams, self.last)
        if not anyway and not self.dirty().keys() & files.keys():
            return None
        return Choice(files, frozenset(), carried, frozenset(streams))

    def before_newest(self, choice: Choice) -> Choice | None:
        """A final choice without the newest save, if the folder was like that before the save began; None: who knows.

        Only where saves are known to have a folder each, numbered upwards (one such was committed before), all that is
        new lies in such folders, and nothing else was touched since the newest was begun: then the script had moved on
        from what is left. And only if that is something new.
        """
        news = {unit_of(path) for path in self._dirty.keys() & choice.files.keys() - choice.streams}
        numbers = {unit: _number_of(unit) for unit in news}
        kinds = {found[0] if found else None for found in numbers.values()}
        before = {found[0] for path in self.last if (found := _number_of(unit_of(path)))}
        if len(news) < 2 or len(kinds) != 1 or not kinds <= before:
            return None
        newest = max(news, key=lambda unit: (numbers[unit] or ("", 0))[1])
        inside = [file for path, file in choice.files.items() if unit_of(path) == newest]
        begun_ns = min(file.signature.modified_ns for file in inside)
        rest = {path: file for path, file in choice.files.items() if unit_of(path) != newest}
        touched = any(
            file.signature.modified_ns >= begun_ns for path, file in rest.items() if path not in choice.streams
        )
        rewritten = any(unit_of(path) in news for path in self.last)
        return None if touched or rewritten else replace(choice, files=rest)

    def committed_now(self, choice: Choice, blobs: Mapping[str, BlobRef]) -> None:
        """A commit is done."""
        self.committed = {path: self.committed[path] for path in choice.carried if path in self.committed} | {
            path: file.signature for path, file in choice.files.items()
        }
        self.last = dict(blobs)
        self._compare()
        self._dirty_since = self._monotonic() if self._dirty else None

    def open_now(self) -> frozenset[str]:
        """The files that are open for writing this moment, relative to the folder."""
        found = set()
        for path in self._open_files():
            try:
                found.add(path.relative_to(self._folder).as_posix())
            except ValueError:
                continue
        return frozenset(found)

    def _compare(self) -> None:
        self._dirty = {path: file for path, file in self.files.items() if self.committed.get(path) != file.signature}
        self.dirty_bytes = sum(file.size for file in self._dirty.values())

    def _hot(self, streams: Collection[str]) -> set[str]:
        since = self._looked_at - self._settle_s
        return {
            path
            for path in self.files
            if path not in streams and (path in self._open or self._changed_at[path] > since)
        }

    def _note_open(self, now: float) -> None:
        self._open = self.open_now()
        opened = {}
        for path in self._open & self.files.keys():
            signature = self.files[path].signature
            since, size, inode = self._opened.get(path, (now, signature.size, signature.inode))
            if inode != signature.inode or signature.size < size:
                since, size, inode = now, signature.size, signature.inode
            opened[path] = (since, size, inode)
        self._opened = opened

    def _streams(self) -> set[str]:
        return {
            path
            for path, (since, size, _) in self._opened.items()
            if path in self.files
            and self._looked_at - since >= STREAM_S
            and self.files[path].signature.size - size < STREAM_BYTES
        }
