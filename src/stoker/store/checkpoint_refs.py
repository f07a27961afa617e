"""References to checkpoints: `2.3` is the third that attempt 2 committed; a name means the newest of that name.

References are unique, names are not. A name that looks like a reference is read as one. The checkpoint that
`resume_from` imported has the attempt 0, as in `0.2`. Between machines, `@7.3` names the claim instead of the attempt,
so that a node does not need the log of another job.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stoker.core.poisoned_checkpoints import NONE_POISONED, PoisonedCheckpoints
from stoker.model.errors import UserError
from stoker.model.job_state import ChosenCheckpoint, JobState
from stoker.store.checkpoint_manifests import IMPORTED, ManifestKey, parse_key
from stoker.store.checkpoints import Checkpoint, choose

_REFERENCE = re.compile(r"(@?)(\d{1,9})\.(\d{1,9})")
_NEAREST = 5


@dataclass(frozen=True)
class ResolvedCheckpoint:
    """The checkpoint that a reference means. `note` says which one was taken if several have that name."""

    checkpoint: Checkpoint
    reference: str
    note: str = ""


def attempt_of(place: ManifestKey, state: JobState | None) -> int | None:
    """Number of the attempt that committed it; 0 for `resume_from`, None if the log has no such attempt."""
    if place.claim == IMPORTED:
        return 0
    claim = state.claim(place.claim) if state is not None else None
    return claim.attempt if claim is not None else None


def reference(place: ManifestKey, state: JobState | None) -> str:
    """The unique reference that a person types for a checkpoint."""
    attempt = attempt_of(place, state)
    return f"@{place.claim}.{place.ordinal}" if attempt is None else f"{attempt}.{place.ordinal}"


def claim_reference(place: ManifestKey) -> str:
    """The reference for a node, which does not know the job's attempts."""
    return f"@{place.claim}.{place.ordinal}"


def matching(checkpoints: Sequence[Checkpoint], text: str, state: JobState | None) -> list[Checkpoint]:
    """The checkpoints that `text` may mean, oldest first: by reference or key, else all of that name."""
    found = [one for one in checkpoints if text in (reference(one.place, state), claim_reference(one.place), one.key)]
    if found:
        return found
    shape = _REFERENCE.fullmatch(text)
    if shape is not None and not shape[1]:
        # Accept leading zeros, as copied from keys.
        same = f"{int(shape[2])}.{int(shape[3])}"
        found = [one for one in checkpoints if same == reference(one.place, state)]
    return found or [one for one in checkpoints if one.name == text]


def resolve(
    checkpoints: Sequence[Checkpoint],
    text: str | None,
    state: JobState | None,
    job: str,
    *,
    poisoned: PoisonedCheckpoints = NONE_POISONED,
) -> ResolvedCheckpoint:
    """Find the checkpoint that a person means; without `text`, the newest that is complete and not `poisoned`.

    Raises UserError, which names the nearest ones in one line.
    """
    if not checkpoints:
        raise UserError(f"{job} has no checkpoint")
    if text is None:
        newest = choose(checkpoints, poisoned)
        if newest is None:
            raise UserError(f"{job} has no checkpoint that can be restored; `stoker checkpoints {job}` says why")
        return ResolvedCheckpoint(newest, reference(newest.place, state))
    fitting = matching(checkpoints, text, state)
    complete = [one for one in fitting if one.complete]
    if not fitting:
        raise UserError(f"{job} has no checkpoint {text!r}; {_nearest(checkpoints, text, state)}")
    if not complete:
        where = reference(fitting[-1].place, state)
        raise UserError(f"{job}: checkpoint {where} is not complete: not all ranks have committed their part")
    chosen = max(complete, key=lambda one: one.place)
    where, note = reference(chosen.place, state), ""
    if len(fitting) > 1:
        others = ", ".join(reference(one.place, state) for one in fitting[::-1] if one is not chosen)
        note = f"{len(fitting)} checkpoints are called {text}: {where} is the newest of them (the others are {others})"
    return ResolvedCheckpoint(chosen, where, note)


def candidates(
    checkpoints: Sequence[Checkpoint],
    poisoned: PoisonedCheckpoints,
    choice: ChosenCheckpoint | None,
    before: str | None = None,
) -> list[Checkpoint]:
    """The checkpoints that the next attempt may restore, in the order in which it tries them: newest first.

    After a person's choice: those committed since, then the chosen one, poisoned or not, and no others.
    """
    if choice is not None:
        checkpoints = [one for one in checkpoints if one.place.claim > choice.seq or one.key == choice.key]
        poisoned = poisoned.without(choice.key)
    found: list[Checkpoint] = []
    while (one := choose(checkpoints, poisoned, found[-1].key if found else before)) is not None:
        found.append(one)
    return found


def describe(checkpoint: Checkpoint, state: JobState | None) -> str:
    """`2.3 (ckpt, step 900)`."""
    step = f", step {checkpoint.step}" if checkpoint.step is not None else ""
    return f"{reference(checkpoint.place, state)} ({checkpoint.name}{step})"


def name_of(key: str, state: JobState | None) -> str:
    """`2.3 (ckpt)` for a key, without the checkpoint itself."""
    place = parse_key(key)
    return f"{reference(place, state)} ({place.name})" if place is not None else key


def completions(checkpoints: Sequence[Checkpoint], state: JobState | None) -> Mapping[str, Checkpoint]:
    """Shell completions: references, newest first, then names."""
    newest = checkpoints[::-1]
    named = {one.name: one for one in checkpoints}
    return {reference(one.place, state): one for one in newest} | {name: named[name] for name in reversed(named)}


def _nearest(checkpoints: Sequence[Checkpoint], text: str, state: JobState | None) -> str:
    known = completions([one for one in checkpoints if one.complete], state)
    close = [known[word] for word in difflib.get_close_matches(text, known, n=_NEAREST, cutoff=0.5)]
    listed = close or list(known.values())[:_NEAREST]
    shown = list(dict.fromkeys(describe(one, state) for one in listed))
    nearest = "the nearest is" if len(shown) == 1 else "the nearest are"
    return f"{nearest if close else 'it has'} {', '.join(shown)}" if shown else "it has none that is complete"
