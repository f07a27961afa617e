"""Budgets reserve: what a launch may still cost counts against what is left, and who waits gets its turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest

from stoker.core.budget_reservations import (
    START_S,
    LaunchRequest,
    Need,
    launch_request,
    limits_of_job,
    micro,
    reservation,
)
from stoker.core.budget_state import BudgetState, Expense, compute_budget_state
from stoker.core.budget_verdict import LaunchDenied, describe_budgets, forecast, judge
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.policy_rules import Subject
from stoker.core.snapshot import Append, Launch, Plan
from stoker.model.job_state import JobState
from stoker.model.log_entries import Claimed, Closed, Draining, Ended, Event, Launched, ResumeAsked, StopAsked, Warned
from stoker.model.observed import Known
from stoker.model.offerings import Offering
from stoker.model.spec import Limits, Spec
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import EPOCH, ON_DEMAND, SPOT_A, at, make_snapshot, make_spec, make_state, nodes

HOUR = 3600.0
TODAY = EPOCH.date()
FIVE = "name: money, budget: {dollars: 5, period: day}"


def settings(*texts: str) -> GovernorSettings:
    text = "rules:\n" + "".join(f"- {{{each}}}\n" for each in texts)
    return replace(DEFAULT, policy=parse_policy(text.encode(), "p.yaml"))


def spec(max_cost: float | None = None, *, hours: float | None = None, count: int = 1, **tags: str) -> Spec:
    limits = Limits(max_cost=max_cost, max_runtime_s=None if hours is None else hours * HOUR)
    return replace(make_spec(count, limits=limits), tags=tags)


def running(job: str = "job-1", *more: Event | tuple[Event, float], since_s: float = 0.0, count: int = 1) -> JobState:
    claimed = (Claimed(offering=ON_DEMAND, nodes=count), since_s), (Launched(2, nodes(2, count)), since_s)
    return make_state(*claimed, *more, job=job)


def reserved(state: JobState, of: Spec, now_s: float, by: GovernorSettings = DEFAULT) -> float:
    found = reservation(by.policy, state, of, at(now_s))
    return 0.0 if found is None else found.need.dollars


class PolicyWorld:
    """Jobs that are decided on one after another, each on the newest logs."""

    def __init__(self, by: GovernorSettings, offerings: tuple[Offering, ...] = (ON_DEMAND,)) -> None:
        self.by, self.offerings = by, offerings
        self.jobs: dict[str, tuple[list[Event | tuple[Event, float]], Spec, float]] = {}
        self.kept: list[Expense] = []
        self.now_s = 0.0

    def submit(self, job: str, of: Spec) -> None:
        self.jobs[job] = ([], of, self.now_s)

    def state(self, job: str) -> JobState:
        events, _, opened_s = self.jobs[job]
        state = make_state(*events, job=job)
        return replace(state, opened_at=at(opened_s), submitted_at=at(opened_s))

    def books(self) -> BudgetState:
        active = [(self.state(job), self.jobs[job][1]) for job in self.jobs]
        return compute_budget_state(self.by.policy, self.kept, active, at(self.now_s))

    def decide(self, job: str) -> Plan:
        snapshot = make_snapshot(self.state(job), spec=self.jobs[job][1], offerings=Known(self.offerings))
        return decide_job(replace(snapshot, budget_state=Known(self.books())), self.by, at(self.now_s))

    def look(self, job: str) -> Plan:
        """Decide until nothing new is written, and launch what was claimed."""
        for _ in range(6):
            plan = self.decide(job)
            events = [action.event for action in plan.actions if isinstance(action, Append)]
            self.jobs[job][0].extend((event, self.now_s) for event in events)
            for launch in (action for action in plan.actions if isinstance(action, Launch)):
                self.jobs[job][0].append((Launched(launch.claim, nodes(launch.claim)), self.now_s))
            if not events or any(isinstance(event, Claimed | Ended) for event in events):
                return plan
        raise AssertionError("it never comes to rest")

    def end(self, job: str) -> None:
        claim = self.state(job).open_claims[0].number
        closing = Closed(claim=claim, outcome="succeeded", rule="finished", trained_s=60.0)
        self.jobs[job][0].append((Ended("succeeded", "finished", claim, closing=closing), self.now_s))

    def reclaim(self, job: str) -> None:
        claim = self.state(job).open_claims[0].number
        closed = Closed(claim, outcome="reclaimed", rule="notice", restart=True, trained_s=60.0)
        self.jobs[job][0].append((closed, self.now_s))

    def running(self) -> list[str]:
        return [job for job in self.jobs if self.state(job).open_claims]


# ── What a job may still cost ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_has_not_begun_reserves_nothing() -> None:
    assert reserved(make_state(), spec(5.0), 0) == 0
    dry = make_state(Claimed(offering=ON_DEMAND, nodes=1), Closed(2, outcome="dry", rule="no-capacity", restart=True))
    assert reserved(dry, spec(5.0), 0) == 0


def test_what_is_left_of_its_bounds_is_reserved_and_shrinks_as_it_is_spent() -> None:
    for now_s, left in ((0.0, 5.0), (HOUR, 2.0), (1.5 * HOUR, 0.5)):
        assert reserved(running(), spec(5.0), now_s) == pytest.approx(left)
    save = 90 / HOUR * 3
    assert reserved(running(), spec(5.0), 10 * HOUR) == pytest.approx(save), "past its bound it still has to save"
    # By time: the start, which it does not count, and the last save come on top.
    start = START_S / HOUR * 3
    assert reserved(running(), spec(hours=2.0), 0.0) == pytest.approx(6 + start + save)
    assert reserved(running(), spec(hours=2.0), START_S) == pytest.approx(6 + save)
    assert reserved(running(), spec(hours=2.0), START_S + HOUR) == pytest.approx(3 + save)
    assert reserved(running(), spec(1.0, hours=2.0), 0.0) == pytest.approx(1.0), "whichever is less"
    assert reserved(running(count=4), spec(hours=2.0, count=4), START_S) == pytest.approx(4 * (6 + save))


def test_a_bound_of_the_policy_counts_as_the_jobs_own() -> None:
    assert reserved(running(), spec(50.0), 0.0, settings("max_cost: 7")) == pytest.approx(7.0)


def test_a_job_without_any_bound_may_always_cost_another_day() -> None:
    for now_s in (0.0, 30 * HOUR):
        assert reserved(running(), spec(), now_s) == pytest.approx(72.0)
    found = reservation(DEFAULT.policy, running(), spec(), at(0))
    assert found is not None and found.need.why == "an estimate, 24 h at $3.00/h: limits.max_cost is not set"


def test_between_two_attempts_it_stays_and_with_the_end_it_goes() -> None:
    lost = (Closed(2, outcome="reclaimed", rule="notice", restart=True, trained_s=HOUR), HOUR)
    assert reserved(running("job-1", lost), spec(5.0), 5 * HOUR) == pytest.approx(2.0)
    again = (START_S + 90) / HOUR * 3
    assert reserved(running("job-1", lost), spec(hours=2.0), 5 * HOUR) == pytest.approx(3 + again), "a whole start"
    closing = Closed(2, outcome="succeeded", rule="finished", trained_s=HOUR)
    ended = (Ended("succeeded", "finished", 2, closing=closing), HOUR)
    assert reserved(running("job-1", ended), spec(5.0), HOUR) == 0
    save = 90 / HOUR * 3
    asked = (StopAsked(by="jane"), HOUR)
    assert reserved(running("job-1", asked), spec(50.0), HOUR) == pytest.approx(save), "only its last save"
    bound = (Draining(2, outcome="limit", rule="max_cost"), HOUR)
    assert reserved(running("job-1", bound), spec(50.0), HOUR) == pytest.approx(save)
    reopened = (ResumeAsked(by="jane"), 2 * HOUR)
    assert reserved(running("job-1", ended, reopened), spec(5.0), 2 * HOUR) == 0


def test_a_machine_that_is_held_for_a_look_is_reserved() -> None:
    closing = Closed(2, outcome="failed", rule="user-error")
    ended = (Ended("failed", "user-error", 2, closing=closing), HOUR)
    held = replace(spec(20.0), retry=replace(make_spec().retry, hold_on_failure_s=HOUR))
    assert reserved(running("job-1", ended), held, 1.5 * HOUR) == pytest.approx(1.5)
    assert reserved(running("job-1", ended), held, 2 * HOUR) == 0


def test_no_more_is_reserved_than_fits_into_the_period() -> None:
    by = settings(FIVE, "name: long, budget: {dollars: 1000, period: month}")
    books = compute_budget_state(by.policy, [], [(running(since_s=23 * HOUR), spec(100.0))], at(23 * HOUR))
    assert books.statuses["money", ""].set_aside == pytest.approx(3.0), "an hour is left of the day"
    assert books.statuses["long", ""].set_aside == pytest.approx(100.0)
    tomorrow = compute_budget_state(by.policy, [], [(running(since_s=23 * HOUR), spec(100.0))], at(25 * HOUR))
    assert tomorrow.statuses["money", ""].spent == pytest.approx(3.0)
    assert tomorrow.statuses["money", ""].set_aside == pytest.approx(23 * 3), "the next day has its own"


# ── Who gets in ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_six_jobs_at_once_cannot_spend_more_than_there_is() -> None:
    world = PolicyWorld(settings(FIVE))
    for n in range(6):
        world.submit(f"job-{n}", spec(2.0))
    plans = {job: world.look(job) for job in world.jobs}
    assert world.running() == ["job-0", "job-1"]
    assert plans["job-2"].waiting["job-2"] == (
        "policy money: waits for $2.00 of $5.00 a day: $4.00 is spent or reserved for job-0, job-1"
    )
    assert plans["job-3"].waiting["job-3"].endswith("job-0, job-1; job-2 is before it")
    told = [event for event, _ in world.jobs["job-2"][0]]
    assert told == [Warned(code="budget:waits:0:0:2000000")], "once"
    assert world.decide("job-2").actions == () and world.decide("job-2").wake_at == at(300)
    # One that cost less than it might have frees the rest, and the next in the queue takes it.
    world.now_s = 600.0
    world.end("job-0")
    for job in ("job-5", "job-4", "job-3", "job-2"):
        world.look(job)
    assert world.running() == ["job-1", "job-2"]


def test_money_is_exact() -> None:
    world = PolicyWorld(settings("name: money, budget: {dollars: 0.3, period: day}"))
    for n in range(4):
        world.submit(f"job-{n}", spec(0.1))
        world.look(f"job-{n}")
    assert len(world.running()) == 3
    assert micro(0.1) * 3 == micro(0.3) and micro(float("nan")) == micro(-1.0) == 0 and micro(float("inf")) == 10**18


def test_a_small_job_does_not_overtake_a_large_one_for_ever() -> None:
    world = PolicyWorld(settings(FIVE))
    world.submit("small-0", spec(3.0))
    world.look("small-0")
    world.now_s += 1
    world.submit("large", spec(4.0))
    world.look("large")
    for n in range(1, 5):
        world.now_s += 1
        world.submit(f"small-{n}", spec(1.0))
        plan = world.look(f"small-{n}")
        assert "large is before it" in plan.waiting[f"small-{n}"] or "before it" in plan.waiting[f"small-{n}"]
    world.now_s += 60
    world.end("small-0")
    for n in range(1, 5):
        world.look(f"small-{n}")
    world.look("large")
    assert world.running() == ["large"]


def test_one_that_waits_for_the_next_period_or_for_ever_keeps_no_other_waiting() -> None:
    world = PolicyWorld(settings(FIVE, "name: team, budget: {dollars: 3, period: week, by: team}"))
    world.kept = [Expense("old", {"team": "nlp"}, TODAY, 2.0)]
    world.submit("spent-out", spec(2.0, team="nlp"))
    assert "policy team" in world.look("spent-out").waiting["spent-out"]
    world.now_s += 1
    world.submit("never", spec(50.0, team="vision"))
    never = world.look("never")
    assert "can never have so much; set limits.max_cost to at most" in never.waiting["never"]
    assert never.actions == ()
    world.now_s += 1
    world.submit("other", spec(3.0, team="vision"))
    world.look("other")
    assert world.running() == ["other"], "both wait for something that it does not take"


def test_all_budgets_of_a_job_must_have_enough() -> None:
    rules = (FIVE, "name: team, budget: {dollars: 2, period: month, by: team}")
    for cost, tags, rule in ((3.0, {"team": "nlp"}, "team"), (3.0, {}, "team"), (1.5, {"team": "nlp"}, "")):
        world = PolicyWorld(settings(*rules))
        world.submit("job-1", spec(cost, **tags))
        plan = world.look("job-1")
        assert f"policy {rule}" in plan.waiting["job-1"] if rule else world.running() == ["job-1"]


def test_a_job_that_was_taken_back_goes_on_with_what_is_reserved_for_it() -> None:
    world = PolicyWorld(settings(FIVE))
    for n in range(3):
        world.submit(f"job-{n}", spec(2.5))
        world.look(f"job-{n}")
    assert world.running() == ["job-0", "job-1"]
    world.now_s = 600.0
    world.jobs["job-0"][0].append((Closed(2, outcome="reclaimed", rule="notice", restart=True, trained_s=60.0), 600.0))
    world.look("job-2")
    assert world.running() == ["job-1"], "what is reserved for the first is not the third's"
    world.look("job-0")
    assert world.running() == ["job-0", "job-1"]


def test_jobs_for_which_more_is_reserved_than_there_is_do_not_keep_each_other_waiting() -> None:
    world = PolicyWorld(settings("name: money, budget: {dollars: 10, period: day}"))
    for n in range(2):
        world.submit(f"job-{n}", spec(5.0))
        world.look(f"job-{n}")
        world.jobs[f"job-{n}"][0].append((Closed(2, outcome="reclaimed", rule="notice", restart=True), 0.0))
    world.by = settings(FIVE)
    for job in ("job-1", "job-0", "job-1"):
        world.look(job)
    assert world.running() == ["job-0"], "the budget was lowered: the oldest goes on"


def test_one_that_takes_dearer_machines_needs_more() -> None:
    """By time, a fallback from spot to on-demand costs three times as much."""
    world = PolicyWorld(settings("name: money, budget: {dollars: 10, period: day}"), (SPOT_A, ON_DEMAND))
    world.submit("other", spec(6.0))
    world.look("other")
    world.submit("job-1", spec(hours=3.0))
    world.look("job-1")
    (claim,) = world.state("job-1").open_claims
    assert claim.offering == SPOT_A
    lost = Closed(claim.number, outcome="reclaimed", rule="notice", restart=True)
    world.jobs["job-1"][0].append((lost, 0.0))
    world.offerings = (ON_DEMAND,)
    plan = world.look("job-1")
    assert "policy money: waits for $9.5" in plan.waiting["job-1"] and world.running() == ["other"]
    world.offerings = (SPOT_A, ON_DEMAND)
    world.look("job-1")
    assert world.running() == ["other", "job-1"], "spot is within the budget"


def test_one_that_waits_for_capacity_keeps_no_other_from_the_money() -> None:
    world = PolicyWorld(settings(FIVE))
    world.submit("job-0", spec(3.0))
    world.look("job-0")
    world.now_s = 1.0
    world.submit("job-1", spec(3.0))
    world.look("job-1")
    world.now_s = 60.0
    world.end("job-0")
    dry = make_snapshot(world.state("job-1"), spec=spec(3.0), offerings=Known((ON_DEMAND,)))
    dry = replace(
        dry,
        budget_state=Known(world.books()),
        dry={ON_DEMAND.key: at(60.0)},
        capabilities=replace(dry.capabilities, dry_for_s=600.0),
    )
    (left,) = [action for action in decide_job(dry, world.by, at(61.0)).actions if isinstance(action, Append)]
    assert left.event == Warned(code="budget:leaves:0:1")
    world.jobs["job-1"][0].append((left.event, 61.0))
    world.submit("job-2", spec(5.0 - 0.1))
    world.look("job-2")
    assert world.running() == ["job-2"]


@pytest.mark.parametrize("only", ["then: warn", "audit: true"])
def test_a_budget_that_keeps_nothing_back_tells_that_too_little_is_left(only: str) -> None:
    world = PolicyWorld(settings(f"{FIVE}, {only}"))
    world.submit("job-1", spec(9.0))
    world.look("job-1")
    assert world.running() == ["job-1"]
    assert world.jobs["job-1"][0][0][0] == Warned(code="policy:money:2026-01-01:reserved")  # type: ignore[index]


def test_a_budget_that_refuses_ends_what_does_not_fit() -> None:
    world = PolicyWorld(settings(f"{FIVE}, then: refuse"))
    for n in range(2):
        world.submit(f"job-{n}", spec(3.0))
    world.look("job-0")
    (ended,) = [action.event for action in world.look("job-1").actions if isinstance(action, Append)]
    assert ended == Ended(outcome="failed", rule="policy:money")


def test_machines_without_a_price_are_not_kept_back() -> None:
    world = PolicyWorld(settings(FIVE), (replace(ON_DEMAND, price=None, on_demand_price=None),))
    world.submit("job-1", spec())
    world.look("job-1")
    assert world.running() == ["job-1"]


# ── Before a submission ───────────────────────────────────────────────────────────────────────────────────────────────


def told(by: GovernorSettings, need: Need, books: BudgetState) -> tuple[tuple[str, str], ...]:
    return forecast(by.policy, Subject(spec(), TODAY), Known(books), at(0), LaunchRequest(need, at(0)))


def test_a_submission_that_can_never_fit_is_refused_and_told_what_would() -> None:
    by = settings(FIVE)
    empty = compute_budget_state(by.policy, [], [], at(0))
    ((reason, then),) = told(by, Need(72.0, 3 / HOUR, "an estimate"), empty)
    assert then == "refuse" and reason.endswith("can never have so much; set limits.max_cost to at most $5.00")
    assert told(by, Need(5.0, 3 / HOUR, "limits.max_cost"), empty) == ()
    ((_, then),) = told(
        by, Need(5.0, 3 / HOUR, "x"), compute_budget_state(by.policy, [], [(running(), spec(1.0))], at(0))
    )
    assert then == "wait"


def test_a_plan_shows_what_is_spent_reserved_and_left() -> None:
    by = settings("name: money, budget: {dollars: 10, period: day, by: team}")
    kept = [Expense("old", {"team": "nlp"}, TODAY, 1.5)]
    books = compute_budget_state(by.policy, kept, [(running(), spec(4.0, team="nlp"))], at(0))
    ask = LaunchRequest(Need(3.1, 3 / HOUR, "limits.max_cost"), at(0))
    (told,) = describe_budgets(by.policy, Subject(spec(team="nlp"), TODAY), books, at(0), ask)
    assert told == (
        "policy money: $10.00 a day of team=nlp: $1.50 spent, $4.00 reserved, $4.50 left; "
        "this job reserves $3.10 (limits.max_cost)"
    )


# ── Claims that race ──────────────────────────────────────────────────────────────────────────────────────────────────


def judged(by: GovernorSettings, states: Iterable[JobState], job: str, now_s: float) -> bool:
    """Whether the claim of a job that was made already may be launched."""
    active = [(state, spec(3.0)) for state in states]
    books = compute_budget_state(by.policy, [], active, at(now_s))
    state = next(state for state, _ in active if state.job == job)
    ask = launch_request(
        limits_of_job(by.policy, state, spec(3.0), at(now_s)), state, ON_DEMAND, at(now_s), state.open_claims[0]
    )
    found = judge(by.policy, Subject(spec(3.0), TODAY, job), Known(books), at(now_s), ask)
    return not any(isinstance(each, LaunchDenied) for each in found)


@pytest.mark.parametrize(("first_s", "second_s"), [(10.0, 11.0), (10.0, 10.0)])
def test_of_two_claims_the_later_one_yields_and_of_two_as_old_both(first_s: float, second_s: float) -> None:
    by = settings(FIVE)
    first = make_state((Claimed(offering=ON_DEMAND, nodes=1), first_s), job="job-1")
    second = make_state((Claimed(offering=ON_DEMAND, nodes=1), second_s), job="job-2")
    assert judged(by, [first], "job-1", 20.0)
    assert judged(by, [first, second], "job-1", 20.0) is (first_s < second_s)
    assert not judged(by, [first, second], "job-2", 20.0)
    assert timedelta(0) <= at(second_s) - at(first_s)
