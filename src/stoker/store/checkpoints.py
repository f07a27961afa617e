"""Read checkpoints: list them, choose one, fetch its files.

A checkpoint exists if its manifest does, and is complete if every participating rank has committed a manifest for the
same save. Manifests are facts from machines that run other people's code: a manifest that is too large, disagrees with
its key, or names a path outside the folder is left out, with a warning in the log.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path, PurePosixPath

from stoker.core.poisoned_checkpoints import PoisonedCheckpoints
from stoker.model import keys
from stoker.model.errors import StokerError
from stoker.model.node_facts import BlobRef, Manifest
from stoker.store.base import Store
from stoker.store.checkpoint_manifests import (
    LOCAL_WORKERS,
    REMOTE_WORKERS,
    ManifestKey,
    StoredManifest,
    TrustedClaims,
    parents_of,
    parse_key,
    read_manifests,
)
from stoker.store.link_targets import safe_link
from stoker.store.parallel import run_all
from stoker.store.safe_extraction import Extraction, Staging

# The blob of a link is the text of its target.
_LINK_BYTES = 4096

Progress = Callable[[int, int], None]


class RestoreError(StokerError):
    """A checkpoint that cannot be restored: a part of it is missing or damaged."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Checkpoint:
    """One save with the manifests of the ranks that committed it. `committed_at` is the store's time."""

    key: str
    place: ManifestKey
    manifests: Mapping[int, Manifest]
    complete: bool
    committed_at: datetime
    # Its reference, such as `2.3`, if the list is for a person.
    ref: str = ""

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def step(self) -> int | None:
        return self.manifests[0].step

    @property
    def size(self) -> int:
        return sum(manifest.size for manifest in self.manifests.values())

    @property
    def files(self) -> int:
        return sum(len(manifest.files) for manifest in self.manifests.values())


@dataclass(frozen=True)
class CheckpointFile:
    """A file of a checkpoint, and the rank that owns its blob."""

    rank: int
    blob: BlobRef


def list_checkpoints(store: Store, job: str, *, trust: TrustedClaims | None = None) -> list[Checkpoint]:
    """List the checkpoints that rank 0 committed, oldest first, complete or not. Without `trust`, the job's log is
    read.

    Raises StoreUnavailable or StoreDenied: an empty list always means that there are none.
    """
    return group_by_save(read_manifests(store, job, keys.checkpoints(job), trust=trust))


def find_checkpoint(store: Store, job: str, key: str, *, trust: TrustedClaims | None = None) -> Checkpoint | None:
    """Find the checkpoint of a key; None if it does not exist (any more)."""
    place = parse_key(key)
    if place is None:
        return None
    prefix = f"{keys.checkpoints(job)}{keys.number(place.claim)}/"
    found = group_by_save(read_manifests(store, job, prefix, trust=trust))
    return next((checkpoint for checkpoint in found if checkpoint.key == key), None)


def choose(
    checkpoints: Iterable[Checkpoint], poisoned: PoisonedCheckpoints, before: str | None = None
) -> Checkpoint | None:
    """Choose the newest complete checkpoint that is not poisoned and, with `before`, is older than that key."""
    limit = parse_key(before) if before is not None else None
    fitting = [
        checkpoint
        for checkpoint in checkpoints
        if checkpoint.complete
        and not poisoned.covers(checkpoint.key)
        and (limit is None or (checkpoint.place.claim, checkpoint.place.ordinal) < (limit.claim, limit.ordinal))
    ]
    return max(fitting, key=lambda checkpoint: checkpoint.place, default=None)


def group_by_save(stored: Iterable[StoredManifest]) -> list[Checkpoint]:
    """Group the manifests by save, oldest first."""
    stored = sorted((item for item in stored if item.manifest is not None), key=lambda item: item.place)
    shares: dict[tuple[int, str, int], dict[int, StoredManifest]] = {}
    for item in stored:
        if item.place.rank:
            shares.setdefault(save_of(item), {})[item.place.rank] = item
    found = []
    for item in stored:
        manifest = item.manifest
        if item.place.rank or manifest is None:
            continue
        others = shares.get(save_of(item), {})
        shards = {0: item} | {rank: others[rank] for rank in sorted(manifest.ranks) if rank in others}
        found.append(
            Checkpoint(
                key=item.place.key,
                place=item.place,
                manifests={rank: part.manifest for rank, part in shards.items() if part.manifest is not None},
                complete=set(shards) == set(manifest.ranks),
                committed_at=max(part.meta.modified for part in shards.values()),
            )
        )
    return found


def save_of(item: StoredManifest) -> tuple[int, str, int]:
    """The identity that all manifests of one save share."""
    return (item.place.claim, item.place.name, item.manifest.generation if item.manifest is not None else 0)


