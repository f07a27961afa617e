"""What people are told of, from the log's entries. Pure: the same entries always tell the same."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from stoker.core.budget_reservations import LEAVES
from stoker.core.budgets import Unheralded
from stoker.core.costs import in_dollars, job_cost
from stoker.core.health_rules import OWN
from stoker.core.policy_rules import PREFIX, fits_tag
from stoker.core.snapshot import Action, Terminate
from stoker.model.job_state import Claim, JobState
from stoker.model.log_entries import Claimed, Closed, Ended, Entry, Launched, Warned
from stoker.model.offerings import Leftover, Offering
from stoker.model.policy import Channel, EventKind, House
from stoker.model.spec import Spec

# Reasons may quote what a script said; the log has the whole of it.
_MOST_REASON = 300

# Controls, formats (such as those that turn text around), halves of characters, and what nobody has defined.
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn")
_BLANKS = "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85"
# What chats make calls to everybody, people or links of.
_CALLS = re.compile(r"<(?=[@#])|!(?=\w)|(?<![\w.])@(?=\w)|\](?=\()")
_LABELLED = re.compile(r"(\w+://[^\s|]+)\|")
_NOTHING_SEEN = "\u200b"

_ENDS: Mapping[str, EventKind] = {"succeeded": "finished", "failed": "failed", "stopped": "stopped"}
# Subjects of rules that have a kind of their own, and codes of warnings that are no rule's.
_SUBJECTS: Mapping[str, EventKind] = {"stall": "stalled", "budget": "budget"}


@dataclass(frozen=True)
class Told:
    """Something that people are told once. A job's entry, what became of something that no job owned, or how a budget
    stands whose jobs are over. Then `job` is empty."""

    kind: EventKind
    job: str
    at: datetime
    reason: str
    # The entry of the job's log; of what is in no log, 0 or what comes later of the same thing.
    seq: int = 0
    name: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    # What decisions call the rule; `audit`: nothing is done about it.
    rule: str = ""
    audit: bool = False
    attempt: int | None = None
    where: str = ""
    zone: str = ""
    # Dollars so far; None where a price is unknown.
    cost: float | None = None
    # What was removed, or the budget.
    thing: str = ""

    @property
    def stream(self) -> str:
        """What it is one of a row of: a job's entries are told in order."""
        return f"{self.kind}/{self.thing}" if self.thing else self.job


def tell(entry: Entry, state: JobState, spec: Spec, house: House) -> Told | None:
    """What an entry means for people; None: nothing. `state` is any that has the entry in it."""
    match entry.event:
        case Claimed(successor_of=int() as noticed):
            others = [claim.number for claim in state.claims if claim.successor_of == noticed]
            claim = state.claim(noticed)
            # The next attempt may be claimed again and again; the notice was one.
            if claim is None or min(others) != entry.seq:
                return None
            return _told("reclaimed", entry, state, spec, claim, f"attempt {claim.attempt} was given notice")
        case Launched(claim=number):
            claim = state.claim(number)
            if claim is None or claim.attempt is None:
                return None
            if claim.attempt == 1:
                return _told("started", entry, state, spec, claim, "")
            return _told("resumed", entry, state, spec, claim, claim.reason)
        case Closed(claim=number, outcome="reclaimed", rule=rule):
            if any(claim.successor_of == number for claim in state.claims):
                return None  # It was told when the notice came.
            return _told("reclaimed", entry, state, spec, state.claim(number), entry.reason, rule)
        case Warned(code=code) if code.startswith(LEAVES):
            return None  # It waits for something else now, which it tells itself.
        case Warned(code=code):
            return _warned(code, entry, state, spec, house)
        case Ended(outcome=outcome, rule=rule, claim=last):
            claim = state.claim(last) if last is not None else None
            return _told(_ENDS[outcome], entry, state, spec, claim, entry.reason, rule)
        case _:
            return None


def orphan(job: str, thing: str, reason: str, at: datetime) -> Told:
    """Something that no job owned was removed."""
    return Told(kind="orphan", job=job, at=at, reason=shortened(reason), thing=thing)


def orphans(actions: Iterable[Action], at: datetime) -> list[Told]:
    """The machines that no claim stood behind, of those that were ended."""
    return [
        orphan(action.job, f"{action.provider} {action.instance}", action.reason, at)
        for action in actions
        if isinstance(action, Terminate) and action.orphan
    ]


def budget(found: Unheralded, at: datetime) -> Told:
    """How a budget stands that no job tells of."""
    return Told(
        kind="budget",
        job="",
        at=at,
        reason=shortened(found.reason),
        seq=found.order,
        tags=dict(found.tags),
        rule=f"{PREFIX}{found.mark.rule}",
        audit=found.audit,
        # A whole sentence: there is no job that it is about.
        thing=found.title,
    )


def leftover_name(thing: Leftover) -> str:
    return f"{thing.provider} {thing.kind} {thing.id}"


def wants(channel: Channel, told: Told) -> bool:
    """Whether a channel of the house is told of this. Whatever a rule of the house caused is about the rule, too."""
    by_rule = told.rule.startswith(PREFIX) and "rule" in channel.events
    if channel.events and told.kind not in channel.events and not by_rule:
        return False
    return in_scope(channel, told.tags)


def in_scope(channel: Channel, tags: Mapping[str, str]) -> bool:
    return all(name in tags and fits_tag(name, wanted, tags[name]) for name, wanted in channel.scope.items())


