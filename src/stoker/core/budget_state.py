"""What everybody has spent, and how the budgets of the house stand. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta, timezone

from stoker.core.budget_reservations import Reservation, Reserved, Waiting, micro, queued, reservation
from stoker.core.daily_costs import by_day, midnight, spells
from stoker.core.hold import longest_held
from stoker.core.policy_rules import PREFIX, in_scope
from stoker.model.errors import STUMBLES, in_words
from stoker.model.job_state import JobState
from stoker.model.policy import Budget, House, Rule
from stoker.model.spec import Spec

# Stands for the value of jobs that do not have the tag: they share one budget, or nobody's money would count.
NO_VALUE = ""
# The kinds of words, in their codes: a share of it is spent; all of it is; some of it is not known; what is left is
# less than a launch may cost.
NEARLY, FULL, UNPRICED, RESERVED = "warning", "full", "unpriced", "reserved"


@dataclass(frozen=True)
class Expense:
    """What one job spent on one day, as far as it is known. Not `whole`: it had machines without a price, too."""

    job: str
    tags: Mapping[str, str]
    day: date
    dollars: float
    whole: bool = True


@dataclass(frozen=True)
class Unread:
    """A job of which nobody knows what it spent. Without its tags it may be in any budget."""

    job: str
    why: str
    tags: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Period:
    """The days of a budget that count now: from `start`, until `end` begins."""

    start: date
    end: date

    @property
    def over_at(self) -> datetime:
        return midnight(self.end)


def period_of(budget: Budget, now: datetime) -> Period:
    today = now.astimezone(timezone.utc).date()
    if budget.period == "day":
        return Period(today, today + timedelta(days=1))
    if budget.period == "week":
        monday = today - timedelta(days=today.weekday())
        return Period(monday, monday + timedelta(days=7))
    first = today.replace(day=1)
    return Period(first, (first + timedelta(days=31)).replace(day=1))


def spans_of(budget: Budget, now: datetime) -> tuple[float, float]:
    """Seconds that are left of its present period, and that the next one has."""
    over_at = period_of(budget, now).over_at
    return (over_at - now).total_seconds(), (period_of(budget, over_at).over_at - over_at).total_seconds()


@dataclass(frozen=True)
class Standing:
    """One budget in its present period: of a rule, and of one value of its tag where it has one for each."""

    spent: float = 0.0
    # Jobs that spent what nobody knows.
    unpriced: tuple[str, ...] = ()
    # What is to be told of it, NEARLY or FULL; empty where there is nothing, or it was told already.
    due: str = ""
    # The job in whose log that is to stand; None where no job of the budget is alive to tell it.
    herald: str | None = None
    # What jobs that have begun may still cost in this period, the dearest first.
    reserved: tuple[Reserved, ...] = ()
    # Jobs that wait for money of it, and may still get it in this period, in the order of their turn.
    queue: tuple[Waiting, ...] = ()

    @property
    def set_aside(self) -> float:
        """Dollars that are reserved."""
        return sum(each.amount for each in self.reserved) / 1e6

    def left_of(self, budget: Budget) -> float:
        """Dollars that nothing is reserved for; none where more is reserved than there is."""
        return max(0, micro(budget.dollars) - micro(self.spent) - sum(each.amount for each in self.reserved)) / 1e6


@dataclass(frozen=True)
class Books:
    """How all budgets stood at a moment, by the name of their rule and the value of its tag."""

    at: datetime
    standings: Mapping[tuple[str, str], Standing] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()

    def unread_of(self, rule: Rule, tags: Mapping[str, str]) -> Unread | None:
        """The first job that may be in this budget and nobody knows what it spent."""
        value = value_of(rule, tags)
        for each in self.unread:
            if each.tags is None or (in_scope(rule, each.tags) and value_of(rule, each.tags) == value):
                return each
        return None

    def of(self, rule: Rule, tags: Mapping[str, str]) -> Standing:
        return self.standings.get((rule.name, value_of(rule, tags)), Standing())


def concerned(house: House, tags: Mapping[str, str]) -> bool:
    """Whether any budget counts what a job with these tags spends."""
    return any(in_scope(rule, tags) for rule in house.about("budget"))


def expenses(state: JobState, spec: Spec, now: datetime) -> Iterator[Expense]:
    """What a job that is not forgotten yet has spent. Machines that may be held count as held."""
    until = longest_held(state, spec, now)
    held = {
        claim.number: (until[claim.number],) * len(claim.launched or ())
        for claim in state.claims
        if claim.number in until
    }
    for day, sums in by_day(spells(state, now, held)).items():
        yield Expense(state.job, spec.tags, day, sums.counted.known, sums.counted.whole)


def close_books(
    house: House,
    kept: Iterable[Expense],
    active: Iterable[tuple[JobState, Spec]],
    now: datetime,
    unread: Iterable[Unread] = (),
    others: Iterable[Expense] = (),
) -> Books:
    """How the budgets stand. `kept` is what jobs spent that are forgotten; of a job that is active its log counts, and
    `others` are training jobs that have none.

    A job whose log makes no sums is `unread` as well: it concerns the budgets that it is in, and no others.
    """
    jobs = {state.job: (state, spec) for state, spec in active}
    found = list(others)
    counted = {*jobs, *(each.job for each in found)}
    found += [each for each in kept if each.job not in counted]
    lost = list(unread)
    for state, spec in jobs.values():
        try:
            found += expenses(state, spec, now)
        except STUMBLES as error:
            lost.append(Unread(state.job, in_words(error), spec.tags))
    kept_for = []
    for state, spec in jobs.values():
        try:
            kept_for.append(reservation(house, state, spec, now))
        except STUMBLES as error:
            lost.append(Unread(state.job, in_words(error), spec.tags))
    waiting = [each for state, spec in jobs.values() if (each := queued(state, spec)) is not None]
    reserved = [each for each in kept_for if each is not None]
    standings: dict[tuple[str, str], Standing] = {}
    for rule in house.about("budget"):
        assert rule.budget is not None
        standings |= _standings(rule, rule.budget, found, jobs.values(), reserved, now)
    return Books(now, _with_queues(house, standings, waiting), tuple(lost))


def value_of(rule: Rule, tags: Mapping[str, str]) -> str:
    """Which of the budgets of this rule counts what a job with these tags spends."""
    assert rule.budget is not None
    return NO_VALUE if rule.budget.by is None else tags.get(rule.budget.by, NO_VALUE)


def keeps_back(rule: Rule) -> bool:
    """Whether the budget keeps jobs from machines, and is not only told."""
    return not rule.audit and rule.action != "warn"


def code_of(rule: Rule, period: Period | None = None, kind: str = "") -> str:
    """What decisions call it: the rule, or a word of it in a period."""
    return f"{PREFIX}{rule.name}" + (f":{period.start}:{kind}" if period else "")


# ── Small things ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _standings(
    rule: Rule,
    budget: Budget,
    found: Iterable[Expense],
    active: Iterable[tuple[JobState, Spec]],
    kept_for: Iterable[Reservation],
    now: datetime,
) -> dict[tuple[str, str], Standing]:
    period = period_of(budget, now)
    left_s, next_s = spans_of(budget, now)
    reserved: dict[str, list[Reserved]] = {}
    for kept in kept_for:
        if in_scope(rule, kept.tags):
            now_, later = kept.need.within(left_s), kept.need.after(left_s, next_s)
            amount = Reserved(kept.job, kept.at, now_, kept.since, kept.idle, kept.begun, later)
            reserved.setdefault(value_of(rule, kept.tags), []).append(amount)
    spent: dict[str, float] = {}
    unpriced: dict[str, set[str]] = {}
    for each in found:
        if not period.start <= each.day < period.end or not in_scope(rule, each.tags):
            continue
        value = value_of(rule, each.tags)
        spent[value] = spent.get(value, 0.0) + each.dollars
        if not each.whole:
            unpriced.setdefault(value, set()).add(each.job)
    told: dict[str, set[str]] = {}
    alive: dict[str, list[str]] = {}
    for state, spec in active:
        if in_scope(rule, spec.tags):
            value = value_of(rule, spec.tags)
            told.setdefault(value, set()).update(state.warned)
            spent.setdefault(value, 0.0)
            if state.ended is None and state.stop is None:
                alive.setdefault(value, []).append(state.job)
    standings = {}
    for value, dollars in spent.items():
        due = _due(budget, dollars)
        if due and code_of(rule, period, due) in told.get(value, ()):
            due = ""
        standings[rule.name, value] = Standing(
            spent=dollars,
            unpriced=tuple(sorted(unpriced.get(value, ()))),
            due=due,
            herald=min(alive.get(value, ()), default=None) if due else None,
            reserved=tuple(sorted(reserved.get(value, ()), key=lambda each: (-each.amount, each.job))),
        )
    return standings


def _with_queues(
    house: House, standings: dict[tuple[str, str], Standing], waiting: Iterable[Waiting]
) -> dict[tuple[str, str], Standing]:
    """The standings with the jobs that wait for money. One that can get none in this period, of any of its budgets,
    keeps no other waiting."""
    queues: dict[tuple[str, str], list[Waiting]] = {}
    for each in sorted(waiting, key=lambda each: each.place):
        rules = [rule for rule in house.about("budget") if in_scope(rule, each.tags) and keeps_back(rule)]
        keys = [(rule.name, value_of(rule, each.tags)) for rule in rules]
        most = [micro(rule.budget.dollars) if rule.budget else 0 for rule in rules]
        spent = [micro(standings[key].spent) if key in standings else 0 for key in keys]
        if all(gone + each.amount <= dollars for gone, dollars in zip(spent, most, strict=True)):
            for key in keys:
                queues.setdefault(key, []).append(each)
    return {key: replace(standing, queue=tuple(queues.get(key, ()))) for key, standing in standings.items()}


def _due(budget: Budget, spent: float) -> str:
    """What there is to tell of so much."""
    if spent >= budget.dollars:
        return FULL
    return NEARLY if spent >= budget.dollars * budget.warn_at else ""
