"""A job's story in words: attempts, notices, decisions. Pure text from data."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from stoker.cli.format import dollars, duration, one_line, zone_text
from stoker.core.saved_work import cause_of_end, checkpoint_title, nothing_saved, with_step
from stoker.core.summary import AttemptSummary, Summary
from stoker.model.job_state import JobState
from stoker.model.log_entries import (
    Claimed,
    Closed,
    Draining,
    Ended,
    Entry,
    Event,
    Launched,
    Opaque,
    RemovalAsked,
    ResumeAsked,
    StopAsked,
    Submitted,
    Suspected,
    Warned,
)
from stoker.model.offerings import Offering
from stoker.store.checkpoint_refs import name_of

ARROW = " → "
# Of a reason, where the whole of it is told elsewhere.
MOST_REASON = 100
_NO_ATTEMPTS: Mapping[int, int] = MappingProxyType({})
# Ends for which the training was asked to save.
_ASKED = frozenset({"stopped", "limit"})
# How an end that is no reclaim begins its line.
_HEADS = {"infrastructure": "cut off", "limit": "at its limit"}
# A governor that has another offering to try does so well before.
_NEXT_OFFERING_S = 5.0


def timeline(summary: Summary) -> list[str]:
    """One line for each attempt, and one below it for how it gave way to the next."""
    lines = []
    attempts = {attempt.claim: attempt.n for attempt in summary.attempts}
    for number, attempt in enumerate(summary.attempts):
        following = summary.attempts[number + 1] if number + 1 < len(summary.attempts) else None
        lines.append(attempt_line(attempt, attempts))
        told = handover_line(attempt, following, summary.checkpoint_dir, attempts)
        if told:
            lines.append(f"  {told}")
    return lines


def attempt_line(attempt: AttemptSummary, attempts: Mapping[int, int] = _NO_ATTEMPTS) -> str:
    """`attempt 1  local this-computer spot $0.32/h · trained 12 s to step 412 · reclaimed: …`.

    `attempts` are the job's, by their claims.
    """
    parts = [f"attempt {attempt.n}  {where(attempt)}"]
    if attempt.restored_from:
        parts.append(f"from {_restored(attempt, attempts)}")
    to_step = f" to step {attempt.step}" if attempt.step is not None else ""
    parts.append(f"trained {duration(attempt.trained_s)}{to_step}")
    if attempt.outcome is None:
        parts.append(", ".join(dict.fromkeys(node.phase or "booting" for node in attempt.nodes)))
    else:
        # What the store has of it stands in the line below.
        told = cause_of_end(attempt.reason or "")
        parts.append(one_line(outcome_text(attempt.outcome, told), MOST_REASON))
    return " · ".join(parts)


def handover_line(
    attempt: AttemptSummary,
    following: AttemptSummary | None,
    folder: str = "checkpoints",
    attempts: Mapping[int, int] = _NO_ATTEMPTS,
) -> str:
    """`notice → saved 412 → durable 0.2 s → attempt 2 at 413, gap 0.6 s`; empty when there is nothing to tell.

    `folder` is where checkpoints are looked for; `attempts` are the job's, by their claims.
    """
    parts = []
    if attempt.noticed_at is not None:
        grace = attempt.save.grace_s if attempt.save is not None else None
        parts.append("notice" if grace is None else f"notice ({duration(grace)})")
        parts += _save_parts(attempt, folder, attempts)
    elif attempt.outcome in _ASKED and attempt.save is not None:
        parts += [_HEADS.get(attempt.outcome, attempt.outcome), *_save_parts(attempt, folder, attempts)]
    elif following is None or attempt.outcome in (None, "stopped", "limit", "succeeded"):
        return ""
    else:
        parts.append(_HEADS.get(attempt.outcome, attempt.outcome))
        if attempt.outcome != "failed" and attempt.trained_s > 0.0:
            parts.append(_kept(attempt, folder, attempts))
    if following is not None:
        parts.append(_next_part(attempt, following, attempts))
    return ARROW.join(parts)


def _save_parts(attempt: AttemptSummary, folder: str, attempts: Mapping[int, int]) -> list[str]:
    """What became of its work: only what is in the store counts as saved."""
    save, kept = attempt.save, attempt.checkpoint
    if save is None:
        return ["saving"] if attempt.outcome is None else ["nothing says how its save went", *_left(attempt, attempts)]
    if kept is None:
        return [_kept(attempt, folder, attempts)]
    if save.commits == 0:
        before = ""
        if attempt.noticed_at is not None and kept.committed_at is not None:
            before = f" {duration(max(0.0, (attempt.noticed_at - kept.committed_at).total_seconds()))} before"
        what = "nothing new to save" if save.durable_s is not None else "its last save was not durable in time"
        return [f"{what}: {_saved(attempt, attempts)} was durable{before}"]
    durable = "not all of it durable in time" if save.durable_s is None else f"durable {duration(save.durable_s)}"
    return [f"saved {_saved(attempt, attempts)}", durable]


def _left(attempt: AttemptSummary, attempts: Mapping[int, int]) -> list[str]:
    return [f"the store has {_saved(attempt, attempts)}"] if attempt.checkpoint is not None else []


def _kept(attempt: AttemptSummary, folder: str, attempts: Mapping[int, int]) -> str:
    """What the store has of an attempt, by the facts of its nodes."""
    kept = attempt.checkpoint
    if kept is not None and kept.key != attempt.restored_from:
        before = ""
        if kept.committed_at is not None and attempt.left_at is not None:
            before = f", stored {duration(max(0.0, (attempt.left_at - kept.committed_at).total_seconds()))} before"
        return f"the store has {with_step(checkpoint_title(kept.key, attempts), kept.step)}{before}"
    if attempt.restored_from:
        return f"nothing new was saved: the store has {_restored(attempt, attempts)}"
    return nothing_saved(folder, attempt.saves_elsewhere, written=attempt.wrote_checkpoint_files)


def _restored(attempt: AttemptSummary, attempts: Mapping[int, int]) -> str:
    assert attempt.restored_from is not None
    return with_step(checkpoint_title(attempt.restored_from, attempts), attempt.restored_step)


def _saved(attempt: AttemptSummary, attempts: Mapping[int, int]) -> str:
    """What was kept: the checkpoint by its step, or its title where the script tells none. Of several nodes, some may
    have come a step further."""
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
    """From the end of one training to the start of the next. By two agents' clocks: for people only."""
    if attempt.left_at is None or following.training_since is None:
        return None
    return max(0.0, (following.training_since - attempt.left_at).total_seconds())


