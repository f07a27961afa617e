"""What was fetched of an input, kept on this machine for whoever needs the same.

    <root>/<digest of the URL>-<digest of what was listed there>/
        lock      held by whoever uses it: alone while it is filled, together when all is there. Its time: the last use
        journal   which boot of this computer; then a line for each part of a file that is whole
        done      appears when all is there; nothing in `files` is younger
        settled   appears when all of it is on the disk, too
        files/    what the training sees

On `local` many nodes and jobs share one root. A file is never changed in place: another version of an object is
another folder, which takes over by links what has stayed the same.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stoker.agent.inputs.source import Listing
from stoker.processes import boot_id
from stoker.store.base import Meta
from stoker.store.safe_extraction import Extraction, Obstructed

# Larger files come in parts of this size, several at once.
PART_BYTES = 8 << 20
KEEP_UNUSED_S = 30 * 86400.0
_LOOK_EVERY_S = 0.2
_GONE = ".gone-"


@dataclass(frozen=True)
class Part:
    """Some of an object's bytes: all of them, where it is small."""

    meta: Meta
    begin: int
    end: int

    @property
    def whole(self) -> bool:
        return self.begin == 0 and self.end == self.meta.size

    def line(self) -> str:
        return json.dumps([self.meta.key, self.meta.etag, self.meta.size, self.begin]) + "\n"


class InUse(Exception):
    """Others use it, and it is not as it was fetched: it can be neither trusted nor repaired now."""


class Kept:
    """One folder of the root. `take` it before anything else; it stays this process's until it ends."""

    def __init__(self, root: Path, listing: Listing) -> None:
        self.root = root
        self.listing = listing
        self.folder = root / f"{listing.family[:12]}-{listing.digest[:32]}"
        self.files = self.folder / "files"
        self._journal: IO[str] | None = None
        self._writing = threading.Lock()
        self._lock = -1

    @property
    def path(self) -> Path:
        """What the training is told."""
        return self.files / self.listing.single if self.listing.single is not None else self.files

    # ── Whose it is ───────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, check: Callable[[], None], waits: Callable[[], None]) -> bool:
        """Whether all is there. If not, it is this process's alone, to be filled.

        `waits` is called once when somebody else is filling it, and `check` all the time then. Raises InUse, OSError.
        """
        told = False
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                continue  # Pruned in the very moment between.
            try:
                taken = self._taken(lock)
            except InUse:
                os.close(lock)
                raise
            if taken is not None:
                os.utime(lock)
                self._lock = lock
                return taken
            os.close(lock)
            if not told:
                waits()
                told = True
            check()
            time.sleep(_LOOK_EVERY_S)

    def _taken(self, lock: int) -> bool | None:
        """As `take`; None: not now."""
        if _try_lock(lock, fcntl.LOCK_EX):
            if not _is_same(lock, self.folder / "lock"):
                return None  # Pruned, as above.
            if not self._is_whole():
                return False
            fcntl.flock(lock, fcntl.LOCK_SH)
            return True
        if not _try_lock(lock, fcntl.LOCK_SH):
            return None
        if not self._is_whole():
            raise InUse
        return True

    def _is_whole(self) -> bool:
        try:
            done = (self.folder / "done").stat()
            if not (self.folder / "settled").exists() and (self.folder / "done").read_text() != boot_id():
                return False  # The power went before it was on the disk.
            return all(_is_file(self.files / meta.key, meta.size, done.st_mtime_ns) for meta in self.listing.files)
        except OSError:
            return False

    # ── Filling it ────────────────────────────────────────────────────────────────────────────────────────────────────

    def missing(self) -> list[Part]:
        """The parts that are not there yet. What is whole, here or in another version's folder, stays. Raises OSError.

        From here on the folder is being filled.
        """
        self.files.mkdir(exist_ok=True)
        there = self._there()
        for name in ("done", "settled"):
            (self.folder / name).unlink(missing_ok=True)
        self._journal = (self.folder / "journal").open("w", encoding="utf-8")
        self._journal.write(f"{boot_id()}\n")
        missing = []
        for meta in self.listing.files:
            for part in _parts(meta):
                if (meta.key, meta.etag, meta.size, part.begin) in there:
                    self._journal.write(part.line())
                else:
                    missing.append(part)
        self._journal.flush()
        return missing

    def note(self, part: Part) -> None:
        """This part is whole. May be called by several threads."""
        assert self._journal is not None
        with self._writing:
            self._journal.write(part.line())

    def flush(self) -> None:
        """So that whoever comes after a crash finds what was noted."""
        assert self._journal is not None
        with self._writing:
            self._journal.flush()

    def finish(self) -> None:
        """All is there: others may use it, too. Raises OSError."""
        assert self._journal is not None
        self._journal.close()
        draft = self.folder / ".done"
        draft.write_text(boot_id())
        draft.replace(self.folder / "done")
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        threading.Thread(target=self._settle, daemon=True, name="settle").start()

    def release(self) -> None:
        """It is nobody's. What was fetched stays for whoever comes next."""
        if self._journal is not None:
            self._journal.close()
        os.close(self._lock)

    def _settle(self) -> None:
        # Nobody waits for the disk: until then a crash of the computer costs a second fetch, and nothing else.
        with suppress(OSError):
            handle = os.open(self.files, os.O_RDONLY | os.O_DIRECTORY)
            try:
                settled = ctypes.CDLL(None).syncfs(handle) == 0
            finally:
                os.close(handle)
            if settled:
                (self.folder / "settled").touch()

    def _there(self) -> set[tuple[str, str, int, int]]:
        found, latest = _read_journal(self.folder), _done_at_ns(self.folder)
        here = {entry for entry in found if _is_file(self.files / entry[0], entry[2], latest)}
        for other in sorted(self.root.glob(f"{self.listing.family[:12]}-*")):
            if other != self.folder:
                here |= self._adopt(other, here)
        return here

    def _adopt(self, other: Path, here: set[tuple[str, str, int, int]]) -> set[tuple[str, str, int, int]]:
        """Link the files that were fetched for another listing of this URL and are the same objects."""
        adopted: set[tuple[str, str, int, int]] = set()
        with suppress(OSError, Obstructed):
            lock = os.open(other / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                if not _try_lock(lock, fcntl.LOCK_SH):
                    return adopted
                known, latest = _read_journal(other), _done_at_ns(other)
                for meta in self.listing.files:
                    entries = {(meta.key, meta.etag, meta.size, part.begin) for part in _parts(meta)}
                    theirs = other / "files" / meta.key
                    if entries <= known and not entries <= here and _is_file(theirs, meta.size, latest):
                        _link(other / "files", self.files, meta.key)
                        adopted |= entries
            finally:
                os.close(lock)
        return adopted


def _link(source: Path, target: Path, key: str) -> None:
    """Have the file of one folder in another, too. Raises OSError: either may have been changed by a training."""
    with (
        Extraction(source, follow=False) as theirs,
        Extraction(target, follow=False) as mine,
        theirs.parent(key, make=False) as (there, name),
        mine.parent(key) as (here, _),
    ):
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=here)
        os.link(name, name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)


