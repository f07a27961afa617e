"""Notify people of what happens to external training jobs, by the entries of a clone chain's log. No failure here harms
a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from stoker.core.policy_rules import PREFIX
from stoker.external_jobs import chain_log
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
from stoker.external_jobs.snapshot import LOST, ON_DEMAND
from stoker.model.errors import StoreError, describe_error
from stoker.model.policy import EventKind, Policy
from stoker.notifications.dispatcher import NotificationDispatcher
from stoker.notifications.events import Notification, shortened
from stoker.store.base import Store
from stoker.store.external_job_index import ExternalJobRow

# The rules by which an intended clone was given up.
_ABANDONED_CLONES = (
    "late",
    LOST,
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


class ExternalJobNotifier:
    """Records the events of clone chains in the outboxes, and sends them. An event that is recorded again, also by
    another governor, is sent once. Events that could not be recorded are retried with the next call.
    """

    def __init__(self, store: Store, by: str, dispatcher: NotificationDispatcher | None = None) -> None:
        self._store = store
        self._dispatcher = dispatcher or NotificationDispatcher(store, by)
        self._unrecorded: list[Notification] = []

    @property
    def unsent(self) -> bool:
        """Return whether something is still to be sent, by any governor."""
        return bool(self._unrecorded) or self._dispatcher.unsent

    @property
    def is_recorded(self) -> bool:
        """Return whether all collected events are in the outboxes, from where any governor can send them."""
        return not self._unrecorded

    def collect(self, policy: Policy, row: ExternalJobRow, before: ExternalJobRow | None) -> bool:
        """Collect the events that were written since the job's last row. False: the log could not be read."""
        after = before.seq if before is not None and before.origin == row.origin else 0
        if not policy.notify or row.seq <= after or row.own:
            return True
        where = f"{row.nodes} × {row.machine}" if row.nodes > 1 else row.machine
        context = JobContext(row.origin, row.region, f"{where}{' spot' if row.spot else ''} on SageMaker", row.tags)
        try:
            entries = list(chain_log.entries(self._store, row.region, row.origin, after + 1))
        except StoreError:
            return False
        known = {(event.stream, event.seq) for event in self._unrecorded}
        found = (notification_of(entry, context, policy) for entry in entries)
        self._unrecorded += [event for event in found if event is not None and (event.stream, event.seq) not in known]
        return True

    def send(self, policy: Policy, now: Callable[[], datetime]) -> dict[str, str]:
        """Record the collected events, and send what waits. Returns problems."""
        if not policy.notify:
            self._unrecorded = []
            return {}
        try:
            self._dispatcher.begin(policy)
            self._dispatcher.record({}, now(), more=self._unrecorded)
            self._unrecorded = []
            return self._dispatcher.send(now)
        except Exception as error:  # noqa: BLE001 - a side channel: no bug in it may end a pass
            return {"notify": describe_error(error)}


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
