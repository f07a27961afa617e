"""What of an attempt's work is in the store, in words. Pure: the agent, the governor and the CLI say the same."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from stoker.core.cases import Case
from stoker.core.spans import span_text
from stoker.fold import JobState
from stoker.model import CheckpointRef, Exit, Heartbeat
from stoker.path_patterns import as_written, is_pattern

# How many files a sentence names.
_NAMED = 3


def kept_of(case: Case) -> str:
    """What the store has of an attempt that is over; empty where it never trained."""
    beats = [beat for beat in case.heartbeats if beat is not None]
    if not any(left.started for left in case.left) and case.trained_s <= 0.0:
        return ""
    told: list[Exit | Heartbeat] = [*case.left, *beats]
    if case.saved:
        newest = max((one for one in told if one.checkpoint), key=lambda one: _key(one.checkpoint))
        ref = newest.checkpoint
        assert ref is not None
        what = f"step {ref.step}" if ref.step is not None else ref.name
        if ref.committed_at is None:
            return f"in the store: {what}"
        # Both by the same agent's clock.
        age_s = max(0.0, (newest.at - ref.committed_at).total_seconds())
        return f"in the store: {what}, saved {span_text(age_s)} before"
    if case.restored_from is not None:
        title = checkpoint_title(case.restored_from, attempts_of(case.state))
        return f"nothing new was saved: the store has {title}, from which it began"
    elsewhere = next((one.saves_elsewhere for one in told if one.saves_elsewhere), ())
    written = any(beat.checkpoint_files > 0 for beat in beats)
    return nothing_saved(as_written(case.spec.checkpoints.dir), elsewhere, written=written)


def _key(ref: CheckpointRef | None) -> str:
    return ref.key if ref is not None else ""


def checkpoint_title(key: str, attempts: Mapping[int, int]) -> str:
    """`step-900 (2.3)` of a key: its name, and what `stoker checkpoints` calls it. `attempts` are by their claims."""
    claim, _, rest = key.partition("/")
    ordinal, _, name = rest.partition("-")
    if not (claim.isdecimal() and ordinal.isdecimal() and name):
        return key
    number = 0 if int(claim) == 0 else attempts.get(int(claim))
    return name if number is None else f"{name} ({number}.{int(ordinal)})"


def attempts_of(state: JobState) -> dict[int, int]:
    """The numbers that people know attempts by, by their claims."""
    return {claim.number: claim.attempt for claim in state.attempts if claim.attempt is not None}


def nothing_saved(folder: str, elsewhere: Sequence[str] = (), *, written: bool = False) -> str:
    """Why there is no checkpoint, and what to do. `written`: there are files in the folder, and none was committed."""
    shown = folder if is_pattern(folder) else folder.rstrip("/") + "/"
    if written:
        return f"nothing was saved: what was written to {shown} was not whole in time"
    return f"nothing was saved: no file was written to {shown}{_advice(elsewhere, shown)}"


def nothing_saved_yet(folder: str, trained_s: float, elsewhere: Sequence[str] = ()) -> str:
    """The same of an attempt that trains."""
    shown = folder if is_pattern(folder) else folder.rstrip("/") + "/"
    after = f" in {span_text(trained_s)} of training" if trained_s >= 1.0 else ""
    lost = f"{shown} is empty, and a reclaim would lose everything"
    return f"nothing has been saved{after}: {lost}{_advice(elsewhere, shown)}"


def _advice(elsewhere: Sequence[str], shown: str) -> str:
    if not elsewhere:
        return "; `checkpoints.dir` in the job file names the folder that the script saves to"
    named = ", ".join(elsewhere[:_NAMED])
    look = "looks like a save" if len(elsewhere) == 1 else "look like saves"
    folder = save_folder(elsewhere)
    if folder is None:
        return f"; {named} {look}: let the script save to {shown}, or name its folder in `checkpoints.dir`"
    return f"; {named} {look}: write `checkpoints: {{dir: {folder}}}` in the job file"


def save_folder(paths: Sequence[str]) -> str | None:
    """The folder that would have been right: where these files or `checkpoint-*` folders lie. None: the code's own."""
    parents = [posixpath.dirname(path.rstrip("/")) for path in paths]
    if not parents or not all(parents):
        return None
    return posixpath.commonpath(parents) or None
