"""Which checkpoint a resumed job goes on from, in words, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.core import retry
from stoker.core.governor_settings import DEFAULT
from stoker.model.errors import UserError
from stoker.model.job_state import JobState
from stoker.store.base import Store
from stoker.store.checkpoint_refs import candidates, describe, resolve
from stoker.store.checkpoints import Checkpoint, is_poisoned, list_checkpoints

_MOST_NAMED = 5


@dataclass(frozen=True)
class ResumePlan:
    """The job as it was, the key to record where a person chose one, what it is called, and what the person is told."""

    state: JobState
    key: str | None
    title: str
    told: tuple[str, ...]


def plan_resume(store: Store, state: JobState, text: str | None) -> ResumePlan:
    """Raises UserError where `text` names no checkpoint, or nothing can be gone on from without a choice."""
    listed = list_checkpoints(store, state.job)
    poisoned = retry.poisoned(state, DEFAULT)
    if text is not None:
        return _chosen(listed, poisoned, state, text)
    complete = [one for one in listed if one.complete]
    found = candidates(listed, poisoned, state.choice)
    if found:
        newer = [one for one in complete if one.place > found[0].place and is_poisoned(one, poisoned)]
        told = [f"it goes on from {describe(found[0], state)}"]
        if newer:
            told.append(
                f"passed over: {_named(newer, state)}: attempts failed there; --checkpoint REF takes one anyway"
            )
        return ResumePlan(state, None, "", tuple(told))
    if complete:
        why = "the chosen checkpoint is gone" if state.choice is not None else "attempts failed on every checkpoint"
        helps = f"choose one with --checkpoint REF, or start anew with `stoker clone {state.job}`"
        raise UserError(f"{state.job}: {why}; it has {_named(complete, state)}; {helps}")
    why = "no checkpoint was committed by all ranks" if listed else "there is no checkpoint"
    return ResumePlan(state, None, "", (f"it starts from the beginning: {why}",))


def _chosen(listed: list[Checkpoint], poisoned: frozenset[str], state: JobState, text: str) -> ResumePlan:
    chosen = resolve(listed, text, state, state.job)
    one, title = chosen.checkpoint, describe(chosen.checkpoint, state)
    told = [chosen.note] if chosen.note else []
    told.append(f"it goes on from {title}" + (", on which attempts failed" if is_poisoned(one, poisoned) else ""))
    newer = [other for other in listed if other.complete and other.place > one.place]
    if newer:
        told.append(f"left aside: {_named(newer, state)}")
    return ResumePlan(state, one.key, title, tuple(told))


def _named(checkpoints: list[Checkpoint], state: JobState) -> str:
    """The newest few."""
    newest = [describe(one, state) for one in checkpoints[::-1]]
    more = f" and {len(newest) - _MOST_NAMED} more" if len(newest) > _MOST_NAMED else ""
    return ", ".join(newest[:_MOST_NAMED]) + more
