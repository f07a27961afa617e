"""The longest life of a machine: also by the policy, and the same for every governor that finishes a claim."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from stoker.core.longest_life import claim_life_s, longest_life_s
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, ResumeAsked
from stoker.model.policy import Exemption, Policy, Rule
from stoker.model.spec import Limits, Retry
from tests.support.sim_data import EPOCH, JOB, SPOT_A, make_spec, make_state, nodes


def life_s(*before: Event, until: date) -> float | None:
    """Of a machine whose job is exempt from a bound of an hour until that day. It was claimed in January 2026."""
    exempt = Exemption(job=JOB, until=until, why="a demo")
    rule = Rule(name="short", max_runtime_s=3600.0, exempt=(exempt,))
    state = make_state(*before, Claimed(SPOT_A, 1))
    return claim_life_s(Policy((rule,)), state, make_spec(limits=Limits(max_runtime_s=86400.0)), state.claims[-1])


def test_a_machine_lives_longer_than_it_trains_for_it_boots_and_saves_too() -> None:
    life = longest_life_s(make_spec(limits=Limits(max_runtime_s=3600.0)))
    assert life is not None and life >= 3600.0 + 1800.0


def test_the_bound_of_the_policy_is_tighter() -> None:
    assert life_s(until=date(2025, 12, 31)) == longest_life_s(make_spec(limits=Limits(max_runtime_s=3600.0)))


def test_an_exemption_holds_on_the_day_of_the_claim() -> None:
    assert life_s(until=EPOCH.date()) == longest_life_s(make_spec(limits=Limits(max_runtime_s=86400.0)))


def test_a_job_that_was_resumed_has_what_the_bound_of_the_policy_leaves_it() -> None:
    closed = Closed(2, "stopped", "stop", trained_s=600.0)
    before = (Claimed(SPOT_A, 1), Launched(2, nodes(2)), closed, Ended("stopped", "stop", 2), ResumeAsked("jane"))
    left = longest_life_s(make_spec(limits=Limits(max_runtime_s=3000.0)))
    assert life_s(*before, until=date(2025, 12, 31)) == left
    assert life_s(*before, until=EPOCH.date()) == longest_life_s(make_spec(limits=Limits(max_runtime_s=86400.0)))


@pytest.mark.parametrize(
    ("max_cost", "burn_s", "held_s"),
    [(None, 0.001, 1000.0), (0.5, 0.001, 500.0), (5.0, 0.001, 1000.0), (0.5, 0.0, 1000.0), (0.0, 0.001, 0.0)],
)
def test_a_machine_is_held_after_a_failure_no_longer_than_the_money_lasts(
    max_cost: float | None, burn_s: float, held_s: float
) -> None:
    spec = make_spec(limits=Limits(max_runtime_s=3600.0, max_cost=max_cost))
    usual, held = longest_life_s(spec), longest_life_s(replace(spec, retry=Retry(hold_on_failure_s=1000.0)), burn_s)
    assert usual is not None and held is not None and held - usual == pytest.approx(held_s)


def test_a_machine_of_a_job_whose_time_nothing_bounds_may_live_for_ever() -> None:
    assert longest_life_s(make_spec(limits=Limits(max_cost=1.0)), 1.0) is None
