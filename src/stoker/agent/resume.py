"""`resume_from`: copy a checkpoint from elsewhere into a job, as if an attempt before the first had committed it.

It becomes `00000000/000000-NAME`, so that everything else sees one checkpoint more and nothing special. The blobs are
this job's own: the job they came from may prune or be removed.
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

from stoker import codec, layout
from stoker.agent.blobs import BlobSender, Outgoing, Unstable
from stoker.agent.snapshot import scan
from stoker.checkpoint_refs import matching
from stoker.checkpoints import (
    FAR_WORKERS,
    NEAR_WORKERS,
    Checkpoint,
    Part,
    RestoreError,
    choose,
    fetch,
    find_checkpoint,
    list_checkpoints,
    safe_path,
)
from stoker.errors import StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.model import BlobRef, Manifest
from stoker.parallel import run_all
from stoker.saves import MARKER, read_json
from stoker.store import Store, open_store
from stoker.stores.extraction import Extraction

log = logging.getLogger(__name__)

CLAIM = 0
ORDINAL = 0


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


def parse_source(text: str, *, base: Path | None = None) -> Source:
    """Read `JOB[:REF]`, a URL or a folder: what looks like a path (`/`, `./`, `~`), or a folder that exists."""
    scheme, separator, rest = text.partition("://")
    if separator:
        return FromFolder(Path(unquote(rest))) if scheme == "file" else FromUrl(text)
    path = Path(text).expanduser()
    if base is not None and not path.is_absolute():
        path = base / path
    if "/" in text or text.startswith((".", "~")) or path.is_dir():
        return FromFolder(path)
    job, _, name = text.partition(":")
    return FromJob(job, name or None)


def import_checkpoint(
    store: Store,
    job: str,
    source: Source,
    *,
    poisoned: frozenset[str] = frozenset(),
    scratch: Path | None = None,
    check: Callable[[], None] = lambda: None,
) -> str:
    """Copy the checkpoint into `job` and return its key. Does nothing if one was imported before.

    Every byte is verified on the way. `poisoned` are keys of the source job that are not taken. `scratch` is where
    files are put meanwhile; a temporary folder by default. `check` may end it between any two files by raising, and
    nothing is imported then. Raises UserError when there is nothing to import,
    RestoreError when what was asked for by name is damaged, StoreError when the store fails: then it can be repeated,
    and what was copied is not copied again.
    """
    imported = _imported(store, job)
    if imported is not None:
        return imported
    folder = Path(tempfile.mkdtemp(prefix="stoker-import-", dir=scratch))
    try:
        match source:
            case FromJob():
                return _import_job(store, job, source, poisoned, folder, check)
            case FromFolder():
                return _import_folder(store, job, source.path, str(source.path), folder, check)
            case FromUrl():
                return _import_url(store, job, source.url, folder, check)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _imported(store: Store, job: str) -> str | None:
    found = [one for one in list_checkpoints(store, job) if one.place.claim == CLAIM and one.complete]
    return found[-1].key if found else None


# ── From a job ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _import_job(
    store: Store, job: str, source: FromJob, poisoned: frozenset[str], folder: Path, check: Callable[[], None]
) -> str:
    before: str | None = None
    while True:
        listed = list_checkpoints(store, source.job)
        # References were pinned when the job was submitted: no other job's log is read here.
        found = listed if source.name is None else matching(listed, source.name, None)
        chosen = choose(found, poisoned, before)
        if chosen is None:
            what = f"no checkpoint {source.name}" if source.name else "no checkpoint"
            raise UserError(f"resume_from: job {source.job} has {what} that can be restored")
        try:
            return _copy(store, job, source.job, chosen, folder, check)
        except RestoreError as error:
            # Only its newest was asked for: one that is damaged, or was pruned under our hands, is passed over.
            if source.name is not None and find_checkpoint(store, source.job, chosen.key) is not None:
                raise
            log.warning("%s of %s cannot be imported: %s", chosen.key, source.job, error.reason)
            before = chosen.key


def _copy(
    store: Store, job: str, source_job: str, checkpoint: Checkpoint, folder: Path, check: Callable[[], None]
) -> str:
    def copy_one(rank: int, blob: BlobRef) -> None:
        check()
        _copy_blob(store, job, source_job, rank, blob, folder)

    workers = NEAR_WORKERS if store.near else FAR_WORKERS
    # Rank 0 last: the checkpoint exists when its manifest does.
    for rank, manifest in sorted(checkpoint.manifests.items(), reverse=True):
        blobs = {blob.digest: blob for blob in manifest.files}.values()
        run_all([partial(copy_one, rank, blob) for blob in blobs], workers)
        check()
        _create(store, replace(manifest, job=job, claim=CLAIM, ordinal=ORDINAL))
    return layout.checkpoint_key(CLAIM, ORDINAL, checkpoint.name)


def _copy_blob(store: Store, job: str, source_job: str, rank: int, blob: BlobRef, folder: Path) -> None:
    target = layout.blob(job, rank, blob.digest)
    found = store.head(target)
    if found is not None and found.size == blob.size:
        return
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        plain = BlobRef(path="blob", digest=blob.digest, size=blob.size)
        fetch(store, source_job, [Part(rank, plain)], place)
        sent = store.put_file(place / "blob", lambda digest: layout.blob(job, rank, digest))
        if sent.digest != blob.digest:
            raise RestoreError(f"{blob.path}: changed while it was copied")
    finally:
        shutil.rmtree(place, ignore_errors=True)


# ── From plain files ──────────────────────────────────────────────────────────────────────────────────────────────────


def _import_folder(store: Store, job: str, path: Path, shown: str, scratch: Path, check: Callable[[], None]) -> str:
    def proceed() -> bool:
        check()
        return True

    if not path.is_dir():
        raise UserError(f"resume_from: {shown} is no folder")
    marker = read_json(path / MARKER)
    name = _name(str(marker["name"]) if marker and "name" in marker else path.resolve().name)
    # A save of stoker.train by itself goes where the script will look for it.
    inside = f"{name}/" if marker is not None else ""
    step = marker.get("step") if marker else None
    files = scan(path).values()
    if not files:
        raise UserError(f"resume_from: {shown} is empty")
    sender = BlobSender(store, job, 0, scratch=scratch, workers=NEAR_WORKERS if store.near else FAR_WORKERS)
    try:
        blobs = sender.send([Outgoing(file, path / file.path) for file in files], proceed)
    except Unstable as error:
        raise UserError(f"resume_from: {error} changed while it was read") from None
    manifest = Manifest(
        name=name,
        job=job,
        claim=CLAIM,
        rank=0,
        ordinal=ORDINAL,
        committed_at=datetime.now(timezone.utc),
        files=tuple(replace(blob, path=inside + blob.path) for blob in blobs.values()),
        step=step if isinstance(step, int) else None,
    )
    check()
    _create(store, manifest)
    return layout.checkpoint_key(CLAIM, ORDINAL, name)


def _import_url(store: Store, job: str, url: str, scratch: Path, check: Callable[[], None]) -> str:
    source = open_store(url)
    keys = [meta.key for meta in source.list("") if safe_path(meta.key)]
    if not keys:
        raise UserError(f"resume_from: there is nothing at {url}")
    folder = scratch / _name(url.rstrip("/").rpartition("/")[2])

    def fetch_one(number: int, key: str) -> None:
        check()
        with staging.new_file(str(number)) as file:
            found = source.get_file(key, file)
        if found is None:
            raise UserError(f"resume_from: {url}/{key} was removed while it was read")
        staging.place(str(number), key)

    with Extraction(folder, follow=False) as extraction, extraction.staging() as staging:
        run_all([partial(fetch_one, number, key) for number, key in enumerate(keys)], FAR_WORKERS)
    return _import_folder(store, job, folder, url, scratch, check)


def _create(store: Store, manifest: Manifest) -> None:
    """Write the manifest, unless one is there that holds the same."""
    place = layout.manifest(
        manifest.job, layout.checkpoint_key(manifest.claim, manifest.ordinal, manifest.name, manifest.rank)
    )
    if store.create(place, codec.dumps(manifest)):
        return
    try:
        found = store.get(place)
        same = found is not None and codec.loads(Manifest, found.data).files == manifest.files
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError:
        same = False
    if not same:
        raise RestoreError(f"{place} is taken by another checkpoint")


def _name(text: str) -> str:
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._+=-") else "-" for letter in text)
    safe = safe.lstrip(".")[:100]
    return safe if layout.safe_name(safe) else "imported"
