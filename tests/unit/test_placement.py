"""Where the next attempt goes."""

from __future__ import annotations

from dataclasses import replace

from stoker.core.governor_settings import DEFAULT
from stoker.core.launch_history import SUBNET_FULL, waiting_since
from stoker.core.placement import NoCapacityNow, NoOffering, Placed, place, wants_claim
from stoker.model.job_state import JobState
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, ResumeAsked, StopAsked
from stoker.model.offerings import Offering
from stoker.model.spec import Limits, Spec
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


def choose(
    state: JobState, spec: Spec | None = None, offerings: tuple[Offering, ...] = OFFERINGS, now_s: float = 1e4
) -> object:
    return place(make_snapshot(state, spec=spec or make_spec()), offerings, DEFAULT, at(now_s))


def closed(claim: int, outcome: str, at_s: float = 0.0) -> tuple[Event, float]:
    return Closed(claim, outcome, "rule"), at_s  # type: ignore[arg-type]


def test_spot_comes_first_when_it_is_preferred() -> None:
    assert choose(make_state(), offerings=(ON_DEMAND, SPOT_B, SPOT_A)) == Placed(SPOT_B, "spot first")
    assert choose(make_state(), make_spec(spot="never")) == Placed(ON_DEMAND, "on-demand")
    assert choose(make_state(), make_spec(spot="only")) == Placed(SPOT_A, "spot")


def test_too_many_reclaims_lead_to_on_demand() -> None:
    events: list[Event | tuple[Event, float]] = []
    for n in range(4):
        number = 2 + 3 * n
        events += [CLAIM, Launched(number, nodes(number)), closed(number, "reclaimed")]
    found = choose(make_state(*events))
    assert found == Placed(ON_DEMAND, "on-demand after 4 reclaims")
    assert choose(make_state(*events[:9])) == Placed(SPOT_A, "spot first"), "three are not more than three"


def given_up(*more: Event | tuple[Event, float]) -> JobState:
    """After four reclaims."""
    events: list[Event | tuple[Event, float]] = []
    for n in range(4):
        number = 2 + 3 * n
        events += [CLAIM, Launched(number, nodes(number)), closed(number, "reclaimed")]
    return make_state(*events, *more)


def test_spot_is_given_up_only_where_something_else_will_do() -> None:
    cheap = replace(make_spec(), resources=replace(make_spec().resources, max_price=1.5))
    why = "spot again after 4 reclaims: no on-demand offering is within the bounds"
    assert choose(given_up(), cheap) == Placed(SPOT_A, why)
    unknown = (SPOT_A, replace(ON_DEMAND, price=None, on_demand_price=None))
    assert choose(given_up(), make_spec(limits=Limits(max_cost=100.0)), unknown) == Placed(SPOT_A, why)


def test_spot_that_was_given_up_is_taken_while_all_else_is_dry_or_refused() -> None:
    wanted = Claimed(offering=ON_DEMAND, nodes=1)
    why = f"spot again after 4 reclaims; on-demand: no capacity: {ON_DEMAND.title}"
    assert choose(given_up(wanted, closed(14, "dry", 100)), now_s=101) == Placed(SPOT_A, why)
    assert choose(given_up(wanted, closed(14, "dry", 100)), now_s=103) == Placed(
        ON_DEMAND, "on-demand after 4 reclaims"
    )
    refused = (wanted, (Closed(14, "refused", "QuotaExceeded"), 100.0))
    found = choose(given_up(*refused))
    assert isinstance(found, Placed) and found.offering == SPOT_A
    all_dry = given_up(wanted, closed(14, "dry", 100), CLAIM, closed(16, "dry", 100.5))
    assert choose(all_dry, offerings=(SPOT_A, ON_DEMAND), now_s=101) == NoCapacityNow(
        at(102), f"no capacity: {ON_DEMAND.title}"
    )


def test_spot_that_was_given_up_is_waited_for_where_on_demand_is_refused() -> None:
    refused = (Claimed(offering=ON_DEMAND, nodes=1), (Closed(14, "refused", "QuotaExceeded"), 100.0))
    state = given_up(*refused, CLAIM, closed(16, "dry", 100.5))
    dry = NoCapacityNow(at(102.5), f"no capacity: {SPOT_A.title}")
    assert choose(state, offerings=(SPOT_A, ON_DEMAND), now_s=101) == dry


