"""`resume_from`: copy a checkpoint from elsewhere into a job, as if an attempt before the first had committed it.

It becomes `00000000/<claim that imported it>-NAME`. So all readers see one more checkpoint and nothing special, and no
key is used twice. The blobs are this job's own: the job they came from may prune or be removed.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from stoker.agent.checkpoints.blobs import BlobSender, FileUnstable, OutgoingFile
from stoker.agent.checkpoints.folder_snapshot import placed, scan
from stoker.agent.checkpoints.save_protocol import MARKER, read_json
from stoker.agent.checkpoints.unreadable_files import printable
from stoker.core.poisoned_checkpoints import NONE_POISONED
from stoker.model import keys
from stoker.model.errors import CodecError, StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.model.key_segments import is_safe_name
from stoker.model.node_facts import BlobRef, Manifest
from stoker.store.base import Store, open_store
from stoker.store.checkpoint_copy import RECORD, read_record
from stoker.store.checkpoint_manifests import (
    IMPORTED,
    LOCAL_WORKERS,
    MANIFEST_BYTES,
    MOST_COUNT,
    REMOTE_WORKERS,
    TrustedClaims,
    decode,
    encode,
    read_trusted_claims,
    safe_path,
    why_unsafe,
)
from stoker.store.checkpoint_refs import matching
from stoker.store.checkpoints import (
    Checkpoint,
    CheckpointFile,
    RestoreError,
    choose,
    fetch_files,
    find_checkpoint,
    list_checkpoints,
)
from stoker.store.parallel import run_all
from stoker.store.safe_extraction import Extraction

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FromJob:
    """A checkpoint of another job in this store, by name or pinned reference; its newest where `name` is None."""

    job: str
    name: str | None = None


@dataclass(frozen=True)
class FromFolder:
    """A folder of plain files on this machine."""

    path: Path


@dataclass(frozen=True)
class FromUrl:
    """Plain files in a bucket."""

    url: str


Source = FromJob | FromFolder | FromUrl


def parse_source(text: str) -> Source:
    """Parse `JOB[:REF]`, a URL or a folder: a text that looks like a path (`/`, `./`, `~`), or a folder that exists."""
    scheme, separator, rest = text.partition("://")
    if separator:
        return FromFolder(Path(unquote(rest))) if scheme == "file" else FromUrl(text)
    path = Path(text).expanduser()
    if "/" in text or text.startswith((".", "~")) or path.is_dir():
        return FromFolder(path)
    job, _, name = text.partition(":")
    return FromJob(job, name or None)


def import_checkpoint(
    store: Store,
    job: str,
    source: Source,
    *,
    ordinal: int = 0,
    trust: TrustedClaims | None = None,
    senders: dict[int, BlobSender] | None = None,
    scratch: Path | None = None,
    check: Callable[[], None] = lambda: None,
) -> str:
    """Copy the checkpoint into `job` and return its key. If `job` has checkpoints, imported or not, return the newest.

    Every byte is verified on the way. `ordinal` is a number that no import into this job had before. `trust` says which
    manifests of `job` count. `senders` remember what an earlier try copied. `scratch` is a folder for files on their
    way; a temporary folder by default. `check` may end the import between any two files by raising; nothing is imported
    then. Raises UserError when there is nothing to import, RestoreError when a checkpoint that was asked for by name is
    damaged, StoreError when the store fails: then it can be repeated, and files that `senders` know are not copied
    again.
    """
    present = choose(list_checkpoints(store, job, trust=trust), NONE_POISONED)
    if present is not None:
        return present.key
    folder = Path(tempfile.mkdtemp(prefix="stoker-import-", dir=scratch))
    target = _Import(store, job, ordinal, {} if senders is None else senders, folder, check)
    try:
        match source:
            case FromJob():
                return target.from_job(source)
            case FromFolder():
                if (source.path / RECORD).is_file():
                    _check_whole(str(source.path))
                return target.from_folder(source.path, str(source.path))
            case FromUrl():
                _check_whole(source.url)
                return target.from_url(source.url)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class _Import:
    """One import: the job that a checkpoint is copied into, the ordinal it gets there, and the senders of its ranks.

    `folder` is for files on their way.
    """

    store: Store
    job: str
    ordinal: int
    senders: dict[int, BlobSender]
    folder: Path
    check: Callable[[], None]

    def _sender(self, rank: int) -> BlobSender:
        if rank not in self.senders:
            self.senders[rank] = BlobSender(self.store, self.job, rank, scratch=self.folder, workers=self._workers)
        return self.senders[rank]

    @property
    def _workers(self) -> int:
        return LOCAL_WORKERS if self.store.is_local else REMOTE_WORKERS

    def _key(self, name: str) -> str:
        return keys.checkpoint_key(IMPORTED, self.ordinal, name)

    # ── From a job ────────────────────────────────────────────────────────────────────────────────────────────────────

    def from_job(self, source: FromJob) -> str:
        # The other job's log says which of its manifests count.
        trust = read_trusted_claims(self.store, source.job)
        before: str | None = None
        while True:
            listed = list_checkpoints(self.store, source.job, trust=trust)
            # References were pinned when the job was submitted.
            found = listed if source.name is None else matching(listed, source.name, None)
            chosen = choose(found, NONE_POISONED, before)
            if chosen is None:
                what = f"no checkpoint {source.name}" if source.name else "no checkpoint"
                raise UserError(f"resume_from: job {source.job} has {what} that can be restored")
            try:
                return self._copy(source.job, chosen)
            except RestoreError as error:
                # The newest was asked for, without a name: a checkpoint that is damaged, or was pruned meanwhile, is
                # passed over.
                named = source.name is not None
                if named and find_checkpoint(self.store, source.job, chosen.key, trust=trust) is not None:
                    raise
                log.warning("%s of %s cannot be imported: %s", chosen.key, source.job, error.reason)
                before = chosen.key

    def _copy(self, source_job: str, checkpoint: Checkpoint) -> str:
        # Rank 0 last: the checkpoint exists when its manifest does.
        for rank, manifest in sorted(checkpoint.manifests.items(), reverse=True):
            sender = self._sender(rank)
            copies = [partial(self._copy_blob, source_job, rank, sender, blob) for blob in manifest.files]
            files = tuple(run_all(copies, self._workers))
            self.check()
            _create(self.store, replace(manifest, job=self.job, claim=IMPORTED, ordinal=self.ordinal, files=files))
        return self._key(checkpoint.name)

    def _copy_blob(self, source_job: str, rank: int, sender: BlobSender, blob: BlobRef) -> BlobRef:
        """Copy the file to a blob of the target job. Bytes that two files share are copied once."""
        self.check()
        known = sender.upload_of(blob.digest)
        if known is None:
            place = Path(tempfile.mkdtemp(dir=self.folder))
            try:
                file = CheckpointFile(rank, replace(blob, path="blob", mode=0o644))
                fetch_files(self.store, source_job, [file], place)
                digest, known = sender.send_file(place / "blob")
                if digest != blob.digest:
                    raise RestoreError(f"{blob.path}: changed while it was copied")
            finally:
                shutil.rmtree(place, ignore_errors=True)
        return replace(blob, upload=known)

    # ── From plain files ──────────────────────────────────────────────────────────────────────────────────────────────

    def from_folder(self, path: Path, shown: str) -> str:
        def proceed() -> bool:
            self.check()
            return True

        if not path.is_dir():
            raise UserError(f"resume_from: {shown} is no folder")
        marker = read_json(path / MARKER)
        name = _name(str(marker["name"]) if marker and "name" in marker else path.resolve().name)
        # A single save of stoker.train goes where the script will look for it.
        inside = f"{name}/" if marker is not None else ""
        step = marker.get("step") if marker else None
        found = [file for file in scan(path).values() if file.path != RECORD]
        files = placed(inside.rstrip("/"), found) if inside else found
        unkept = next((file for file in files if file.problem), None)
        if unkept is not None:
            raise UserError(printable(f"resume_from: {shown} cannot be a checkpoint: {unkept.path}: {unkept.problem}"))
        if not files:
            raise UserError(f"resume_from: {shown} is empty")
        try:
            blobs = self._sender(0).send(
                [OutgoingFile(file, path / file.path.removeprefix(inside)) for file in files], proceed
            )
        except FileUnstable as error:
            raise UserError(f"resume_from: {error} changed while it was read") from None
        manifest = Manifest(
            name=name,
            job=self.job,
            claim=IMPORTED,
            rank=0,
            ordinal=self.ordinal,
            committed_at=datetime.now(timezone.utc),
            files=tuple(blobs.values()),
            step=step if isinstance(step, int) and abs(step) <= MOST_COUNT else None,
        )
        self.check()
        _create(self.store, manifest)
        return self._key(name)

    def from_url(self, url: str) -> str:
        source = open_store(url)
        # A key that ends with a slash stands for a folder, and has no content.
        key_list = [meta.key for meta in source.list("") if not meta.key.endswith("/") and meta.key != RECORD]
        unkept = next((key for key in key_list if not safe_path(key)), None)
        if unkept is not None:
            raise UserError(f"resume_from: {url} cannot be a checkpoint: {printable(unkept)}: {why_unsafe(unkept)}")
        if not key_list:
            raise UserError(f"resume_from: there is nothing at {url}")
        folder = self.folder / _name(url.rstrip("/").rpartition("/")[2])

        def fetch_one(number: int, key: str) -> None:
            self.check()
            with staging.new_file(str(number)) as file:
                found = source.get_file(key, file)
            if found is None:
                raise UserError(f"resume_from: {url}/{key} was removed while it was read")
            staging.place(str(number), key)

        with Extraction(folder, follow=False) as extraction, extraction.staging() as staging:
            run_all([partial(fetch_one, number, key) for number, key in enumerate(key_list)], REMOTE_WORKERS)
        return self.from_folder(folder, url)


def _check_whole(place: str) -> None:
    """Refuse plain files that a job was copying there when it ended, or is copying: some are of another checkpoint."""
    record = read_record(open_store(place))
    if record is not None and not record.complete:
        raise UserError(
            f"resume_from: the files at {place} are of two checkpoints: {record.job} has not copied all of "
            f"{record.checkpoint}; resume from that job in its store, {record.store}, or remove {RECORD} to take the "
            "files as they are"
        )


def _create(store: Store, manifest: Manifest) -> None:
    """Write the manifest.

    A manifest with the same content is of an earlier try, whose reply was lost: no other import has its key.
    """
    key = keys.checkpoint_key(manifest.claim, manifest.ordinal, manifest.name, manifest.rank)
    data = encode(manifest)
    place = keys.manifest(manifest.job, key)
    if store.create(place, data):
        return
    try:
        found = store.get(place, limit=MANIFEST_BYTES)
        there = decode(found.data) if found is not None else None
    except (StoreUnavailable, StoreDenied):
        raise
    except (StoreError, CodecError):
        # The stored object is too large, or no manifest.
        there = None
    if there is None or _content(there) != _content(manifest):
        raise RestoreError(f"{place} is taken by another checkpoint")


def _content(manifest: Manifest) -> list[BlobRef]:
    return [replace(blob, upload="") for blob in manifest.files]


def _name(text: str) -> str:
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._+=-") else "-" for letter in text)
    safe = safe.lstrip(".")[:100]
    return safe if is_safe_name(safe) else "imported"
