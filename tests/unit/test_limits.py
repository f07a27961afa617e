"""The bounds of a job at their edge: training time and money, and when the next look is due."""

from __future__ import annotations

import pytest

from stoker.core.limits import NotReached, Reached, check_limits, trained_s
from stoker.core.policy_rules import Subject, effective_limits
from stoker.core.snapshot import JobSnapshot
from stoker.model.log_entries import Claimed, Closed, Event, Launched
from stoker.model.policy import NO_RULES
from stoker.model.spec import Limits
from tests.support.sim_data import SPOT_A, at, make_beat, make_facts, make_snapshot, make_spec, make_state, nodes

# Claimed at 10, launched at 20.
RUNNING: tuple[Event, ...] = (Claimed(SPOT_A, 1), Launched(2, nodes(2)))
GANG: tuple[Event, ...] = (Claimed(SPOT_A, 2), Launched(2, nodes(2, 2)))
CLOSED = Closed(2, "reclaimed", "notice", restart=True, trained_s=40.0)


def limited(job: JobSnapshot, now_s: float, save_s: float = 0.0) -> Reached | NotReached:
    return check_limits(
        job, effective_limits(NO_RULES, Subject(job.spec, at(now_s).date(), job.state.job)), at(now_s), save_s
    )


@pytest.mark.parametrize(("phase", "since_s"), [("training", 10.0), ("saving", 10.0), ("setup", 0.0), ("waiting", 0.0)])
def test_time_goes_on_after_a_heartbeat_only_while_it_trains(phase: str, since_s: float) -> None:
    job = make_snapshot(make_state(*RUNNING), make_facts(2, beat=make_beat(90, phase, trained_s=7.0)))
    assert trained_s(job, at(100)) == 7.0 + since_s


def test_a_heartbeat_of_the_future_takes_nothing_away() -> None:
    job = make_snapshot(make_state(*RUNNING), make_facts(2, beat=make_beat(110, trained_s=7.0)))
    assert trained_s(job, at(100)) == 7.0


def test_of_a_gang_the_longest_counts_and_silent_ranks_count_nothing() -> None:
    job = make_snapshot(
        make_state(*GANG),
        make_facts(2, 0, beat=make_beat(100, trained_s=5.0)),
        make_facts(2, 1, beat=make_beat(100, trained_s=9.0)),
    )
    assert trained_s(job, at(100)) == 9.0
    assert trained_s(make_snapshot(make_state(*GANG), make_facts(2, 0), make_facts(2, 1)), at(100)) == 0.0


def test_closed_attempts_count_with_what_they_reported() -> None:
    job = make_snapshot(make_state(*RUNNING, CLOSED))
    assert trained_s(job, at(1000)) == 40.0
    again = make_snapshot(
        make_state(*RUNNING, CLOSED, Claimed(SPOT_A, 1), Launched(5, nodes(5))),
        make_facts(5, beat=make_beat(100, trained_s=2.0)),
    )
    assert trained_s(again, at(100)) == 42.0


@pytest.mark.parametrize(("most_s", "left_s"), [(50.0, 10.0), (41.0, 1.0), (40.0, None), (39.0, None)])
def test_training_time_is_reached_at_its_bound(most_s: float, left_s: float | None) -> None:
    job = make_snapshot(
        make_state(*RUNNING),
        make_facts(2, beat=make_beat(100, trained_s=40.0)),
        spec=make_spec(limits=Limits(max_runtime_s=most_s)),
    )
    found = limited(job, 100)
    assert (
        found == NotReached(left_s)
        if left_s is not None
        else isinstance(found, Reached) and found.rule == "max_runtime"
    )


def test_without_machines_no_look_is_due_for_training_time() -> None:
    job = make_snapshot(make_state(*RUNNING, CLOSED), spec=make_spec(limits=Limits(max_runtime_s=50.0)))
    assert limited(job, 100) == NotReached(None)


# One dollar an hour since 20.
@pytest.mark.parametrize(
    ("now_s", "save_s", "most", "found"),
    [
        (1820.0, 0.0, 1.0, NotReached(1800.0)),
        (3619.0, 0.0, 1.0, NotReached(1.0)),
        (3620.0, 0.0, 1.0, None),
        (1820.0, 600.0, 1.0, NotReached(1200.0)),
        (3020.0, 600.0, 1.0, None),
        (20.0, 7200.0, 1.0, NotReached(-3600.0)),
    ],
)
def test_money_is_reached_with_what_saving_will_burn(
    now_s: float, save_s: float, most: float, found: NotReached | None
) -> None:
    job = make_snapshot(make_state(*RUNNING), spec=make_spec(limits=Limits(max_cost=most)))
    told = limited(job, now_s, save_s)
    if found is not None:
        assert isinstance(told, NotReached) and told.next_s == pytest.approx(found.next_s)
        return
    assert isinstance(told, Reached) and told.rule == "max_cost"
    assert ("set aside for saving" in told.reason) is (save_s > 0)


def test_no_money_at_all_is_reached_at_once() -> None:
    job = make_snapshot(make_state(), spec=make_spec(limits=Limits(max_cost=0.0)))
    assert isinstance(limited(job, 0), Reached)
    unbounded = make_snapshot(make_state(*RUNNING))
    assert limited(unbounded, 1e6) == NotReached(None)


def test_the_sooner_bound_is_looked_at_first() -> None:
    both = make_spec(limits=Limits(max_runtime_s=100.0, max_cost=1.0))
    job = make_snapshot(make_state(*RUNNING), make_facts(2, beat=make_beat(100, trained_s=40.0)), spec=both)
    assert limited(job, 100) == NotReached(60.0)
