"""Governors that claim at the same time, on what each knew a while ago: together they never launch more than there is.

The order of all steps is drawn: judging on old books, writing the claim, judging again on all logs, launching, ending.
The clock of the store has whole seconds, as some have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from stoker.core.budget_reservations import launch_request, limits_of_job, waits_code
from stoker.core.budget_state import compute_budget_state
from stoker.core.budget_verdict import LaunchDenied, judge
from stoker.core.policy_rules import Subject
from stoker.model.job_state import JobState, fold
from stoker.model.log_entries import Claimed, Closed, Ended, Entry, Event, Launched, Submitted, Warned
from stoker.model.observed import Known
from stoker.model.spec import Limits, Spec
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import EPOCH, ON_DEMAND, make_spec, nodes

pytestmark = pytest.mark.slow

DOLLARS = 5.0
HOUSE = parse_policy(f"rules: [{{name: money, budget: {{dollars: {DOLLARS}, period: month}}}}]".encode(), "p.yaml")
STEPS = settings(max_examples=150, deadline=None)
Logs = dict[str, list[Entry]]


@dataclass
class Shop:
    """Jobs, their logs, and governors that each remember the logs as they read them last."""

    costs: tuple[float, ...]
    governors: int
    now: datetime = EPOCH
    logs: Logs = field(default_factory=dict)
    read: dict[int, Logs] = field(default_factory=dict)
    # Which governor is about to launch which claim.
    claims: dict[str, int] = field(default_factory=dict)
    yielded: int = 0

    def __post_init__(self) -> None:
        for job in self.jobs:
            self.logs[job] = []
            self.append(job, Submitted(spec_digest="0" * 64, submitter="jane"))
        for governor in range(self.governors):
            self.look(governor)

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(f"job-{n}" for n in range(len(self.costs)))

    def spec(self, job: str) -> Spec:
        return make_spec(limits=Limits(max_cost=self.costs[self.jobs.index(job)]))

    def append(self, job: str, event: Event) -> None:
        self.logs[job].append(Entry(len(self.logs[job]) + 1, self.now.replace(microsecond=0), "", event))

    def look(self, governor: int) -> None:
        self.read[governor] = {job: list(entries) for job, entries in self.logs.items()}

    def state(self, job: str, logs: Logs | None = None) -> JobState:
        state = fold(job, (self.logs if logs is None else logs)[job])
        assert state is not None
        return state

    def held(self, job: str, logs: Logs, claimed: bool) -> LaunchDenied | None:
        states = [(self.state(each, logs), self.spec(each)) for each in self.jobs]
        books = compute_budget_state(HOUSE, [], states, self.now)
        state = self.state(job, logs)
        claim = state.open_claims[0] if claimed else None
        ask = launch_request(limits_of_job(HOUSE, state, self.spec(job), self.now), state, ON_DEMAND, self.now, claim)
        found = judge(HOUSE, Subject(self.spec(job), self.now.date(), job), Known(books), self.now, ask)
        return next((each for each in found if isinstance(each, LaunchDenied)), None)

    def claim(self, governor: int, job: str) -> None:
        """On what it read last. An entry that another was quicker with is not written."""
        known = self.read[governor][job]
        state = self.state(job)
        if known != self.logs[job] or state.ended is not None or state.open_claims:
            return
        held = self.held(job, self.read[governor], claimed=False)
        if held is None:
            self.append(job, Claimed(offering=ON_DEMAND, nodes=1))
            self.claims[job] = governor
        elif (code := waits_code(state, held.amount)) is not None:
            self.append(job, Warned(code=code))

    def launch(self, job: str) -> None:
        """Reads all logs, then launches or gives up: all of it may come long after the claim, and in any order."""
        state = self.state(job)
        if job not in self.claims or not state.open_claims or state.open_claims[0].launched is not None:
            return
        number = state.open_claims[0].number
        if self.held(job, self.logs, claimed=True) is not None:
            self.append(job, Closed(claim=number, outcome="abandoned", rule="policy:money", restart=True))
            self.yielded += 1
        else:
            self.append(job, Launched(number, nodes(number)))
            self.check()
        del self.claims[job]

    def end(self, job: str) -> None:
        state = self.state(job)
        if state.open_claims and state.open_claims[0].launched is not None:
            number = state.open_claims[0].number
            closing = Closed(claim=number, outcome="succeeded", rule="finished")
            self.append(job, Ended(outcome="succeeded", rule="finished", claim=number, closing=closing))

    def reclaim(self, job: str) -> None:
        state = self.state(job)
        if state.open_claims and state.open_claims[0].launched is not None:
            number = state.open_claims[0].number
            self.append(job, Closed(claim=number, outcome="reclaimed", rule="notice", restart=True))

    def spent(self, job: str) -> float:
        total = 0.0
        for claim in self.state(job).attempts:
            assert claim.launched_at is not None
            total += ((claim.closed_at or self.now) - claim.launched_at).total_seconds() * 3 / 3600
        return total

    def check(self) -> None:
        """What all may cost that were launched, and what those cost that are over, is within the budget."""
        if self.now.month != EPOCH.month:
            return  # What was spent before counts no more.
        total = 0.0
        for job, most in zip(self.jobs, self.costs, strict=True):
            state = self.state(job)
            if state.attempts:
                total += min(most, self.spent(job)) if state.ended is not None else most
        assert total <= DOLLARS + 1e-5, {job: [entry.event for entry in log] for job, log in self.logs.items()}


@st.composite
def played(draw: st.DrawFn) -> Shop:
    costs = draw(st.lists(st.sampled_from([1.0, 2.0, 2.5, 3.0, 5.0]), min_size=2, max_size=5))
    shop = Shop(tuple(costs), draw(st.integers(1, 3)))
    for _ in range(draw(st.integers(1, 60))):
        shop.now += timedelta(seconds=draw(st.sampled_from([0.0, 0.0, 0.3, 0.3, 1.0, 60.0])))
        job, governor = draw(st.sampled_from(shop.jobs)), draw(st.integers(0, shop.governors - 1))
        match draw(st.sampled_from(["look", "claim", "claim", "launch", "launch", "end", "reclaim"])):
            case "look":
                shop.look(governor)
            case "claim":
                shop.claim(governor, job)
            case "launch":
                shop.launch(job)
            case "end":
                shop.end(job)
            case "reclaim":
                shop.reclaim(job)
    return shop


@STEPS
@given(played())
def test_whatever_the_order_no_more_is_launched_than_there_is(shop: Shop) -> None:
    shop.check()


@STEPS
@given(played())
def test_each_gets_its_turn_once_governors_see_what_there_is(shop: Shop) -> None:
    """No deadlock, and none starves: with passes over all jobs, jobs that end and months that pass, all get in."""
    for _ in range(len(shop.jobs) + 1):
        for job in shop.jobs:
            shop.end(job)
        shop.now += timedelta(days=31)
        for job in shop.jobs:
            shop.now += timedelta(seconds=2)
            shop.launch(job)
            shop.look(0)
            shop.claim(0, job)
            shop.now += timedelta(seconds=2)
            shop.launch(job)
    for job in shop.jobs:
        shop.end(job)
    assert all(shop.state(job).ended is not None for job in shop.jobs), shop.logs


def test_claims_do_race_in_what_is_played() -> None:
    find(played(), lambda shop: shop.yielded > 1, settings=settings(STEPS, max_examples=1500, phases=[Phase.generate]))
