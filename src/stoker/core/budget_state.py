"""Compute the state of the policy's budgets from what all jobs have spent. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta, timezone

from stoker.core.budget_reservations import BudgetReservation, Reserved, Waiting, micro, queued, reservation
from stoker.core.concurrency import MachineUse, Occupancy, occupancies, uses_of
from stoker.core.daily_costs import by_day, midnight, paid_spans
from stoker.core.hold import longest_held
from stoker.core.policy_rules import PREFIX, in_scope
from stoker.core.tag_groups import group_of
from stoker.model.errors import describe_error
from stoker.model.job_state import JobState
from stoker.model.policy import Budget, Policy, Rule
from stoker.model.spec import Spec

# Kinds of warnings, in their codes: likely to be spent before the period ends; nearly spent; fully spent; partly
# unknown; too little left for a launch.
FORECAST, NEARLY, FULL, UNPRICED, RESERVED = "forecast", "warning", "full", "unpriced", "reserved"
# Warnings that are written once for all jobs of a budget, the mildest first.
SHARED = (FORECAST, NEARLY, FULL)
# Spending is extrapolated once this share of the period is over: a first hour says little about a month.
_LEAST_ELAPSED = 0.1


@dataclass(frozen=True)
class Expense:
    """The known cost of one job on one day. Not `whole`: it also had machines without a known price."""

    job: str
    tags: Mapping[str, str]
    day: date
    dollars: float
    whole: bool = True


@dataclass(frozen=True)
class UnreadableJob:
    """A job whose cost is unknown, because it could not be read. Without its tags it may belong to any budget."""

    job: str
    why: str
    tags: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Period:
    """The current days of a budget: from `start` until the beginning of `end`."""

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
    if budget.period == "quarter":
        first = today.replace(month=today.month - (today.month - 1) % 3, day=1)
        return Period(first, (first + timedelta(days=93)).replace(day=1))
    first = today.replace(day=1)
    return Period(first, (first + timedelta(days=31)).replace(day=1))


def spans_of(budget: Budget, now: datetime) -> tuple[float, float]:
    """Seconds left of the current period, and seconds of the next one."""
    over_at = period_of(budget, now).over_at
    return (over_at - now).total_seconds(), (period_of(budget, over_at).over_at - over_at).total_seconds()


@dataclass(frozen=True)
class BudgetStatus:
    """One budget in its current period: of a rule, and of one value of its tag if the rule has a budget for each."""

    spent: float = 0.0
    # Jobs with costs that are not known.
    unpriced: tuple[str, ...] = ()
    # The warning that is due, one of SHARED; empty if there is none, or it was written already.
    due: str = ""
    # Dollars that will be spent by the end of the period, if it goes on like this.
    forecast: float = 0.0
    # The job that writes the warning into its log; None if no job of the budget is alive.
    reporter: str | None = None
    # Reservations of jobs that have begun for this period, the largest first.
    reserved: tuple[Reserved, ...] = ()
    # Jobs that wait for this budget and may still get it in this period, in order.
    queue: tuple[Waiting, ...] = ()

    @property
    def set_aside(self) -> float:
        """Reserved dollars."""
        return sum(each.amount for each in self.reserved) / 1e6

    def left_of(self, budget: Budget) -> float:
        """Dollars neither spent nor reserved; 0 if more is reserved than there is."""
        return max(0, micro(budget.dollars) - micro(self.spent) - sum(each.amount for each in self.reserved)) / 1e6


@dataclass(frozen=True)
class BudgetState:
    """The status of all budgets at a time, by the name of the rule and the group of jobs; and that of the limits of
    machines at the same time (`limits`)."""

    at: datetime
    statuses: Mapping[tuple[str, str], BudgetStatus] = field(default_factory=dict)
    unreadable: tuple[UnreadableJob, ...] = ()
    limits: Mapping[tuple[str, str], Occupancy] = field(default_factory=dict)

    def unreadable_of(self, rule: Rule, tags: Mapping[str, str]) -> UnreadableJob | None:
        """The first job that may belong to this budget and whose cost is unknown."""
        value = value_of(rule, tags)
        for each in self.unreadable:
            if each.tags is None or (in_scope(rule, each.tags) and value_of(rule, each.tags) == value):
                return each
        return None

    def of(self, rule: Rule, tags: Mapping[str, str]) -> BudgetStatus:
        return self.statuses.get((rule.name, value_of(rule, tags)), BudgetStatus())


def has_budget(policy: Policy, tags: Mapping[str, str]) -> bool:
    """Return whether any budget, or limit of machines at the same time, counts a job with these tags."""
    return any(in_scope(rule, tags) for rule in policy.about("budget", "concurrent"))


def expenses(state: JobState, spec: Spec, now: datetime) -> Iterator[Expense]:
    """The cost of an active job by day. Machines that may be held count as held."""
    until = longest_held(state, spec, now)
    held = {
        claim.number: (until[claim.number],) * len(claim.launched or ())
        for claim in state.claims
        if claim.number in until
    }
    for day, sums in by_day(paid_spans(state, now, held)).items():
        yield Expense(state.job, spec.tags, day, sums.counted.known, sums.counted.whole)


def compute_budget_state(
    policy: Policy,
    recorded: Iterable[Expense],
    active: Iterable[tuple[JobState, Spec]],
    now: datetime,
    unreadable: Iterable[UnreadableJob] = (),
    others: Iterable[Expense] = (),
    external_uses: Iterable[MachineUse] = (),
) -> BudgetState:
    """Compute the status of all budgets. `recorded` are stored costs of jobs that are not active any more; the cost of
    an active job comes from its log; `others` and `external_uses` are of external jobs, which have no log.

    A job whose cost cannot be computed counts as `unreadable`: it makes only its own budgets unknown.
    """
    jobs = {state.job: (state, spec) for state, spec in active}
    found = list(others)
    counted = {*jobs, *(each.job for each in found)}
    found += [each for each in recorded if each.job not in counted]
    lost = list(unreadable)
    reservations = []
    uses = list(external_uses)
    for state, spec in jobs.values():
        try:
            found += expenses(state, spec, now)
            reservations.append(reservation(policy, state, spec, now))
            uses += uses_of(state, spec, now)
        except Exception as error:  # noqa: BLE001 - the edge of one job: only its own budgets become unknown
            lost.append(UnreadableJob(state.job, describe_error(error), spec.tags))
    waiting = [each for state, spec in jobs.values() if (each := queued(state, spec)) is not None]
    reserved = [each for each in reservations if each is not None]
    statuses: dict[tuple[str, str], BudgetStatus] = {}
    for rule in policy.about("budget"):
        assert rule.budget is not None
        statuses |= _statuses(rule, rule.budget, found, jobs.values(), reserved, now)
    for_room = [each for each in waiting if each.nodes and not _out_of_money(policy, statuses, each)]
    return BudgetState(
        now,
        _with_queues(policy, statuses, [each for each in waiting if not each.nodes]),
        tuple(lost),
        occupancies(policy, uses, for_room),
    )


def value_of(rule: Rule, tags: Mapping[str, str]) -> str:
    """The group of a job with these tags, which selects one of the rule's budgets or limits."""
    shared = rule.budget or rule.concurrent
    assert shared is not None
    return group_of(shared.by, tags)


