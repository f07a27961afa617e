"""A store in a folder: each object is a plain file whose path is the key.

Uses plain system calls instead of obstore's LocalStore, for three reasons: an object's bytes must be on the disk
*before* its name is (a log entry that is empty after a power cut would end the log), errors must be distinguished by
number (a full disk is an outage, a missing permission is not), and a governor reads thousands of small files in a pass.
"""
# Paths are strings here: building a Path costs more than most of these calls.
# ruff: noqa: PTH102, PTH104, PTH106, PTH108, PTH112, PTH116, PTH120

from __future__ import annotations

import builtins
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.store.base import RECORD_BYTES, Meta, Object, StoredFile, check_key, check_prefix, is_valid_key
from stoker.store.disk import (
    ABSENT,
    flush_folder,
    holds_any,
    holds_other_than,
    is_taken,
    lock,
    meta_of,
    read_all,
    remove_stale,
    translated,
)
from stoker.store.hashed_copy import (
    SourceFailed,
    clone,
    copy_file,
    copy_hashed,
    copy_in_kernel,
    discard,
    is_large,
    read_into,
    rewind,
    write_from,
)
from stoker.store.home import home
from stoker.store.upload_progress import UPLOADS

# Folder of files that are being written. In the root, so that keys of any length can be written.
_PARTIAL = ".stoker-partial"
# Folders that exist for a moment while a check tests whether the store is writable.
_TEMPORARY_FOLDERS = (_PARTIAL, "check", "probes")
# Age of a stale partial file without a lock: longer than any pause between opening and locking.
_STALE_AFTER_S = 60.0
# A folder may be pruned by one writer while another is about to use it; each retry needs another such coincidence.
_ROUNDS = 20