def outcome_text(outcome: str, reason: str | None) -> str:
    """`failed: it broke`; a reason that begins with the outcome says it all."""
    if not reason or reason.startswith(f"{outcome} "):
        return reason or outcome
    return f"{outcome}: {reason}"


def where(attempt: AttemptSummary) -> str:
    count = len(attempt.nodes)
    nodes = f"{count} × " if count > 1 else ""
    return f"{nodes}{attempt.machine} in {zone_text(attempt.zone)}{_terms(attempt.spot, attempt.price, count)}"


def rate(price: float | None, nodes: int = 1) -> str:
    """The price of one node, which is said where there are more."""
    if price is None:
        return "at an unknown price"
    return f"{dollars(price)}/h each" if nodes > 1 else f"{dollars(price)}/h"


def offering_text(offering: Offering, nodes: int) -> str:
    """`c7i.large in us-east-1a, spot $0.05/h each`."""
    return f"{offering.machine} in {zone_text(offering.zone)}{_terms(offering.spot, offering.price, nodes)}"


def _terms(spot: bool, price: float | None, nodes: int) -> str:
    """`, spot $0.05/h each`; of a machine that is free and stays, nothing."""
    if price == 0:
        return ", spot" if spot else ""
    return f", {'spot' if spot else 'on-demand'} {rate(price, nodes)}"


# What a rule means, where its name alone says little to who has not read how Stoker works.
_RULES = {
    "AuthDenied": "a permission is missing",
    "InvalidRequest": "the cloud refuses this request for good",
    "Misnamed": "the job names something that does not exist",
    "QuotaExceeded": "a quota of the account is reached",
    "boot-failed": "the machine could not start its agent",
    "gone": "the machine is gone",
    "no-capacity": "no machine to be had now",
    "no-offering": "nothing that is on offer can be launched",
    "partial-gang": "not all nodes came",
    "unexplained": "no other rule recognises how it ended",
}


def rule_text(rule: str) -> str:
    """`no-offering: nothing that is on offer can be launched`."""
    return f"{rule}: {_RULES[rule]}" if rule in _RULES else rule


