"""Restore the newest checkpoint of a job, as a node does that needs no agreement with others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stoker.agent.checkpoints.restore import RestoredCheckpoint, proposals, restore
from stoker.core.poisoned_checkpoints import NONE_POISONED, PoisonedCheckpoints
from stoker.store.base import Store
from stoker.store.checkpoints import RestoreError


def restore_newest(
    store: Store,
    job: str,
    folder: Path,
    poisoned: PoisonedCheckpoints = NONE_POISONED,
    *,
    rank: int = 0,
    on_failure: Callable[[str, RestoreError], None] = lambda _key, _error: None,
) -> RestoredCheckpoint | None:
    """Restore the newest checkpoint that can be restored. None: there is none."""
    for key in proposals(store, job, poisoned):
        try:
            return restore(store, job, rank, key, folder)
        except RestoreError as error:
            on_failure(key, error)
    return None
