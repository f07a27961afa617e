"""Bring a checkpoint back: every file verified before the folder changes, and the next older one if that fails.

An answer that does not come is no reason to fall back: StoreUnavailable is the caller's to wait out.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.checkpoints.folder_replacement import FolderRecord, make_staging, place
from stoker.agent.checkpoints.resume_from import import_checkpoint
from stoker.model.job_state import Choice
from stoker.store.base import Store
from stoker.store.checkpoint_manifests import Trust
from stoker.store.checkpoint_refs import candidates
from stoker.store.checkpoints import Part, Progress, RestoreError, fetch, find_checkpoint, list_checkpoints, parts

log = logging.getLogger(__name__)

__all__ = [
    "RestoreError",
    "Restored",
    "clear_folder",
    "find_candidates",
    "import_checkpoint",
    "proposals",
    "restore",
    "restore_newest",
]


@dataclass(frozen=True)
class Restored:
    """What was restored: the files with the rank each came from."""

    key: str
    parts: tuple[Part, ...]
    # Where the checkpoint tells one.
    step: int | None = None
    # Files of the folder that were in no checkpoint, and were moved aside.
    aside: tuple[str, ...] = ()


def restore(
    store: Store,
    job: str,
    rank: int,
    key: str,
    folder: Path,
    source_job: str | None = None,
    *,
    record: FolderRecord | None = None,
    chosen: Callable[[str], bool] = lambda _path: True,
    trust: Trust | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Make `folder` what the checkpoint was, as this rank sees it: rank 0's files, the others', its own last.

    `trust` tells which manifests count; without it the log is asked. Nothing is deleted but what Stoker wrote, or what
    is in the store (see `placing`); the rest stays, or is moved aside to `.<folder>.replaced` beside it. Safe to
    repeat. Raises RestoreError when the checkpoint is gone, incomplete or damaged, with the folder as before;
    StoreUnavailable when there was no answer.
    """
    source = source_job or job
    checkpoint = find_checkpoint(store, source, key, trust=trust if source_job is None else None)
    if checkpoint is None:
        raise RestoreError(f"{key} is not in the store any more")
    if not checkpoint.complete:
        missing = sorted(set(checkpoint.manifests[0].ranks) - set(checkpoint.manifests))
        raise RestoreError(f"{key} is incomplete: nothing from rank {', '.join(map(str, missing))}")
    wanted = parts(checkpoint, rank)
    folder = _real(folder)
    folder.mkdir(parents=True, exist_ok=True)
    staging = make_staging(folder)
    try:
        new = staging / "new"
        fetch(store, source, wanted, new, progress)
        aside = place(new, folder, record or FolderRecord(), lambda: stored_digests(store, job), chosen)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Restored(key, tuple(wanted), step=checkpoint.step, aside=tuple(aside))


def clear_folder(
    store: Store, job: str, folder: Path, record: FolderRecord, chosen: Callable[[str], bool] = lambda _path: True
) -> list[str]:
    """Where there is no checkpoint: take away what earlier attempts left in the folder, as `restore` does."""
    return place(None, _real(folder), record, lambda: stored_digests(store, job), chosen)


def _real(folder: Path) -> Path:
    """Through a link, the folder it leads to is replaced, not the link. The path of a handle stays what it is."""
    return folder if folder.is_relative_to("/proc/self/fd") else folder.resolve()


def stored_digests(store: Store, job: str) -> frozenset[tuple[int, str]]:
    """Size and SHA-256 of every file in a checkpoint of the job: to delete it elsewhere loses nothing."""
    return frozenset(
        (blob.size, blob.digest)
        for checkpoint in list_checkpoints(store, job)
        if checkpoint.complete
        for manifest in checkpoint.manifests.values()
        for blob in manifest.files
    )


def restore_newest(
    store: Store,
    job: str,
    folder: Path,
    poisoned: frozenset[str] = frozenset(),
    *,
    rank: int = 0,
    trust: Trust | None = None,
    progress: Progress | None = None,
    on_failure: Callable[[str, RestoreError], None] = lambda _key, _error: None,
) -> Restored | None:
    """Restore the newest checkpoint that can be: for a node that needs to agree with nobody. None: there is none."""
    for key in proposals(store, job, poisoned, trust=trust):
        try:
            return restore(store, job, rank, key, folder, trust=trust, progress=progress)
        except RestoreError as error:
            log.warning("checkpoint %s cannot be restored: %s", key, error.reason)
            on_failure(key, error)
    return None


def find_candidates(
    store: Store, job: str, poisoned: frozenset[str], choice: Choice | None, *, trust: Trust | None = None
) -> list[str]:
    """The keys that rank 0 proposes, newest first. Empty: the job has no checkpoint, and starts from the beginning.

    Raises RestoreError where starting anew would throw work away: the chosen checkpoint is gone, or all are poisoned.
    """
    found = list(proposals(store, job, poisoned, choice, trust=trust))
    if not found and choice is not None:
        reason = f"the chosen checkpoint {choice.key} is not in the store any more"
        raise RestoreError(f"{reason}; `stoker resume {job} --checkpoint REF` chooses another")
    if not found and any(checkpoint.complete for checkpoint in list_checkpoints(store, job, trust=trust)):
        reason = "attempts failed on every checkpoint there is"
        raise RestoreError(f"{reason}; `stoker resume {job} --checkpoint REF` goes on from one all the same")
    return found


def proposals(
    store: Store,
    job: str,
    poisoned: frozenset[str] = frozenset(),
    choice: Choice | None = None,
    *,
    trust: Trust | None = None,
) -> Iterator[str]:
    """The keys worth trying, newest first; the store is asked anew for each, since others may have been pruned."""
    before: str | None = None
    while True:
        found = candidates(list_checkpoints(store, job, trust=trust), poisoned, choice, before)
        if not found:
            return
        yield found[0].key
        before = found[0].key
