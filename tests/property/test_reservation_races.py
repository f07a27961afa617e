"""Governors that claim at the same time, on what each knew a while ago: together they never launch more than there is.

The order of all steps is drawn: see `racing_governors`.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from racing_governors import Race, let_all_finish, play

from stoker.core.budget_reservations import waits_code
from stoker.core.budget_verdict import LaunchDenied
from stoker.model.job_state import JobState
from stoker.model.spec import Limits, Spec
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import EPOCH, ON_DEMAND, make_spec

pytestmark = pytest.mark.slow

DOLLARS = 5.0
POLICY = parse_policy(f"rules: [{{name: money, budget: {{dollars: {DOLLARS}, period: month}}}}]".encode(), "p.yaml")
STEPS = settings(max_examples=150, deadline=None)


class BudgetRace(Race):
    """Jobs that each cost up to a number of dollars, under one budget."""

    def __init__(self, costs: tuple[float, ...], governors: int) -> None:
        self.costs = costs
        super().__init__(governors, POLICY, ON_DEMAND, "policy:money")

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(f"job-{n}" for n in range(len(self.costs)))

    def spec(self, job: str) -> Spec:
        return make_spec(limits=Limits(max_cost=self.costs[self.jobs.index(job)]))

    def waiting_code(self, state: JobState, held: LaunchDenied) -> str | None:
        return waits_code(state, held.amount)

    def spent(self, job: str) -> float:
        total = 0.0
        for claim in self.state(job).attempts:
            assert claim.launched_at is not None
            total += ((claim.closed_at or self.now) - claim.launched_at).total_seconds() * 3 / 3600
        return total

    def check(self) -> None:
        """The most that launched jobs may cost, and the cost of those that are over, is within the budget."""
        if self.now.month != EPOCH.month:
            return  # The money of an earlier month does not count.
        total = 0.0
        for job, most in zip(self.jobs, self.costs, strict=True):
            state = self.state(job)
            if state.attempts:
                total += min(most, self.spent(job)) if state.ended is not None else most
        assert total <= DOLLARS + 1e-5, {job: [entry.event for entry in log] for job, log in self.logs.items()}


@st.composite
def played(draw: st.DrawFn) -> BudgetRace:
    costs = draw(st.lists(st.sampled_from([1.0, 2.0, 2.5, 3.0, 5.0]), min_size=2, max_size=5))
    return play(draw, BudgetRace(tuple(costs), draw(st.integers(1, 3))), [0.0, 0.0, 0.3, 0.3, 1.0, 60.0])


@STEPS
@given(played())
def test_whatever_the_order_no_more_is_launched_than_there_is(race: BudgetRace) -> None:
    race.check()


@STEPS
@given(played())
def test_each_gets_its_turn_once_governors_see_what_there_is(race: BudgetRace) -> None:
    """No deadlock, and none starves: with passes over all jobs, jobs that end and months that pass, all get in."""
    let_all_finish(race, timedelta(days=31))


def test_claims_do_race_in_what_is_played() -> None:
    find(played(), lambda race: race.yielded > 1, settings=settings(STEPS, max_examples=1500, phases=[Phase.generate]))