def test_nothing_fits() -> None:
    assert isinstance(choose(make_state(), offerings=()), NoOffering)
    assert isinstance(choose(make_state(), make_spec(spot="only"), (ON_DEMAND,)), NoOffering)


def test_a_bound_on_cost_needs_a_price() -> None:
    unpriced = replace(SPOT_A, price=None)
    spec = make_spec(limits=Limits(max_cost=5.0))
    assert choose(make_state(), spec, (unpriced, SPOT_B)) == Placed(SPOT_B, "spot first")
    assert choose(make_state(), spec, (unpriced,)) == Placed(unpriced, "spot first"), "never dearer than on-demand"
    found = choose(make_state(), spec, (replace(unpriced, on_demand_price=None),))
    assert isinstance(found, NoOffering) and found.unpriced


def test_the_highest_price_is_kept() -> None:
    spec = replace(make_spec(), resources=replace(make_spec().resources, max_price=1.0))
    assert choose(make_state(), spec) == Placed(SPOT_A, "spot first")
    assert isinstance(choose(make_state(), spec, (ON_DEMAND, replace(SPOT_A, price=None))), NoOffering)


def test_a_dry_offering_is_left_alone_for_a_while_and_longer_each_time() -> None:
    once = make_state(CLAIM, closed(2, "dry", 100))
    twice = make_state(CLAIM, closed(2, "dry", 50), CLAIM, closed(4, "dry", 100))
    only = (SPOT_A,)
    assert choose(once, now_s=101) == Placed(SPOT_B, "spot first")
    assert choose(once, offerings=only, now_s=101) == NoCapacityNow(at(102), f"no capacity: {SPOT_A.title}")
    assert choose(once, offerings=only, now_s=102) == Placed(SPOT_A, "spot first")
    assert choose(twice, offerings=only, now_s=103) == NoCapacityNow(at(104), f"no capacity: {SPOT_A.title}")


def test_a_full_subnet_is_no_drought() -> None:
    """No other machine fits into the same subnet either; that of another zone is tried, and the reason is told."""
    larger, elsewhere = replace(SPOT_A, machine="sim.larger"), replace(SPOT_A, zone="sim-elsewhere")
    once = make_state(CLAIM, (Closed(2, "dry", SUBNET_FULL), 100))
    assert choose(once, offerings=(SPOT_A, larger, elsewhere), now_s=101) == Placed(elsewhere, "spot first")
    assert choose(once, offerings=(SPOT_A, larger), now_s=101) == NoCapacityNow(at(102), "closed at 3")
    assert choose(once, offerings=(SPOT_A, larger), now_s=102) == Placed(SPOT_A, "spot first")
    dry_too = make_state(
        CLAIM, (Closed(2, "dry", SUBNET_FULL), 100), Claimed(elsewhere, 1), (Closed(4, "dry", "no-capacity"), 101)
    )
    found = choose(dry_too, offerings=(SPOT_A, elsewhere), now_s=101.5)
    assert isinstance(found, NoCapacityNow) and found.reason.startswith("no capacity: ")
    twice = make_state(CLAIM, (Closed(2, "dry", SUBNET_FULL), 50), CLAIM, (Closed(4, "dry", SUBNET_FULL), 100))
    assert choose(twice, offerings=(SPOT_A, larger), now_s=103) == NoCapacityNow(at(104), "closed at 5")


def test_an_attempt_that_ran_ends_the_drought() -> None:
    state = make_state(
        CLAIM, closed(2, "dry", 90), CLAIM, Launched(4, nodes(4)), closed(4, "lost", 100), CLAIM, closed(7, "dry", 100)
    )
    assert choose(state, offerings=(SPOT_A,), now_s=101) == NoCapacityNow(at(102), f"no capacity: {SPOT_A.title}")


def test_what_was_refused_is_not_asked_for_again_until_a_resume() -> None:
    refused = [CLAIM, closed(2, "refused", 10)]
    assert choose(make_state(*refused)) == Placed(SPOT_B, "spot first")
    assert isinstance(choose(make_state(*refused), offerings=(SPOT_A,)), NoOffering)
    again = make_state(*refused, Ended("failed", "no-offering"), ResumeAsked("jane"))
    assert choose(again) == Placed(SPOT_A, "spot first")


def test_waiting_is_counted_from_the_last_machines() -> None:
    assert waiting_since(make_state(CLAIM, closed(2, "dry", 70))) == at(0)
    assert waiting_since(make_state(CLAIM, Launched(2, nodes(2)), closed(2, "lost", 70))) == at(70)


