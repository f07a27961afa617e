"""How long a job waits for spot alone, and that on-demand machines will do afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.core import policy_rules
from stoker.core.acceptable_offerings import acceptable
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.placement import NoCapacityNow, NoOffering, Placed, place
from stoker.core.snapshot import Append
from stoker.model.errors import UserError
from stoker.model.job_state import JobState
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, Warned
from stoker.model.observed import Known
from stoker.model.offerings import Offering
from stoker.model.resources import Spot
from stoker.model.spec import Limits, Spec
from stoker.policy.policy_file import parse_policy
from stoker.submit.choose_offerings import fitting_offerings
from stoker.submit.policy_check import check_policy, policy_limits
from tests.support.sim_data import (
    OFFERINGS,
    ON_DEMAND,
    SPOT_A,
    SPOT_B,
    at,
    hard_notice,
    make_facts,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

CLAIM = Claimed(offering=SPOT_A, nodes=1)


def spec_of(wanted: Spot, wait_s: float | None, limits: Limits | None = None) -> Spec:
    spec = make_spec(spot=wanted, limits=limits)
    return replace(spec, retry=replace(spec.retry, spot_wait_s=wait_s))


def dry(now_s: float) -> JobState:
    """A job that was opened at 0 and finds no spot at this moment."""
    events: list[Event | tuple[Event, float]] = []
    for number, offering in ((2, SPOT_A), (4, SPOT_B)):
        events += [(Claimed(offering=offering, nodes=1), now_s), (Closed(number, "dry", "no-capacity"), now_s)]
    return make_state(*events)


def choose(
    state: JobState, spec: Spec, now_s: float, offerings: tuple[Offering, ...] = OFFERINGS
) -> Placed | NoCapacityNow | NoOffering:
    return place(make_snapshot(state, spec=spec), offerings, DEFAULT, at(now_s))


@pytest.mark.parametrize("wanted", ["only", "prefer"])
def test_on_demand_will_do_when_spot_was_waited_for_long_enough(wanted: Spot) -> None:
    spec = spec_of(wanted, 100.0)
    early = choose(dry(99), spec, 99)
    assert isinstance(early, NoCapacityNow) and early.until == at(100), "the next look is when the wait is over"
    assert early.reason.endswith("; on-demand will do after 100 s without a machine (retry.spot_wait)")
    assert choose(dry(100), spec, 100) == Placed(ON_DEMAND, "on-demand: no spot in 100 s (retry.spot_wait)")
    assert choose(make_state(), spec, 100) == Placed(SPOT_A, "spot first"), "spot is still rather had"


def test_without_a_wait_it_is_as_it_was() -> None:
    assert choose(dry(0), spec_of("prefer", None), 1) == Placed(ON_DEMAND, "on-demand: no spot to be had")
    assert isinstance(choose(dry(1e6), spec_of("only", None), 1e6 + 1), NoCapacityNow)
    assert choose(dry(0), spec_of("only", 0.0), 1) == Placed(ON_DEMAND, "on-demand: no spot to be had")
    assert choose(make_state(), spec_of("never", 100.0), 1) == Placed(ON_DEMAND, "on-demand")


def test_the_wait_begins_anew_with_every_machine_that_is_lost() -> None:
    had = (CLAIM, (Launched(2, nodes(2)), 10.0), (Closed(2, "reclaimed", "notice"), 500.0))
    spec = spec_of("only", 100.0)
    assert isinstance(choose(make_state(*had), spec, 599, (ON_DEMAND,)), NoCapacityNow)
    late = Placed(ON_DEMAND, "on-demand: no spot in 100 s (retry.spot_wait)")
    assert choose(make_state(*had), spec, 600, (ON_DEMAND,)) == late


def test_while_an_attempt_saves_nobody_waits_yet() -> None:
    job = make_snapshot(
        make_state((CLAIM, 0.0), (Launched(2, nodes(2)), 0.0)),
        make_facts(2, notice=hard_notice(1000)),
        spec=spec_of("prefer", 100.0),
    )
    assert isinstance(place(job, (ON_DEMAND,), DEFAULT, at(1001)), NoCapacityNow)


def test_so_many_reclaims_end_the_wait() -> None:
    events: list[Event | tuple[Event, float]] = []
    for number in (2, 5, 8, 11):
        events += [CLAIM, Launched(number, nodes(number)), Closed(number, "reclaimed", "notice")]
    state = make_state(*events)
    assert choose(state, spec_of("prefer", 1e6), 200) == Placed(ON_DEMAND, "on-demand after 4 reclaims")
    assert choose(state, spec_of("only", 1e6), 200) == Placed(SPOT_A, "spot"), "whoever wants spot alone"


def test_what_no_wait_can_bring_is_not_waited_for() -> None:
    assert isinstance(choose(make_state(), spec_of("only", 100.0), 1, ()), NoOffering)
    dear = replace(spec_of("only", 100.0), resources=replace(make_spec(spot="only").resources, max_price=0.5))
    assert isinstance(choose(make_state(), dear, 1), NoOffering), "on-demand is dearer still"
    refused = make_state(CLAIM, Closed(2, "refused", "AuthDenied"))
    assert isinstance(choose(refused, spec_of("only", 100.0), 60), NoOffering)


def test_bounds_on_money_hold_for_what_was_not_wanted_first() -> None:
    dear = spec_of("only", 10.0)
    dear = replace(dear, resources=replace(dear.resources, max_price=2.0))
    found = choose(dry(20), dear, 21)
    assert isinstance(found, NoCapacityNow), "the on-demand machine costs $3"
    unpriced = replace(ON_DEMAND, price=None, on_demand_price=None)
    capped = spec_of("only", 10.0, Limits(max_cost=5.0))
    assert isinstance(choose(dry(20), capped, 21, (SPOT_A, SPOT_B, unpriced)), NoCapacityNow)


def test_an_endless_number_is_no_date() -> None:
    assert isinstance(choose(dry(10), spec_of("only", 1e300), 11), NoCapacityNow)


# ── The policy ────────────────────────────────────────────────────────────────────────────────────────────────────────


def settings(*texts: str) -> GovernorSettings:
    text = "rules:\n" + "".join(f"- {{{each}}}\n" for each in texts)
    return replace(DEFAULT, policy=parse_policy(text.encode(), "p.yaml"))


def decided(state: JobState, spec: Spec, by: GovernorSettings, now_s: float) -> tuple[list[tuple[Event, str]], str]:
    plan = decide_job(make_snapshot(state, spec=spec, offerings=Known(OFFERINGS)), by, at(now_s))
    events = [(action.event, action.reason) for action in plan.actions if isinstance(action, Append)]
    return events, plan.waiting.get(state.job, "")


def test_the_policy_ends_the_wait_and_is_named() -> None:
    by = settings("max_wait: 100s, then: on-demand")
    events, waiting = decided(dry(99), make_spec(spot="only"), by, 99)
    assert events == [] and waiting.endswith("; on-demand will do after 100 s without a machine (policy max-wait)")
    ((event, reason),), _ = decided(dry(100), make_spec(spot="only"), by, 100)
    assert isinstance(event, Claimed) and event.offering == ON_DEMAND
    assert reason.endswith("on-demand: no spot in 100 s (policy max-wait)")
    events, _ = decided(dry(100), make_spec(spot="only"), DEFAULT, 100)
    assert events == [], "nobody else said so"


def test_a_tighter_bound_of_the_jobs_own_ends_it() -> None:
    by = settings("max_wait: 100s, then: on-demand")
    ((event, reason),), _ = decided(dry(50), spec_of("only", None, Limits(max_wait_s=50.0)), by, 50)
    assert event == Ended(outcome="failed", rule="max_wait") and reason.startswith("limits.max_wait")
    both = settings("name: a, max_wait: 100s, then: on-demand", "name: b, max_wait: 200s")
    ((event, _),), _ = decided(dry(200), make_spec(spot="only"), both, 200)
    assert event == Ended(outcome="failed", rule="policy:b")


def test_the_policy_makes_nobody_wait_longer() -> None:
    policy = settings("max_wait: 1h, then: on-demand").policy
    for wanted, own, then in (("prefer", None, None), ("prefer", 60.0, 60.0), ("prefer", 7200.0, 3600.0)):
        spec = spec_of(wanted, own)  # type: ignore[arg-type]
        assert policy_limits(policy, spec).spec.retry.spot_wait_s == then
    assert policy_limits(policy, spec_of("only", None)).spec.retry.spot_wait_s == 3600.0
    assert policy_limits(policy, spec_of("never", None)).spec == spec_of("never", None)


def test_a_rule_that_is_only_watched_is_told_once() -> None:
    for rule, told in (
        ("max_wait: 100s, then: on-demand, audit: true", "is over: on-demand will do"),
        ("max_wait: 100s, audit: true", "is reached"),
    ):
        state = dry(100)
        ((event, reason),), _ = decided(state, make_spec(spot="only"), settings(rule), 100)
        assert event == Warned(code="policy:max-wait")
        assert reason == f"policy max-wait (100 s without a machine) {told}; audit: nothing is done"
        early, _ = decided(dry(99), make_spec(spot="only"), settings(rule), 99)
        assert early == []
        after = make_state((Warned(code="policy:max-wait"), 100.0))
        ((event, _),), _ = decided(after, make_spec(spot="only"), settings(rule), 101)
        assert isinstance(event, Claimed) and event.offering == SPOT_A


def test_whoever_plans_is_shown_what_it_may_come_to() -> None:
    policy, spec = settings("max_wait: 1h, then: on-demand").policy, make_spec(spot="only")
    waiting = policy_limits(policy, spec).spec
    fitting, _ = acceptable(waiting, OFFERINGS)
    assert fitting == [SPOT_A, SPOT_B, ON_DEMAND]
    assert check_policy(policy, spec, tuple(fitting)).notes == (
        "policy max-wait: after 1 h without spot it takes on-demand machines",
    )
    bounds = policy_rules.effective_limits(policy, policy_rules.Subject(spec, at(0).date()))
    assert bounds.by_rule == {"spot_wait": "max-wait"}


def test_whoever_plans_is_told_of_a_price_that_the_policy_needs() -> None:
    policy, spec = settings("name: dear, max_cost: 500").policy, make_spec(spot="never")
    unknown = replace(ON_DEMAND, price=None, on_demand_price=None)
    with pytest.raises(UserError, match="policy dear needs a known price"):
        fitting_offerings(policy_limits(policy, spec), object(), (unknown,))  # type: ignore[arg-type]
    assert fitting_offerings(policy_limits(policy, spec), object(), (ON_DEMAND,)) == (ON_DEMAND,)  # type: ignore[arg-type]
