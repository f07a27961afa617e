"""Files fetched for an input, cached on this machine for every job that needs the same objects.

    <root>/<digest of the URL>-<digest of the listing>/
        lock      locked exclusively while the folder is filled, shared while it is used. Its time: the last use
        journal   the boot id of this computer; then a line for each complete part of a file
        done      written when all files are complete; no file in `files` is younger
        settled   written when all files are on the disk too
        files/    the folder that the training sees

On `local` many nodes and jobs share one root. A file is never changed in place: another version of an object goes to
another folder, which links to the files that are the same.
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

from stoker.agent.inputs.source import InputListing
from stoker.model import codec
from stoker.model.errors import CodecError
from stoker.processes import boot_id
from stoker.store.base import Meta
from stoker.store.safe_extraction import Extraction, PathObstructed

# Larger files are fetched in parts of this size, several at once.
PART_BYTES = 8 << 20
UNUSED_FOR_S = 30 * 86400.0
_POLL_S = 0.2
_DELETED = ".gone-"


@dataclass(frozen=True)
class ObjectPart:
    """A range of an object's bytes: all of them if the object is small."""

    meta: Meta
    begin: int
    end: int

    @property
    def whole(self) -> bool:
        return self.begin == 0 and self.end == self.meta.size

    def line(self) -> str:
        return json.dumps([self.meta.key, self.meta.etag, self.meta.size, self.begin]) + "\n"


class InputInUse(Exception):
    """Other processes use the folder, and its files were modified: it can be neither trusted nor repaired now."""


class CacheEntry:
    """One folder of the root. Call `acquire` before anything else; this process then holds its lock until it exits."""

    def __init__(self, root: Path, listing: InputListing) -> None:
        self.root = root
        self.listing = listing
        self.folder = root / f"{listing.url_digest[:12]}-{listing.digest[:32]}"
        self.files = self.folder / "files"
        self._journal: IO[str] | None = None
        self._journal_lock = threading.Lock()
        self._lock = -1

    @property
    def path(self) -> Path:
        """The path for the training."""
        return self.files / self.listing.single if self.listing.single is not None else self.files

    # ── Locking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def acquire(self, check: Callable[[], None], on_wait: Callable[[], None]) -> bool:
        """Lock the folder. Returns True if all files are complete. If not, this process has it alone, and must fill it.

        `on_wait` is called once if another process is filling it, and `check` repeatedly then. Raises InputInUse,
        OSError.
        """
        waited = False
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                continue  # The folder was pruned between the two calls.
            try:
                taken = self._try_acquire(lock)
            except InputInUse:
                os.close(lock)
                raise
            if taken is not None:
                os.utime(lock)
                self._lock = lock
                return taken
            os.close(lock)
            if not waited:
                on_wait()
                waited = True
            check()
            time.sleep(_POLL_S)

    def _try_acquire(self, lock: int) -> bool | None:
        """As `acquire`, without waiting. None: not now."""
        if _try_lock(lock, fcntl.LOCK_EX):
            if not _is_same(lock, self.folder / "lock"):
                return None  # The folder was pruned, as above.
            if not self._is_complete():
                return False
            fcntl.flock(lock, fcntl.LOCK_SH)
            return True
        if not _try_lock(lock, fcntl.LOCK_SH):
            return None
        if not self._is_complete():
            raise InputInUse
        return True

    def _is_complete(self) -> bool:
        try:
            done = (self.folder / "done").stat()
            if not (self.folder / "settled").exists() and (self.folder / "done").read_text() != boot_id():
                return False  # The computer crashed before the files were on the disk.
            return all(_is_file(self.files / meta.key, meta.size, done.st_mtime_ns) for meta in self.listing.files)
        except OSError:
            return False

    # ── Filling it ────────────────────────────────────────────────────────────────────────────────────────────────────

    def missing(self) -> list[ObjectPart]:
        """Begin to fill the folder, and return the parts to fetch.

        Complete parts, also of another version's folder, are reused. Raises OSError.
        """
        self.files.mkdir(exist_ok=True)
        complete = self._complete_parts()
        for name in ("done", "settled"):
            (self.folder / name).unlink(missing_ok=True)
        self._journal = (self.folder / "journal").open("w", encoding="utf-8")
        self._journal.write(f"{boot_id()}\n")
        missing = []
        for meta in self.listing.files:
            entries = {(meta.key, meta.etag, meta.size, part.begin) for part in _parts(meta)}
            if not entries <= complete and not _may_be_continued(self.files / meta.key):
                complete -= entries
            for part in _parts(meta):
                if (meta.key, meta.etag, meta.size, part.begin) in complete:
                    self._journal.write(part.line())
                else:
                    missing.append(part)
        self._journal.flush()
        return missing

    def record(self, part: ObjectPart) -> None:
        """Record that this part is complete. Thread-safe."""
        assert self._journal is not None
        with self._journal_lock:
            self._journal.write(part.line())

    def flush(self) -> None:
        """Flush the journal, so that recorded parts are found after a crash of this process."""
        assert self._journal is not None
        with self._journal_lock:
            self._journal.flush()

    def finish(self) -> None:
        """Mark all files as complete, and let other processes use them. Raises OSError."""
        assert self._journal is not None
        self._journal.close()
        draft = self.folder / ".done"
        draft.write_text(boot_id())
        draft.replace(self.folder / "done")
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        threading.Thread(target=self._sync_to_disk, daemon=True, name="settle").start()

    def release(self) -> None:
        """Release the lock. Fetched parts stay for the next process."""
        if self._journal is not None:
            self._journal.close()
        os.close(self._lock)

    def _sync_to_disk(self) -> None:
        # Runs in the background: until the data is on the disk, a crash of the computer costs a second fetch and
        # nothing else.
        with suppress(OSError):
            handle = os.open(self.files, os.O_RDONLY | os.O_DIRECTORY)
            try:
                settled = ctypes.CDLL(None).syncfs(handle) == 0
            finally:
                os.close(handle)
            if settled:
                (self.folder / "settled").touch()

    def _complete_parts(self) -> set[tuple[str, str, int, int]]:
        found, latest = _read_journal(self.folder), _done_at_ns(self.folder)
        here = {entry for entry in found if _is_file(self.files / entry[0], entry[2], latest)}
        for other in sorted(self.root.glob(f"{self.listing.url_digest[:12]}-*")):
            if other != self.folder:
                here |= self._adopt(other, here)
        return here

    def _adopt(self, other: Path, here: set[tuple[str, str, int, int]]) -> set[tuple[str, str, int, int]]:
        """Link files that were fetched for another listing of this URL and are the same objects."""
        adopted: set[tuple[str, str, int, int]] = set()
        with suppress(OSError, PathObstructed):
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
    """Link a file of one folder into another. Raises OSError: a training may have modified either."""
    with (
        Extraction(source, follow=False) as theirs,
        Extraction(target, follow=False) as mine,
        theirs.parent(key, make=False) as (complete, name),
        mine.parent(key) as (here, _),
    ):
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=here)
        os.link(name, name, src_dir_fd=complete, dst_dir_fd=here, follow_symlinks=False)