def test_a_gang_that_never_was_complete_is_no_end_of_the_waiting() -> None:
    """Else a pool that always gives one machine of two would be tried for ever, and paid for."""
    state = make_state(Claimed(SPOT_A, 2), Launched(2, nodes(2)), closed(2, "dry", 70))
    assert waiting_since(state) == at(0)


# ── Whether a claim is wanted at all ──────────────────────────────────────────────────────────────────────────────────


def wanted(*events: Event | tuple[Event, float], noticed: int | None = None) -> str | None:
    state = make_state(*events)
    facts = [make_facts(noticed, notice=hard_notice(0))] if noticed else []
    return wants_claim(make_snapshot(state, *facts))


def test_a_claim_is_wanted_first_and_after_each_close() -> None:
    assert wanted() == "first attempt"
    assert wanted(CLAIM) is None
    assert wanted(CLAIM, closed(2, "dry")) == "next offering"
    after = wanted(CLAIM, Launched(2, nodes(2)), closed(2, "lost"))
    assert after is not None and after.startswith("after attempt 1: ")
    assert wanted(CLAIM, closed(2, "dry"), Ended("failed", "x"), ResumeAsked("jane")) == "resumed"


def test_a_stopped_or_ended_job_wants_none() -> None:
    assert wanted(StopAsked("jane")) is None
    assert wanted(Ended("failed", "x")) is None


def test_a_hard_notice_is_enough_and_at_most_one_waits() -> None:
    launched = [CLAIM, Launched(2, nodes(2))]
    assert wanted(*launched) is None
    assert wanted(*launched, noticed=2) == "attempt 1 was given notice"
    assert wanted(*launched, CLAIM, noticed=2) is None
    assert wanted(*launched, CLAIM, closed(4, "dry"), noticed=2) == "attempt 1 was given notice"


def test_what_another_job_found_dry_is_left_alone_for_a_while() -> None:
    job = make_snapshot(make_state())
    patient = replace(job, capabilities=replace(job.capabilities, dry_for_s=60.0), dry={SPOT_A.key: at(100)})
    offered = (SPOT_A, SPOT_B)
    assert place(patient, offered, DEFAULT, at(159)) == Placed(SPOT_B, "spot first")
    assert place(patient, offered, DEFAULT, at(160)) == Placed(SPOT_A, "spot first")
    both = replace(patient, dry={SPOT_A.key: at(100), SPOT_B.key: at(90)})
    waits = place(both, offered, DEFAULT, at(120))
    assert isinstance(waits, NoCapacityNow) and waits.until == at(150)
    # Where a dry answer says nothing about the next moment, it is this job's own answers alone that count.
    assert place(replace(patient, capabilities=job.capabilities), offered, DEFAULT, at(101)) == Placed(
        SPOT_A, "spot first"
    )


def test_the_longer_wait_counts_when_both_found_it_dry() -> None:
    job = make_snapshot(make_state(CLAIM, closed(2, "dry", 100)))
    patient = replace(job, capabilities=replace(job.capabilities, dry_for_s=60.0), dry={SPOT_A.key: at(100)})
    waits = place(patient, (SPOT_A,), DEFAULT, at(130))
    assert isinstance(waits, NoCapacityNow) and waits.until == at(160)
    alone = place(job, (SPOT_A,), DEFAULT, at(101))
    assert isinstance(alone, NoCapacityNow) and alone.until == at(102)


def test_many_dry_zones_are_told_in_one_line() -> None:
    zones = tuple(replace(SPOT_A, zone=f"zone-{n}") for n in range(6))
    job = make_snapshot(make_state())
    dry = {zone.key: at(100) for zone in zones}
    patient = replace(job, capabilities=replace(job.capabilities, dry_for_s=60.0), dry=dry)
    waits = place(patient, zones, DEFAULT, at(101))
    assert isinstance(waits, NoCapacityNow) and waits.reason.endswith(" and 3 more")


