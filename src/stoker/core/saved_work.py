"""Describe what the store has of an attempt's work. Pure: agent, governor and CLI use the same sentences."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stoker.core.costs import valid_span_s
from stoker.model.durations import span_text
from stoker.model.job_state import JobState
from stoker.model.node_facts import CheckpointRef, Exit, Heartbeat
from stoker.model.path_patterns import as_written, is_pattern

if TYPE_CHECKING:
    from stoker.core.attempt_evidence import AttemptEvidence

# How many files a sentence names.
_NAMED = 3
# Beginnings of sentences that follow the reason for an end; the last one is for a running job.
_IN_STORE, NOTHING_SAVED, _NOTHING_NEW, _NOTHING_YET = (
    "in the store: ",
    "nothing was saved: ",
    "nothing new was saved: ",
    "nothing has been saved",
)
_NO_CHECKPOINT = "no checkpoint was made: "
_NUMBER = re.compile(r"\d+")
# The text that a verdict adds after that of `describe_saved_work`.
_CONCLUDED = re.compile(r"; \d+ attempts in a row made no progress$")
# Less than this is not worth a number.
_AT_ONCE_S = 0.05
# Folders that scripts create for each run.
_OF_ONE_RUN = re.compile(r"(?:version|run|exp)[_-]?\d+|\d[\d_.:-]*", re.ASCII)


def describe_saved_work(evidence: AttemptEvidence) -> str:
    """Describe what the store has of a finished attempt; empty if it never trained."""
    beats = [beat for beat in evidence.heartbeats if beat is not None]
    if not any(left.started for left in evidence.left) and evidence.trained_s <= 0.0:
        return ""
    reports: list[Exit | Heartbeat] = [*evidence.left, *beats]
    if evidence.saved:
        newest = max((one for one in reports if one.checkpoint), key=lambda one: _key(one.checkpoint))
        ref = newest.checkpoint
        assert ref is not None
        title = checkpoint_title(ref.key, attempts_of(evidence.state))
        what = f"step {ref.step}" if ref.step is not None else title
        lost_s = newest.waste.lost_s if newest.waste is not None else None
        return f"{_IN_STORE}{what}{saved_when(lost_s, left=isinstance(newest, Exit))}"
    if evidence.restored_from is not None:
        title = checkpoint_title(evidence.restored_from, attempts_of(evidence.state))
        return f"{_NOTHING_NEW}the store has {title}, from which it began"
    elsewhere = next((one.saves_elsewhere for one in reports if one.saves_elsewhere), ())
    written = any(beat.checkpoint_files > 0 for beat in beats)
    return nothing_saved(as_written(evidence.spec.checkpoints.dir), elsewhere, written=written)


def saved_when(lost_s: float | None, *, left: bool) -> str:
    """`, saved 11 s before its end`: how long an attempt trained after its last checkpoint was begun, by its node.

    `left`: its node reported the end of the training; otherwise its last heartbeat is the last that is known.
    """
    if lost_s is None:
        return ""
    end, lost_s = "its end" if left else "its last heartbeat", valid_span_s(lost_s)
    return f", saved {span_text(lost_s)} before {end}" if lost_s >= _AT_ONCE_S else f", saved at {end}"


def cause_of_end(reason: str) -> str:
    """The reason for an end, without the text of `describe_saved_work`."""
    return _split(reason)[0]


def without_saved_part(reason: str) -> str:
    """The reason for an end without the text of `describe_saved_work`, and with what was concluded from the end."""
    cause, saved = _split(reason)
    concluded = _CONCLUDED.search(saved)
    return cause + concluded[0] if concluded else cause


def saved_part(reason: str) -> str:
    """The text of `describe_saved_work` in the reason for an end; empty if there is none."""
    return _split(reason)[1]


def _split(reason: str) -> tuple[str, str]:
    places = [reason.find(f"; {begin}") for begin in (_IN_STORE, NOTHING_SAVED, _NOTHING_NEW)]
    place = min((each for each in places if each != -1), default=len(reason))
    return reason[:place], reason[place + 2 :]


def says_nothing_saved(line: str) -> bool:
    """Return whether a line of the log is the agent's, and says that the store has no checkpoint."""
    return f"[stoker] {NOTHING_SAVED}" in line