# ── Fetching ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def files_for_rank(checkpoint: Checkpoint, rank: int = 0) -> list[CheckpointFile]:
    """The files of all ranks as `rank` restores them: rank 0's, then the others' in order, its own last. Later ones
    win."""
    order = [other for other in checkpoint.manifests if other != rank]
    if rank in checkpoint.manifests:
        order.append(rank)
    chosen: dict[str, CheckpointFile] = {}
    for other in order:
        files = {blob.path: CheckpointFile(other, blob) for blob in checkpoint.manifests[other].files}
        folders = {parent for path in files for parent in parents_of(path) if parent in chosen}
        # A later file replaces everything that it conflicts with, also if one is a folder and the other a file.
        chosen = {
            path: part
            for path, part in chosen.items()
            if path not in files and path not in folders and not any(parent in files for parent in parents_of(path))
        } | files
    return list(chosen.values())


def fetch_checkpoint(
    store: Store,
    job: str,
    checkpoint: Checkpoint,
    target: Path,
    progress: Progress | None = None,
    replaced: list[str] | None = None,
) -> None:
    """Fetch and verify every file of a checkpoint into `target`; other files there stay.

    `replaced` gets the paths of files that were there with other contents.
    Safe to repeat. Raises RestoreError if a part is missing or damaged: then nothing in `target` was changed.
    """
    fetch_files(store, job, files_for_rank(checkpoint), target, progress, replaced)


def fetch_files(
    store: Store,
    job: str,
    wanted: list[CheckpointFile],
    target: Path,
    progress: Progress | None = None,
    replaced: list[str] | None = None,
) -> None:
    """Fetch files into `target`: each is verified first, and none gets its name before all are.

    Modification times follow the order of the manifest, so the newest file is the same as when they were saved.
    No link below `target` is followed: a link with the name of a file or folder is replaced. Raises PathObstructed
    where a folder has a file's name, or a file a folder's.
    """
    total, moved = sum(part.blob.size for part in wanted), 0

    def fetch_one(number: int, part: CheckpointFile) -> str | None:
        nonlocal moved
        key = keys.blob(job, part.rank, part.blob.name)
        with staging.new_file(str(number)) as file:
            problem = _fetch_verified_blob(store, key, part.blob, file)
        moved += part.blob.size
        if progress is not None and problem is None:
            progress(min(moved, total), total)
        return problem

    with Extraction(target, replaced=replaced) as extraction, extraction.staging() as staging:
        workers = LOCAL_WORKERS if store.is_local else REMOTE_WORKERS
        problems = run_all(
            [partial(fetch_one, number, part) for number, part in enumerate(wanted)],
            workers,
        )
        for part, problem in zip(wanted, problems, strict=True):
            if problem is not None:
                raise RestoreError(f"{part.blob.path}: {problem}")
        _place_all(wanted, _read_links(wanted, staging), extraction, staging)


_MISSING = "its bytes are missing from the store"
_WRONG = "its bytes in the store are not what was saved"


def _fetch_verified_blob(store: Store, key: str, blob: BlobRef, target: Path) -> str | None:
    # A bit may flip in transit: only bytes that are wrong twice count as damaged.
    for _ in range(2):
        digest = store.get_file(key, target)
        if digest is None:
            return _MISSING
        if digest == blob.digest and target.stat().st_size == blob.size:
            return None
    return _WRONG


def _read_links(wanted: list[CheckpointFile], staging: Staging) -> dict[str, str]:
    links = {}
    for number, part in enumerate(wanted):
        if stat.S_ISLNK(part.blob.mode):
            link = staging.read(str(number), _LINK_BYTES).decode(errors="replace")
            if not safe_link(part.blob.path, link):
                raise RestoreError(f"{part.blob.path}: a link that leaves the folder")
            links[part.blob.path] = link
    return links


def _place_all(
    wanted: list[CheckpointFile], links: Mapping[str, str], extraction: Extraction, staging: Staging
) -> None:
    now_ns = time.time_ns()
    times: dict[str, int] = {}
    for number, part in enumerate(wanted):
        path = part.blob.path
        if path in links:
            continue
        # A hundredth of a second apart, because scripts look for the newest file and filesystems round times.
        modified_ns = now_ns - (len(wanted) - number) * 10_000_000
        mode = (stat.S_IMODE(part.blob.mode) & 0o777) | 0o400
        staging.place(str(number), path, mode=mode, modified_ns=modified_ns)
        for parent in PurePosixPath(path).parents[:-1]:
            times[str(parent)] = modified_ns
    for path, link in links.items():
        staging.place_link(path, link)
    for folder, modified_ns in times.items():
        extraction.make_folder(folder, modified_ns)
