"""`checkpoints.copy_to`: copy a committed checkpoint to a URL as plain files.

Files are taken from the store, where they are whole and verified, and not from the folder, which the training changes.
Nothing is deleted that Stoker did not write there, and nothing that has changed since.
"""

from __future__ import annotations

import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from posixpath import dirname, join, normpath

from stoker.model.errors import StokerError
from stoker.model.node_facts import BlobRef
from stoker.store.base import Meta, Store, is_valid_key
from stoker.store.checkpoint_copy import (
    RECORD,
    CopiedFile,
    CopyRecord,
    claim,
    list_files,
    read_record,
    write_record,
)
from stoker.store.checkpoints import Checkpoint, CheckpointFile, RestoreError, fetch_files, files_for_rank
from stoker.store.parallel import run_all

# Each holds one file on the disk of the node.
_WORKERS = 4
_LINK_BYTES = 4096
_MOST_LINKS = 10


class CopyTaken(StokerError):
    """A job that was submitted later copies its checkpoints to the same URL."""

    def __init__(self, url: str, job: str) -> None:
        super().__init__(f"{job}, which was submitted later, copies its checkpoints to {url}")


@dataclass(frozen=True)
class PlainCopy:
    """Copies of one job's checkpoints. `own` is its record as for an empty URL; `check` may end a copy by raising."""

    store: Store
    target: Store
    own: CopyRecord
    scratch: Path
    check: Callable[[], None] = lambda: None

    def claim(self) -> CopyRecord:
        """Become the job that writes to the URL. Raises CopyTaken, StoreError."""
        record = claim(self.target, self.own)
        if record is None:
            there = read_record(self.target)
            raise CopyTaken(self.target.url, there.job if there is not None else "another job")
        return record

    def copy(self, checkpoint: Checkpoint) -> list[str]:
        """Make the plain files those of the checkpoint; return the paths that cannot be plain files.

        Safe to repeat. Raises RestoreError if the checkpoint is gone or damaged, CopyTaken, StoreError.
        """
        name = f"{self.own.job}/{checkpoint.key}"
        record = self.claim()
        listed = list_files(self.target)
        if record.complete and record.checkpoint == name and record.matches(listed):
            return []
        files, left_out = self._plain_files(checkpoint)
        changed = [path for path, part in files.items() if not _is_there(record, listed, path, part.blob)]
        gone = [path for path in listed if path not in files and self._is_own(record, listed[path])]
        found = {path: path in listed and _is_foreign(record, path) for path in files}
        about_to = {path: CopiedFile("", files[path].blob.digest, found[path]) for path in changed}
        # The record first: from now on the files are of two checkpoints.
        write_record(self.target, replace(record, complete=False, checkpoint=name, files={**record.files, **about_to}))
        run_all([partial(self._send, path, files[path]) for path in changed], _WORKERS)
        self._check_owner()
        self.target.delete(gone)
        there = {
            path: CopiedFile(meta.etag, files[path].blob.digest, found[path])
            if path in files
            else CopiedFile(meta.etag)
            for path, meta in list_files(self.target).items()
        }
        self._check_owner()
        write_record(self.target, replace(record, complete=True, checkpoint=name, files=there))
        return left_out

    def _send(self, path: str, part: CheckpointFile) -> None:
        self.check()
        place = Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            plain = CheckpointFile(part.rank, replace(part.blob, path="file", mode=0o644))
            fetch_files(self.store, self.own.job, [plain], place)
            # Before each file: of two jobs with one URL, the older one stops here.
            self._check_owner()
            self.target.put_file(place / "file", lambda _: path, replace=True)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _check_owner(self) -> None:
        there = read_record(self.target)
        # A person may have removed everything: then this job goes on.
        if there is not None and there.owner != self.own.owner:
            raise CopyTaken(self.target.url, there.job)

    def _is_own(self, record: CopyRecord, meta: Meta) -> bool:
        """Return whether Stoker alone wrote this file, and it is as Stoker wrote it."""
        known = record.files.get(meta.key)
        if known is None or not known.digest or known.found:
            return False
        return known.etag == meta.etag or (not known.etag and self._digest(meta.key) == known.digest)

    def _digest(self, path: str) -> str | None:
        """The digest of a file at the URL, which an interrupted copy may have written."""
        place = Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            return self.target.get_file(path, place / "file")
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _plain_files(self, checkpoint: Checkpoint) -> tuple[dict[str, CheckpointFile], list[str]]:
        """The files by path, a link to a file as that file; and the paths that cannot be plain files."""
        parts = {part.blob.path: part for part in files_for_rank(checkpoint)}
        links = {path: self._link(part) for path, part in parts.items() if stat.S_ISLNK(part.blob.mode)}
        files: dict[str, CheckpointFile] = {}
        left_out = []
        for path in parts:
            end = _follow(path, links)
            if end in parts and end not in links and is_valid_key(path) and path != RECORD:
                files[path] = parts[end]
            else:
                left_out.append(path)
        return files, left_out

    def _link(self, part: CheckpointFile) -> str:
        """The path that a link leads to, relative to the folder."""
        place = Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            plain = CheckpointFile(part.rank, replace(part.blob, path="file", mode=0o644))
            fetch_files(self.store, self.own.job, [plain], place)
            text = (place / "file").read_bytes()[:_LINK_BYTES].decode(errors="replace")
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return normpath(join(dirname(part.blob.path), text))


def _follow(path: str, links: Mapping[str, str]) -> str:
    for _ in range(_MOST_LINKS):
        if path not in links:
            break
        path = links[path]
    return path


def _is_there(record: CopyRecord, listed: Mapping[str, Meta], path: str, blob: BlobRef) -> bool:
    """Return whether the URL has exactly these bytes, as far as Stoker wrote them."""
    known = record.files.get(path)
    return known is not None and known.digest == blob.digest and path in listed and listed[path].etag == known.etag


def _is_foreign(record: CopyRecord, path: str) -> bool:
    """Return whether something else than Stoker made the file first."""
    known = record.files.get(path)
    return known is None or not known.digest or known.found


__all__ = ["CopyTaken", "PlainCopy", "RestoreError"]
