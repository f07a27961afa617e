"""What everybody has spent, and how the budgets of the house stand. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta, timezone

from stoker.core.costs import burn_rate, per_s
from stoker.core.governance import PREFIX, Subject, applies, in_scope
from stoker.core.hold import longest_held
from stoker.core.spending import by_day, midnight, spells
from stoker.errors import STUMBLES, in_words
from stoker.fold import Claim, JobState
from stoker.model import Known, Observed, Unknown
from stoker.rules import Budget, House, Rule
from stoker.spec import Spec

# Stands for the value of jobs that do not have the tag: they share one budget, or nobody's money would count.
NO_VALUE = ""
# The kinds of words, in their codes: a share of it is spent; all of it is; some of it nobody can know.
NEARLY, FULL, UNPRICED = "warning", "full", "unpriced"


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
class Started:
    """Machines that were launched after the books were closed, in the same pass."""

    tags: Mapping[str, str]
    since: datetime
    per_s: float


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
    # Dollars a second, of what runs.
    per_s: float = 0.0


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
    standings: dict[tuple[str, str], Standing] = {}
    for rule in house.about("budget"):
        assert rule.budget is not None
        standings |= _standings(rule, rule.budget, found, jobs.values(), now)
    return Books(now, standings, tuple(lost))


def later(house: House, books: Books, started: Iterable[Started], subject: Subject, now: datetime) -> Observed[Books]:
    """How the budgets of one job stand some time after the books were closed: what ran has gone on, and what was
    `started` since runs as well. What ended since counts as running: that is at most a pass."""
    passed_s = max(0.0, (now - books.at).total_seconds())
    recent = list(started)
    standings = {}
    for rule in house.about("budget"):
        if not applies(rule, subject):
            continue
        assert rule.budget is not None
        if period_of(rule.budget, now) != period_of(rule.budget, books.at):
            return Unknown("its next period has begun since somebody looked")
        value, before = value_of(rule, subject.spec.tags), books.of(rule, subject.spec.tags)
        more = before.per_s * passed_s
        for each in recent:
            if in_scope(rule, each.tags) and value_of(rule, each.tags) == value:
                more += each.per_s * max(0.0, (now - each.since).total_seconds())
        standings[rule.name, value] = replace(before, spent=before.spent + more)
    return Known(replace(books, at=now, standings=standings))


def started(claim: Claim, spec: Spec) -> Started | None:
    """What a claim spends from its launch on; None before."""
    return None if claim.launched_at is None else Started(spec.tags, claim.launched_at, per_s(claim))


def value_of(rule: Rule, tags: Mapping[str, str]) -> str:
    """Which of the budgets of this rule counts what a job with these tags spends."""
    assert rule.budget is not None
    return NO_VALUE if rule.budget.by is None else tags.get(rule.budget.by, NO_VALUE)


def code_of(rule: Rule, period: Period | None = None, kind: str = "") -> str:
    """What decisions call it: the rule, or a word of it in a period."""
    return f"{PREFIX}{rule.name}" + (f":{period.start}:{kind}" if period else "")


# ── Small things ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _standings(
    rule: Rule,
    budget: Budget,
    found: Iterable[Expense],
    active: Iterable[tuple[JobState, Spec]],
    now: datetime,
) -> dict[tuple[str, str], Standing]:
    period = period_of(budget, now)
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
    rates: dict[str, float] = {}
    alive: dict[str, list[str]] = {}
    for state, spec in active:
        if in_scope(rule, spec.tags):
            value = value_of(rule, spec.tags)
            told.setdefault(value, set()).update(state.warned)
            rates[value] = rates.get(value, 0.0) + burn_rate(state)
            if state.ended is None and state.stop is None:
                alive.setdefault(value, []).append(state.job)
    standings = {}
    for value in {**spent, **rates}:
        dollars = spent.get(value, 0.0)
        due = _due(budget, dollars)
        if due and code_of(rule, period, due) in told.get(value, ()):
            due = ""
        standings[rule.name, value] = Standing(
            spent=dollars,
            unpriced=tuple(sorted(unpriced.get(value, ()))),
            due=due,
            herald=min(alive.get(value, ()), default=None) if due else None,
            per_s=rates.get(value, 0.0),
        )
    return standings


def _due(budget: Budget, spent: float) -> str:
    """What there is to tell of so much."""
    if spent >= budget.dollars:
        return FULL
    return NEARLY if spent >= budget.dollars * budget.warn_at else ""
