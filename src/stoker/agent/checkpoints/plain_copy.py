"""`checkpoints.copy_to`: copy a committed checkpoint to a URL as plain files.

Files are taken from the store, where they are whole and verified, and not from the folder, which the training changes.
Nothing is deleted that Stoker did not write there, and nothing that has changed since.
"""

from __future__ import annotations

import logging
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from posixpath import dirname, join, normpath

from stoker.agent.checkpoints.copy_room import CopyRoom
from stoker.model.errors import StokerError
from stoker.store.base import Meta, ObjectChanged, Store, is_valid_key
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

log = logging.getLogger(__name__)

# Each holds one file on the disk of the node, as far as there is room.
_WORKERS = 4
_LINK_BYTES = 4096
_MOST_LINKS = 10


class CopyTaken(StokerError):
    """A job that was submitted later copies its checkpoints to the same URL."""

    def __init__(self, url: str, job: str) -> None:
        super().__init__(f"{job}, which was submitted later, copies its checkpoints to {url}")


@dataclass(frozen=True)
class PlainCopy:
    """Copies of one job's checkpoints. `own` is its record as for an empty URL; `check` may end a copy by raising;
    `trains` says whether the training needs the disk, too."""

    store: Store
    target: Store
    own: CopyRecord
    scratch: Path
    check: Callable[[], None] = lambda: None
    trains: Callable[[], bool] = lambda: True

    def claim(self) -> CopyRecord:
        """Become the job that writes to the URL. Raises CopyTaken, StoreError."""
        record = claim(self.target, self.own)
        if record is None:
            there = read_record(self.target)
            raise CopyTaken(self.target.url, there.job if there is not None else "another job")
        return record

    def copy(self, checkpoint: Checkpoint) -> list[str]:
        """Make the plain files those of the checkpoint; return the paths that cannot be plain files.

        Safe to repeat. Raises RestoreError if the checkpoint is gone or damaged, CopyTaken, NoCopyRoom, StoreError;
        ObjectChanged if something else wrote one of its files meanwhile.
        """
        room = CopyRoom(self.scratch, self.trains)
        name = f"{self.own.job}/{checkpoint.key}"
        record = self.claim()
        listed = list_files(self.target)
        if record.complete and record.checkpoint == name and record.matches(listed):
            return []
        files, left_out = self._plain_files(checkpoint)
        gone = {
            path: meta.etag for path, meta in listed.items() if path not in files and self._is_own(record, meta, room)
        }
        wanted = {
            path: CopiedFile("", part.blob.digest, _is_found(record, listed, path)) for path, part in files.items()
        }
        changed = {path: one for path, one in wanted.items() if not _is_there(record, listed, path, one.digest)}
        # While the URL still has a whole checkpoint.
        for path in changed:
            room.check(path, files[path].blob.size)
        # The record first: from now on the files are of two checkpoints.
        begun = replace(record, complete=False, checkpoint=name, files={**record.files, **changed})
        write_record(self.target, begun)
        ours = {path: replace(one, etag=listed[path].etag) for path, one in wanted.items() if path not in changed}

        def send(path: str) -> None:
            with room.take(path, files[path].blob.size):
                ours[path] = self._send(path, files[path], changed[path], is_new=path not in listed)

        try:
            run_all([partial(send, path) for path in changed], _WORKERS)
        except Exception as error:
            # Raised again. Whatever cut the copy off, the files that have arrived are recorded as Stoker's own.
            if not isinstance(error, CopyTaken):
                self._note_sent(replace(begun, files={**begun.files, **ours}))
            raise
        self._check_owner()
        # The upload may have taken an hour: what something else wrote meanwhile is not Stoker's.
        there = list_files(self.target)
        self.target.delete([path for path, etag in gone.items() if path in there and there[path].etag == etag])
        recorded = {path: self._as_recorded(meta, ours.get(path)) for path, meta in list_files(self.target).items()}
        lost = [path for path in files if path not in recorded or not recorded[path].digest]
        self._check_owner()
        write_record(self.target, replace(record, complete=not lost, checkpoint=name, files=recorded))
        if lost:
            raise ObjectChanged(f"something else changed {self.target.url}/{lost[0]} during the copy")
        return left_out

    def _send(self, path: str, part: CheckpointFile, about_to: CopiedFile, *, is_new: bool) -> CopiedFile:
        """Send one file; return what is there now. `is_new`: there was no such file at the beginning of the copy."""
        self.check()
        place = Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            self._fetch(part, place)
            # Before each file: of two jobs with one URL, the older one stops here.
            self._check_owner()
            found = about_to.found or (is_new and self.target.head(path) is not None)
            self.target.put_file(place / "file", lambda _: path, replace=True)
            meta = self.target.head(path)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return replace(about_to, etag=meta.etag if meta is not None else "", found=found)

    def _fetch(self, part: CheckpointFile, place: Path) -> None:
        """Fetch one file, under the name `file`."""
        plain = CheckpointFile(part.rank, replace(part.blob, path="file", mode=0o644))
        try:
            fetch_files(self.store, self.own.job, [plain], place)
        except RestoreError as error:
            raise RestoreError(f"{part.blob.path}: {error.reason.removeprefix('file: ')}") from error

    def _note_sent(self, record: CopyRecord) -> None:
        """Record what was sent before a failure, so that the next try does not send it again."""
        try:
            self._check_owner()
            write_record(self.target, record)
        except StokerError as error:
            log.info("what was copied to %s is not recorded: %s", self.target.url, error)

    def _as_recorded(self, meta: Meta, ours: CopiedFile | None) -> CopiedFile:
        """The record of a listed file: Stoker's if it is still the version that Stoker wrote, or else another's."""
        if ours is None or not ours.etag:
            return CopiedFile(meta.etag)
        if meta.etag != ours.etag:
            # By the same call as after the upload, should a store spell ETags differently in listings.
            now = self.target.head(meta.key)
            if now is None or now.etag != ours.etag:
                return CopiedFile(meta.etag)
        return replace(ours, etag=meta.etag)

    def _check_owner(self) -> None:
        there = read_record(self.target)
        # A person may have removed everything: then this job goes on.
        if there is not None and there.owner != self.own.owner:
            raise CopyTaken(self.target.url, there.job)

    def _is_own(self, record: CopyRecord, meta: Meta, room: CopyRoom) -> bool:
        """Return whether Stoker alone wrote this file, and it is as Stoker wrote it."""
        known = record.files.get(meta.key)
        if known is None or not known.digest or known.found:
            return False
        if known.etag:
            return known.etag == meta.etag
        with room.take(meta.key, meta.size):
            return self._digest(meta.key) == known.digest

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
            self._fetch(part, place)
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


def _is_there(record: CopyRecord, listed: Mapping[str, Meta], path: str, digest: str) -> bool:
    """Return whether the URL has exactly these bytes, as far as Stoker wrote them."""
    known = record.files.get(path)
    return known is not None and known.digest == digest and path in listed and listed[path].etag == known.etag


def _is_found(record: CopyRecord, listed: Mapping[str, Meta], path: str) -> bool:
    """Return whether something else than Stoker made the file that is there."""
    known = record.files.get(path)
    if path not in listed:
        return False
    return known is None or not known.digest or known.found or known.etag not in ("", listed[path].etag)


__all__ = ["CopyTaken", "PlainCopy", "RestoreError"]
