"""The attempts of a job as a timeline: how each trained, ended, saved and gave way to the next. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stoker.core.saved_work import cause_of_end, checkpoint_title, nothing_saved, saved_when, with_step
from stoker.core.summary import AttemptSummary, Summary
from stoker.model.offerings import kind_text, zone_text
from stoker.read.decision_text import outcome_name, outcome_text, price_terms
from stoker.read.format import duration, one_line

ARROW = " → "
# The most characters of a reason that is shown whole elsewhere.
MOST_REASON = 100
_NO_ATTEMPTS: Mapping[int, int] = MappingProxyType({})
# Outcomes before which the training was asked to save.
_ASKED = frozenset({"stopped", "limit"})
# The first words of the line of an end that is no reclaim.
_HEADS = {"infrastructure": "cut off", "limit": "at its limit"}


def timeline(summary: Summary) -> list[str]:
    """One line for each attempt, and below it one line for the handover to the next."""
    lines = []
    said: set[str] = set()
    attempts = {attempt.claim: attempt.n for attempt in summary.attempts}
    for number, attempt in enumerate(summary.attempts):
        following = summary.attempts[number + 1] if number + 1 < len(summary.attempts) else None
        lines.append(attempt_line(attempt, attempts))
        handover = handover_line(attempt, following, summary.checkpoint_dir, attempts)
        nothing = _nothing_saved(attempt, summary.checkpoint_dir)
        if nothing in handover:
            # The same long sentence once is enough.
            handover = handover.replace(
                nothing, f"{nothing.partition(':')[0]}, as before" if nothing in said else nothing
            )
            said.add(nothing)
        if handover:
            lines.append(f"  {handover}")
    return lines


def attempt_line(attempt: AttemptSummary, attempts: Mapping[int, int] = _NO_ATTEMPTS) -> str:
    """`attempt 1  local this-computer spot $0.32/h · trained 12 s to step 412 · reclaimed: …`.

    `attempts` are the numbers of the job's attempts by their claims.
    """
    parts = [f"attempt {attempt.n}  {where(attempt)}"]
    if attempt.restored_from:
        parts.append(f"from {_restored(attempt, attempts)}")
    to_step = f" to step {attempt.step}" if attempt.step is not None else ""
    parts.append(f"trained {duration(attempt.trained_s)}{to_step}")
    if attempt.outcome is None:
        parts.append(", ".join(dict.fromkeys(node.phase or "booting" for node in attempt.nodes)))
    else:
        # The line below says what the store has of the attempt.
        cause = cause_of_end(attempt.reason or "")
        parts.append(one_line(outcome_text(outcome_name(attempt.outcome, attempt.rule), cause), MOST_REASON))
    return " · ".join(parts)


def handover_line(
    attempt: AttemptSummary,
    following: AttemptSummary | None,
    folder: str = "checkpoints",
    attempts: Mapping[int, int] = _NO_ATTEMPTS,
) -> str:
    """`notice → saved 412 → durable 0.2 s → attempt 2 at 413, gap 0.6 s`; empty where there was no handover.

    `folder` is the job's folder of checkpoints; `attempts` are the numbers of its attempts by their claims.
    """
    parts = []
    if attempt.noticed_at is not None:
        grace = attempt.save.grace_s if attempt.save is not None else None
        parts.append("notice" if grace is None else f"notice ({duration(grace)})")
        parts += _save_parts(attempt, folder, attempts)
    elif attempt.outcome in _ASKED and attempt.save is not None:
        parts += [_head(attempt), *_save_parts(attempt, folder, attempts)]
    elif following is None or attempt.outcome in (None, "stopped", "limit", "succeeded"):
        return ""
    elif attempt.outcome == "infrastructure" and attempt.save is not None:
        # A rule asked it to leave; it was not cut off.
        parts += [_head(attempt), *_save_parts(attempt, folder, attempts)]
    else:
        parts.append(_head(attempt))
        # A script that failed by itself and saved nowhere needs no advice.
        unsaved = attempt.checkpoint is None and not attempt.restored_from and attempt.saves_elsewhere
        if attempt.trained_s > 0.0 and (attempt.outcome != "failed" or unsaved):
            parts.append(_stored_work(attempt, folder, attempts))
    if following is not None:
        parts.append(_next_part(attempt, following, attempts))
    return ARROW.join(parts)


def _head(attempt: AttemptSummary) -> str:
    assert attempt.outcome is not None
    name = outcome_name(attempt.outcome, attempt.rule)
    if name == "infrastructure" and attempt.save is not None:
        return "asked to leave"
    return _HEADS.get(name, name)


def _save_parts(attempt: AttemptSummary, folder: str, attempts: Mapping[int, int]) -> list[str]:
    """How the attempt saved its work. Only work that is in the store counts as saved."""
    save, kept = attempt.save, attempt.checkpoint
    if save is None:
        return (
            ["saving"]
            if attempt.outcome is None
            else ["nothing says how its save went", *_stored_part(attempt, attempts)]
        )
    if kept is None:
        return [_stored_work(attempt, folder, attempts)]
    if save.commits == 0:
        late = "its last save was not whole" if save.torn else "its last save was not durable in time"
        what = "nothing new to save" if save.durable_s is not None else late
        return [f"{what}: the store has {_saved(attempt, attempts)}{_saved_when(attempt)}"]
    late = "its last save was not whole" if save.torn else "not all of it durable in time"
    durable = late if save.durable_s is None else f"durable {duration(save.durable_s)}"
    return [f"saved {_saved(attempt, attempts)}", durable]


def _stored_part(attempt: AttemptSummary, attempts: Mapping[int, int]) -> list[str]:
    return [f"the store has {_saved(attempt, attempts)}"] if attempt.checkpoint is not None else []


def _stored_work(attempt: AttemptSummary, folder: str, attempts: Mapping[int, int]) -> str:
    """The work of the attempt that the store has, by the facts of its nodes."""
    kept = attempt.checkpoint
    if kept is not None and kept.key != attempt.restored_from:
        return f"the store has {with_step(checkpoint_title(kept.key, attempts), kept.step)}{_saved_when(attempt)}"
    if attempt.restored_from:
        return f"nothing new was saved: the store has {_restored(attempt, attempts)}"
    return _nothing_saved(attempt, folder)


def _nothing_saved(attempt: AttemptSummary, folder: str) -> str:
    return nothing_saved(folder, attempt.saves_elsewhere, written=attempt.wrote_checkpoint_files)


def _saved_when(attempt: AttemptSummary) -> str:
    lost_s = attempt.waste.lost_s if attempt.waste is not None else None
    return saved_when(lost_s, left=attempt.left_at is not None)


def _restored(attempt: AttemptSummary, attempts: Mapping[int, int]) -> str:
    assert attempt.restored_from is not None
    return with_step(checkpoint_title(attempt.restored_from, attempts), attempt.restored_step)


def _saved(attempt: AttemptSummary, attempts: Mapping[int, int]) -> str:
    """The checkpoint that was saved: by its step, or by its title where the script reports no step.

    Some of several nodes may have come a step further.
    """
    kept = attempt.checkpoint
    assert kept is not None
    return str(kept.step) if kept.step is not None else checkpoint_title(kept.key, attempts)


def _next_part(attempt: AttemptSummary, following: AttemptSummary, attempts: Mapping[int, int]) -> str:
    text = f"attempt {following.n}"
    if following.restored_from is None and following.training_since is not None:
        text += " from the beginning"
    elif following.first_step is not None:
        text += f" at {following.first_step}"
    elif following.restored_from:
        text += f" from {_restored(following, attempts)}"
    gap = gap_s(attempt, following)
    return text if gap is None else f"{text}, gap {duration(gap)}"


def gap_s(attempt: AttemptSummary, following: AttemptSummary) -> float | None:
    """Seconds from the end of one training to the start of the next. By two agents' clocks: for people only."""
    if attempt.left_at is None or following.training_since is None:
        return None
    return max(0.0, (following.training_since - attempt.left_at).total_seconds())


def where(attempt: AttemptSummary) -> str:
    """`2 × c7i.large in us-east-1a, spot $0.05/h each`."""
    count = len(attempt.nodes)
    nodes = f"{count} × " if count > 1 else ""
    kind = kind_text(spot=attempt.spot, queued=attempt.queued)
    return f"{nodes}{attempt.machine} in {zone_text(attempt.zone)}{price_terms(kind, attempt.price, count)}"