def denies_launches(rule: Rule) -> bool:
    """Return whether the budget denies launches, and does not only warn."""
    return not rule.audit and rule.action != "warn"


def code_of(rule: Rule, period: Period | None = None, kind: str = "") -> str:
    """Code of the rule in decisions, or of its warning in a period."""
    return f"{PREFIX}{rule.name}" + (f":{period.start}:{kind}" if period else "")


# ── Small things ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _statuses(
    rule: Rule,
    budget: Budget,
    found: Iterable[Expense],
    active: Iterable[tuple[JobState, Spec]],
    reservations: Iterable[BudgetReservation],
    now: datetime,
) -> dict[tuple[str, str], BudgetStatus]:
    period = period_of(budget, now)
    left_s, next_s = spans_of(budget, now)
    reserved: dict[str, list[Reserved]] = {}
    running: dict[str, float] = {}
    for each in reservations:
        if in_scope(rule, each.tags):
            value = value_of(rule, each.tags)
            running[value] = running.get(value, 0.0) + _will_cost(each, left_s)
            amount, later = each.need.within(left_s), each.need.after(left_s, next_s)
            part = Reserved(each.job, each.at, amount, each.since, each.idle, each.begun, later)
            reserved.setdefault(value, []).append(part)
    spent: dict[str, float] = {}
    unpriced: dict[str, set[str]] = {}
    for expense in found:
        if not period.start <= expense.day < period.end or not in_scope(rule, expense.tags):
            continue
        value = value_of(rule, expense.tags)
        spent[value] = spent.get(value, 0.0) + expense.dollars
        if not expense.whole:
            unpriced.setdefault(value, set()).add(expense.job)
    warned: dict[str, set[str]] = {}
    alive: dict[str, list[str]] = {}
    for state, spec in active:
        if in_scope(rule, spec.tags):
            value = value_of(rule, spec.tags)
            warned.setdefault(value, set()).update(state.warned)
            spent.setdefault(value, 0.0)
            if state.ended is None and state.stop is None:
                alive.setdefault(value, []).append(state.job)
    statuses = {}
    for value, dollars in spent.items():
        forecast = dollars + max(_at_this_pace(dollars, period, now), running.get(value, 0.0))
        due = _due(budget, dollars, forecast)
        if due and code_of(rule, period, due) in warned.get(value, ()):
            due = ""
        statuses[rule.name, value] = BudgetStatus(
            spent=dollars,
            forecast=forecast,
            unpriced=tuple(sorted(unpriced.get(value, ()))),
            due=due,
            reporter=min(alive.get(value, ()), default=None) if due else None,
            reserved=tuple(sorted(reserved.get(value, ()), key=lambda each: (-each.amount, each.job))),
        )
    return statuses


