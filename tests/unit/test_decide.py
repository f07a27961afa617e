"""One decision after another, each in the smallest job that calls for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.core import unowned_machines
from stoker.core.decide import decide, decide_job
from stoker.core.governor_settings import DEFAULT
from stoker.core.snapshot import Append, JobSnapshot, Launch, Snapshot, Terminate, Unmark
from stoker.model.log_entries import Claimed, Closed, Draining, Ended, Event, Launched, StopAsked, Suspected, Warned
from stoker.model.node_facts import Exit
from stoker.model.observed import Known, Unknown
from stoker.model.offerings import Instance, Leftover, Offering
from stoker.model.spec import Limits
from tests.support.sim_data import (
    CAPABILITIES,
    SPOT_A,
    SPOT_B,
    at,
    hard_notice,
    make_beat,
    make_exit,
    make_facts,
    make_instance,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

CLAIM = Claimed(offering=SPOT_A, nodes=1)
PAIR = Claimed(offering=SPOT_A, nodes=2)
RUNNING = (CLAIM, Launched(2, nodes(2)))
GANG = (PAIR, Launched(2, nodes(2, 2)))
SAVED = make_exit("interrupted", "notice", checkpoint=None, step=4)


def act(job: JobSnapshot, now_s: float = 100.0, *, silence_inconclusive: bool = False) -> list[object]:
    """What is done: events for appends, instance names for terminations."""
    found: list[object] = []
    for action in decide_job(job, DEFAULT, at(now_s), silence_inconclusive=silence_inconclusive).actions:
        match action:
            case Append(event=event):
                found.append(event)
            case Terminate(instance=instance):
                found.append(instance)
            case _:
                found.append(type(action))
    return found


def entry(job: JobSnapshot, now_s: float = 100.0) -> Event | None:
    plan = decide_job(job, DEFAULT, at(now_s))
    return next((action.event for action in plan.actions if isinstance(action, Append)), None)


# ── Claims ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_job_is_claimed_and_launched() -> None:
    plan = decide_job(make_snapshot(make_state()), DEFAULT, at(0))
    assert plan.actions == (
        Append("job-1", 2, Claimed(SPOT_A, 1), "first attempt; spot first"),
        Launch("job-1", 2, "first attempt"),
    )


@pytest.mark.parametrize(
    ("spot", "price", "reason"),
    [
        (False, 0.0, "first attempt"),
        (False, 3.0, "first attempt; on-demand"),
        (False, None, "first attempt; on-demand"),
        (True, 0.0, "first attempt; spot first"),
    ],
)
def test_the_kind_of_a_machine_is_named_unless_it_is_free_and_the_only_one(
    spot: bool, price: float | None, reason: str
) -> None:
    offering = Offering("sim", "m1", "a", spot=spot, price=price)
    spec = make_spec(spot="prefer" if spot else "never")
    plan = decide_job(make_snapshot(make_state(), spec=spec, offerings=Known((offering,))), DEFAULT, at(0))
    assert [action.reason for action in plan.actions if isinstance(action, Append)] == [reason]


def test_anyone_finishes_a_claim_while_its_token_lives_and_closes_it_after() -> None:
    job = make_snapshot(make_state((CLAIM, 10)))
    assert act(job, 10 + CAPABILITIES.token_lifetime_s - 1) == [Launch]
    late = entry(job, 10 + CAPABILITIES.token_lifetime_s)
    assert isinstance(late, Closed) and late.rule == "token-expired"


def test_unknown_or_unasked_offerings_claim_nothing() -> None:
    assert act(make_snapshot(make_state(), offerings=Unknown("throttled"))) == []
    assert act(make_snapshot(make_state(), offerings=None)) == []


def test_nothing_that_fits_ends_the_job_and_a_drought_does_not() -> None:
    none = entry(make_snapshot(make_state(), offerings=Known(())))
    assert isinstance(none, Ended) and none.rule == "no-offering"
    dry = make_snapshot(make_state(CLAIM, (Closed(2, "dry", "x"), 99)), offerings=Known((SPOT_A,)))
    plan = decide_job(dry, DEFAULT, at(100))
    assert plan.actions == () and plan.wake_at == at(101)


def test_a_notice_claims_the_successor_at_once() -> None:
    job = make_snapshot(make_state(*RUNNING), make_facts(2, beat=make_beat(90), notice=hard_notice(95)))
    claimed = entry(job)
    assert isinstance(claimed, Claimed) and claimed.successor_of == 2


def test_what_may_have_finished_inside_its_grace_gets_no_successor() -> None:
    facts = make_facts(2, beat=make_beat(90), notice=hard_notice(95))
    assert act(make_snapshot(make_state(*RUNNING), replace(facts, exit=Unknown("no answer")))) == []


# ── Closing and ending ────────────────────────────────────────────────────────────────────────────────────────────────


def test_success_ends_the_job_and_closes_its_claim_in_one_entry() -> None:
    ended = entry(make_snapshot(make_state(*RUNNING), make_facts(2, left=make_exit("succeeded", code=0))))
    assert isinstance(ended, Ended)
    assert (ended.outcome, ended.claim, ended.exit_code) == ("succeeded", 2, 0)
    assert ended.closing is not None and ended.closing.outcome == "succeeded"


def test_absence_and_stopping_are_not_gone() -> None:
    for state in ({}, {"i-2-0": "stopping"}, Unknown("no answer")):
        job = make_snapshot(make_state(*RUNNING), make_facts(2, beat=make_beat(90)), states=state)  # type: ignore[arg-type]
        assert act(job) == []
    gone = entry(make_snapshot(make_state(*RUNNING), make_facts(2, beat=make_beat(90)), states={"i-2-0": "gone"}))
    assert isinstance(gone, Closed) and gone.outcome == "lost"


def test_a_machine_that_is_off_trains_no_more_and_has_to_be_given_back() -> None:
    """An agent never trains on a machine that had one before."""
    listed = Known((Instance("i-2-0", "sim", "job-1", 2, 0, "off", at(0)),))
    told = make_facts(2, beat=make_beat(90))
    over = entry(make_snapshot(make_state(*RUNNING), told, states={"i-2-0": "off"}, instances=listed))
    assert isinstance(over, Closed) and (over.outcome, over.restart) == ("lost", True)
    ended = make_state(*RUNNING, Closed(2, "stopped", "stop"), Ended("stopped", "stop"))
    assert act(make_snapshot(ended, told, states={"i-2-0": "off"}, instances=listed), 5000) == ["i-2-0"]


def test_an_older_attempt_that_may_still_save_is_not_cut_by_a_verdict_on_its_successor() -> None:
    """The successor is lost at boot for the fifth time in a row: that would end the job, were it alone."""
    lost: list[Event] = []
    for n in range(4):
        lost += [CLAIM, Launched(2 + 3 * n, nodes(2 + 3 * n)), Closed(2 + 3 * n, "lost", "boot")]
    saving = [CLAIM, Launched(14, nodes(14)), CLAIM, Launched(16, nodes(16))]
    older = make_facts(14, beat=make_beat(175, "saving"), notice=hard_notice(90))
    job = make_snapshot(make_state(*lost, *saving), older, states={"i-16-0": "gone", "i-14-0": "running"})
    assert act(job, 180) == []


def test_exits_that_let_the_successor_start_no_longer_end_the_job() -> None:
    state = make_state(*RUNNING, CLAIM, Launched(4, nodes(4)), Draining(2, "limit", "max_cost"))
    job = make_snapshot(state, make_facts(2, left=SAVED, notice=hard_notice(30)))
    closed = entry(job)
    assert isinstance(closed, Closed) and (closed.claim, closed.outcome, closed.restart) == (2, "limit", True)


# ── Stop and bounds ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stop_waits_for_the_save_then_ends_the_machine() -> None:
    job = make_snapshot(make_state(*RUNNING, (StopAsked("jane"), 100)), make_facts(2, beat=make_beat(100)))
    plan = decide_job(job, DEFAULT, at(189))
    assert plan.actions == () and plan.wake_at == at(190)
    assert act(job, 190) == ["i-2-0"]


def test_a_stop_need_not_wait_for_a_machine_that_never_spoke() -> None:
    stopped = make_state(*RUNNING, (StopAsked("jane"), 100))
    assert act(make_snapshot(stopped, make_facts(2)), 101) == ["i-2-0"]
    # What could not be read may have been anything.
    unread = replace(make_facts(2), heartbeat=Unknown("no answer"))
    assert act(make_snapshot(stopped, unread), 101) == []


def test_a_stop_keeps_the_deadline_of_a_hard_notice() -> None:
    told = make_facts(2, beat=make_beat(100, "saving"), notice=hard_notice(95, grace_s=120))
    job = make_snapshot(make_state(*RUNNING, (StopAsked("jane"), 100)), told)
    assert act(job, 200) == []
    assert act(job, 215) == ["i-2-0"]


def test_a_notice_that_no_cloud_gives_keeps_no_machine() -> None:
    told = make_facts(2, beat=make_beat(100, "saving"), notice=hard_notice(95, grace_s=1e300))
    job = make_snapshot(make_state(*RUNNING, (StopAsked("jane"), 100)), told)
    assert act(job, 95 + DEFAULT.longest_notice_s) == ["i-2-0"]


def test_a_stop_drops_what_never_came_and_ends_when_nothing_is_open() -> None:
    dropped = entry(make_snapshot(make_state(CLAIM, StopAsked("jane"))))
    assert isinstance(dropped, Closed) and dropped.outcome == "stopped"
    ended = entry(make_snapshot(make_state(CLAIM, StopAsked("jane"), Closed(2, "stopped", "stop"))))
    assert isinstance(ended, Ended) and ended.outcome == "stopped"


def test_an_exit_that_could_not_be_read_keeps_the_machine() -> None:
    told = replace(make_facts(2, beat=make_beat(100)), exit=Unknown("no answer"))
    assert act(make_snapshot(make_state(*RUNNING, (StopAsked("jane"), 100)), told), 500) == []


def test_max_runtime_drains_and_counts_since_the_last_heartbeat() -> None:
    spec = make_spec(limits=Limits(max_runtime_s=100))
    job = make_snapshot(make_state(*RUNNING), make_facts(2, beat=make_beat(90, trained_s=85.0)), spec=spec)
    assert act(job, 104) == []
    drained = entry(job, 106)
    assert isinstance(drained, Draining) and (drained.rule, drained.outcome) == ("max_runtime", "limit")


def test_max_cost_sets_the_price_of_the_save_aside() -> None:
    spec = make_spec(limits=Limits(max_cost=1.0))  # An hour of SPOT_A.
    job = make_snapshot(make_state(CLAIM, (Launched(2, nodes(2)), 0)), make_facts(2, beat=make_beat(3500)), spec=spec)
    save_s = spec.checkpoints.grace_s + DEFAULT.leave_s
    assert entry(job, 3600 - save_s - 1) is None
    drained = entry(job, 3600 - save_s + 1)
    assert isinstance(drained, Draining) and drained.rule == "max_cost"


def test_max_wait_ends_what_never_gets_a_machine() -> None:
    job = make_snapshot(make_state(CLAIM, Closed(2, "dry", "x")), spec=make_spec(limits=Limits(max_wait_s=300)))
    assert isinstance(entry(job, 299), Claimed)
    ended = entry(job, 300)
    assert isinstance(ended, Ended) and ended.rule == "max_wait"


@pytest.mark.parametrize("bound", [1e18, 1e300])
def test_bounds_past_the_end_of_the_calendar_are_harmless(bound: float) -> None:
    limits = Limits(max_runtime_s=bound, max_cost=bound, max_wait_s=bound)
    assert isinstance(entry(make_snapshot(make_state(), spec=make_spec(limits=limits))), Claimed)
    running = make_snapshot(make_state(*RUNNING), make_facts(2, beat=make_beat(99)), spec=make_spec(limits=limits))
    assert act(running) == []


# ── Gangs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def gang(left: Exit | None = None, **states: str) -> JobSnapshot:
    told = (make_facts(2, 0, beat=make_beat(95)), make_facts(2, 1, beat=make_beat(95), left=left))
    return make_snapshot(make_state(*GANG), *told, states=dict(states))  # type: ignore[arg-type]


def test_a_gang_that_loses_a_rank_saves_and_resumes_whole() -> None:
    assert entry(gang()) is None
    drained = entry(gang(**{"i-2-1": "gone"}))
    assert isinstance(drained, Draining) and (drained.outcome, drained.rule) == ("lost", "gang")
    drained = entry(gang(make_exit("failed", code=1)))
    assert isinstance(drained, Draining)
    assert entry(gang(make_exit("succeeded"))) is None


def test_a_gone_rank_whose_exit_could_not_be_read_may_have_finished() -> None:
    told = (make_facts(2, 0, beat=make_beat(95)), replace(make_facts(2, 1), exit=Unknown("no answer")))
    assert act(make_snapshot(make_state(*GANG), *told, states={"i-2-1": "gone"})) == []


def test_a_gang_that_never_was_complete_is_given_back() -> None:
    job = make_snapshot(make_state(PAIR, Launched(2, nodes(2, 1))), make_facts(2, 0, beat=make_beat(95)))
    assert isinstance(entry(job), Draining)


# ── Silence ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_silence_takes_two_steps() -> None:
    told = make_facts(2, beat=make_beat(100, etag="e7"))
    job = make_snapshot(make_state(*RUNNING), told)
    assert act(job, 160) == []
    assert entry(job, 161) == Suspected(2, 0, "e7")
    suspected = make_snapshot(make_state(*RUNNING, (Suspected(2, 0, "e7"), 161)), told)
    assert act(suspected, 220) == []
    assert act(suspected, 221) == ["i-2-0"]
    other = make_snapshot(make_state(*RUNNING, (Suspected(2, 0, "e6"), 161)), told)
    assert entry(other, 221) == Suspected(2, 0, "e7")


def test_unread_heartbeats_are_not_silence() -> None:
    told = replace(make_facts(2), heartbeat=Unknown("no answer"))
    assert act(make_snapshot(make_state(*RUNNING), told), 10_000) == []


def test_most_nodes_silent_at_once_is_blindness() -> None:
    jobs = []
    for n in range(3):
        state = make_state(*RUNNING, (Suspected(2, 0, "e1"), 300), job=f"job-{n}")
        jobs.append(make_snapshot(state, make_facts(2, beat=make_beat(100))))
    assert decide(Snapshot(tuple(jobs)), DEFAULT, at(1000)).actions == ()
    alone = decide(Snapshot(tuple(jobs[:1])), DEFAULT, at(1000))
    assert [type(action) for action in alone.actions] == [Terminate]
    assert decide(Snapshot(tuple(jobs[:1]), partial=True), DEFAULT, at(1000)).actions == (), "not everybody was seen"


def test_a_gang_that_never_booted_is_not_blindness() -> None:
    """Three machines that never say a word must not be kept, and paid for, until somebody notices."""
    state = make_state(Claimed(SPOT_A, 3), Launched(2, nodes(2, 3)), (Suspected(2, 0, ""), 300))
    job = make_snapshot(state, *(make_facts(2, rank) for rank in range(3)))
    plan = decide(Snapshot((job,)), DEFAULT, at(1000))
    assert "i-2-0" in [action.instance for action in plan.actions if isinstance(action, Terminate)]


# ── Machines nobody may keep ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_sweep() -> None:
    twin = replace(make_instance(2), id="i-twin")
    unknown = [replace(make_instance(99), id="old"), replace(make_instance(99, created_s=950), id="newborn")]
    listed = Known((make_instance(2), twin, make_instance(4), *unknown))
    state = make_state(*RUNNING, CLAIM, Closed(4, "dry", "x"))
    job = make_snapshot(state, make_facts(2, beat=make_beat(990)), instances=listed)
    assert set(act(job, 1000)) == {"i-twin", "i-4-0", "old"}
    assert act(replace(job, instances=Unknown("no answer")), 1000) == []


def test_a_job_is_forgotten_only_when_all_its_machines_are_gone() -> None:
    state = make_state(*RUNNING, Ended("stopped", "stop"))
    gone = {"i-2-0": "gone"}
    assert act(make_snapshot(state, states=gone)) == [Unmark]  # type: ignore[arg-type]
    assert act(make_snapshot(state, states={"i-2-0": "stopping"})) == []
    assert act(make_snapshot(state, states=Unknown("no answer"))) == []
    assert act(make_snapshot(state, states=gone, instances=Unknown("no answer"))) == []  # type: ignore[arg-type]
    late = Known((replace(make_instance(2, state="stopping"), id="i-unnamed"),))
    assert act(make_snapshot(state, states=gone, instances=late)) == []  # type: ignore[arg-type]


def test_a_claim_that_was_never_launched_may_still_show_machines() -> None:
    state = make_state(CLAIM, (Closed(2, "stopped", "stop"), 100), Ended("stopped", "stop"))
    assert act(make_snapshot(state), 100 + CAPABILITIES.newborn_s - 1) == []
    assert act(make_snapshot(state), 100 + CAPABILITIES.newborn_s) == [Unmark]


def test_a_marker_of_a_later_opening_stays() -> None:
    state = make_state(Ended("stopped", "stop"))
    plan = decide_job(make_snapshot(state, markers=(1, 3)), DEFAULT, at(100))
    assert [action.markers for action in plan.actions if isinstance(action, Unmark)] == [(1,)]


# ── Warnings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_spot_job_without_checkpoints_is_warned_about_once() -> None:
    told = make_facts(2, beat=make_beat(2000, trained_s=1900.0, checkpoint_files=1))
    assert entry(make_snapshot(make_state(*RUNNING), told), 2001) == Warned("no-checkpoint:2")
    assert act(make_snapshot(make_state(*RUNNING, Warned("no-checkpoint:2")), told), 2001) == []
    paid = (Claimed(replace(SPOT_B, spot=False), 1), Launched(2, nodes(2)))
    assert act(make_snapshot(make_state(*paid), told), 2001) == []


def test_strays_are_ended_unless_newborn() -> None:
    def stray(name: str, created_s: float) -> Instance:
        return Instance(name, "sim", "nobody", 2, 0, "running", at(created_s))

    snapshot = Snapshot(strays=(stray("old", 0), stray("newborn", 70)), newborn_s={"sim": 60.0})
    plan = decide(snapshot, DEFAULT, at(100))
    assert [action.instance for action in plan.actions if isinstance(action, Terminate)] == ["old"]
    assert [each.id for each in unowned_machines.newborn_strays(snapshot, at(100))] == ["newborn"]


def test_a_machine_that_the_cloud_has_not_heard_of_is_gone_only_when_it_is_not_new() -> None:
    """A cloud may not know for a moment what it has just made."""
    launched = make_state(CLAIM, (Launched(2, nodes(2)), 100))
    job = make_snapshot(launched, states={"i-2-0": "unheard-of"})
    newborn_s = job.capabilities.newborn_s
    assert entry(job, 100 + newborn_s - 1) is None
    over = entry(job, 100 + newborn_s + 1)
    assert isinstance(over, Closed) and over.outcome == "lost"
    # While most of the store is silent, it may be the one who asks that nobody answers.
    assert decide_job(job, DEFAULT, at(100 + newborn_s + 1), silence_inconclusive=True).actions == ()
    # What has positively ended need not be waited for.
    ended = entry(make_snapshot(launched, states={"i-2-0": "gone"}), 101)
    assert isinstance(ended, Closed) and ended.outcome == "lost"


def test_a_machine_that_speaks_is_not_gone_though_a_cloud_has_not_heard_of_it() -> None:
    """Whoever asked may have asked another account."""
    launched = make_state(CLAIM, (Launched(2, nodes(2)), 100))
    job = make_snapshot(launched, make_facts(2, beat=make_beat(1000)), states={"i-2-0": "unheard-of"})
    silence_s = job.capabilities.silence_s
    assert not isinstance(entry(job, 1000 + silence_s - 1), Closed)
    assert isinstance(entry(job, 1000 + silence_s + 1), Closed)


def test_what_lies_beside_machines_is_left_over_once_its_claim_is_closed() -> None:
    thing = Leftover("placement-policy", "p", "sim", "job-1", 2, None, at(90))
    assert unowned_machines.why_unowned(thing, make_state(*RUNNING), 60.0, at(100)) is None
    closed = make_state(*RUNNING, Closed(2, "stopped", "stop"))
    # However young: its claim is known, and over.
    assert "closed" in (unowned_machines.why_unowned(thing, closed, 60.0, at(100)) or "")
    # A claim that is not known yet may be written in a moment.
    for state in (None, make_state()):
        assert unowned_machines.why_unowned(thing, state, 60.0, at(100)) is None
        assert unowned_machines.why_unowned(thing, state, 60.0, at(200)) is not None
