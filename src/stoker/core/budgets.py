"""What budgets say to a job that wants a machine. Pure: from what everybody spent to a word, a wait or a refusal.

A budget stops launches, never what runs. Each launch counts what it may still cost against what is neither spent nor
reserved for jobs that have begun: so a budget is exceeded only by what costs more than it was reserved for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime

from stoker.core.budget_reservations import Ask, Reserved, Waiting, micro
from stoker.core.budget_state import (
    FULL,
    NEARLY,
    RESERVED,
    UNPRICED,
    Books,
    Period,
    Standing,
    code_of,
    keeps_back,
    period_of,
    spans_of,
    value_of,
)
from stoker.core.costs import in_dollars
from stoker.core.daily_costs import midnight
from stoker.core.policy_rules import Subject, applies, in_scope, is_one_value
from stoker.model.observed import Known, Observed, Unknown
from stoker.model.policy import Budget, House, Rule, Then

_MOST_NAMED = 3


@dataclass(frozen=True)
class Word:
    """Something to tell, once: `code` keeps it from being told again."""

    code: str
    reason: str


@dataclass(frozen=True)
class Held:
    """No launch for now. `until` is when that may change by itself; `refuses`: a job that never ran is ended. `waits`
    is what a job waits for, in words: the rule and until when come first, since lists of jobs cut it off. `amount`: the
    millionths of a dollar that it waits for in the queue; 0 where it is in none."""

    rule: str
    reason: str
    until: datetime | None = None
    refuses: bool = False
    waits: str = ""
    amount: int = 0
    # The job can never have what it needs.
    never: bool = False
    # It is not known how the budget stands.
    unknown: bool = False


def judge(
    house: House, subject: Subject, books: Observed[Books] | None, now: datetime, ask: Ask | None = None
) -> tuple[Word | Held, ...]:
    """What the budgets say to a job that wants a machine: words first, then what keeps it back.

    `ask` is what the launch may cost; None: that is not known yet, and only what is spent keeps it back. What could
    not be looked up keeps it back as well: it never causes a launch.
    """
    rules = [rule for rule in house.about("budget") if applies(rule, subject)]
    if not rules:
        return ()
    if not isinstance(books, Known):
        error = books.error if isinstance(books, Unknown) else "no governor has looked"
        return tuple(
            Held(code_of(rule), f"policy {rule.name}: what was spent is not known: {error}", unknown=True)
            for rule in rules
            if _holds(rule)
        )
    words: list[Word | Held] = []
    held: list[Word | Held] = []
    for rule in rules:
        assert rule.budget is not None
        standing, period = books.value.of(rule, subject.spec.tags), period_of(rule.budget, now)
        unread = books.value.unread_of(rule, subject.spec.tags)
        if unread is not None and _holds(rule):
            why = f"{unread.job} cannot be read: {unread.why}"
            held.append(Held(code_of(rule), f"policy {rule.name}: what was spent is not known: {why}", unknown=True))
        value = value_of(rule, subject.spec.tags)
        told = f"{_title(rule)}: {_told(rule.budget, standing, value, period)}"
        if standing.unpriced:
            words.append(Word(code_of(rule, period, UNPRICED), f"{told}; {_unpriced(standing)}"))
        never = _never(rule, standing, subject, ask, now) if ask is not None else None
        if never is not None and _holds(rule):
            held.append(never)
            continue
        if standing.spent < rule.budget.dollars:
            lacks = _lacks(rule, standing, subject, ask, now) if ask is not None else None
            if lacks is not None and _holds(rule):
                held.append(lacks)
            elif lacks is not None:
                words.append(Word(code_of(rule, period, RESERVED), lacks.reason))
            continue
        reason = _reason(rule, standing, value, period)
        words.append(Word(code_of(rule, period, FULL), reason))
        if _holds(rule):
            spent = _spent(rule.budget, standing, value)
            waits = f"{_title(rule)}: no machine until {period.over_at:%Y-%m-%d %H:%M} UTC: {spent}"
            held.append(Held(code_of(rule), reason, period.over_at, rule.action == "refuse", waits))
    return (*words, *held)


def heralded(
    house: House, job: str, tags: Mapping[str, str], books: Observed[Books] | None, now: datetime
) -> Iterator[Word]:
    """The warnings that stand in this job's log, for all jobs of a budget: told once, not by every job."""
    if not isinstance(books, Known):
        return
    for rule in house.about("budget"):
        standing = books.value.of(rule, tags)
        if standing.herald == job and in_scope(rule, tags):
            assert rule.budget is not None
            period = period_of(rule.budget, now)
            yield Word(code_of(rule, period, standing.due), _reason(rule, standing, value_of(rule, tags), period))


