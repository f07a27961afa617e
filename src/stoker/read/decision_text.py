"""Decisions about a job in words: what `explain` lists, and what a person who follows the job reads. Pure."""

from __future__ import annotations

from stoker.core.health_rules import OWN_STALL_RULE
from stoker.core.maintain_claim import FROM_THE_BEGINNING
from stoker.core.saved_work import says_nothing_saved, without_saved_part
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
from stoker.model.offerings import Offering, zone_text
from stoker.read.format import dollars
from stoker.store.checkpoint_refs import name_of

# A governor that has another offering to try does so well before this.
_NEXT_OFFERING_S = 5.0


def outcome_text(outcome: str, reason: str | None) -> str:
    """`failed: it broke`; a reason that begins with the outcome stands alone."""
    if not reason or reason.startswith(f"{outcome} "):
        return reason or outcome
    return f"{outcome}: {reason}"


def outcome_name(outcome: str, rule: str | None) -> str:
    """The outcome of an attempt for people. In the log, a stalled attempt is one that its machine failed."""
    return "stalled" if rule == OWN_STALL_RULE and outcome == "infrastructure" else outcome


def rate(price: float | None, nodes: int = 1) -> str:
    """The price of one node; `each` marks it where there are several."""
    if price is None:
        return "at an unknown price"
    return f"{dollars(price)}/h each" if nodes > 1 else f"{dollars(price)}/h"


def offering_text(offering: Offering, nodes: int) -> str:
    """`c7i.large in us-east-1a, spot $0.05/h each`."""
    return f"{offering.machine} in {zone_text(offering.zone)}{price_terms(offering.kind, offering.price, nodes)}"


def price_terms(kind: str, price: float | None, nodes: int) -> str:
    """`, spot $0.05/h each`; empty for a free machine that cannot be reclaimed. `kind` is `Offering.kind`."""
    if price == 0:
        return ", spot" if kind == "spot" else ""
    return f", {kind} {rate(price, nodes)}"


# Meanings of rules whose names do not explain themselves.
_RULES = {
    "AuthDenied": "a permission is missing",
    "InvalidRequest": "the cloud refuses this request for good",
    "NoSuchResource": "the job names something that does not exist",
    "QuotaExceeded": "a quota of the account is reached",
    "boot-failed": "the machine could not start its agent",
    "gone": "the machine is gone",
    "no-capacity": "no machine is available now",
    "no-offering": "no offering can be launched",
    "partial-gang": "not all nodes came",
    "subnet-full": "the subnet has no free address",
    "unexplained": "no other rule recognises how it ended",
}


def rule_text(rule: str) -> str:
    """`no-offering: no offering can be launched`."""
    return f"{rule}: {_RULES[rule]}" if rule in _RULES else rule


def describe(event: Event, state: JobState | None) -> str:
    """The decision in a few words."""
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
    """The line about an entry for a person who follows the job; None for entries that only a governor needs."""
    match entry.event:
        case Submitted() | Suspected() | Opaque():
            return None
        case Claimed(offering=offering, nodes=nodes):
            return f"getting {f'{nodes} × ' if nodes > 1 else ''}{offering_text(offering, nodes)} ({entry.reason})"
        case Launched(claim=claim, nodes=refs):
            machines = f"its machines: {entry.reason}" if len(refs) != 1 else "its machine"
            return f"{_attempt(state, claim)} has {machines}"
        case Closed(claim=claim, outcome="dry", rule="no-capacity"):
            # The cloud's whole answer fills several lines; `explain` shows it.
            dry = state.claim(claim) if state is not None else None
            return f"no capacity: {dry.offering.title if dry is not None else entry.reason}"
        case Closed(claim=claim, outcome="dry"):
            return f"{_attempt(state, claim)} came to nothing: {entry.reason}"
        case Closed(claim=claim, outcome="refused"):
            return f"{_attempt(state, claim)} was refused: {entry.reason}"
        case Closed(claim=claim, outcome=outcome, rule=rule, tail=tail):
            # The log of the attempt, which is followed too, may have said what was saved.
            said = any(map(says_nothing_saved, tail))
            reason = without_saved_part(entry.reason) if said else entry.reason
            return f"{_attempt(state, claim)} {outcome_text(outcome_name(outcome, rule), reason)}"
        case Ended(outcome=outcome):
            return outcome_text(outcome, without_saved_part(entry.reason))
        case Warned() if entry.reason.endswith(FROM_THE_BEGINNING):
            # The line about its end has the whole reason.
            return f"{entry.reason.partition(':')[0]} left no checkpoint: {FROM_THE_BEGINNING}"
        case Draining() | StopAsked() | ResumeAsked() | RemovalAsked() | Warned():
            return entry.reason


class NewsFeed:
    """Turns a job's log entries into news lines, one line for each offering that is tried.

    An offering without capacity is reported together with the offering that is tried next, or alone when none is tried
    for a while. It is reported once, however often it is tried, until a launch succeeds.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._pending_since_s = 0.0
        # Offerings without capacity; and, by claim, the news of a repeated try, reported if it succeeds.
        self._dry: set[str] = set()
        self._again: dict[int, str] = {}

    def take(self, entry: Entry, state: JobState | None, now_s: float) -> list[str]:
        """The lines to show for this entry now. `now_s` is monotonic."""
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
        """The line that has waited long enough for the next offering."""
        return self._flushed() if now_s - self._pending_since_s >= _NEXT_OFFERING_S else []

    def _flushed(self) -> list[str]:
        pending, self._pending = self._pending, ""
        return [pending] if pending else []


def _attempt(state: JobState | None, claim: int) -> str:
    """An attempt by its number; a claim that never got machines by its offering."""
    found = state.claim(claim) if state is not None else None
    if found is None:
        return f"claim {claim}"
    return f"attempt {found.attempt}" if found.attempt is not None else f"the request for {found.offering.title}"
