"""Notifications about external training jobs, from the entries of a clone chain's log. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.core.policy_rules import PREFIX
from stoker.external_jobs.clone_chain import (
    ChainEntry,
    ChainEvent,
    Cloned,
    GaveUp,
    JobEnded,
    JobSeen,
    RuleWarning,
    Stopping,
)
from stoker.external_jobs.snapshot import ON_DEMAND
from stoker.model.policy import EventKind, Policy
from stoker.notifications.events import Notification, shortened

# The rules by which an intended clone was given up.
_ABANDONED_CLONES = (
    "late",
    "name-taken",
    "no-room",
    "refused",
    "resumed-by-owner",
    "stop-unclear",
    "unread",
    "unwanted",
)
_ENDS: Mapping[str, EventKind] = {"Completed": "finished", "Failed": "failed", "Stopped": "stopped"}


@dataclass(frozen=True)
class JobContext:
    """Facts about a chain's jobs for their notifications: origin, region, machines and tags."""

    origin: str
    region: str
    where: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


def notification_of(entry: ChainEntry, context: JobContext, policy: Policy) -> Notification | None:
    """The notification of an entry, if it has one."""
    event = entry.record.event
    kind, job, rule = _about(event, context, policy)
    if kind is None:
        return None
    return Notification(
        kind=kind,
        job=context.origin,
        at=entry.at,
        reason=shortened(entry.record.reason),
        seq=entry.seq,
        name=context.origin,
        tags=dict(context.tags),
        rule=rule,
        audit=isinstance(event, RuleWarning) and event.code.endswith("/audit"),
        where=context.where,
        zone=context.region,
        cost=event.cost if isinstance(event, JobEnded) else None,
        # Each job of a chain is a stream of its own, in which a repeated entry is recognised.
        thing=job,
    )


def _about(event: ChainEvent, context: JobContext, policy: Policy) -> tuple[EventKind | None, str, str]:
    match event:
        # A clone is reported when it is created.
        case JobSeen(job=job, in_progress=True) if job == context.origin:
            return "started", job, ""
        case RuleWarning():
            return _by_rule(event.rule, policy), event.job, event.rule
        case Stopping():
            kind: EventKind = "reclaimed" if event.after == ON_DEMAND else _by_rule(event.rule, policy)
            return kind, event.job, event.rule
        case Cloned():
            return "resumed", event.name, ""
        case JobEnded():
            return _ENDS.get(event.status), event.job, ""
        # A clone was intended.
        case GaveUp(rule=rule, meant=meant) if meant or rule in _ABANDONED_CLONES:
            return "failed", event.job, ""
        case _:
            return None, "", ""


def _by_rule(code: str, policy: Policy) -> EventKind:
    rule = next((rule for rule in policy.rules if f"{PREFIX}{rule.name}" == code), None)
    return "stalled" if rule is not None and rule.stall is not None else "rule"