def test_what_no_other_zone_will_allow_either_is_not_asked_of_all_of_them() -> None:
    zones = tuple(replace(SPOT_A, zone=f"z{n}") for n in range(40))

    def after(*rules: str) -> object:
        events: list[Event] = []
        for index, rule in enumerate(rules):
            number = 2 + 2 * index
            events += [Claimed(offering=zones[index], nodes=1), Closed(number, "refused", rule)]
        state = make_state(*events)
        claims = tuple(replace(claim, closed_reason=said) for claim, said in zip(state.claims, reasons, strict=False))
        return choose(replace(state, claims=claims), offerings=zones)

    reasons = ["no such key"] * 3
    assert isinstance(after("AuthDenied"), NoOffering)
    assert isinstance(after("UserError"), NoOffering)
    assert isinstance(after("InvalidRequest", "InvalidRequest"), Placed)
    assert after("InvalidRequest", "InvalidRequest", "InvalidRequest") == NoOffering("no such key")
    reasons = ["not in this zone", "no such key", "no such key"]
    assert isinstance(after("InvalidRequest", "InvalidRequest", "InvalidRequest"), Placed)


def refusals(*told: tuple[Offering, str, str]) -> JobState:
    """Claims on these offerings, each refused by a rule with a reason."""
    events: list[Event | tuple[Event, float]] = []
    for offering, rule, _ in told:
        number = 2 + len(events)
        events += [Claimed(offering=offering, nodes=1), Closed(number, "refused", rule)]
    state = make_state(*events)
    claims = tuple(replace(claim, closed_reason=words) for claim, (_, _, words) in zip(state.claims, told, strict=True))
    return replace(state, claims=claims)


def test_a_quota_for_spot_is_no_quota_for_on_demand() -> None:
    over = refusals((SPOT_A, "QuotaExceeded", "m1: too many (Max)"))
    # It is the same in every zone.
    assert choose(over) == Placed(ON_DEMAND, "on-demand: no spot to be had")
    assert choose(over, make_spec(spot="only")) == NoOffering("m1: too many (Max)")
    # Another machine may have another quota.
    other = replace(SPOT_B, machine="m2")
    assert choose(over, offerings=(SPOT_A, other, ON_DEMAND)) == Placed(other, "spot first")


def test_what_is_said_thrice_of_spot_is_true_of_all_spot() -> None:
    zones = tuple(replace(SPOT_A, machine=f"m{n}") for n in range(5))
    said = [(zone, "InvalidRequest", f"{zone.machine}: no such key") for zone in zones]
    offerings = (*zones, ON_DEMAND)
    assert choose(refusals(*said[:2]), offerings=offerings) == Placed(zones[2], "spot first")
    assert choose(refusals(*said[:3]), offerings=offerings) == Placed(ON_DEMAND, "on-demand: no spot to be had")
    everything = refusals(*said[:3], (ON_DEMAND, "InvalidRequest", "m1: no such key"))
    assert choose(everything, offerings=offerings) == NoOffering("m1: no such key")


def test_what_an_account_may_not_it_may_nowhere() -> None:
    assert choose(refusals((SPOT_A, "AuthDenied", "m1: you may not"))) == NoOffering("m1: you may not")
    # Nor is there anywhere what the job names and nobody has.
    assert choose(refusals((SPOT_A, "NoSuchResource", "resources.image: none"))) == NoOffering("resources.image: none")


def test_spot_without_a_price_costs_no_more_than_on_demand() -> None:
    unknown = replace(SPOT_A, price=None)
    spec = replace(make_spec(), resources=replace(make_spec().resources, max_price=3.0))
    assert choose(make_state(), spec, (unknown,)) == Placed(unknown, "spot first")
    assert isinstance(choose(make_state(), spec, (replace(unknown, on_demand_price=3.1),)), NoOffering)


def test_what_is_not_offered_is_named() -> None:
    assert choose(make_state(), make_spec(spot="only"), (ON_DEMAND,)) == NoOffering(
        "sim has no spot offering that fits"
    )
    assert choose(make_state(), make_spec(spot="never"), (SPOT_A,)) == NoOffering(
        "sim has no on-demand offering that fits"
    )


def test_a_price_that_nothing_meets_names_the_cheapest_that_is_known() -> None:
    spec = make_spec()
    spec = replace(spec, resources=replace(spec.resources, max_price=0.5))
    why = "no fitting offering is known to cost at most resources.max_price ($0.5/h)"
    assert choose(make_state(), spec) == NoOffering(f"{why}; the cheapest known is m1 at $1.0000/h")
    unknown = tuple(replace(each, price=None, on_demand_price=None) for each in OFFERINGS)
    assert choose(make_state(), spec, unknown) == NoOffering(why, unpriced=True)
