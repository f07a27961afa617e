"""Notifications from log entries, and messages from notifications. Pure: the same entries give the same text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from stoker.core.budget_reservations import LEAVES, WAITS_FOR_ROOM
from stoker.core.budget_verdict import UnreportedWarning
from stoker.core.costs import in_dollars, job_cost
from stoker.core.health_rules import OWN_STALL_RULE
from stoker.core.policy_patterns import matches_tag
from stoker.core.policy_rules import PREFIX
from stoker.core.snapshot import Action, Terminate
from stoker.model.job_state import Claim, JobState
from stoker.model.log_entries import Claimed, Closed, Ended, Entry, Launched, Warned
from stoker.model.offerings import Leftover, Offering
from stoker.model.policy import EventKind, NotificationChannel, Policy
from stoker.model.spec import Spec

# Reasons may quote a script's output; the log has the whole of it.
_MAX_REASON = 300

# Unicode categories: controls, formats (such as those that reverse text), surrogates, private and undefined characters.
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn")
_WHITESPACE = "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85"
# Text that chats turn into a mention of everybody, of a person, or into a link.
_MENTIONS = re.compile(r"<(?=[@#])|!(?=\w)|(?<![\w.])@(?=\w)|\](?=\()")
_LABELLED_LINK = re.compile(r"(\w+://[^\s|]+)\|")
_ZERO_WIDTH_SPACE = "\u200b"

_ENDS: Mapping[str, EventKind] = {"succeeded": "finished", "failed": "failed", "stopped": "stopped"}
# Subjects of rules, and codes of Stoker's own warnings, that have a kind of their own.
_SUBJECTS: Mapping[str, EventKind] = {"stall": "stalled", "budget": "budget"}


@dataclass(frozen=True)
class Notification:
    """An event that is sent once: an entry of a job's log, the removal of an orphan, or the state of a budget whose
    jobs are over (then `job` is empty)."""

    kind: EventKind
    job: str
    at: datetime
    reason: str
    # The number of the log entry. For an event outside a log 0, or a number that goes up for later events of the thing.
    seq: int = 0
    name: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    # The rule as decisions name it. `audit`: the rule only reports.
    rule: str = ""
    audit: bool = False
    attempt: int | None = None
    where: str = ""
    zone: str = ""
    # Dollars so far; None where a price is unknown.
    cost: float | None = None
    # The removed thing, or the budget.
    thing: str = ""

    @property
    def stream(self) -> str:
        """The sequence that the event is part of: the entries of one job, or the events of one thing."""
        return f"{self.kind}/{self.thing}" if self.thing else self.job


def notification_of(entry: Entry, state: JobState, spec: Spec, policy: Policy) -> Notification | None:
    """The notification of a log entry, if it has one. `state` is any state of the job that includes the entry."""
    match entry.event:
        case Claimed(successor_of=int() as noticed):
            others = [claim.number for claim in state.claims if claim.successor_of == noticed]
            claim = state.claim(noticed)
            # Successors may be claimed several times for one notice: only the first claim counts.
            if claim is None or min(others) != entry.seq:
                return None
            return _notification("reclaimed", entry, state, spec, claim, f"attempt {claim.attempt} was given notice")
        case Launched(claim=number):
            claim = state.claim(number)
            if claim is None or claim.attempt is None:
                return None
            if claim.attempt == 1:
                return _notification("started", entry, state, spec, claim, "")
            return _notification("resumed", entry, state, spec, claim, claim.reason)
        case Closed(claim=number, outcome="reclaimed", rule=rule):
            if any(claim.successor_of == number for claim in state.claims):
                return None  # The notice was the event.
            return _notification("reclaimed", entry, state, spec, state.claim(number), entry.reason, rule)
        case Warned(code=code) if code.startswith((LEAVES, WAITS_FOR_ROOM)):
            return None  # The job waits for something else now, which has an entry of its own, or for its turn.
        case Warned(code=code):
            return _warning_notification(code, entry, state, spec, policy)
        case Ended(outcome=outcome, rule=rule, claim=last):
            claim = state.claim(last) if last is not None else None
            return _notification(_ENDS[outcome], entry, state, spec, claim, entry.reason, rule)
        case _:
            return None


def orphan_notification(job: str, thing: str, reason: str, at: datetime) -> Notification:
    """The notification that a thing without an owner was removed."""
    return Notification(kind="orphan", job=job, at=at, reason=shortened(reason), thing=thing)


def orphan_notifications(actions: Iterable[Action], at: datetime) -> list[Notification]:
    """The notifications of terminated machines that had no claim."""
    return [
        orphan_notification(action.job, f"{action.provider} {action.instance}", action.reason, at)
        for action in actions
        if isinstance(action, Terminate) and action.orphan
    ]


def budget_notification(found: UnreportedWarning, at: datetime) -> Notification:
    """The notification of a budget's state that no job's log holds."""
    return Notification(
        kind="budget",
        job="",
        at=at,
        reason=shortened(found.reason),
        seq=found.order,
        tags=dict(found.tags),
        rule=f"{PREFIX}{found.mark.rule}",
        audit=found.audit,
        # A whole sentence, since there is no job to name.
        thing=found.title,
    )


def leftover_name(thing: Leftover) -> str:
    return f"{thing.provider} {thing.kind} {thing.id}"


def channel_wants(channel: NotificationChannel, event: Notification) -> bool:
    """Return whether a channel of the policy wants the event. An event that a rule caused is a `rule` event, too."""
    by_rule = event.rule.startswith(PREFIX) and "rule" in channel.events
    if channel.events and event.kind not in channel.events and not by_rule:
        return False
    return in_scope(channel, event.tags)


def in_scope(channel: NotificationChannel, tags: Mapping[str, str]) -> bool:
    return all(name in tags and matches_tag(name, wanted, tags[name]) for name, wanted in channel.scope.items())


def _warning_notification(code: str, entry: Entry, state: JobState, spec: Spec, policy: Policy) -> Notification:
    claim = state.open_claims[-1] if state.open_claims else None
    # `policy:NAME`, or `policy:NAME:CLAIM` for a rule about one attempt; else a code of Stoker's own.
    name, _, _ = code.removeprefix(PREFIX).partition(":")
    if not code.startswith(PREFIX):
        kind: EventKind = "stalled" if name == OWN_STALL_RULE else _SUBJECTS.get(name, "warning")
        return _notification(kind, entry, state, spec, claim, entry.reason, name)
    rule = next((rule for rule in policy.rules if rule.name == name), None)
    kind = _SUBJECTS.get(rule.subject, "rule") if rule is not None else "rule"
    audit = rule is not None and rule.audit
    return _notification(kind, entry, state, spec, claim, entry.reason, f"{PREFIX}{name}", audit=audit)


def _notification(
    kind: EventKind,
    entry: Entry,
    state: JobState,
    spec: Spec,
    claim: Claim | None,
    reason: str,
    rule: str = "",
    *,
    audit: bool = False,
) -> Notification:
    return Notification(
        kind=kind,
        job=state.job,
        at=entry.at,
        reason=shortened(reason),
        seq=entry.seq,
        name=spec.name,
        tags=dict(spec.tags),
        rule=rule,
        audit=audit,
        attempt=claim.attempt if claim is not None else None,
        where=_where(claim.offering, claim.nodes) if claim is not None else "",
        zone=claim.offering.zone if claim is not None else "",
        cost=job_cost(state, entry.at).spent,
    )


def _where(offering: Offering, nodes: int) -> str:
    return f"{nodes} × {offering.title}" if nodes > 1 else offering.title


def shortened(text: str) -> str:
    """The text as one line of limited length, without characters that control terminals or reverse text."""
    shown = (
        char if unicodedata.category(char) not in _INVISIBLE else " " if char in _WHITESPACE else "" for char in text
    )
    flat = " ".join("".join(shown).split())
    return flat if len(flat) <= _MAX_REASON else f"{flat[: _MAX_REASON - 1]}…"


def without_mentions(text: str) -> str:
    """A script's output as chats are given it: `@everyone` in it mentions no one."""
    return _MENTIONS.sub(lambda found: f"{found[0]}{_ZERO_WIDTH_SPACE}", _LABELLED_LINK.sub(r"\1¦", text))