def prune(root: Path, unused_s: float = KEEP_UNUSED_S) -> None:
    """Forget what nobody has used for so long. Never raises: nothing depends on it."""
    for folder in _folders(root):
        with suppress(OSError):
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                if time.time() - os.fstat(lock).st_mtime > unused_s and _try_lock(lock, fcntl.LOCK_EX):
                    # At once: nobody may begin to fill what is being emptied.
                    folder.rename(root / f"{_GONE}{folder.name}")
            finally:
                os.close(lock)
    for gone in root.glob(f"{_GONE}*"):
        shutil.rmtree(gone, ignore_errors=True)


def _folders(root: Path) -> list[Path]:
    try:
        return [entry for entry in root.iterdir() if not entry.name.startswith(".")]
    except OSError:
        return []


def _done_at_ns(folder: Path) -> int | None:
    try:
        return (folder / "done").stat().st_mtime_ns
    except OSError:
        return None


def _parts(meta: Meta) -> Iterator[Part]:
    if not meta.size:
        yield Part(meta, 0, 0)
    for begin in range(0, meta.size, PART_BYTES):
        yield Part(meta, begin, min(begin + PART_BYTES, meta.size))


def _read_journal(folder: Path) -> set[tuple[str, str, int, int]]:
    """Of another boot it says nothing, unless all was on the disk: what it names may not have got there."""
    found: set[tuple[str, str, int, int]] = set()
    try:
        first, *lines = (folder / "journal").read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return found
    if first != boot_id() and not (folder / "settled").exists():
        return found
    for line in lines:
        with suppress(ValueError, TypeError):  # The last line may be torn.
            key, etag, size, begin = json.loads(line)
            found.add((key, etag, size, begin))
    return found


def _is_file(path: Path, size: int, not_after_ns: int | None = None) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    if stat.S_ISDIR(found.st_mode):
        return size == 0  # What an empty object stood for.
    changed = not_after_ns is not None and found.st_mtime_ns > not_after_ns
    return stat.S_ISREG(found.st_mode) and found.st_size == size and not changed


def _try_lock(lock: int, how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False
