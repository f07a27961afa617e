"""Machines that belong to no attempt: which are ended, for which reason, and which are left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.core import unowned_machines
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT
from stoker.core.hold import hold_of
from stoker.core.snapshot import JobSnapshot, Snapshot, Terminate
from stoker.model.job_state import JobState
from stoker.model.log_entries import AttemptOutcome, Claimed, Closed, Ended, Launched, Outcome, ResumeAsked
from stoker.model.observed import Known
from stoker.model.offerings import Instance, InstanceState, Leftover
from stoker.model.spec import Retry
from tests.support.sim_data import (
    CAPABILITIES,
    SPOT_A,
    at,
    make_instance,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

YOUNG_S = CAPABILITIES.newborn_s
NOW_S = 10_000.0
CLAIMED = Claimed(SPOT_A, 1)
RUNNING = (CLAIMED, Launched(2, nodes(2)))
FAILED = Closed(2, "failed", "user-error", exit_code=1)
ASKED_OR_TAKEN: tuple[AttemptOutcome, ...] = ("reclaimed", "lost", "stopped", "limit", "abandoned")
ENDED = Ended("failed", "user-error", 2, closing=FAILED)


def looked_at(state: JobState, *machines: Instance) -> JobSnapshot:
    return make_snapshot(state, instances=Known(machines))


def ended(job: JobSnapshot, now_s: float = NOW_S) -> list[tuple[str, str, bool]]:
    return [(each.instance, each.reason, each.orphan) for each in unowned_machines.find_unowned(job, at(now_s))]


@pytest.mark.parametrize(
    ("state", "machine", "reason", "orphan"),
    [
        (make_state(*RUNNING), make_instance(2), None, False),
        (make_state(CLAIMED), make_instance(2), None, False),
        (
            make_state(*RUNNING),
            replace(make_instance(2), id="twin"),
            "the log names other machines for its claim",
            False,
        ),
        (make_state(*RUNNING), make_instance(9), "its claim is not in the log", True),
        (make_state(*RUNNING, ENDED), make_instance(2), "the job has ended", False),
        (make_state(*RUNNING, FAILED), make_instance(2), "its claim is closed: entry 4", False),
    ],
)
def test_a_machine_is_ended_unless_its_claim_keeps_it(
    state: JobState, machine: Instance, reason: str | None, orphan: bool
) -> None:
    found = ended(looked_at(state, machine))
    if reason is None:
        assert found == []
    else:
        ((name, why, is_orphan),) = found
        assert (name, is_orphan) == (machine.id, orphan)
        assert why.split(":")[0] == reason.split(":")[0]


@pytest.mark.parametrize("state", ["pending", "running", "off", "stopping", "gone", "unheard-of"])
def test_only_what_is_there_to_stay_is_ended(state: InstanceState) -> None:
    alive = state in ("pending", "running", "off")
    machine = make_instance(9, state=state)
    assert bool(ended(looked_at(make_state(*RUNNING), machine))) is alive
    snapshot = Snapshot(strays=(machine,), newborn_s={"sim": YOUNG_S})
    assert bool(unowned_machines.find_strays(snapshot, at(NOW_S))) is alive
    assert bool(unowned_machines.newborn_strays(snapshot, at(1))) is alive


@pytest.mark.parametrize(("age_s", "young"), [(YOUNG_S - 1, True), (YOUNG_S, False), (YOUNG_S + 1, False)])
def test_what_was_just_made_may_have_a_claim_that_cannot_be_read_yet(age_s: float, young: bool) -> None:
    machine = make_instance(9, created_s=NOW_S - age_s)
    job = looked_at(make_state(*RUNNING), machine)
    assert bool(ended(job)) is not young
    assert unowned_machines.newborn_strays(Snapshot(jobs=(job,)), at(NOW_S)) == ([machine] if young else [])
    snapshot = Snapshot(strays=(machine,), newborn_s={"sim": YOUNG_S})
    assert bool(unowned_machines.find_strays(snapshot, at(NOW_S))) is not young
    assert unowned_machines.newborn_strays(snapshot, at(NOW_S)) == ([machine] if young else [])
    thing = Leftover("disk", "d-1", "sim", "job-1", 9, None, at(NOW_S - age_s))
    assert (unowned_machines.why_unowned(thing, None, YOUNG_S, at(NOW_S)) is None) is young


def test_a_machine_of_a_cloud_whose_lists_are_late_by_an_unknown_time_is_never_old_enough() -> None:
    snapshot = Snapshot(strays=(make_instance(9),), newborn_s={"other": 1.0})
    assert unowned_machines.find_strays(snapshot, at(1e9)) == []
    assert unowned_machines.newborn_strays(snapshot, at(1e9)) == [make_instance(9)]


def test_machines_are_ended_in_order_where_they_are() -> None:
    machines = [replace(make_instance(9), id=name, region="r1") for name in ("c", "a", "b")]
    swept = unowned_machines.find_unowned(looked_at(make_state(*RUNNING), *machines), at(NOW_S))
    stray = unowned_machines.find_strays(Snapshot(strays=tuple(machines), newborn_s={"sim": 1.0}), at(NOW_S))
    for found in (swept, stray):
        assert [(each.instance, each.provider, each.region) for each in found] == [
            ("a", "sim", "r1"),
            ("b", "sim", "r1"),
            ("c", "sim", "r1"),
        ]
    assert {(each.reason, each.orphan) for each in stray} == {("its job is not in the store", True)}


def test_machines_with_a_claim_are_none_that_is_too_young() -> None:
    job = looked_at(make_state(*RUNNING), make_instance(2, created_s=NOW_S))
    assert unowned_machines.newborn_strays(Snapshot(jobs=(job,)), at(NOW_S)) == []


def test_a_machine_that_is_held_for_a_look_is_ended_when_its_time_is_over_or_it_is_gone() -> None:
    held = replace(make_spec(), retry=Retry(hold_on_failure_s=600.0))
    state = make_state(*RUNNING, (ENDED, 1000.0))
    job = replace(looked_at(state, make_instance(2)), spec=held)
    hold = hold_of(state, held)
    assert hold is not None
    over_s = (hold.ends_at - at(0)).total_seconds()
    assert over_s >= 1600.0 and ended(job, over_s - 1) == []
    assert ended(job, over_s) == [("i-2-0", "the job has ended", False)]
    gone = replace(job, states=Known({"i-2-0": "gone"}))
    assert ended(gone, 1000.0 + 1.0) == [("i-2-0", "the job has ended", False)]
    again = replace(job, state=make_state(*RUNNING, (ENDED, 1000.0), ResumeAsked("jane")))
    assert [why.split(":")[0] for _, why, _ in ended(again, 2000.0)] == ["its claim is closed"]


SELF_END_S = 60.0
SUCCEEDED = Closed(2, "succeeded", "finished", exited=(0,))


def closed_at(closed: Closed, closed_s: float, machine: Instance, *, in_end: bool) -> JobSnapshot:
    """A claim that was closed, by an entry of its own or together with the job, where machines may end themselves."""
    outcome: Outcome = "succeeded" if closed.outcome == "succeeded" else "failed"
    end = Ended(outcome, closed.rule, 2, closing=closed) if in_end else closed
    job = looked_at(make_state(*RUNNING, (end, closed_s)), machine)
    return replace(job, capabilities=replace(CAPABILITIES, self_end_s=SELF_END_S))


@pytest.mark.parametrize("in_end", [True, False])
@pytest.mark.parametrize("outcome", ["succeeded", "failed", "infrastructure"])
def test_a_machine_that_wrote_its_exit_has_a_bounded_time_to_end_by_itself(
    outcome: AttemptOutcome, in_end: bool
) -> None:
    closed = replace(SUCCEEDED, outcome=outcome, restart=not in_end)
    job = closed_at(closed, 1000.0, make_instance(2), in_end=in_end)
    for now_s in (1000.0, 1000.0 + SELF_END_S - 1):
        assert ended(job, now_s) == []
        plan = decide_job(job, DEFAULT, at(now_s))
        assert plan.wake_at == at(1000.0 + SELF_END_S) and not any(isinstance(a, Terminate) for a in plan.actions)
    assert [name for name, _, _ in ended(job, 1000.0 + SELF_END_S)] == ["i-2-0"]
    assert unowned_machines.ends_itself_until(job, at(1000.0 + SELF_END_S)) is None
    # The provider says whether that makes a difference.
    at_once = replace(job, capabilities=CAPABILITIES)
    assert [name for name, _, _ in ended(at_once, 1000.0)] == ["i-2-0"]


@pytest.mark.parametrize(
    ("closed", "machine"),
    [
        # It wrote no exit: nothing says that it is about to end.
        (replace(SUCCEEDED, exited=()), make_instance(2)),
        (replace(SUCCEEDED, exited=(1,)), make_instance(2)),
        # It was reclaimed, and its cloud may start it again; or it was asked to leave.
        *((replace(SUCCEEDED, outcome=outcome, rule="x"), make_instance(2)) for outcome in ASKED_OR_TAKEN),
        # It is off, and may cost something as long as it is there.
        (SUCCEEDED, make_instance(2, state="off")),
        # The log does not name it.
        (SUCCEEDED, replace(make_instance(2), id="twin")),
    ],
)
def test_all_other_machines_of_a_closed_claim_are_terminated_at_once(closed: Closed, machine: Instance) -> None:
    for in_end in (True, False):
        job = closed_at(closed, 1000.0, machine, in_end=in_end)
        assert [name for name, _, _ in ended(job, 1000.0)] == [machine.id]


def test_a_claim_that_the_end_of_its_job_closed_gets_no_time() -> None:
    """It wrote no exit, or the log would say so."""
    state = make_state(
        *RUNNING, CLAIMED, Launched(4, nodes(4)), (Ended("succeeded", "finished", 2, closing=SUCCEEDED), 1000.0)
    )
    job = replace(
        looked_at(state, make_instance(2), make_instance(4)), capabilities=replace(CAPABILITIES, self_end_s=SELF_END_S)
    )
    assert [name for name, _, _ in ended(job, 1000.0)] == ["i-4-0"]


def test_things_beside_a_machine_are_left_over_by_their_claim_or_their_age() -> None:
    thing = Leftover("disk", "d-1", "sim", "job-1", 2, None, None)
    assert unowned_machines.why_unowned(thing, make_state(*RUNNING), 60.0, at(NOW_S)) is None
    closed = unowned_machines.why_unowned(thing, make_state(*RUNNING, FAILED), 60.0, at(NOW_S))
    assert closed is not None and closed.startswith("its claim is closed: ")
    assert unowned_machines.why_unowned(thing, None, 60.0, at(NOW_S)) == "its job is not in the store"
    assert unowned_machines.why_unowned(thing, make_state(), 60.0, at(NOW_S)) == "its claim is not in the log"
    assert unowned_machines.is_orphan(thing, None) and unowned_machines.is_orphan(thing, make_state())
    assert not unowned_machines.is_orphan(thing, make_state(*RUNNING, FAILED))
