"""A reservation has machines for a time: no attempt begins outside it, and each gets notice before its end."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from stoker.agent.node import utcnow
from stoker.agent.notices import KnownEnd, clock_of
from stoker.core import reserved_time
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT
from stoker.core.placement import NoCapacityNow, NoOffering, Placed, place
from stoker.core.policy_rules import EffectiveLimits
from stoker.core.snapshot import Append, Launch
from stoker.model import codec
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched
from stoker.model.node_facts import Heartbeat
from stoker.model.observed import Known
from stoker.model.offerings import Offering, Reservation
from stoker.model.spec import Checkpoints, Limits, Spec
from stoker.store.base import Meta, Object
from stoker.submit.reservation_lines import reservation_lines
from tests.support.sim_data import (
    ON_DEMAND,
    SPOT_A,
    at,
    hard_notice,
    make_facts,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

END_S = 10_000.0
BLOCK = replace(ON_DEMAND, reservation=Reservation("cr-1", None, at(END_S + 1800), at(END_S)))
# Two minutes of notice, and ten in which a machine boots and trains.
LAST_S = END_S - 720
NEVER_SPOT = make_spec(spot="never")


def choose(offering: Offering, now_s: float, *more: Offering, spec: Spec = NEVER_SPOT) -> object:
    return place(make_snapshot(make_state(), spec=spec), (offering, *more), DEFAULT, at(now_s))


@pytest.mark.parametrize(("grace_s", "notice_s"), [(0.0, 120.0), (60.0, 120.0), (300.0, 330.0), (7200.0, 600.0)])
def test_the_notice_is_long_enough_to_save(grace_s: float, notice_s: float) -> None:
    spec = replace(make_spec(), checkpoints=Checkpoints(grace_s=grace_s))
    assert reserved_time.notice_s(spec) == notice_s


def test_no_attempt_begins_shortly_before_the_end() -> None:
    assert choose(BLOCK, LAST_S - 1) == Placed(BLOCK, "on-demand")
    late = choose(BLOCK, LAST_S)
    assert late == NoOffering(
        "cr-1 ends its machines at 2026-01-01 02:46 UTC: an attempt needs at least 12 min, its notice included",
        over=True,
    )
    ended = NoOffering("cr-1 has ended its machines since 2026-01-01 02:46 UTC", over=True)
    # Spot machines are on offer too, and not for this job.
    assert choose(BLOCK, END_S) == ended == choose(BLOCK, END_S, SPOT_A)
    # Another reservation of a group, or spot, may still serve.
    other = replace(BLOCK, zone="b", reservation=Reservation("cr-2", None, at(9e5), at(9e5)))
    assert choose(BLOCK, END_S, other) == Placed(other, "on-demand")
    assert choose(BLOCK, END_S, SPOT_A, spec=make_spec()) == Placed(SPOT_A, "spot first")


def test_beside_a_reservation_that_is_over_an_unknown_price_is_waited_for() -> None:
    """Spot would serve the job as soon as its price is known."""
    spec = make_spec(spot="prefer", limits=Limits(max_cost=10.0))
    found = choose(BLOCK, END_S, replace(SPOT_A, price=None, on_demand_price=None), spec=spec)
    assert isinstance(found, NoOffering) and found.unpriced and not found.over


def test_a_reservation_whose_machines_go_on_serves_until_its_end() -> None:
    limited = replace(ON_DEMAND, reservation=Reservation("cr-1", None, at(END_S)))
    assert choose(limited, END_S - 1) == Placed(limited, "on-demand")
    assert choose(limited, END_S) == NoOffering("cr-1 ended at 2026-01-01 02:46 UTC", over=True)


def test_a_reservation_that_has_not_started_is_waited_for() -> None:
    later = replace(ON_DEMAND, reservation=Reservation("cr-1", at(5000), at(9e5), at(9e5)))
    assert choose(later, 100) == NoCapacityNow(at(5000), "cr-1 starts at 2026-01-01 01:23 UTC")
    assert choose(later, 5000) == Placed(later, "on-demand")
    assert choose(later, 100, SPOT_A, spec=make_spec()) == Placed(SPOT_A, "spot first")


RUNNING: tuple[tuple[Event, float], ...] = (
    (Claimed(offering=BLOCK, nodes=1), END_S - 130),
    (Launched(2, nodes(2)), END_S - 125),
)


def entry(
    now_s: float, *events: Event | tuple[Event, float], offerings: tuple[Offering, ...] = (BLOCK,), gone: str = ""
) -> object:
    """The next entry of the log, or None where the job waits; `gone`: why no offering will ever serve."""
    notice = make_facts(2, notice=hard_notice(END_S - 120))
    job = make_snapshot(make_state(*events), notice, spec=NEVER_SPOT, offerings=Known(offerings))
    plan = decide_job(replace(job, no_offerings=gone), DEFAULT, at(now_s))
    appended = next((each for each in plan.actions if isinstance(each, (Append, Launch))), None)
    return appended if isinstance(appended, Append) else plan.waiting.get("job-1")


def test_at_the_end_of_its_reservation_the_job_ends_with_what_to_do() -> None:
    # While the noticed attempt saves, none is claimed beside it.
    assert entry(END_S - 100, *RUNNING) == (
        "cr-1 ends its machines at 2026-01-01 02:46 UTC: an attempt needs at least 12 min, its notice included"
    )
    closed = Closed(2, "reclaimed", "notice", restart=True)
    ended = entry(END_S, *RUNNING, closed)
    assert isinstance(ended, Append) and isinstance(ended.event, Ended)
    assert (ended.event.outcome, ended.event.rule, ended.event.claim) == ("failed", "no-offering", 2)
    assert ended.reason == (
        "cr-1 has ended its machines since 2026-01-01 02:46 UTC; `stoker clone job-1 --set resume_from=job-1` and a "
        "`--set` for other resources goes on elsewhere"
    )
    # EC2 forgets a reservation after a while; then only the provider can say what became of it.
    forgotten = entry(9e5, *RUNNING, closed, offerings=(), gone="resources.ec2.reservation: cr-1 is expired")
    assert isinstance(forgotten, Append)
    assert forgotten.reason.startswith("resources.ec2.reservation: cr-1 is expired; `stoker clone job-1 --set")


def test_a_job_that_never_ran_ends_without_advice_about_its_checkpoints() -> None:
    ended = entry(END_S)
    assert isinstance(ended, Append) and isinstance(ended.event, Ended)
    assert ended.reason == "cr-1 has ended its machines since 2026-01-01 02:46 UTC"


def test_the_claim_keeps_the_end_for_the_agent() -> None:
    claimed = Claimed(offering=BLOCK, nodes=1)
    assert codec.loads(Claimed, codec.dumps(claimed)) == claimed


# ── The notice ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_end_known_beforehand_asks_for_a_save_and_then_for_the_end() -> None:
    known = KnownEnd(at(END_S), 120.0, "ec2: the end of cr-1")
    assert known.notice(at(END_S - 601)) is None
    hint = known.notice(at(END_S - 600))
    assert hint is not None and (hint.hard, hint.source) == (False, "ec2: the end of cr-1")
    assert known.notice(at(END_S - 121)) is hint
    hard = known.notice(at(END_S - 115))
    assert hard is not None and (hard.hard, hard.grace_s, hard.at) == (True, 115.0, at(END_S - 115))
    assert known.notice(at(END_S - 1)) is hard and known.notice(at(END_S + 60)) is hard
    # A machine that comes after the end has no time left.
    late = KnownEnd(at(END_S), 120.0, "ec2: the end of cr-1").notice(at(END_S + 60))
    assert late is not None and (late.hard, late.grace_s) == (True, 0.0)


# ── The plan ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def lines(
    reservation: Reservation | None, limits: Limits, *more: Offering, now_s: float = 0.0, nodes: int = 1
) -> tuple[str, ...]:
    spec = make_spec(spot="never", limits=limits, nodes=nodes)
    offerings = (replace(ON_DEMAND, reservation=reservation), *more)
    return reservation_lines(EffectiveLimits(spec, {}), offerings, at(now_s))


def test_the_plan_tells_the_time_of_the_reservation() -> None:
    hour, day = Limits(max_runtime_s=3600.0), Limits(max_runtime_s=86400.0)
    block = BLOCK.reservation
    assert block is not None
    ends = "cr-1 ends its machines at 2026-01-01 02:46 UTC; the training is asked to save and end 2 min before"
    assert lines(block, hour) == (ends,)
    assert lines(block, day) == (f"{ends}, sooner than limits.max_runtime (24 h)",)
    assert lines(block, hour, now_s=END_S - 1800) == (f"{ends}, sooner than limits.max_runtime (1 h)",)
    waits = replace(block, starts_at=at(END_S - 1800))
    assert lines(waits, hour) == (
        "cr-1 starts at 2026-01-01 02:16 UTC; the job waits until then",
        f"{ends}, sooner than limits.max_runtime (1 h)",
    )
    limited = Reservation("cr-1", ends_at=at(END_S))
    (line,) = lines(limited, day)
    assert line == (
        "cr-1 ends at 2026-01-01 02:46 UTC; its machines go on after that, at the on-demand price, and no other "
        "attempt can begin in it"
    )
    assert lines(Reservation("cr-1"), day) == () == lines(None, day)
    assert lines(limited, day, SPOT_A)[0] == (
        "spot machines do not use cr-1; without `spot` the job waits for it alone"
    )


def test_the_plan_tells_what_a_job_waits_for_in_vain() -> None:
    later = Reservation("cr-1", starts_at=at(END_S))
    starts = "cr-1 starts at 2026-01-01 02:46 UTC"
    assert lines(later, Limits(max_wait_s=END_S + 1)) == (f"{starts}; the job waits until then",)
    (vain,) = lines(later, Limits(max_wait_s=3600.0))
    assert vain == f"{starts}, and limits.max_wait (1 h) ends the job before; raise it"
    # Spot machines may come sooner.
    assert lines(later, Limits(max_wait_s=3600.0), SPOT_A)[1] == f"{starts}; the job waits until then"
    small = Reservation("cr-1", machines=2)
    assert lines(small, Limits(), nodes=2) == ()
    assert lines(small, Limits(), nodes=4) == ("cr-1 has 2 of the 4 machines that the job needs",)


@pytest.mark.parametrize("off_s", [-7200.0, 0.0, 7200.0])
def test_the_end_comes_by_the_stores_clock_whatever_the_machines_is(off_s: float) -> None:
    """A clock that is two hours fast would end a training two hours early; a slow one would give no notice at all."""
    stores_now = utcnow() - timedelta(seconds=off_s)
    # It was written five seconds ago.
    heartbeat = Heartbeat(beat=1, phase="booting", at=utcnow() - timedelta(seconds=5), interval_s=10.0)
    meta = Meta("heartbeat", 1, stores_now - timedelta(seconds=5), "etag")
    clock = clock_of(Object(codec.dumps(heartbeat), meta))
    known = KnownEnd(stores_now + timedelta(seconds=300), 120.0, "ec2: the end of cr-1")
    found = known.notice(clock())
    assert found is not None and not found.hard
    assert known.notice(clock() + timedelta(seconds=190)).hard  # type: ignore[union-attr]


def test_without_a_heartbeat_the_machines_own_clock_counts() -> None:
    assert clock_of(None) is utcnow