def _with_queues(
    policy: Policy, statuses: dict[tuple[str, str], BudgetStatus], waiting: Iterable[Waiting]
) -> dict[tuple[str, str], BudgetStatus]:
    """Add the queues of waiting jobs. A job that one of its budgets cannot serve in this period does not block
    others."""
    queues: dict[tuple[str, str], list[Waiting]] = {}
    for each in sorted(waiting, key=lambda each: each.place):
        rules = [rule for rule in policy.about("budget") if in_scope(rule, each.tags) and denies_launches(rule)]
        keys = [(rule.name, value_of(rule, each.tags)) for rule in rules]
        most = [micro(rule.budget.dollars) if rule.budget else 0 for rule in rules]
        spent = [micro(statuses[key].spent) for key in keys]
        if all(gone + each.amount <= dollars for gone, dollars in zip(spent, most, strict=True)):
            for key in keys:
                queues.setdefault(key, []).append(each)
    return {key: replace(status, queue=tuple(queues.get(key, ()))) for key, status in statuses.items()}


def _out_of_money(policy: Policy, statuses: Mapping[tuple[str, str], BudgetStatus], each: Waiting) -> bool:
    """Return whether a budget of this job is spent: then it holds up no other that waits for machines."""
    rules = [rule for rule in policy.about("budget") if in_scope(rule, each.tags) and denies_launches(rule)]
    return any(
        rule.budget is not None
        and statuses.get((rule.name, value_of(rule, each.tags)), BudgetStatus()).spent >= rule.budget.dollars
        for rule in rules
    )


def _will_cost(each: BudgetReservation, seconds: float) -> float:
    """Dollars that a running job will cost in this time; 0 for one without a machine now."""
    if each.idle:
        return 0.0
    most = each.need.dollars_per_s * max(0.0, seconds)
    return most if each.need.rolling else min(each.need.dollars, most)


def _at_this_pace(spent: float, period: Period, now: datetime) -> float:
    """Dollars that follow until the end of the period, if as much is spent in each hour as until now."""
    whole_s = (period.over_at - midnight(period.start)).total_seconds()
    gone_s = (now - midnight(period.start)).total_seconds()
    return spent * (whole_s - gone_s) / gone_s if gone_s >= whole_s * _LEAST_ELAPSED else 0.0


def _due(budget: Budget, spent: float, forecast: float) -> str:
    """The warning that is due when this much is spent, and this much will be."""
    if spent >= budget.dollars:
        return FULL
    if spent >= budget.dollars * budget.warn_at:
        return NEARLY
    return FORECAST if budget.forecast and forecast > budget.dollars else ""