# ── Messages ──────────────────────────────────────────────────────────────────────────────────────────────────────────

# For one job, and for many.
_VERBS: Mapping[EventKind, tuple[str, str]] = {
    "started": ("started", "started"),
    "reclaimed": ("was reclaimed", "were reclaimed"),
    "resumed": ("goes on", "go on"),
    "stalled": ("stands still", "stand still"),
    "rule": ("breaks a rule", "break a rule"),
    "budget": ("meets a budget", "meet a budget"),
    "warning": ("has a warning", "have warnings"),
    "failed": ("failed", "failed"),
    "stopped": ("was stopped", "were stopped"),
    "finished": ("finished", "finished"),
    "orphan": ("belonged to no job, and was removed", "belonged to no job, and were removed"),
}
# The command that shows more, for kinds after which a person may want to look.
_COMMANDS: Mapping[EventKind, str] = {
    "failed": "stoker logs",
    "stalled": "stoker logs",
    "rule": "stoker explain",
    "budget": "stoker explain",
    "warning": "stoker explain",
}
# Beyond this many lines, jobs to which the same happened share a line.
MAX_LINES = 20
_MAX_NAMED = 3


@dataclass(frozen=True)
class Message:
    """A message to send: `title` and `text` for people, `events` for programs. `more` counts further events by kind."""

    id: str
    store: str
    title: str
    text: str
    events: tuple[Notification, ...]
    more: dict[str, int] = field(default_factory=dict)