@dataclass(frozen=True)
class Mark:
    """That a budget was told to be spent, or nearly: its rule, its period's first day, its value, and which."""

    rule: str
    start: date
    value: str
    kind: str


@dataclass(frozen=True)
class Unheralded:
    """Something that is to be told of a budget though none of its jobs is alive. `tags` are what its jobs share."""

    mark: Mark
    title: str
    reason: str
    audit: bool
    tags: Mapping[str, str]

    @property
    def order(self) -> int:
        """Later periods, and in each of them the end, come later."""
        return 2 * self.mark.start.toordinal() + (self.mark.kind == FULL)


def unheralded(house: House, books: Books) -> Iterator[Unheralded]:
    """What is to be told of budgets whose jobs are all over."""
    for rule in house.about("budget"):
        assert rule.budget is not None
        period = period_of(rule.budget, books.at)
        for (name, value), standing in books.standings.items():
            if name == rule.name and standing.due and standing.herald is None:
                shared = {tag: wanted[0] for tag, wanted in rule.scope.items() if is_one_value(tag, wanted)}
                yield Unheralded(
                    Mark(name, period.start, value, standing.due),
                    f"{_budget(name, rule.budget, value)} is {'spent' if standing.due == FULL else 'nearly spent'}",
                    _reason(rule, standing, value, period),
                    rule.audit,
                    {**shared, rule.budget.by: value} if rule.budget.by and value else shared,
                )


def told_by(house: House, tags: Mapping[str, str], code: str) -> Mark | None:
    """Which budget was told to be spent, or nearly, by a word with this code. None for any other word."""
    for rule in house.about("budget"):
        found = code.removeprefix(f"{code_of(rule)}:").split(":")
        if code.startswith(f"{code_of(rule)}:") and len(found) == 2 and found[1] in (NEARLY, FULL):
            return Mark(rule.name, date.fromisoformat(found[0]), value_of(rule, tags), found[1])
    return None


def without_told(house: House, books: Books, was_told: Callable[[Mark], bool]) -> Books:
    """Of what was told in this period by a job that is forgotten since, nobody tells again."""
    starts = {rule.name: period_of(rule.budget, books.at).start for rule in house.about("budget") if rule.budget}
    return replace(
        books,
        standings={
            (name, value): replace(standing, due="", herald=None)
            if standing.due and was_told(Mark(name, starts[name], value, standing.due))
            else standing
            for (name, value), standing in books.standings.items()
        },
    )


def forecast(
    house: House, subject: Subject, books: Observed[Books], now: datetime, ask: Ask | None = None
) -> tuple[tuple[str, Then], ...]:
    """What a submission is told, each with what comes of it: it is refused, waits, or is only told. A job that would
    wait for ever is refused."""
    found = judge(house, subject, books, now, ask)
    held: list[tuple[str, Then]] = [
        (each.reason, "refuse" if each.refuses or each.never else "wait") for each in found if isinstance(each, Held)
    ]
    said = {reason for reason, _ in held}
    return (*held, *((each.reason, "warn") for each in found if isinstance(each, Word) and each.reason not in said))


# ── Small things ──────────────────────────────────────────────────────────────────────────────────────────────────────


_holds = keeps_back


