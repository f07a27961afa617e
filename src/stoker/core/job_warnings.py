"""The warnings of a job: what a person should look at while it seems to run well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.core.saved_work import is_about_training, lost_everything, no_checkpoint, nothing_saved, saved_part
from stoker.model.job_state import JobState
from stoker.model.node_facts import CheckpointRef, Heartbeat


def job_warnings(
    state: JobState,
    current: Sequence[Heartbeat],
    checkpoint: CheckpointRef | None,
    saved_elsewhere: Mapping[int, tuple[str, ...]],
    folder: str,
) -> tuple[str, ...]:
    """Warnings of the last attempt's nodes, and a warning if the last attempt that ended left no checkpoint.

    `current` are the heartbeats of the last attempt; `saved_elsewhere` are the files of each claim that look like saves
    outside its checkpoint folder.
    """
    warnings = list(dict.fromkeys(text for beat in current for text in beat.warnings))
    if state.ended is not None:
        warnings = [text for text in warnings if not is_about_training(text)]
    before = next((claim for claim in reversed(state.attempts) if claim.closed), None)
    if before is None or checkpoint is not None or any(is_about_training(text) for text in warnings):
        return tuple(warnings)
    elsewhere = saved_elsewhere.get(before.number, ())
    if lost_everything(before.closed_reason):
        # A job that has ended says it in its reason.
        unsaved = saved_part(before.closed_reason) if state.ended is None else ""
    elif elsewhere and before.closed is not None and before.closed.restored_from is None:
        succeeded = before.closed.outcome == "succeeded"
        unsaved = no_checkpoint(folder, elsewhere) if succeeded else nothing_saved(folder, elsewhere)
    else:
        unsaved = ""
    return (*warnings, f"attempt {before.attempt}: {unsaved}") if unsaved else tuple(warnings)