# ── Decisions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def describe(event: Event, state: JobState | None) -> str:
    """What was decided, in a word or two."""
    match event:
        case Submitted():
            return "submitted"
        case Claimed(offering=offering, nodes=nodes, successor_of=older):
            takes_over = f", to take over from {_attempt(state, older)}" if older is not None else ""
            return f"asked for {nodes} × {offering_text(offering, nodes)}{takes_over}"
        case Launched(claim=claim, nodes=refs):
            return f"launched {_attempt(state, claim)} ({', '.join(ref.instance for ref in refs) or 'no machine'})"
        case Suspected(claim=claim, rank=rank):
            return f"node {rank} of {_attempt(state, claim)} is silent"
        case Draining(claim=claim, rule=rule):
            return f"asked {_attempt(state, claim)} to save and leave [{rule_text(rule)}]"
        case Closed(claim=claim, outcome="dry", rule=rule):
            return f"{_attempt(state, claim)} found no machine [{rule}]"
        case Closed(claim=claim, outcome="refused", rule=rule):
            return f"{_attempt(state, claim)} was refused [{rule_text(rule)}]"
        case Closed(claim=claim, outcome=outcome, rule=rule):
            return f"{_attempt(state, claim)} ended: {outcome} [{rule_text(rule)}]"
        case StopAsked():
            return "stop asked for"
        case ResumeAsked(checkpoint=str() as key):
            return f"resume asked for, from {name_of(key, state)}"
        case ResumeAsked():
            return "resume asked for"
        case RemovalAsked():
            return "removal asked for"
        case Warned():
            return "warned"
        case Ended(outcome=outcome, rule=rule):
            return f"{outcome} [{rule_text(rule)}]"
        case Opaque(name=name):
            return name


def news(entry: Entry, state: JobState | None) -> str | None:
    """What a person who follows the job is told of an entry; None for what only a governor cares about."""
    match entry.event:
        case Submitted() | Suspected() | Opaque():
            return None
        case Claimed(offering=offering, nodes=nodes):
            return f"getting {f'{nodes} × ' if nodes > 1 else ''}{offering_text(offering, nodes)} ({entry.reason})"
        case Launched(claim=claim, nodes=refs):
            machines = f"its machines: {entry.reason}" if len(refs) != 1 else "its machine"
            return f"{_attempt(state, claim)} has {machines}"
        case Closed(claim=claim, outcome="dry", rule="no-capacity"):
            # What exactly the cloud said fills lines; `explain` has it.
            dry = state.claim(claim) if state is not None else None
            return f"no capacity: {dry.offering.title if dry is not None else entry.reason}"
        case Closed(claim=claim, outcome="dry"):
            return f"{_attempt(state, claim)} came to nothing: {entry.reason}"
        case Closed(claim=claim, outcome="refused"):
            return f"{_attempt(state, claim)} was refused: {entry.reason}"
        case Closed(claim=claim, outcome=outcome):
            return f"{_attempt(state, claim)} {outcome_text(outcome, entry.reason)}"
        case Ended(outcome=outcome):
            return outcome_text(outcome, entry.reason)
        case Draining() | StopAsked() | ResumeAsked() | RemovalAsked() | Warned():
            return entry.reason


class Teller:
    """Tells a job's news as they come, in one line for each offering that is tried.

    That an offering had nothing is told together with the one that is tried next, or by itself when none is for a
    while. Once told it is not told again, however often it is tried, until something was to be had.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._pending_since_s = 0.0
        # What had nothing; and what is tried once more, by its claim, in case that something comes of it.
        self._dry: set[str] = set()
        self._again: dict[int, str] = {}

    def take(self, entry: Entry, state: JobState | None, now_s: float) -> list[str]:
        """What is told of this entry now. `now_s` is monotonic."""
        text = news(entry, state)
        match entry.event:
            case Claimed(offering=offering) if offering.key in self._dry:
                self._again[entry.seq] = text or ""
                return self._flushed()
            case Claimed():
                pending, self._pending = self._pending, ""
                return [f"{pending}; {text}" if pending else text or ""]
            case Closed(claim=claim, outcome="dry"):
                self._again.pop(claim, None)
                found = state.claim(claim) if state is not None else None
                key = found.offering.key if found is not None else ""
                if key in self._dry:
                    return []
                self._dry.add(key)
                lines, self._pending, self._pending_since_s = self._flushed(), text or "", now_s
                return lines
            case Launched(claim=claim):
                self._dry.clear()
                again = self._again.pop(claim, None)
                return [*self._flushed(), *([again] if again else []), *([text] if text else [])]
            case _:
                return [*self._flushed(), *([text] if text else [])]

    def due(self, now_s: float) -> list[str]:
        """What has waited for the next offering long enough."""
        return self._flushed() if now_s - self._pending_since_s >= _NEXT_OFFERING_S else []

    def _flushed(self) -> list[str]:
        pending, self._pending = self._pending, ""
        return [pending] if pending else []


def _attempt(state: JobState | None, claim: int) -> str:
    """An attempt by its number; what never got machines by what was asked for."""
    found = state.claim(claim) if state is not None else None
    if found is None:
        return f"claim {claim}"
    return f"attempt {found.attempt}" if found.attempt is not None else f"the request for {found.offering.title}"