class FolderStore:
    """A `Store` in a local or mounted folder, which is created on the first write."""

    def __init__(self, root: Path) -> None:
        self._root = str(root).rstrip("/")
        self._partial = f"{self._root}/{_PARTIAL}"
        self._url = root.as_uri()
        # True once the root was seen with content. If it is missing afterwards, its disk is not mounted or it was
        # moved: nothing may be concluded from that, and nothing may be written in its place. An empty root does not
        # count: it may be another process's trial, which is withdrawn at any moment.
        self._seen = holds_other_than(root, _TEMPORARY_FOLDERS)
        # The folders that this object created, down to the one for partial files: see `_withdraw`.
        self._made: builtins.list[str] = []

    @property
    def url(self) -> str:
        return self._url

    @property
    def is_local(self) -> bool:
        return True

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, key: str, *, limit: int | None = None) -> Object | None:
        file = self._open(key)
        if file is None:
            return None
        try:
            meta = meta_of(key, os.fstat(file))
            if meta.size > (limit := RECORD_BYTES if limit is None else limit):
                raise StoreError(f"{key} has {meta.size} bytes, more than the {limit} it may have")
            return Object(read_all(file, meta.size), meta)
        except OSError as error:
            raise translated(error, self._url) from error
        finally:
            os.close(file)

    def get_from(self, key: str, start: int) -> bytes | None:
        file = self._open(key)
        if file is None:
            return None
        try:
            os.lseek(file, start, os.SEEK_SET)
            return read_all(file, max(0, os.fstat(file).st_size - start))
        except OSError as error:
            raise translated(error, self._url) from error
        finally:
            os.close(file)

    def head(self, key: str) -> Meta | None:
        path = self._path(key)
        try:
            status = os.stat(path, follow_symlinks=False)
        except ABSENT:
            self._check_root()
            return None
        except OSError as error:
            raise translated(error, self._url) from error
        self._seen = True
        return meta_of(key, status) if stat.S_ISREG(status.st_mode) else None

    def list(self, prefix: str) -> Iterator[Meta]:
        check_prefix(prefix)
        try:
            yield from self._walk(prefix)
        except OSError as error:
            raise translated(error, self._url) from error

    def folders(self, prefix: str) -> builtins.list[str]:
        check_prefix(prefix)
        try:
            found = self._entries(prefix)
            return sorted(
                entry.name for entry in found if entry.is_dir(follow_symlinks=False) and holds_any(entry.path)
            )
        except OSError as error:
            raise translated(error, self._url) from error

    def get_file(self, key: str, target: Path) -> str | None:
        file = self._open(key)
        if file is None:
            return None
        try:
            # A failure to write `target` concerns the caller's disk and not the store: it stays an OSError.
            with target.open("w+b", buffering=0) as out:
                if not clone(file, out.fileno()):
                    if is_large(file) and (copied := copy_in_kernel(file, out.fileno(), flush=False)):
                        return copied[0]
                    rewind(file, out.fileno())
                    return copy_hashed(self._checked(read_into(file)), write_from(out.fileno()))[0]
                return copy_hashed(self._checked(read_into(file)), discard)[0]
        finally:
            os.close(file)

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        try:
            with self._temporary() as (file, name):
                write_from(file)(memoryview(data))
                # Not flushed: heartbeats are many, and an overwritten object is not worth a flush. But a network
                # filesystem reports a full disk only on close, which must come before the rename.
                os.close(os.dup(file))
                self._placed(path, lambda: os.rename(name, path))
        except OSError as error:
            raise translated(error, self._url) from error

    def create(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        try:
            if is_taken(path):
                return False
            with self._temporary() as (file, name):
                write_from(file)(memoryview(data))
                os.fsync(file)
                return self._link(name, path)
        except OSError as error:
            raise translated(error, self._url) from error

    def put_file(self, source: Path, key: Callable[[str], str], *, replace: bool = False) -> StoredFile:
        # A source that cannot be read stays an OSError; only errors of the store are mapped.
        with source.open("rb", buffering=0) as file, UPLOADS.one_try(file.fileno()) as moved:
            try:
                with self._temporary() as (target, name):
                    lock(target)
                    remove_stale(self._partial, os.fstat(target).st_mtime, _STALE_AFTER_S)
                    digest, size = copy_file(file.fileno(), target, moved)
                    path = self._path(key(digest))
                    if not replace and is_taken(path):
                        return StoredFile(digest, size, moved=0)
                    # Usually flushed already during the hashing.
                    os.fsync(target)
                    if replace:
                        self._placed(path, lambda: os.rename(name, path))
                        return StoredFile(digest, size, moved=size)
                    return StoredFile(digest, size, moved=size if self._link(name, path) else 0)
            except SourceFailed as failed:
                raise failed.error from failed
            except OSError as error:
                raise translated(error, self._url) from error

    def delete(self, keys: Iterable[str]) -> None:
        parents: set[str] = set()
        try:
            for key in keys:
                path = self._path(key)
                try:
                    os.unlink(path)
                except (*ABSENT, IsADirectoryError):
                    continue
                parents.add(os.path.dirname(path))
        except OSError as error:
            raise translated(error, self._url) from error
        finally:
            for parent in parents:
                self._prune(parent)
            self._withdraw()

    # ── paths and folders ─────────────────────────────────────────────────────────────────────────────────────────────

    def _path(self, key: str) -> str:
        check_key(key)
        if key.startswith(_PARTIAL) and key.partition("/")[0] == _PARTIAL:
            raise StoreError(f"{key!r} cannot be a key: unfinished files are stored there")
        return f"{self._root}/{key}"

    def _check_root(self) -> None:
        """Check the root when an object is absent: the absence is positive only if the root exists, or never did."""
        if self._seen and not os.path.isdir(self._root):
            raise StoreUnavailable(f"{self._url} is gone: moved away, or its disk is not mounted")

    def _open(self, key: str) -> int | None:
        """Open the object's file for reading; None if there is none."""
        path = self._path(key)
        try:
            # A pipe or a link in the store must neither block nor lead elsewhere.
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except ABSENT:
            self._check_root()
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                return None
            raise translated(error, self._url) from error
        if stat.S_ISREG(os.fstat(file).st_mode):
            self._seen = True
            return file
        os.close(file)
        return None

    def _checked(self, read: Callable[[memoryview], int]) -> Callable[[memoryview], int]:
        def checked(buffer: memoryview) -> int:
            try:
                return read(buffer)
            except OSError as error:
                raise translated(error, self._url) from error

        return checked

    @contextmanager
    def _temporary(self) -> Iterator[tuple[int, str]]:
        """A new partial file, which is deleted afterwards unless it was renamed."""
        name = f"{self._partial}/{secrets.token_hex(12)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for left in reversed(range(_ROUNDS)):
            try:
                file = os.open(name, flags, 0o666)
                break
            except FileNotFoundError:
                if not left:
                    raise
                # Another process may withdraw the folder at this moment: see `_withdraw`.
                self._make_folder(self._partial)
        self._seen = True
        try:
            yield file, name
        finally:
            os.close(file)
            try:
                os.unlink(name)
            except OSError:
                # Renamed; or left for the next sweep, because this error must not hide the outcome of the write.
                pass

    def _placed(self, path: str, place: Callable[[], None]) -> None:
        """Give a finished file its name, and create the folders that it needs."""
        for _ in range(_ROUNDS):
            try:
                return place()
            except FileNotFoundError:
                self._make_folder(os.path.dirname(path))
        raise StoreUnavailable(f"{self._url}: the folder of {path} vanishes as often as it is created")

    def _link(self, name: str, path: str) -> bool:
        """Give the file its name unless that is taken, and make the name durable. A hard link never overwrites."""
        while True:
            try:
                self._placed(path, lambda: os.link(name, path))
                break
            except FileExistsError:
                # If it was deleted meanwhile, the name is free again.
                if is_taken(path):
                    return False
            except OSError as error:
                if error.errno in (errno.EPERM, errno.ENOTSUP):
                    self._prune(os.path.dirname(path))
                    raise StoreDenied(f"{self._url} cannot be a store: its filesystem has no hard links") from error
                raise
        flush_folder(os.path.dirname(path))
        return True

    def _make_folder(self, folder: str) -> None:
        """Create a folder and its parents, durably. All are created here, so an existing one is durable already.
        Folders above the root are not flushed: they belong to others, and may not be readable."""
        self._check_root()
        parent = os.path.dirname(folder)
        # Stoker's home is for this user alone, whatever creates it, and stays: see `make_home`.
        is_home = folder == os.path.realpath(home())
        try:
            os.mkdir(folder, 0o700 if is_home else 0o777)
        except FileExistsError:
            return
        except FileNotFoundError:
            # Nothing is pruned above the root: an existing folder that accepts no subfolder, as below /proc, never
            # will.
            if len(folder) <= len(self._root) and os.path.isdir(parent):
                raise StoreDenied(f"{self._url} cannot be used: no folder can be made in {parent}") from None
            self._make_folder(parent)
            self._make_folder(folder)
            return
        if len(folder) > len(self._root):
            flush_folder(parent)
        is_above = folder == self._partial or len(folder) <= len(self._root)
        if is_above and not is_home and folder not in self._made:
            self._made.append(folder)

    def _prune(self, folder: str) -> None:
        """Remove empty folders: listing ten thousand of them takes time, and a bucket has none."""
        while len(folder) > len(self._root):
            try:
                os.rmdir(folder)
            except OSError:
                return
            folder = os.path.dirname(folder)

    def _withdraw(self) -> None:
        """Remove the folders that this object created for a store that stayed empty: after a trial, or a refused
        submission. Folders of others stay, and so does a store with content.
        """
        if not self._made:
            return
        made, self._made = self._made, []
        try:
            with os.scandir(self._root) as entries:
                if any(entry.name != _PARTIAL for entry in entries):
                    return
            for folder in reversed(made):
                os.rmdir(folder)
                # A root that its creator removed is not missing.
                self._seen = self._seen and folder != self._root
        except OSError:
            return  # Another process writes there, or has removed it.

    # ── listing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _entries(self, prefix: str) -> builtins.list[os.DirEntry[str]]:
        try:
            with os.scandir(f"{self._root}/{prefix}") as entries:
                # Names that cannot be keys were not written by a store, and could not be read from it.
                found = [entry for entry in entries if is_valid_key(entry.name)]
        except ABSENT:
            self._check_root()
            return []
        self._seen = self._seen or any(prefix or entry.name not in _TEMPORARY_FOLDERS for entry in found)
        return found if prefix else [entry for entry in found if entry.name != _PARTIAL]

    def _walk(self, prefix: str) -> Iterator[Meta]:
        # A folder sorts with the slash that follows its name in all keys below it.
        order: builtins.list[tuple[str, os.DirEntry[str]]] = []
        for entry in self._entries(prefix):
            folder = entry.is_dir(follow_symlinks=False)
            order.append((f"{prefix}{entry.name}/" if folder else f"{prefix}{entry.name}", entry))
        order.sort(key=lambda pair: pair[0])
        for key, entry in order:
            if key.endswith("/"):
                yield from self._walk(key)
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield meta_of(key, status)