def prune(root: Path, unused_s: float = UNUSED_FOR_S) -> None:
    """Delete entries that were unused for this long. Never raises, because nothing depends on it."""
    for folder in _folders(root):
        with suppress(OSError):
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                if time.time() - os.fstat(lock).st_mtime > unused_s and _try_lock(lock, fcntl.LOCK_EX):
                    # Renamed first, which is atomic: no process may begin to fill a folder that is being deleted.
                    folder.rename(root / f"{_DELETED}{folder.name}")
            finally:
                os.close(lock)
    for deleted in root.glob(f"{_DELETED}*"):
        shutil.rmtree(deleted, ignore_errors=True)


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


def _parts(meta: Meta) -> Iterator[ObjectPart]:
    if not meta.size:
        yield ObjectPart(meta, 0, 0)
    for begin in range(0, meta.size, PART_BYTES):
        yield ObjectPart(meta, begin, min(begin + PART_BYTES, meta.size))


def _read_journal(folder: Path) -> set[tuple[str, str, int, int]]:
    """Return the complete parts. The journal of an earlier boot is ignored unless its data was on the disk."""
    found: set[tuple[str, str, int, int]] = set()
    try:
        first, *lines = (folder / "journal").read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return found
    if first != boot_id() and not (folder / "settled").exists():
        return found
    for line in lines:
        with suppress(CodecError, ValueError, TypeError):  # The last line may be torn.
            key, etag, size, begin = codec.parse(line)
            found.add((key, etag, size, begin))
    return found


def _is_file(path: Path, size: int, not_after_ns: int | None = None) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    if stat.S_ISDIR(found.st_mode):
        return size == 0  # The folder that an empty object stands for.
    changed = not_after_ns is not None and found.st_mtime_ns > not_after_ns
    return stat.S_ISREG(found.st_mode) and found.st_size == size and not changed


def _may_be_continued(path: Path) -> bool:
    """Tell if missing parts can be written into the file: otherwise it is created anew, without its complete parts.

    A process that was killed may have made the file read-only before the journal had the last parts.
    """
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and bool(found.st_mode & stat.S_IWUSR)


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
