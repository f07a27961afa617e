"""What budgets say to a job that wants a machine. Pure: from what everybody spent to a word, a wait or a refusal.

A budget stops launches, never what runs: it is exceeded by what already ran when it was reached, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta, timezone

from stoker.core.costs import burn_rate, in_dollars, per_s
from stoker.core.governance import PREFIX, Subject, applies, in_scope, is_one_value
from stoker.core.hold import longest_held
from stoker.core.spending import by_day, midnight, spells
from stoker.errors import STUMBLES, in_words
from stoker.fold import Claim, JobState
from stoker.model import Known, Observed, Unknown
from stoker.rules import Budget, House, Rule, Then
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
        value = _value(rule, tags)
        for each in self.unread:
            if each.tags is None or (in_scope(rule, each.tags) and _value(rule, each.tags) == value):
                return each
        return None

    def of(self, rule: Rule, tags: Mapping[str, str]) -> Standing:
        return self.standings.get((rule.name, _value(rule, tags)), Standing())


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
        value, before = _value(rule, subject.spec.tags), books.of(rule, subject.spec.tags)
        more = before.per_s * passed_s
        for each in recent:
            if in_scope(rule, each.tags) and _value(rule, each.tags) == value:
                more += each.per_s * max(0.0, (now - each.since).total_seconds())
        standings[rule.name, value] = replace(before, spent=before.spent + more)
    return Known(replace(books, at=now, standings=standings))


def started(claim: Claim, spec: Spec) -> Started | None:
    """What a claim spends from its launch on; None before."""
    return None if claim.launched_at is None else Started(spec.tags, claim.launched_at, per_s(claim))


@dataclass(frozen=True)
class Word:
    """Something to tell, once: `code` keeps it from being told again."""

    code: str
    reason: str


@dataclass(frozen=True)
class Held:
    """No launch for now. `until` is when that may change by itself; `refuses`: a job that never ran is ended. `waits`
    is what a job waits for, in words: the rule and until when come first, since lists of jobs cut it off."""

    rule: str
    reason: str
    until: datetime | None = None
    refuses: bool = False
    waits: str = ""


def judge(house: House, subject: Subject, books: Observed[Books] | None, now: datetime) -> tuple[Word | Held, ...]:
    """What the budgets say to a job that wants a machine: words first, then what keeps it back.

    What nobody could look up keeps it back as well: it never causes a launch.
    """
    rules = [rule for rule in house.about("budget") if applies(rule, subject)]
    if not rules:
        return ()
    if not isinstance(books, Known):
        error = books.error if isinstance(books, Unknown) else "nobody looked"
        return tuple(
            Held(_code(rule), f"policy {rule.name}: what was spent is not known: {error}")
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
            held.append(Held(_code(rule), f"policy {rule.name}: what was spent is not known: {why}"))
        value = _value(rule, subject.spec.tags)
        told = f"{_title(rule)}: {_told(rule.budget, standing, value, period)}"
        if standing.unpriced:
            words.append(Word(_code(rule, period, UNPRICED), f"{told}; {_unpriced(standing)}"))
        if standing.spent < rule.budget.dollars:
            continue
        reason = _reason(rule, standing, value, period)
        words.append(Word(_code(rule, period, FULL), reason))
        if _holds(rule):
            spent = _spent(rule.budget, standing, value)
            waits = f"{_title(rule)}: no machine until {period.over_at:%Y-%m-%d %H:%M} UTC: {spent}"
            held.append(Held(_code(rule), reason, period.over_at, rule.action == "refuse", waits))
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
            yield Word(_code(rule, period, standing.due), _reason(rule, standing, _value(rule, tags), period))


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
                shared = {tag: wanted[0] for tag, wanted in rule.scope.items() if is_one_value(wanted)}
                yield Unheralded(
                    Mark(name, period.start, value, standing.due),
                    f"budget {name}{_whose(rule.budget, value)}",
                    _reason(rule, standing, value, period),
                    rule.audit,
                    {**shared, rule.budget.by: value} if rule.budget.by and value else shared,
                )


def told_by(house: House, tags: Mapping[str, str], code: str) -> Mark | None:
    """Which budget was told to be spent, or nearly, by a word with this code. None for any other word."""
    for rule in house.about("budget"):
        found = code.removeprefix(f"{_code(rule)}:").split(":")
        if code.startswith(f"{_code(rule)}:") and len(found) == 2 and found[1] in (NEARLY, FULL):
            return Mark(rule.name, date.fromisoformat(found[0]), _value(rule, tags), found[1])
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


def forecast(house: House, subject: Subject, books: Observed[Books], now: datetime) -> tuple[tuple[str, Then], ...]:
    """What a submission is told, each with what comes of it: it is refused, waits, or is only told."""
    found = judge(house, subject, books, now)
    held: list[tuple[str, Then]] = [
        (each.reason, "refuse" if each.refuses else "wait") for each in found if isinstance(each, Held)
    ]
    said = {reason for reason, _ in held}
    return (*held, *((each.reason, "warn") for each in found if isinstance(each, Word) and each.reason not in said))


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
        value = _value(rule, each.tags)
        spent[value] = spent.get(value, 0.0) + each.dollars
        if not each.whole:
            unpriced.setdefault(value, set()).add(each.job)
    told: dict[str, set[str]] = {}
    rates: dict[str, float] = {}
    alive: dict[str, list[str]] = {}
    for state, spec in active:
        if in_scope(rule, spec.tags):
            value = _value(rule, spec.tags)
            told.setdefault(value, set()).update(state.warned)
            rates[value] = rates.get(value, 0.0) + burn_rate(state)
            if state.ended is None and state.stop is None:
                alive.setdefault(value, []).append(state.job)
    standings = {}
    for value in {**spent, **rates}:
        dollars = spent.get(value, 0.0)
        due = _due(budget, dollars)
        if due and _code(rule, period, due) in told.get(value, ()):
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


def _value(rule: Rule, tags: Mapping[str, str]) -> str:
    assert rule.budget is not None
    return NO_VALUE if rule.budget.by is None else tags.get(rule.budget.by, NO_VALUE)


def _holds(rule: Rule) -> bool:
    return not rule.audit and rule.action != "warn"


def _code(rule: Rule, period: Period | None = None, kind: str = "") -> str:
    return f"{PREFIX}{rule.name}" + (f":{period.start}:{kind}" if period else "")


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


def _whose(budget: Budget, value: str) -> str:
    if budget.by is None:
        return ""
    return f" of {budget.by}={value}" if value else f" of jobs without {budget.by}"


def _unpriced(standing: Standing) -> str:
    first, *more = standing.unpriced
    others = f" and {len(more)} more" if more else ""
    return f"and what nobody knows: {first}{others} had machines without a price"