def _lacks(rule: Rule, standing: Standing, subject: Subject, ask: Ask, now: datetime) -> Held | None:
    """What keeps a launch back that may cost more than is neither spent nor reserved; None where there is enough."""
    budget, period = rule.budget, None if rule.budget is None else period_of(rule.budget, now)
    assert budget is not None and period is not None
    all_of_it, value = micro(budget.dollars), value_of(rule, subject.spec.tags)
    wants = ask.need.within((period.over_at - now).total_seconds())
    others, begun = _others(standing, subject.job or "", ask)
    ahead: list[Waiting] = []
    if ask.claimed_at is None and not begun:
        # A job that has begun goes on with what is reserved for it, and is in no queue.
        ahead = [each for each in standing.queue if each.place < (ask.since, subject.job or "")]
    taken = micro(standing.spent) + sum(each.amount for each in others)
    # Each amount was rounded to a millionth.
    inexact = len(others) + len(ahead) + 2
    if not wants or taken + sum(each.amount for each in ahead) + wants <= all_of_it + inexact:
        own = next((each.later for each in standing.reserved if begun and each.job == subject.job), 0)
        return _lacks_later(rule, others, own, subject, ask, now)
    whole = f"{in_dollars(budget.dollars)} a {budget.period}{_whose(budget, value)}"
    needs = f"{_title(rule)}: needs {_exactly(wants)} ({ask.need.why}) of {whole}"
    behind = f"; {_jobs([each.job for each in ahead])} {'is' if len(ahead) == 1 else 'are'} before it" if ahead else ""
    by = f" for {_jobs([each.job for each in others if each.amount])}" if any(each.amount for each in others) else ""
    waits = (
        f"{_title(rule)}: waits for {_exactly(wants)} of {whole}: {_exactly(taken)} is spent or reserved{by}{behind}"
    )
    spent = f"{_exactly(micro(standing.spent))} is spent, {_exactly(taken - micro(standing.spent))} reserved{by}"
    reason = f"{needs}: {spent}{behind}"
    # What is spent comes back with the next period alone.
    until = period.over_at
    return Held(code_of(rule), reason, until, rule.action == "refuse", waits, wants)


def _lacks_later(
    rule: Rule, others: list[Reserved], own: int, subject: Subject, ask: Ask, now: datetime
) -> Held | None:
    """What keeps a launch back that fits into this period, and goes on in the next: jobs that run are not ended when
    that begins, and may then cost more than there is. `own` is reserved there for the job already."""
    budget = rule.budget
    assert budget is not None
    wants = ask.need.after(*spans_of(budget, now))
    taken = sum(each.later for each in others)
    if wants <= own or taken + wants <= micro(budget.dollars) + len(others) + 2:
        return None
    period, value = period_of(budget, now), value_of(rule, subject.spec.tags)
    whole = f"{in_dollars(budget.dollars)} a {budget.period}{_whose(budget, value)}"
    whole += f" from {period.over_at:%Y-%m-%d %H:%M} UTC"
    reserved = f"{_exactly(taken)} is reserved then"
    reserved += f" for {_jobs([each.job for each in others if each.later])}" if taken else ""
    reason = f"{_title(rule)}: needs {_exactly(wants)} ({ask.need.why}) of {whole}: {reserved}"
    waits = f"{_title(rule)}: waits for {_exactly(wants)} of {whole}: {reserved}"
    # In the queue it stands for what it needs now.
    amount = ask.need.within((period.over_at - now).total_seconds())
    return Held(code_of(rule), reason, period.over_at, rule.action == "refuse", waits, amount)


