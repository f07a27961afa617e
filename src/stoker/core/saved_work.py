"""What of an attempt's work is in the store, in words. Pure: the agent, the governor and the CLI say the same."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence

from stoker.core.attempt_evidence import Case
from stoker.model.durations import span_text
from stoker.model.job_state import JobState
from stoker.model.node_facts import CheckpointRef, Exit, Heartbeat
from stoker.model.path_patterns import as_written, is_pattern

# How many files a sentence names.
_NAMED = 3
# How sentences about what the store has begin, behind the reason for an end; the last one is of a job that trains.
_IN_STORE, _NOTHING, _NOTHING_NEW, _NOTHING_YET = (
    "in the store: ",
    "nothing was saved: ",
    "nothing new was saved: ",
    "nothing has been saved",
)
_NUMBER = re.compile(r"\d+")
# Folders that scripts make anew for each run.
_OF_ONE_RUN = re.compile(r"(?:version|run|exp)[_-]?\d+|\d[\d_.:-]*", re.ASCII)


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
        title = checkpoint_title(ref.key, attempts_of(case.state))
        what = f"step {ref.step}" if ref.step is not None else title
        if ref.committed_at is None:
            return f"{_IN_STORE}{what}"
        # Both by the same agent's clock.
        age_s = max(0.0, (newest.at - ref.committed_at).total_seconds())
        return f"{_IN_STORE}{what}, saved {span_text(age_s)} before"
    if case.restored_from is not None:
        title = checkpoint_title(case.restored_from, attempts_of(case.state))
        return f"{_NOTHING_NEW}the store has {title}, from which it began"
    elsewhere = next((one.saves_elsewhere for one in told if one.saves_elsewhere), ())
    written = any(beat.checkpoint_files > 0 for beat in beats)
    return nothing_saved(as_written(case.spec.checkpoints.dir), elsewhere, written=written)


def cause_of_end(reason: str) -> str:
    """The reason for an end without what `kept_of` added to it."""
    return _split(reason)[0]


def kept_part(reason: str) -> str:
    """What `kept_of` added to the reason for an end; empty where it added nothing."""
    return _split(reason)[1]


def _split(reason: str) -> tuple[str, str]:
    places = [reason.find(f"; {begin}") for begin in (_IN_STORE, _NOTHING, _NOTHING_NEW)]
    place = min((each for each in places if each >= 0), default=len(reason))
    return reason[:place], reason[place + 2 :]


def lost_everything(reason: str) -> bool:
    """Whether a reason for an end says that the store has no checkpoint."""
    return kept_part(reason).startswith(_NOTHING)


def is_about_training(warning: str) -> bool:
    """Whether a warning is about a job that trains, and means nothing once it has ended."""
    return warning.startswith(_NOTHING_YET)


def with_step(title: str, step: int | None) -> str:
    """`ckpt (2.3), step 900`; the title alone where it has the number already."""
    known = step is None or str(step) in _NUMBER.findall(title.rpartition(" (")[0] or title)
    return title if known else f"{title}, step {step}"


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
        return f"{_NOTHING}what was written to {shown} was not whole in time"
    return f"{_NOTHING}no file was written to {shown}{_advice(elsewhere)}"


def nothing_saved_yet(folder: str, trained_s: float, elsewhere: Sequence[str] = ()) -> str:
    """The same of an attempt that trains."""
    shown = folder if is_pattern(folder) else folder.rstrip("/") + "/"
    after = f" in {span_text(trained_s)} of training" if trained_s >= 1.0 else ""
    lost = f"{shown} is empty, and losing the machine would lose everything"
    return f"{_NOTHING_YET}{after}: {lost}{_advice(elsewhere)}"


def _advice(elsewhere: Sequence[str]) -> str:
    if not elsewhere:
        return "; `checkpoints.dir` in the job file names the folder that the script saves to"
    named = ", ".join(elsewhere[:_NAMED])
    look = "looks like a save" if len(elsewhere) == 1 else "look like saves"
    return f"; {named} {look}: write `checkpoints: {{dir: {save_entry(elsewhere)}}}` in the job file"


def save_entry(paths: Sequence[str]) -> str:
    """What `checkpoints.dir` should have been: the folder where these files or `checkpoint-*` folders lie; of what lies
    beside the code a pattern, as a job file has it."""
    parents = [_lasting(posixpath.dirname(path.rstrip("/"))) for path in paths]
    folder = posixpath.commonpath(parents) if all(parents) else ""
    if folder:
        return folder
    entries = sorted(
        {parent.partition("/")[0] if parent else _similar(path) for path, parent in zip(paths, parents, strict=True)}
    )
    written = [f'"{entry}"' if is_pattern(entry) else entry for entry in entries]
    return written[0] if len(written) == 1 else f"[{', '.join(written)}]"


def _lasting(folder: str) -> str:
    """The folder above one that another run of the script would call differently, such as `version_0` or a date."""
    parts = folder.split("/")
    kept = next((parts[:place] for place, part in enumerate(parts) if place and _OF_ONE_RUN.fullmatch(part)), parts)
    return "/".join(kept)


def _similar(path: str) -> str:
    """A pattern for this file and the next ones of its kind: `checkpoint-*` of `checkpoint-500/`."""
    stem, dot, ending = path.rstrip("/").rpartition(".") if not path.endswith("/") else (path.rstrip("/"), "", "")
    return f"{_NUMBER.sub('*', stem)}{dot}{ending}"