def compose(id_: str, store: str, events: tuple[Notification, ...], more: Mapping[str, int] | None = None) -> Message:
    """Make one message of all these events, in their order."""
    counted = dict(more or {})
    lines = [event_line(event) for event in events]
    if len(lines) > MAX_LINES:
        lines = _grouped_lines(events)
    lines += [f"and {count} more: {kind}" for kind, count in sorted(counted.items())]
    return Message(id_, store, message_title(events, counted), "\n".join([*lines, f"({store})"]), events, counted)


def message_title(events: tuple[Notification, ...], more: Mapping[str, int]) -> str:
    """`gpt-small-7f3k was reclaimed`, or `12 jobs: 9 reclaimed, 3 resumed`."""
    if len(events) == 1 and not more:
        (event,) = events
        return f"{_subject_and_verb(event)}{' (audit)' if event.audit else ''}"
    jobs = len({event.job for event in events})
    count: dict[str, int] = dict(more)
    for event in events:
        count[event.kind] = count.get(event.kind, 0) + 1
    first = events[0] if events else None
    subject = first.job or first.thing if first and jobs == 1 and not more else f"{jobs}{'+' if more else ''} jobs"
    return f"{subject}: {', '.join(f'{number} {kind}' for kind, number in count.items())}"


def event_line(event: Notification) -> str:
    """One event as a line: job, verb, reason, place, cost so far, and the command that shows more."""
    text = _subject_and_verb(event)
    if event.audit:
        # Some reasons say so themselves.
        text += " (audit)" if "nothing is done" in event.reason else " (audit: nothing is done)"
    if event.reason:
        text += f": {without_mentions(event.reason)}"
    details = [event.where] if event.where else []
    if event.job and event.thing and event.thing != event.job:
        details.append(f"of {event.job}")
    if event.cost:
        details.append(f"{in_dollars(event.cost)} so far")
    if details:
        text += f" ({', '.join(details)})"
    if not event.job:
        return f"{text}; `stoker costs`"
    command = _COMMANDS.get(event.kind)
    if command is None or f"`{command} {event.job}" in event.reason:
        return text  # The reason names the command.
    return f"{text}; `{command} {event.job}`"


def _subject_and_verb(event: Notification) -> str:
    """`gpt-small-7f3k was reclaimed`; for a budget without jobs the sentence that it brings."""
    if event.kind == "budget" and not event.job:
        return event.thing
    return f"{event.thing or event.job} {_VERBS[event.kind][0]}"


def _grouped_lines(events: Iterable[Notification]) -> list[str]:
    """One line for all jobs to which the same happened in the same zone."""
    alike: dict[tuple[EventKind, str, bool], list[Notification]] = {}
    for event in events:
        alike.setdefault((event.kind, event.zone, bool(event.job)), []).append(event)
    rows = sorted(alike.values(), key=len, reverse=True)
    found = []
    for row in rows[:MAX_LINES]:
        first = row[0]
        if len(row) == 1:
            found.append(event_line(first))
            continue
        names = ", ".join(event.thing or event.job for event in row[:_MAX_NAMED])
        rest = f" and {len(row) - _MAX_NAMED} more" if len(row) > _MAX_NAMED else ""
        if first.kind == "budget" and not first.job:
            found.append(f"{len(row)} budgets: {names}{rest}")
            continue
        place = f" in {first.zone}" if first.zone else ""
        what = "things" if first.kind == "orphan" else "jobs"
        found.append(f"{len(row)} {what} {_VERBS[first.kind][1]}{place}: {names}{rest}")
    left = sum(len(row) for row in rows[MAX_LINES:])
    return [*found, f"and {left} more"] if left else found
