"""What was taken back and what was not to be had, as it is kept, counted and used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.offers import listing
from stoker.core import market, policy_rules
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.market import NO_HISTORY, Fate, MarketHistory, MarketObservation, Tally
from stoker.core.placement import NoCapacityNow, Placed, place
from stoker.core.snapshot import Append, JobSnapshot
from stoker.model import keys
from stoker.model.errors import SpecError
from stoker.model.log_entries import Claimed, Closed, Event, Launched, Warned
from stoker.model.observed import Known
from stoker.model.offerings import Offering
from stoker.model.spec import Spec
from stoker.policy.policy_file import parse_policy
from stoker.store.base import is_valid_key
from tests.support.sim_data import (
    OFFERINGS,
    ON_DEMAND,
    SPOT_A,
    SPOT_B,
    at,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

NOW = at(100_000)


def seen(offering: Offering, fate: Fate, times: int, minutes: int = 60, at_: datetime = NOW) -> list[MarketObservation]:
    hour = at_.replace(minute=0, second=0, microsecond=0)
    return [MarketObservation(offering.key, hour, fate, minutes)] * times


def of(*parts: Iterable[MarketObservation]) -> MarketHistory:
    return MarketHistory.of(each for part in parts for each in part)


# ── As it is kept ─────────────────────────────────────────────────────────────────────────────────────────────────────


def key_list(*events: Event | tuple[Event, float]) -> list[str | None]:
    state = make_state(*events)
    return [market.observation_key(state.job, claim) for claim in state.claims]


def test_the_key_tells_what_the_log_tells_and_nothing_else() -> None:
    claim = Claimed(offering=SPOT_A, nodes=2)
    taken = (claim, (Launched(2, nodes(2, 2)), 3600.0), (Closed(2, "reclaimed", "notice"), 3600.0 + 1800.0))
    assert key_list(*taken) == ["market/2026-01-01/sim/m1/a/spot/01/job-1.2.reclaimed.60"]
    assert market.parse_observation("market/2026-01-01/sim/m1/a/spot/01/job-1.2.reclaimed.60") == MarketObservation(
        SPOT_A.key, at(3600), "reclaimed", 60
    )
    served = (claim, Launched(2, nodes(2, 2)), (Closed(2, "failed", "user-error"), 86400.0))
    (key,) = key_list(*served)
    assert key is not None and key.startswith("market/2026-01-02/sim/m1/a/spot/00/job-1.2.served.")
    assert key_list((Claimed(offering=ON_DEMAND, nodes=1), 0.0), (Closed(2, "dry", "no-capacity"), 2999.0)) == [
        "market/2026-01-01/sim/m1/a/on-demand/00/40.dry"
    ]


def test_what_says_nothing_of_the_market_is_not_kept() -> None:
    claim = Claimed(offering=SPOT_A, nodes=1)
    assert key_list(claim) == key_list(claim, Launched(2, nodes(2))) == [None], "it is open"
    for outcome, rule in (("dry", "QuotaExceeded"), ("refused", "AuthDenied"), ("abandoned", "token-expired")):
        assert key_list(claim, Closed(2, outcome, rule)) == [None]  # type: ignore[arg-type]


@given(st.lists(st.text(max_size=8), min_size=3, max_size=3))
def test_names_may_be_any_text(names: list[str]) -> None:
    provider, machine, zone = (name.encode("utf-8", "ignore").decode() for name in names)
    offering = Offering(provider, machine, zone, spot=True)
    state = make_state(Claimed(offering=offering, nodes=1), Closed(2, "dry", "no-capacity"))
    key = market.observation_key(state.job, state.claims[0])
    assert key is not None and is_valid_key(key)
    found = market.parse_observation(key)
    assert found is not None and (found.offering, found.fate) == (offering.key, "dry")


def test_where_a_cloud_chooses_the_zone_its_region_is_the_place() -> None:
    one, other = (Offering("cloud", "m", "", spot=True, region=region) for region in ("here", "there"))
    assert one.key == "cloud/m/here/spot" and is_valid_key(keys.dry(one.key))
    assert is_valid_key(keys.dry(replace(one, region=None).key))
    found = of(seen(one, "reclaimed", 2))
    assert (found.lately(one, NOW).reclaims, found.lately(other, NOW).reclaims) == (2, 0)


@pytest.mark.parametrize(
    "key",
    [
        "market/",
        "market/2026-01-01/sim/m1/a/spot/01/",
        "market/2026-01-01/sim/m1/a/spot/01/job-1.2.eaten.60",
        "market/2026-01-01/sim/m1/a/spot/01/job-1.2.reclaimed",
        "market/2026-01-01/sim/m1/a/spot/01/job-1.2.dry.0",
        "market/2026-01-01/sim/m1/a/spot/01/45.dry",
        "market/2026-01-01/sim/m1/a/spot/01/job-1.2.reclaimed.-5",
        "market/2026-01-01/sim/m1/a/spot/01/job-1.2.reclaimed.99999999999999",
        "market/2026-13-01/sim/m1/a/spot/01/job-1.2.reclaimed.5",
        "market/2026-01-01/sim/m=ff/a/spot/01/job-1.2.reclaimed.5",
        "market/2026-01-01/sim/m1/ü/spot/25/job-1.2.reclaimed.5",
        "dry/sim/m1/a/spot",
    ],
)
def test_what_is_no_sighting_is_none(key: str) -> None:
    assert market.parse_observation(key) is None


# ── Counting ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_counted_by_the_hour_and_forgotten_by_the_hour() -> None:
    hour = at(0)
    found = of(seen(SPOT_A, "reclaimed", 2, 30, hour), seen(SPOT_A, "dry", 1, 0, hour), seen(SPOT_B, "served", 1))
    day = timedelta(days=1)
    assert found.lately(SPOT_A, hour + timedelta(minutes=59)) == Tally(2, 1, 2, 1.0)
    assert found.lately(SPOT_A, hour + day + timedelta(minutes=59)) == Tally(2, 1, 2, 1.0), "some of that hour counts"
    assert found.lately(SPOT_A, hour + day + timedelta(minutes=60)) == Tally()
    assert found.lately(SPOT_A, hour + timedelta(hours=3), over_s=3600.0) == Tally()
    assert found.lately(ON_DEMAND, hour) == Tally()


def test_one_reclaim_at_once_is_bad_luck_and_many_are_not() -> None:
    unknown = market.reclaim_rate(Tally())
    at_once = market.reclaim_rate(Tally(reclaims=1, launches=1, machine_hours=1 / 6))
    assert unknown == 0.05 and at_once < 0.15, "and not six an hour"
    assert market.reclaim_rate(Tally(reclaims=20, launches=20, machine_hours=10)) > 1
    assert market.reclaim_rate(Tally(launches=4, machine_hours=100)) < unknown / 10
    assert market.cost_factor(SPOT_A, Tally()) > 1 and market.cost_factor(ON_DEMAND, Tally()) == 1


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.floats(0, 1e6), st.booleans())
def test_what_goes_wrong_makes_nothing_cheaper(reclaims: int, dry: int, served: int, hours: float, spot: bool) -> None:
    tally = Tally(reclaims, dry, reclaims + served, hours)
    offering = replace(SPOT_A, spot=spot)
    least = market.cost_factor(offering, tally)
    assert least >= 1.0
    assert market.cost_factor(offering, tally + Tally(reclaims=1, launches=1)) >= least - 0.05, "but for asking in vain"
    assert market.cost_factor(offering, tally + Tally(dry=1)) >= least


# ── Placement ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def job(found: MarketHistory, spec: Spec | None = None, offerings: tuple[Offering, ...] = OFFERINGS) -> JobSnapshot:
    return replace(make_snapshot(make_state(), spec=spec or make_spec(), offerings=Known(offerings)), market=found)


def choose(found: MarketHistory, offerings: tuple[Offering, ...] = OFFERINGS, spec: Spec | None = None) -> Placed:
    chosen = place(job(found, spec), offerings, DEFAULT, NOW)
    assert isinstance(chosen, Placed)
    return chosen


def test_a_zone_that_is_taken_back_less_comes_first_and_why_is_told() -> None:
    found = of(seen(SPOT_A, "reclaimed", 5, 30), seen(SPOT_B, "served", 2, 60))
    assert choose(found) == Placed(
        SPOT_B,
        "spot first; rather than m1 spot in a (5 reclaims in 2.5 machine-hours in 24 h; here: 0 reclaims in 2 "
        "machine-hours)",
    )
    old = of(seen(SPOT_A, "reclaimed", 5, 30, NOW - timedelta(days=2)))
    assert choose(NO_HISTORY) == choose(old) == Placed(SPOT_A, "spot first")


def test_a_zone_that_is_dry_less_often_comes_first_where_prices_are_the_same() -> None:
    same = replace(SPOT_B, price=SPOT_A.price)
    assert choose(of(seen(SPOT_A, "dry", 3)), (SPOT_A, same)).offering == same
    assert choose(of(seen(SPOT_A, "dry", 3)), (SPOT_A, replace(same, price=2.0))).offering == SPOT_A


def test_a_low_price_is_worth_some_reclaims() -> None:
    found = of(seen(SPOT_A, "reclaimed", 2, 600))
    assert choose(found, (SPOT_A, replace(SPOT_B, price=2.0))).offering == SPOT_A
    bad = of(seen(SPOT_A, "reclaimed", 50, 6))
    assert choose(bad, (SPOT_A, replace(SPOT_B, price=2.0))).offering.zone == "b"


def test_whoever_names_machines_gets_them_in_that_order() -> None:
    other = replace(SPOT_B, machine="m2", price=0.1)
    spec = make_spec()
    spec = replace(spec, resources=replace(spec.resources, machine=("m1", "m2")))
    assert choose(of(seen(SPOT_A, "reclaimed", 50)), (SPOT_A, other), spec).offering == SPOT_A


def test_spot_stays_before_on_demand_and_unknown_prices_last() -> None:
    unpriced = replace(SPOT_B, zone="c", price=None)
    found = of(seen(SPOT_A, "reclaimed", 500), seen(SPOT_B, "reclaimed", 500))
    order = market.by_expected_cost((SPOT_A, SPOT_B, unpriced, ON_DEMAND), found, NOW)
    assert order == [SPOT_A, SPOT_B, unpriced, ON_DEMAND]
    nameless = [replace(SPOT_A, zone=zone, price=None, on_demand_price=None) for zone in "xy"]
    assert market.by_expected_cost(nameless, of(seen(nameless[0], "reclaimed", 1)), NOW) == nameless[::-1]


@given(st.permutations(OFFERINGS), st.lists(st.sampled_from(OFFERINGS), max_size=6))
def test_nothing_is_lost_and_nothing_known_changes_nothing(given_: list[Offering], taken: list[Offering]) -> None:
    found = of(*(seen(offering, "reclaimed", 1) for offering in taken))
    assert sorted(market.by_expected_cost(given_, found, NOW), key=str) == sorted(given_, key=str)
    assert market.by_expected_cost(given_, NO_HISTORY, NOW) == given_
    strangers = of(seen(replace(SPOT_A, zone="far"), "reclaimed", 9))
    assert market.by_expected_cost(given_, strangers, NOW) == given_


# ── The rule ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def settings(*texts: str) -> GovernorSettings:
    text = "rules:\n" + "".join(f"- {{{each}}}\n" for each in texts)
    return replace(DEFAULT, policy=parse_policy(text.encode(), "p.yaml", version=1))


def decided(
    found: MarketHistory, by: GovernorSettings, spec: Spec | None = None, *events: Event
) -> tuple[list[Event], list[str], str]:
    snapshot = replace(job(found, spec), state=make_state(*events))
    plan = decide_job(snapshot, by, NOW)
    appends = [action for action in plan.actions if isinstance(action, Append)]
    return [each.event for each in appends], [each.reason for each in appends], plan.waiting.get("job-1", "")


RULE = "market: {most_reclaims: 5, over: 12h}"


def test_spot_that_is_taken_back_too_often_is_not_asked_for() -> None:
    both = [*seen(SPOT_A, "reclaimed", 6), *seen(SPOT_B, "reclaimed", 5, 600)]
    (event,), (reason,), _ = decided(of(both), settings(RULE))
    assert isinstance(event, Claimed) and event.offering == SPOT_B, "five are not more than five"
    assert reason.endswith("policy market: m1 spot in a was taken back 6 times in 12 h")
    (event,), (reason,), _ = decided(of(both, both), settings(RULE))
    assert isinstance(event, Claimed) and event.offering == ON_DEMAND
    assert "on-demand: no spot to be had; policy market: m1 spot in" in reason
    events, _, waiting = decided(of(both, both), settings(RULE), make_spec(spot="only"))
    assert events == [] and waiting.startswith("policy market: m1 spot in")


def test_who_wants_spot_alone_waits_and_looks_again() -> None:
    found = of(seen(SPOT_A, "reclaimed", 6))
    excluded = {SPOT_A.key: "because"}
    waits = place(job(found, make_spec(spot="only")), (SPOT_A, ON_DEMAND), DEFAULT, NOW, excluded=excluded)
    assert waits == NoCapacityNow(NOW + timedelta(minutes=10), "because")


def test_old_reclaims_and_those_of_on_demand_break_nothing() -> None:
    old = seen(SPOT_A, "reclaimed", 9, at_=NOW - timedelta(hours=14))
    assert (
        policy_rules.reclaimed_too_often(
            settings(RULE).policy, policy_rules.Subject(make_spec(), NOW.date()), OFFERINGS, of(old), NOW
        )
        == ()
    )
    (event,), _, _ = decided(of(seen(ON_DEMAND, "reclaimed", 9)), settings(RULE), make_spec(spot="never"))
    assert isinstance(event, Claimed)


@pytest.mark.parametrize("how", [", audit: true", ", then: warn"])
def test_what_is_only_told_is_told_once_and_changes_nothing(how: str) -> None:
    found = of(seen(SPOT_A, "reclaimed", 6, 60000), seen(SPOT_B, "dry", 1))
    (event,), _, _ = decided(found, settings(RULE + how))
    assert event == Warned(code="policy:market")
    (after,), _, _ = decided(found, settings(RULE + how), None, event)
    (plain,), _, _ = decided(found, DEFAULT)
    assert after == plain == Claimed(offering=SPOT_A, nodes=1)


def test_exemptions_and_scopes_hold() -> None:
    found = of(seen(SPOT_A, "reclaimed", 6, 60000), seen(SPOT_B, "reclaimed", 6, 60000))
    for whom in (", for: {team: other}", ", except: [{job: job-1, until: 2999-01-01, why: a demo}]"):
        (event,), _, _ = decided(found, settings(RULE + whom))
        assert isinstance(event, Claimed) and event.offering.spot


def test_an_unknown_market_breaks_no_rule() -> None:
    by = settings("market: {most_reclaims: 0}")
    assert decided(NO_HISTORY, by) == decided(NO_HISTORY, DEFAULT)


def test_nobody_looks_back_for_longer_than_a_week() -> None:
    assert parse_policy(b"rules:\n- market: {over: 7d}\n", "p.yaml").rules[0].name == "market"
    with pytest.raises(SpecError, match=r"rules\[0\]\.market\.over.*more than a week"):
        parse_policy(b"rules:\n- market: {over: 8d}\n", "p.yaml")


# ── `stoker offers` ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_offers_tell_what_was_seen_where_anything_was() -> None:
    header, rows = listing((SPOT_A, ON_DEMAND), tallies={SPOT_A.key: Tally(2, 3, 4, 1.0), ON_DEMAND.key: Tally()})
    assert header[-1] == "LAST 24 H"
    assert [row[-1] for row in rows] == ["2 of 4 reclaimed, 3 × none", "–"]
    assert "LAST 24 H" not in listing((SPOT_A,), tallies={SPOT_A.key: Tally()})[0]
