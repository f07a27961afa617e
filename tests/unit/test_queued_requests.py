"""A request in the cloud's queue: its wait counts towards `max_wait`, and zones take turns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT
from stoker.core.snapshot import Append, Launch
from stoker.model.log_entries import Claimed, Closed, Ended, Event
from stoker.model.observed import Known
from stoker.model.offerings import Offering
from stoker.model.spec import Limits
from tests.support.sim_data import at, make_snapshot, make_spec, make_state

A = Offering("sim", "m1", "a", spot=False, price=2.0, queued=True)
B, C = replace(A, zone="b"), replace(A, zone="c")
WAITS = replace(make_spec(), limits=Limits(max_wait_s=600.0))


def act(*log: Event | tuple[Event, float], now_s: float, offerings: tuple[Offering, ...] = (A,)) -> list[object]:
    job = make_snapshot(make_state(*log), spec=WAITS, offerings=Known(offerings))
    plan = decide_job(job, DEFAULT, at(now_s))
    return [action.event if isinstance(action, Append) else type(action) for action in plan.actions]


def test_the_queue_is_waited_in_until_max_wait() -> None:
    assert act((Claimed(A, 1), 10), now_s=599) == [Launch]
    (closed,) = act((Claimed(A, 1), 10), now_s=600)
    assert isinstance(closed, Closed)
    assert (closed.outcome, closed.rule, closed.restart) == ("abandoned", "max_wait", True)
    # Nothing is launched after that: the wait is over.
    (ended,) = act((Claimed(A, 1), 10), (closed, 600), now_s=601)
    assert isinstance(ended, Ended) and ended.rule == "max_wait"


def test_a_governor_looks_again_when_the_wait_is_over() -> None:
    job = make_snapshot(make_state((Claimed(A, 1), 10)), spec=WAITS, offerings=Known((A,)))
    assert decide_job(job, DEFAULT, at(100)).wake_at == at(600)


def test_a_request_that_may_be_on_its_way_is_not_given_up() -> None:
    """Another governor may be sending it: what comes after a close is ended by that one."""
    assert act((Claimed(A, 1), 590), now_s=601) == [Launch]
    assert act((Claimed(A, 1), 590), now_s=590 + DEFAULT.unfinished_s - 1) == [Launch]
    assert isinstance(act((Claimed(A, 1), 590), now_s=590 + DEFAULT.unfinished_s)[0], Closed)


def test_a_launch_that_is_not_queued_is_finished_whatever_the_wait() -> None:
    assert act((Claimed(replace(A, queued=False), 1), 10), now_s=700) == [Launch]


@pytest.mark.parametrize("zones", [(A, B), (A, B, C)])
def test_zones_take_turns(zones: tuple[Offering, ...]) -> None:
    """Each is given up long after the pause of the one before is over: without turns the third would never be tried."""
    log: list[tuple[Event, float]] = []
    tried = []
    for turn in range(2 * len(zones)):
        now_s = 10.0 + turn * 60
        (claimed, launch) = act(*log, now_s=now_s, offerings=zones)
        assert isinstance(claimed, Claimed) and launch is Launch
        tried.append(claimed.offering)
        seq = 2 + len(log)
        log += [(claimed, now_s), (Closed(seq, "dry", "no-capacity", restart=True), now_s + 50)]
    assert tried == [*zones, *zones]
