"""Restore a checkpoint: verify every file before the folder changes, and fall back to the next older one on damage.

A store that does not answer is no reason to fall back: StoreUnavailable is the caller's to wait out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.checkpoints.folder_record import FolderRecord
from stoker.agent.checkpoints.folder_replacement import StoredFiles, replace_contents, staging_folder
from stoker.agent.confinement import handle_path, opened_folder
from stoker.core.poisoned_checkpoints import NONE_POISONED, PoisonedCheckpoints
from stoker.model.job_state import ChosenCheckpoint
from stoker.store.base import Store
from stoker.store.checkpoint_manifests import TrustedClaims
from stoker.store.checkpoint_refs import candidates
from stoker.store.checkpoints import (
    CheckpointFile,
    Progress,
    RestoreError,
    fetch_files,
    files_for_rank,
    find_checkpoint,
    list_checkpoints,
)


@dataclass(frozen=True)
class RestoredCheckpoint:
    """A checkpoint that was restored: its files, with the rank that each came from."""

    key: str
    files: tuple[CheckpointFile, ...]
    # The training step, where the checkpoint has one.
    step: int | None = None
    # Files of the folder that were in no checkpoint, and were moved aside.
    aside: tuple[str, ...] = ()


def restore(
    store: Store,
    job: str,
    rank: int,
    key: str,
    folder: Path,
    *,
    record: FolderRecord | None = None,
    chosen: Callable[[str], bool] = lambda _path: True,
    trust: TrustedClaims | None = None,
    progress: Progress | None = None,
) -> RestoredCheckpoint:
    """Make `folder` equal to the checkpoint as this rank sees it: rank 0's files, the others', its own last.

    `trust` says which manifests count; without it the job's log is read. Only files that Stoker wrote, or that are in
    the store, are deleted (see `folder_replacement`); others stay, or are moved aside to `.<folder>.replaced` beside
    it. Safe to repeat. Raises RestoreError when the checkpoint is gone, incomplete or damaged, with the folder as
    before; StoreUnavailable when the store did not answer.
    """
    checkpoint = find_checkpoint(store, job, key, trust=trust)
    if checkpoint is None:
        raise RestoreError(f"{key} is not in the store any more")
    if not checkpoint.complete:
        missing = sorted(set(checkpoint.manifests[0].ranks) - set(checkpoint.manifests))
        raise RestoreError(f"{key} is incomplete: nothing from rank {', '.join(map(str, missing))}")
    wanted = files_for_rank(checkpoint, rank)
    folder = _real(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with staging_folder(folder) as staging, opened_folder(staging, "new", make=True) as handle:
        new = handle_path(handle)
        fetch_files(store, job, wanted, new, progress)
        aside = replace_contents(new, folder, record or FolderRecord(), lambda: stored_files(store, job), chosen)
    return RestoredCheckpoint(key, tuple(wanted), step=checkpoint.step, aside=tuple(aside))


def clear_folder(
    store: Store, job: str, folder: Path, record: FolderRecord, chosen: Callable[[str], bool] = lambda _path: True
) -> list[str]:
    """Remove what earlier attempts left in the folder, as `restore` does, where there is no checkpoint."""
    return replace_contents(None, _real(folder), record, lambda: stored_files(store, job), chosen)


def _real(folder: Path) -> Path:
    """Resolve a link, so that the folder behind it is replaced. The path of a handle stays as it is."""
    return folder if folder.is_relative_to("/proc/self/fd") else folder.resolve()


def stored_files(store: Store, job: str) -> StoredFiles:
    """Return the files in the checkpoints of the job: where the folder has the same ones, they can be deleted."""
    found: dict[str, set[tuple[int, str]]] = {}
    for checkpoint in list_checkpoints(store, job):
        if checkpoint.complete:
            for manifest in checkpoint.manifests.values():
                for blob in manifest.files:
                    found.setdefault(blob.path, set()).add((blob.size, blob.digest))
    return found


def find_candidates(
    store: Store,
    job: str,
    poisoned: PoisonedCheckpoints,
    choice: ChosenCheckpoint | None,
    *,
    trust: TrustedClaims | None = None,
) -> list[str]:
    """Return the keys that rank 0 proposes, newest first. Empty: the job has no checkpoint, and starts from the
    beginning.

    Raises RestoreError where starting anew would discard work: the chosen checkpoint is gone, or all are poisoned.
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
    poisoned: PoisonedCheckpoints = NONE_POISONED,
    choice: ChosenCheckpoint | None = None,
    *,
    trust: TrustedClaims | None = None,
) -> Iterator[str]:
    """Yield the keys worth trying, newest first. The store is read anew for each, since others may have been pruned."""
    before: str | None = None
    while True:
        found = candidates(list_checkpoints(store, job, trust=trust), poisoned, choice, before)
        if not found:
            return
        yield found[0].key
        before = found[0].key