def lost_everything(reason: str) -> bool:
    """Return whether a reason for an end says that the store has no checkpoint."""
    return saved_part(reason).startswith(NOTHING_SAVED)


def is_about_missing_checkpoint(warning: str) -> bool:
    """Return whether a warning says that a training that succeeded made no checkpoint."""
    return _NO_CHECKPOINT in warning


def is_about_training(warning: str) -> bool:
    """Return whether a warning is about a running job, and means nothing after its end."""
    return warning.startswith(_NOTHING_YET)


def with_step(title: str, step: int | None) -> str:
    """`ckpt (2.3), step 900`; the title alone if it contains the number already."""
    known = step is None or str(step) in _NUMBER.findall(title.rpartition(" (")[0] or title)
    return title if known else f"{title}, step {step}"


def _key(ref: CheckpointRef | None) -> str:
    return ref.key if ref is not None else ""


def checkpoint_title(key: str, attempts: Mapping[int, int]) -> str:
    """`step-900 (2.3)` for a key: the name, and its reference in `stoker checkpoints`. `attempts` are by claim
    number."""
    claim, _, rest = key.partition("/")
    ordinal, _, name = rest.partition("-")
    if not (claim.isdecimal() and ordinal.isdecimal() and name):
        return key
    number = 0 if int(claim) == 0 else attempts.get(int(claim))
    return name if number is None else f"{name} ({number}.{int(ordinal)})"


def attempts_of(state: JobState) -> dict[int, int]:
    """The attempt numbers that people see, by claim number."""
    return {claim.number: claim.attempt for claim in state.attempts if claim.attempt is not None}


def nothing_saved(folder: str, elsewhere: Sequence[str] = (), *, written: bool = False) -> str:
    """Say why there is no checkpoint, and what to do. `written`: the folder has files, but none was committed."""
    shown = folder if is_pattern(folder) else folder.rstrip("/") + "/"
    if written:
        return f"{NOTHING_SAVED}what was written to {shown} was not whole in time"
    return f"{NOTHING_SAVED}no file was written to {shown}{_advice(elsewhere)}"


def no_checkpoint(folder: str, elsewhere: Sequence[str]) -> str:
    """Say that a training that succeeded made no checkpoint although it saved, and what to do."""
    shown = folder if is_pattern(folder) else folder.rstrip("/") + "/"
    return f"{_NO_CHECKPOINT}no file was written to {shown}{_advice(elsewhere)}"


def nothing_saved_yet(folder: str, trained_s: float, elsewhere: Sequence[str] = ()) -> str:
    """Say that a running attempt has no checkpoint yet, and what to do."""
    shown = folder if is_pattern(folder) else folder.rstrip("/") + "/"
    after = f" in {span_text(trained_s)} of training" if trained_s >= 1.0 else ""
    lost = f"{shown} is empty, and losing the machine would lose everything"
    return f"{_NOTHING_YET}{after}: {lost}{_advice(elsewhere)}"


def _advice(elsewhere: Sequence[str]) -> str:
    if not elsewhere:
        return "; `checkpoints.dir` in the job file names the folder that the script saves to"
    named = ", ".join(elsewhere[:_NAMED])
    verb = "looks like a save" if len(elsewhere) == 1 else "look like saves"
    return f"; {named} {verb}: write `checkpoints: {{dir: {save_entry(elsewhere)}}}` in the job file"


def save_entry(paths: Sequence[str]) -> str:
    """The right value of `checkpoints.dir`: the folder of these files or `checkpoint-*` folders; for files beside the
    code, a pattern as written in a job file."""
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
    """The folder above the first part that changes from run to run, such as `version_0` or a date."""
    parts = folder.split("/")
    lasting = next((parts[:place] for place, part in enumerate(parts) if place and _OF_ONE_RUN.fullmatch(part)), parts)
    return "/".join(lasting)


def _similar(path: str) -> str:
    """A pattern for this file and similar ones: `checkpoint-*` for `checkpoint-500/`."""
    stem, dot, ending = path.rstrip("/").rpartition(".") if not path.endswith("/") else (path.rstrip("/"), "", "")
    return f"{_NUMBER.sub('*', stem)}{dot}{ending}"
