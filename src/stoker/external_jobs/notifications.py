"""What people are told of training jobs that others started, from the entries of a family's log. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.core.policy_rules import PREFIX
from stoker.external_jobs.clone_chain import Cloned, FamilyEntry, FamilyEvent, GaveUp, Over, Seen, Stopping
from stoker.external_jobs.clone_chain import Told as Warning_
from stoker.external_jobs.snapshot import ON_DEMAND
from stoker.model.policy import EventKind, House
from stoker.notifications.events import Told, shortened

# Why a clone was not made that was meant to be.
_BROKEN_OFF = ("late", "name-taken", "no-room", "refused", "resumed-by-owner", "unheard", "unread", "unwanted")
_ENDS: Mapping[str, EventKind] = {"Completed": "finished", "Failed": "failed", "Stopped": "stopped"}


@dataclass(frozen=True)
class Whose:
    """What letters say of the jobs of a family besides."""

    origin: str
    region: str
    where: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


def tell(entry: FamilyEntry, whose: Whose, house: House) -> Told | None:
    """What an entry means for people; None: nothing."""
    event = entry.record.event
    kind, job, rule = _about(event, whose, house)
    if kind is None:
        return None
    return Told(
        kind=kind,
        job=whose.origin,
        at=entry.at,
        reason=shortened(entry.record.reason),
        seq=entry.seq,
        name=whose.origin,
        tags=dict(whose.tags),
        rule=rule,
        audit=isinstance(event, Warning_) and event.code.endswith("/audit"),
        where=whose.where,
        zone=whose.region,
        cost=event.cost if isinstance(event, Over) else None,
        # Whoever notes it again is known by it: each job of a family is a thing of its own.
        thing=job,
    )


def _about(event: FamilyEvent, whose: Whose, house: House) -> tuple[EventKind | None, str, str]:
    match event:
        # A clone is told of when it is made.
        case Seen(job=job, in_progress=True) if job == whose.origin:
            return "started", job, ""
        case Warning_():
            return _by_rule(event.rule, house), event.job, event.rule
        case Stopping():
            kind: EventKind = "reclaimed" if event.after == ON_DEMAND else _by_rule(event.rule, house)
            return kind, event.job, event.rule
        case Cloned():
            return "resumed", event.name, ""
        case Over():
            return _ENDS.get(event.status), event.job, ""
        # It was to go on.
        case GaveUp(rule=rule, meant=meant) if meant or rule in _BROKEN_OFF:
            return "failed", event.job, ""
        case _:
            return None, "", ""


def _by_rule(code: str, house: House) -> EventKind:
    rule = next((rule for rule in house.rules if f"{PREFIX}{rule.name}" == code), None)
    return "stalled" if rule is not None and rule.stall is not None else "rule"
