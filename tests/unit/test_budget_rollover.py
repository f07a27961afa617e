"""What a launch may cost after its period is over counts against the next one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_reservations import FIVE, HOUR, PolicyWorld, settings, spec

from stoker.core.budget_state import compute_budget_state
from tests.support.sim_data import ON_DEMAND

# Ten minutes before midnight, in UTC.
LATE_S = 24 * HOUR - 600


def spent_on(world: PolicyWorld, day: int) -> float:
    """The most that all jobs together may cost on a day."""
    world.now_s = day * 24 * HOUR
    books = compute_budget_state(
        world.by.policy, [], [(world.state(job), world.jobs[job][1]) for job in world.jobs], world.books().at
    )
    standing = books.statuses["money", ""]
    return standing.spent + standing.set_aside


def test_six_jobs_just_before_midnight_cannot_spend_more_than_the_next_day_has() -> None:
    world = PolicyWorld(settings(FIVE))
    world.now_s = LATE_S
    for n in range(6):
        world.submit(f"job-{n}", spec(2.0))
    plans = {job: world.look(job) for job in world.jobs}
    # $3.00 an hour: 50 cents until midnight, and $1.50 of $5.00 after it.
    assert world.running() == ["job-0", "job-1", "job-2"]
    assert plans["job-3"].waiting["job-3"] == (
        "policy money: waits for $1.50 of $5.00 a day from 2026-01-02 00:00 UTC: $4.50 is reserved then for "
        "job-0, job-1, job-2"
    )
    assert spent_on(world, 1) <= 5.0
    # The day has begun: nothing has changed, and all goes on as one ends.
    assert world.look("job-3").waiting["job-3"].startswith("policy money: waits for $2.00 of $5.00 a day: $4.50 is")
    world.end("job-0")
    world.look("job-3")
    assert "job-3" in world.running()


def test_jobs_that_end_before_midnight_take_nothing_of_the_next_day() -> None:
    world = PolicyWorld(settings(FIVE))
    world.now_s = 22 * HOUR
    for n in range(5):
        world.submit(f"job-{n}", spec(1.0))
        world.look(f"job-{n}")
    assert len(world.running()) == 5
    assert spent_on(world, 1) <= 5.0


def test_a_job_without_a_bound_takes_a_whole_day_of_the_next_period_too() -> None:
    world = PolicyWorld(settings("name: money, budget: {dollars: 80, period: day}"))
    world.now_s = LATE_S
    for n in range(2):
        world.submit(f"job-{n}", spec())
    assert [world.look(f"job-{n}") and world.running() for n in range(2)] == [["job-0"], ["job-0"]]
    assert ON_DEMAND.price == 3.0


@pytest.mark.parametrize("left_s", [600.0, 86_400.0])
def test_a_month_that_ends_hands_on_what_its_jobs_may_still_cost(left_s: float) -> None:
    world = PolicyWorld(settings("name: money, budget: {dollars: 100, period: month}"))
    world.now_s = 31 * 24 * HOUR - left_s
    for n in range(3):
        world.submit(f"job-{n}", spec(90.0))
        world.look(f"job-{n}")
    assert world.running() == ["job-0"]


def test_one_that_has_begun_goes_on_at_midnight() -> None:
    """Its money is reserved already, whatever the period."""
    world = PolicyWorld(settings(FIVE))
    world.now_s = LATE_S
    for n in range(3):
        world.submit(f"job-{n}", spec(2.0))
        world.look(f"job-{n}")
    world.reclaim("job-1")
    world.look("job-1")
    assert "job-1" in world.running()


def test_one_that_takes_dearer_machines_needs_more_of_the_next_period_too() -> None:
    cheap = replace(ON_DEMAND, price=1.0, on_demand_price=1.0)
    world = PolicyWorld(settings("name: money, budget: {dollars: 30, period: day}"), (cheap,))
    world.now_s = LATE_S
    for n in range(2):
        world.submit(f"job-{n}", spec(hours=14.0))
        world.look(f"job-{n}")
    assert world.running() == ["job-0", "job-1"]
    world.reclaim("job-0")
    world.offerings = (ON_DEMAND,)
    waits = world.look("job-0").waiting["job-0"]
    assert world.running() == ["job-1"] and "of $30.00 a day from 2026-01-02 00:00 UTC" in waits
    world.offerings = (cheap,)
    world.look("job-0")
    assert world.running() == ["job-0", "job-1"]