def _never(rule: Rule, standing: Standing, subject: Subject, ask: Ask, now: datetime) -> Held | None:
    """What keeps a job back that no period has enough for, however little is spent of it. One that had machines before
    goes on in the order of its turn, if it can."""
    assert rule.budget is not None
    budget, period = rule.budget, period_of(rule.budget, now)
    wants = ask.need.within((period.over_at - midnight(period.start)).total_seconds())
    if wants <= micro(budget.dollars) + 1 or _others(standing, subject.job or "", ask)[1]:
        return None
    whose = _whose(budget, value_of(rule, subject.spec.tags))
    needs = (
        f"{_title(rule)}: needs {_exactly(wants)} ({ask.need.why}) of {in_dollars(budget.dollars)} a {budget.period}"
    )
    advice = f"set limits.max_cost to at most {in_dollars(budget.dollars)}"
    reason = f"{needs}{whose}, and can never have so much; {advice}"
    return Held(code_of(rule), reason, refuses=rule.action == "refuse", waits=reason, never=True)


def _others(standing: Standing, job: str, ask: Ask) -> tuple[list[Reserved], bool]:
    """The reservations that count against this launch, and whether the job had machines before.

    Jobs that have begun and have no machine must not keep each other waiting, where more is reserved than there is
    (the budget was lowered): the oldest goes first.
    """
    others = [each for each in standing.reserved if each.job != job]
    begun = any(each.begun for each in standing.reserved if each.job == job)
    if ask.claimed_at is not None:
        others = [each for each in others if each.at <= ask.claimed_at]
    if begun:
        others = [each for each in others if not each.idle or (each.since, each.job) < (ask.since, job)]
    return others, begun


def _exactly(amount: int) -> str:
    return in_dollars(amount / 1e6)


def _jobs(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def stands(house: House, subject: Subject, books: Books, now: datetime, ask: Ask | None) -> Iterator[str]:
    """How each budget of a job stands, for a plan: what is spent, reserved and left, and what the job reserves."""
    for rule in house.about("budget"):
        if not applies(rule, subject) or rule.budget is None:
            continue
        budget, standing = rule.budget, books.of(rule, subject.spec.tags)
        whose = _whose(budget, value_of(rule, subject.spec.tags))
        told = f"{_title(rule)}: {in_dollars(budget.dollars)} a {budget.period}{whose}"
        parts = f"{in_dollars(standing.spent)} spent, {in_dollars(standing.set_aside)} reserved, "
        parts += f"{in_dollars(standing.left_of(budget))} left"
        left_s = (period_of(budget, now).over_at - now).total_seconds()
        mine = f"; this job reserves {_exactly(ask.need.within(left_s))} ({ask.need.why})" if ask is not None else ""
        yield f"{told}: {parts}{mine}"


def _title(rule: Rule) -> str:
    return f"policy {rule.name}{' (audit)' if rule.audit else ''}"


def _reason(rule: Rule, standing: Standing, value: str, period: Period) -> str:
    """How it stands, and what comes of that."""
    assert rule.budget is not None
    consequence = "; audit: nothing is done" if rule.audit else ""
    if _holds(rule) and standing.spent >= rule.budget.dollars:
        consequence = "; no new machines until then"
    return f"{_title(rule)}: {_told(rule.budget, standing, value, period)}{consequence}"


def _told(budget: Budget, standing: Standing, value: str, period: Period) -> str:
    return f"{_spent(budget, standing, value)}, until {period.over_at:%Y-%m-%d %H:%M} UTC"


def _spent(budget: Budget, standing: Standing, value: str) -> str:
    spent, all_of_it = in_dollars(standing.spent), in_dollars(budget.dollars)
    share = standing.spent / budget.dollars
    return f"{spent} of {all_of_it} a {budget.period}{_whose(budget, value)} are spent ({share:.0%})"


def _budget(name: str, budget: Budget, value: str) -> str:
    """`budget each-team of team=nlp`; a rule that is called `budget` says so once."""
    known = name.lower() in ("budget", "budgets")
    return f"{'budget' if known else f'budget {name}'}{_whose(budget, value)}"


def _whose(budget: Budget, value: str) -> str:
    if budget.by is None:
        return ""
    return f" of {budget.by}={value}" if value else f" of jobs without {budget.by}"


def _unpriced(standing: Standing) -> str:
    first, *more = standing.unpriced
    others = f" and {len(more)} more" if more else ""
    return f"and an unknown amount: {first}{others} had machines without a price"
