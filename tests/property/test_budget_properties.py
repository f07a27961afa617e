"""What budgets promise, whatever jobs cost, whenever they die, and whoever looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from perfect_world import everyone_leaves, step
from snapshots import states

from stoker.core.budget_state import Expense, compute_budget_state, period_of
from stoker.core.costs import job_cost
from stoker.core.daily_costs import by_day, paid_spans
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.snapshot import Append, JobSnapshot
from stoker.model.job_state import JobState
from stoker.model.log_entries import Claimed, Ended, Warned
from stoker.model.node_facts import Exit
from stoker.model.observed import Known, Observed, Unknown
from stoker.model.offerings import Offering
from stoker.model.spec import Limits
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import CAPABILITIES, EPOCH, make_snapshot, make_spec, make_state

MONEY = settings(
    max_examples=150,
    deadline=None,  # The machine may be busy; nothing here is about time.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
BODIES = st.sampled_from(
    [
        "budget: {dollars: 3, period: day}",
        "budget: {dollars: 20, period: week}",
        "budget: {dollars: 40, period: month, warn_at: 10%}",
        "budget: {dollars: 5, period: day, by: team}",
        "budget: {dollars: 2, period: day}, for: {team: vision}",
        "budget: {dollars: 4, period: day}, then: refuse",
    ]
)
PRICES = st.sampled_from([0.0, 0.1, 1.0, 7.5, 40.0])
TAGS = st.sampled_from([{}, {"team": "vision"}, {"team": "nlp"}])


def rules(bodies: list[str], *, audit: bool = False) -> GovernorSettings:
    lines = [f"- {{name: r{n}, {body}{', audit: true' if audit else ''}}}\n" for n, body in enumerate(bodies)]
    return replace(DEFAULT, policy=parse_policy(("rules:\n" + "".join(lines)).encode(), "p.yaml"))


@dataclass
class BudgetStory:
    """Jobs that want machines all the time, and a governor that sees all of them, or forgets those that ended."""

    settings: GovernorSettings
    now: datetime
    jobs: dict[str, JobSnapshot] = field(default_factory=dict)
    forgotten: list[Expense] = field(default_factory=list)
    # What was paid for, kept apart from what is tested: tags, from, until (None: still), dollars a second.
    bills: dict[tuple[str, int], tuple[dict[str, str], datetime, datetime | None, float]] = field(default_factory=dict)
    claimed: int = 0
    price: float = 0.0

    def truth(self, tags_count: Callable[[dict[str, str]], bool], since: datetime) -> float:
        total = 0.0
        for tags, start, end, rate in self.bills.values():
            if tags_count(tags):
                total += max(0.0, ((end or self.now) - max(start, since)).total_seconds()) * rate
        return total

    def look(self, job: str, order: Offering) -> None:
        """Decide about one job until there is nothing left to do."""
        snapshot = self.jobs[job]
        self.price = order.price or 0.0
        for _ in range(8):
            active = [(each.state, each.spec) for each in self.jobs.values()]
            books = Known(compute_budget_state(self.settings.policy, self.forgotten, active, self.now))
            snapshot = replace(snapshot, budget_state=books, offerings=Known((order,)))
            plan = decide_job(snapshot, self.settings, self.now)
            if any(isinstance(a, Append) and isinstance(a.event, Claimed) for a in plan.actions):
                self.check(snapshot)
            if not plan.actions:
                break
            snapshot = self.jobs[job] = step(snapshot, plan.actions, self.now)
            self.record(snapshot)
        if snapshot.state.ended is not None and not snapshot.markers:
            found = by_day(paid_spans(snapshot.state, self.now))
            self.forgotten += [Expense(job, snapshot.spec.tags, day, sums.counted.known) for day, sums in found.items()]
            del self.jobs[job]

    def check(self, job: JobSnapshot) -> None:
        """Nothing is claimed under a budget whose money is spent, by whatever ran until now."""
        self.claimed += 1
        for rule in self.settings.policy.rules:
            assert rule.budget is not None
            budget, mine = rule.budget, job.spec.tags
            wanted = {name: values[0] for name, values in rule.scope.items()}

            def counts(tags: dict[str, str], by: str | None = budget.by, wanted: dict[str, str] = wanted) -> bool:
                same = by is None or tags.get(by) == job.spec.tags.get(by)
                return same and wanted.items() <= tags.items()

            if not counts(mine) or rule.audit:
                continue
            start = period_of(budget, self.now).over_at - timedelta(days=_length(period_of(budget, self.now)))
            spent = self.truth(counts, start)
            assert spent < budget.dollars + 1e-6, "it was launched although the money is spent"
            total = spent + self.may_cost(counts, job, (period_of(budget, self.now).over_at - self.now).total_seconds())
            assert total < budget.dollars + 1e-4, "it was launched although what is left is reserved"

    def may_cost(self, counts: Callable[[dict[str, str]], bool], claiming: JobSnapshot, left_s: float) -> float:
        """What jobs with machines, and the one that claims, may still cost, reckoned from their bounds alone."""
        total = 0.0
        for name, each in self.jobs.items():
            rates = [rate for (job, _), (_, _, end, rate) in self.bills.items() if job == name and end is None]
            begins = name == claiming.state.job
            most = each.spec.limits.max_cost
            if not counts(dict(each.spec.tags)) or most is None or not (rates or begins):
                continue
            spent = sum(
                ((end or self.now) - start).total_seconds() * rate
                for (job, _), (_, start, end, rate) in self.bills.items()
                if job == name
            )
            rate = sum(rates) + (self.price * each.spec.nodes / 3600 if begins else 0.0)
            total += min(max(0.0, most - spent), rate * left_s)
        return total

    def record(self, job: JobSnapshot) -> None:
        for claim in job.state.claims:
            if claim.launched_at is not None and claim.launched:
                rate = (claim.offering.price or 0.0) * len(claim.launched) / 3600
                bill = (dict(job.spec.tags), claim.launched_at, claim.closed_at, rate)
                self.bills[job.state.job, claim.number] = bill


def _length(period: object) -> int:
    return (period.end - period.start).days  # type: ignore[attr-defined, no-any-return]


def play(draw: st.DrawFn, settings: GovernorSettings) -> BudgetStory:
    """Some days of a store with up to six jobs."""
    policy = BudgetStory(settings, EPOCH + timedelta(days=draw(st.integers(0, 40)), hours=draw(st.integers(0, 23))))
    for number in range(draw(st.integers(1, 6))):
        limits = Limits(max_cost=draw(st.sampled_from([0.5, 1.0, 2.5, 4.0])))
        spec = replace(make_spec(draw(st.integers(1, 3)), limits=limits), tags=draw(TAGS))
        state = replace(make_state(job=f"job-{number}"), submitted_at=policy.now, opened_at=policy.now)
        job = make_snapshot(state, spec=spec)
        policy.jobs[state.job] = replace(job, capabilities=replace(CAPABILITIES, newborn_s=0.0))
    for _ in range(draw(st.integers(1, 25))):
        if not policy.jobs:
            break
        policy.now += timedelta(minutes=draw(st.sampled_from([0, 1, 20, 90, 600, 1500])))
        name = draw(st.sampled_from(sorted(policy.jobs)))
        if draw(st.booleans()):
            outcome = draw(st.sampled_from(["interrupted", "interrupted", "succeeded", "failed"]))
            left = Exit(outcome=outcome, why="notice" if outcome == "interrupted" else "finished", at=policy.now)
            policy.jobs[name] = everyone_leaves(
                policy.jobs[name], policy.now, replace(left, started=True, step=policy.claimed)
            )
        price = draw(PRICES)
        offering = Offering("sim", "m1", "a", spot=False, price=price, on_demand_price=price)
        policy.look(name, offering)
    return policy


@st.composite
def played(draw: st.DrawFn) -> BudgetStory:
    return play(draw, rules(draw(st.lists(BODIES, min_size=1, max_size=2))))


@MONEY
@given(played())
def test_nothing_is_launched_that_does_not_fit_beside_what_is_spent_and_reserved(policy: BudgetStory) -> None:
    """So a budget is exceeded by what costs more than its own bound, and by nothing else: `BudgetStory.check`."""


def test_budgets_are_reached_in_what_is_played() -> None:
    """Some of it is over its budget, and waits: the property above is about something."""

    def waits(policy: BudgetStory) -> bool:
        told = [code for job in policy.jobs.values() for code in job.state.warned]
        return policy.claimed > 2 and any(code.endswith(":full") for code in told)

    find(played(), waits, settings=settings(MONEY, max_examples=2000, phases=[Phase.generate]))


@MONEY
@given(st.data(), st.lists(BODIES, min_size=1, max_size=3), TAGS, st.sampled_from([0.0, 1.0, 3.5, 100.0, None]))
def test_a_budget_that_is_only_watched_changes_nothing(
    data: st.DataObject, bodies: list[str], tags: dict[str, str], dollars: float | None
) -> None:
    state, now = drawn_state(data)
    settings = rules(bodies, audit=True)
    job = make_snapshot(state, spec=replace(make_spec(), tags=tags))
    kept = [Expense("other-1", tags, now.date(), dollars or 0.0, whole=dollars is not None)]
    for _ in range(20):
        books: Observed[object] = Known(compute_budget_state(settings.policy, kept, [(job.state, job.spec)], now))
        plan = decide_job(replace(job, budget_state=books), settings, now)  # type: ignore[arg-type]
        told = [a for a in plan.actions if isinstance(a, Append) and isinstance(a.event, Warned)]
        if not told or not told[0].event.code.startswith("policy:"):  # type: ignore[union-attr]
            break
        job = step(job, tuple(told), now)
    assert plan == decide_job(job, DEFAULT, now)


@MONEY
@given(st.data(), st.lists(BODIES, min_size=1, max_size=3), st.sampled_from([None, Unknown("nobody answered")]))
def test_books_that_nobody_could_read_launch_nothing_and_end_nothing(
    data: st.DataObject, bodies: list[str], books: Unknown | None
) -> None:
    state, now = drawn_state(data)
    job = make_snapshot(state, spec=replace(make_spec(), tags={"team": "vision"}))
    plan = decide_job(replace(job, budget_state=books), rules(bodies), now)
    free = decide_job(job, DEFAULT, now)
    events = [action.event for action in plan.actions if isinstance(action, Append)]
    assert not any(isinstance(event, Claimed) for event in events)
    ends = [event for event in events if isinstance(event, Ended)]
    assert ends == [e.event for e in free.actions if isinstance(e, Append) and e.event in ends]
    if any(isinstance(a, Append) and isinstance(a.event, Claimed) for a in free.actions):
        assert "is not known" in plan.waiting["job-1"]


@MONEY
@given(st.data())
def test_the_days_of_a_job_sum_to_its_cost(data: st.DataObject) -> None:
    state, now = drawn_state(data)
    now += timedelta(days=data.draw(st.integers(0, 70)))
    days = by_day(paid_spans(state, now))
    total = job_cost(state, now)
    assert abs(sum(sums.spent.known for sums in days.values()) - (total.spent or 0.0)) < 1e-6
    assert abs(sum(sums.on_demand.known for sums in days.values()) - (total.on_demand or 0.0)) < 1e-6
    half = state.submitted_at + (now - state.submitted_at) / 2
    whole_s = sum(spell.machine_s for spell in paid_spans(state, now))
    later_s = sum(spell.machine_s for spell in paid_spans(state, now, since=half))
    sooner_s = sum(max(0.0, _until(spell.end, half, spell.start)) * spell.machines for spell in paid_spans(state, now))
    assert abs(whole_s - later_s - sooner_s) < 1e-3, "what is before a moment and what is after it are all"


def _until(end: datetime, moment: datetime, start: datetime) -> float:
    return (min(end, moment) - start).total_seconds()


def drawn_state(data: st.DataObject) -> tuple[JobState, datetime]:
    state = data.draw(states(1))
    return state, state.updated_at + timedelta(seconds=data.draw(st.sampled_from([1.0, 400.0, 5000.0])))