def _warned(code: str, entry: Entry, state: JobState, spec: Spec, house: House) -> Told:
    claim = state.open_claims[-1] if state.open_claims else None
    # `policy:NAME`, or `policy:NAME:CLAIM` for what a rule says of one attempt; else a word of Stoker's own.
    name, _, _ = code.removeprefix(PREFIX).partition(":")
    if not code.startswith(PREFIX):
        kind: EventKind = "stalled" if name == OWN else _SUBJECTS.get(name, "warning")
        return _told(kind, entry, state, spec, claim, entry.reason, name)
    rule = next((rule for rule in house.rules if rule.name == name), None)
    kind = _SUBJECTS.get(rule.subject, "rule") if rule is not None else "rule"
    audit = rule is not None and rule.audit
    return _told(kind, entry, state, spec, claim, entry.reason, f"{PREFIX}{name}", audit=audit)


def _told(
    kind: EventKind,
    entry: Entry,
    state: JobState,
    spec: Spec,
    claim: Claim | None,
    reason: str,
    rule: str = "",
    *,
    audit: bool = False,
) -> Told:
    return Told(
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
    """One line of a letter, without what steers terminals or turns text around."""
    shown = (char if unicodedata.category(char) not in _UNSEEN else " " if char in _BLANKS else "" for char in text)
    flat = " ".join("".join(shown).split())
    return flat if len(flat) <= _MOST_REASON else f"{flat[: _MOST_REASON - 1]}…"


def calling_nobody(text: str) -> str:
    """What a script said, as chats are given it: `@everyone` in it is nobody's name."""
    return _CALLS.sub(lambda found: f"{found[0]}{_NOTHING_SEEN}", _LABELLED.sub(r"\1¦", text))


# ── In words ──────────────────────────────────────────────────────────────────────────────────────────────────────────

# Of one job, and of many.
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
# Kinds after which somebody may want to look.
_LOOK: Mapping[EventKind, str] = {
    "failed": "stoker logs",
    "stalled": "stoker logs",
    "rule": "stoker explain",
    "budget": "stoker explain",
    "warning": "stoker explain",
}
# More lines than this nobody reads: then jobs to which the same happened share one.
MOST_LINES = 20
_MOST_NAMED = 3


@dataclass(frozen=True)
class Letter:
    """What is sent: for people in words, for programs as they are. `more` are those that are only counted."""

    id: str
    store: str
    title: str
    text: str
    events: tuple[Told, ...]
    more: dict[str, int] = field(default_factory=dict)


def compose(id_: str, store: str, events: tuple[Told, ...], more: Mapping[str, int] | None = None) -> Letter:
    """One message about all of them, in their order."""
    counted = dict(more or {})
    lines = [line(told) for told in events]
    if len(lines) > MOST_LINES:
        lines = _together(events)
    lines += [f"and {count} more: {kind}" for kind, count in sorted(counted.items())]
    return Letter(id_, store, title(events, counted), "\n".join([*lines, f"({store})"]), events, counted)


def title(events: tuple[Told, ...], more: Mapping[str, int]) -> str:
    """`gpt-small-7f3k was reclaimed`, or `12 jobs: 9 reclaimed, 3 resumed`."""
    if len(events) == 1 and not more:
        (told,) = events
        return f"{_what(told)}{' (audit)' if told.audit else ''}"
    jobs = len({told.job for told in events})
    count: dict[str, int] = dict(more)
    for told in events:
        count[told.kind] = count.get(told.kind, 0) + 1
    first = events[0] if events else None
    whom = first.job or first.thing if first and jobs == 1 and not more else f"{jobs}{'+' if more else ''} jobs"
    return f"{whom}: {', '.join(f'{number} {kind}' for kind, number in count.items())}"


def line(told: Told) -> str:
    """One event: which job, what, why, where, what it has cost, and how to look."""
    text = _what(told)
    if told.audit:
        # Some reasons say it themselves.
        text += " (audit)" if "nothing is done" in told.reason else " (audit: nothing is done)"
    if told.reason:
        text += f": {calling_nobody(told.reason)}"
    beside = [told.where] if told.where else []
    if told.job and told.thing and told.thing != told.job:
        beside.append(f"of {told.job}")
    if told.cost:
        beside.append(f"{in_dollars(told.cost)} so far")
    if beside:
        text += f" ({', '.join(beside)})"
    if not told.job:
        return f"{text}; `stoker costs`"
    look = _LOOK.get(told.kind)
    if look is None or f"`{look} {told.job}" in told.reason:
        return text  # The reason says where to look.
    return f"{text}; `{look} {told.job}`"


def _what(told: Told) -> str:
    """`gpt-small-7f3k was reclaimed`; of a budget without jobs its own words."""
    if told.kind == "budget" and not told.job:
        return told.thing
    return f"{told.thing or told.job} {_VERBS[told.kind][0]}"


def _together(events: Iterable[Told]) -> list[str]:
    """Jobs to which the same happened in the same place, in one line."""
    alike: dict[tuple[EventKind, str, bool], list[Told]] = {}
    for told in events:
        alike.setdefault((told.kind, told.zone, bool(told.job)), []).append(told)
    rows = sorted(alike.values(), key=len, reverse=True)
    found = []
    for row in rows[:MOST_LINES]:
        first = row[0]
        if len(row) == 1:
            found.append(line(first))
            continue
        names = ", ".join(told.thing or told.job for told in row[:_MOST_NAMED])
        rest = f" and {len(row) - _MOST_NAMED} more" if len(row) > _MOST_NAMED else ""
        if first.kind == "budget" and not first.job:
            found.append(f"{len(row)} budgets: {names}{rest}")
            continue
        place = f" in {first.zone}" if first.zone else ""
        what = "things" if first.kind == "orphan" else "jobs"
        found.append(f"{len(row)} {what} {_VERBS[first.kind][1]}{place}: {names}{rest}")
    left = sum(len(row) for row in rows[MOST_LINES:])
    return [*found, f"and {left} more"] if left else found
