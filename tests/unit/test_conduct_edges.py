"""How jobs that run and jobs that ended are looked after, at the edge: sightings, retiring, and what the log keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from attempt_cases import KEY, make_case
from test_hanging_or_wasteful import GPU, NOW_S, RUNNING, STALL, WASTE, hung, settings

from stoker.core import health_rules
from stoker.core.attempt_verdict import closed_entry, judge
from stoker.core.decide import decide_job
from stoker.core.ended_jobs import retire
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.health_rules import Violation
from stoker.core.policy_rules import Subject
from stoker.core.saved_work import describe_saved_work
from stoker.core.snapshot import Append, JobSnapshot, Terminate, Unmark
from stoker.model.log_entries import Claimed, Closed, Draining, Ended, Event, Launched, StopAsked, Warned, Waste
from stoker.model.node_facts import Activity, CheckpointRef
from stoker.model.observed import Known, Unknown
from stoker.model.offerings import Instance
from stoker.model.spec import Limits, Retry
from tests.support.sim_data import (
    CAPABILITIES,
    SPOT_A,
    at,
    make_beat,
    make_exit,
    make_facts,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)


def entry(job: JobSnapshot, now_s: float, by: GovernorSettings = DEFAULT) -> Event | None:
    plan = decide_job(job, by, at(now_s))
    return next((action.event for action in plan.actions if isinstance(action, Append)), None)


# ── Sightings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def sightings(job: JobSnapshot, by: GovernorSettings = DEFAULT) -> list[Violation]:
    (claim,) = job.state.open_claims
    subject = Subject(job.spec, at(NOW_S).date(), job.state.job)
    return list(health_rules.find_violations(job, claim, by.policy, subject, at(NOW_S)))


def debugged(seconds: float | None, stall_s: float | None = None) -> JobSnapshot:
    beat = make_beat(NOW_S - 5, trained_s=NOW_S, activity=Activity(5.0, debugged_s=seconds))
    spec = make_spec(limits=Limits(stall_s=stall_s))
    return make_snapshot(make_state(*RUNNING), make_facts(2, beat=beat), spec=spec)


def test_a_debugger_is_told_of_where_a_rule_waits_for_it() -> None:
    for by in (settings(STALL), settings(WASTE)):
        (found,) = sightings(debugged(10.0), by)
        assert (found.rule, found.action, found.evidence, found.enforced) == ("debugger", "warn", False, True)
        assert found.reason.startswith("a process of node 0 is stopped, or in a debugger")
        assert sightings(debugged(9.9), by) == [] == sightings(debugged(None), by)
    assert len(sightings(debugged(10.0, stall_s=600.0))) == 1
    assert sightings(debugged(10.0)) == [] and sightings(debugged(10.0), settings(f"{STALL}, then: warn")) == []


def test_a_jobs_own_bound_asks_for_a_restart_with_evidence() -> None:
    (found,) = sightings(hung(20, stall_s=1200.0))
    assert (found.rule, found.action, found.enforced, found.evidence, found.lasts_s) == (
        "stall",
        "restart",
        True,
        True,
        1200.0,
    )
    assert found.warn_before_s == 0.0 and sightings(hung(20, stall_s=1201.0)) == []


def test_rules_say_for_how_long_it_has_been_so_and_when_they_act() -> None:
    (stall,) = sightings(hung(20), settings("name: hangs, stall: {window: 5m, windows: 3, warn_before: 10m}"))
    assert (stall.rule, stall.lasts_s, stall.warn_before_s, stall.evidence) == ("policy:hangs", 1200.0, 600.0, True)
    (waste,) = sightings(hung(60, silent=0, working=True), settings(WASTE))
    assert (waste.rule, waste.lasts_s, waste.warn_before_s, waste.action) == ("policy:waste", 3600.0, 0.0, "stop")
    (audited,) = sightings(hung(60, silent=0, working=True), settings(f"{WASTE}, audit: true"))
    assert not audited.enforced and not audited.evidence
    beat = make_beat(NOW_S - 5, metrics={"loss": 9.0})
    metric = make_snapshot(make_state(*RUNNING), make_facts(2, beat=beat))
    (number,) = sightings(metric, settings("name: high, metric: {name: loss, above: 5}"))
    assert (number.evidence, number.lasts_s, number.warn_before_s) == (False, 0.0, 0.0)


# ── What follows ──────────────────────────────────────────────────────────────────────────────────────────────────────

CODE = "policy:hangs:2"


def test_a_stall_is_told_with_where_to_look_and_acted_on_with_evidence() -> None:
    by = settings(STALL)
    plan = decide_job(hung(20), by, at(NOW_S))
    (action,) = plan.actions
    assert isinstance(action, Append) and action.event == Warned(CODE, evidence=True)
    assert action.reason.endswith("; `stoker logs job-1 --evidence` shows what it does")
    told = (Warned(CODE, evidence=True), NOW_S - 30)
    waits = decide_job(hung(20, told), by, at(NOW_S))
    assert waits.actions == () and waits.wake_at == at(NOW_S - 30 + DEFAULT.evidence_s)
    assert entry(hung(20, told, evidence=(CODE,)), NOW_S, by) == Draining(2, "infrastructure", "policy:hangs")
    due = (Warned(CODE, evidence=True), NOW_S - DEFAULT.evidence_s)
    assert entry(hung(20, due), NOW_S, by) == Draining(2, "infrastructure", "policy:hangs")


def test_a_warning_that_comes_before_says_when_and_is_waited_for() -> None:
    by = settings("name: hangs, stall: {window: 5m, windows: 3, warn_before: 10m}")
    (action,) = decide_job(hung(20), by, at(NOW_S)).actions
    assert isinstance(action, Append) and "; unless that changes, it is asked to leave in 10 min;" in action.reason
    for told_s, acts in ((599.0, False), (600.0, True)):
        job = hung(20, (Warned(CODE, evidence=True), NOW_S - told_s), evidence=(CODE,))
        plan = decide_job(job, by, at(NOW_S))
        assert bool(plan.actions) is acts
        if not acts:
            assert plan.wake_at == at(NOW_S + 1)
    # It is about this standstill, and not about one before it.
    older = hung(20, (Warned(CODE, evidence=True), NOW_S - 1201))
    assert entry(older, NOW_S, by) == Warned("policy:hangs:2:2", evidence=True)
    same = hung(20, (Warned(CODE, evidence=True), NOW_S - 1200), evidence=(CODE,))
    assert isinstance(entry(same, NOW_S, by), Draining)


def test_a_rule_that_only_tells_hides_none_that_acts() -> None:
    told = [(Warned("policy:quiet:2", evidence=True), NOW_S - 9), (Warned(CODE, evidence=True), NOW_S - 8)]
    by = settings("name: quiet, stall: {window: 5m, windows: 3}, then: warn", STALL)
    assert entry(hung(20, *told, evidence=(CODE,)), NOW_S, by) == Draining(2, "infrastructure", "policy:hangs")


def test_a_rule_that_is_not_due_yet_hides_none_that_is() -> None:
    by = settings("name: later, stall: {window: 5m, windows: 3, warn_before: 1h}", STALL)
    told = [(Warned("policy:later:2", evidence=True), NOW_S - 9), (Warned(CODE, evidence=True), NOW_S - 8)]
    assert entry(hung(20, *told, evidence=(CODE,)), NOW_S, by) == Draining(2, "infrastructure", "policy:hangs")


def test_a_rule_without_its_evidence_hides_none_that_has_it() -> None:
    by = settings("name: first, stall: {window: 5m, windows: 3}", STALL)
    told = [(Warned("policy:first:2", evidence=True), NOW_S - 9), (Warned(CODE, evidence=True), NOW_S - 8)]
    assert entry(hung(20, *told, evidence=(CODE,)), NOW_S, by) == Draining(2, "infrastructure", "policy:hangs")


# ── A gang that lost a node ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_machine_alone_is_no_gang() -> None:
    """Its end is judged when it is over: nothing is left that could save."""
    job = make_snapshot(make_state(*RUNNING), make_facts(2, left=make_exit("failed", code=1)))
    assert not isinstance(entry(job, 100), Draining)


def test_nodes_save_when_one_of_them_left_or_is_gone() -> None:
    state = make_state(Claimed(SPOT_A, 3), Launched(2, nodes(2, 3)))
    heard = [make_facts(2, rank, beat=make_beat(95)) for rank in range(3)]
    gone = make_snapshot(state, *heard, states={"i-2-1": "gone"})
    assert entry(gone, 100) == Draining(2, "lost", "gang")
    left = make_facts(2, 2, left=make_exit("failed", code=1))
    assert entry(make_snapshot(state, *heard[:2], left), 100) == Draining(2, "infrastructure", "gang")
    for exit_, text in (
        (make_exit("failed", code=1), "node 2 failed (exit code 1): the other nodes save"),
        (make_exit("failed", signal=9), "node 2 failed (signal 9): the other nodes save"),
        (make_exit("interrupted", "notice"), "node 2 left (notice): the other nodes save"),
    ):
        plan = decide_job(make_snapshot(state, *heard[:2], make_facts(2, 2, left=exit_)), DEFAULT, at(100))
        assert [each.reason for each in plan.actions if isinstance(each, Append)] == [text]
    done = make_facts(2, 2, left=make_exit("succeeded", code=0))
    assert entry(make_snapshot(state, *heard[:2], done), 100) is None
    unread = replace(heard[0], exit=Unknown("no answer"))
    hidden = make_snapshot(state, unread, heard[1], left, states={"i-2-0": "gone"})
    assert entry(hidden, 100) == Draining(2, "infrastructure", "gang"), "the next one is looked at all the same"


# ── Jobs that ended ───────────────────────────────────────────────────────────────────────────────────────────────────

ENDED = (
    Claimed(SPOT_A, 1),
    Launched(2, nodes(2)),
    Ended("failed", "max_cost", 2, closing=Closed(2, "limit", "max_cost")),
)


def test_markers_up_to_its_end_go_with_the_job() -> None:
    state = make_state(*ENDED)
    job = make_snapshot(state, states={"i-2-0": "gone"}, markers=(1, state.seq, state.seq + 1))
    assert retire(job, DEFAULT, at(1000)).markers == (1, state.seq)
    assert [action.markers for action in decide_job(job, DEFAULT, at(1000)).actions if isinstance(action, Unmark)] == [
        (1, state.seq)
    ]


def test_a_resume_that_was_announced_is_waited_for_and_then_forgotten() -> None:
    state = make_state(*ENDED)
    later, last = state.seq + 1, state.seq + 2
    job = make_snapshot(state, states={"i-2-0": "gone"}, markers=(1, last, later))
    job = replace(job, announced={later: at(100), last: at(200)})
    due_s = 100 + DEFAULT.announced_s
    waits = retire(job, DEFAULT, at(due_s - 1))
    assert waits.markers == (1,) and waits.wake_at == at(due_s)
    assert waits.waiting == "ended; a resume was announced and has not come yet"
    first = retire(job, DEFAULT, at(due_s))
    assert first.markers == (1, later) and first.wake_at == at(due_s + 100)
    assert retire(job, DEFAULT, at(due_s + 100)).markers == (1, last, later)


def test_a_machine_in_the_list_is_looked_at_again_once_it_is_old_enough() -> None:
    def retired(created_s: float, state: str = "running") -> object:
        there = Instance("i-9", "sim", "job-1", 2, 0, state, at(created_s))  # type: ignore[arg-type]
        job = make_snapshot(make_state(*ENDED), states={"i-2-0": "gone"}, instances=Known((there,)))
        return retire(job, DEFAULT, at(1000)).wake_at

    newborn_s = CAPABILITIES.newborn_s
    assert retired(990) == at(990 + newborn_s + 1) and retired(100) == at(1001) and retired(990, "gone") is None
    unknown = make_snapshot(make_state(*ENDED), states={"i-2-0": "gone"}, instances=Unknown("no answer"))
    found = retire(unknown, DEFAULT, at(1000))
    assert found.markers == () and found.wake_at is None and "not known to be free" in found.waiting


def test_a_claim_that_was_never_launched_is_given_the_age_at_which_machines_are_listed() -> None:
    closed = (Closed(2, "abandoned", "token-expired", restart=True), 500)
    state = make_state(Claimed(SPOT_A, 1), closed, (Ended("failed", "max_wait", None), 510))
    newborn_s = CAPABILITIES.newborn_s
    waits = retire(make_snapshot(state), DEFAULT, at(500 + newborn_s - 1))
    assert waits.markers == () and waits.wake_at == at(500 + newborn_s) and "shows up" in waits.waiting
    assert retire(make_snapshot(state), DEFAULT, at(500 + newborn_s)).markers == (1,)


def test_how_long_a_failed_job_may_be_held_is_written_with_its_end() -> None:
    spec = replace(make_spec(), retry=Retry(hold_on_failure_s=600.0))
    left = make_facts(2, left=make_exit("failed", code=1, tail=("ValueError: x",), started=True))
    held = entry(make_snapshot(make_state(*RUNNING), left, spec=spec), 100)
    assert isinstance(held, Ended) and held.closing is not None and held.closing.hold_s == 600.0
    plain = entry(make_snapshot(make_state(*RUNNING), left), 100)
    assert isinstance(plain, Ended) and plain.closing is not None and plain.closing.hold_s is None
    assert (plain.outcome, plain.rule, plain.exit_code, plain.claim) == ("failed", "user-error", 1, 2)
    done = make_facts(2, left=make_exit("succeeded", code=0, tail=("bye",), started=True))
    good = entry(make_snapshot(make_state(*RUNNING), done, spec=spec), 100)
    assert isinstance(good, Ended) and good.closing is not None and good.closing.hold_s is None
    assert (good.outcome, good.exit_code, good.closing.tail) == ("succeeded", 0, ())


def test_a_stopped_gang_that_never_spoke_is_ended_and_the_others_are_waited_for() -> None:
    first, second = (Claimed(SPOT_A, 1), Launched(2, nodes(2))), (Claimed(SPOT_A, 1), Launched(4, nodes(4)))
    state = make_state(*first, *second, (StopAsked("jane"), 50))
    job = make_snapshot(state, make_facts(2), make_facts(4, beat=make_beat(60)))
    plan = decide_job(job, DEFAULT, at(60))
    assert [action.instance for action in plan.actions if isinstance(action, Terminate)] == ["i-2-0"]
    assert plan.waiting["job-1"] == "stopping: waiting for the last save" and plan.wake_at is not None


# ── What the log keeps of an attempt ──────────────────────────────────────────────────────────────────────────────────


def test_the_log_keeps_the_tail_and_the_status_of_the_failure_that_caused_the_others() -> None:
    first = make_exit("failed", code=3, at_s=5, tail=("ValueError: x",))
    second = make_exit("failed", signal=6, at_s=4, tail=("RuntimeError: NCCL error",))
    case = make_case(second, first)
    found = closed_entry(case, judge(case))
    assert (found.exit_code, found.tail) == (3, ("ValueError: x",))
    killed = make_case(make_exit("failed", signal=11, tail=("x",)))
    assert closed_entry(killed, judge(killed)).exit_code == 139


def test_what_was_trained_last_is_lost_unless_it_succeeded() -> None:
    waste = Waste(waited_s=1.0, idle_s=None, lost_s=7.0)
    done = make_case(make_exit("succeeded", code=0, waste=waste))
    assert closed_entry(done, judge(done)).waste == Waste(waited_s=1.0, idle_s=None, lost_s=0.0)
    lost = make_case(make_exit("failed", code=1, waste=waste))
    assert closed_entry(lost, judge(lost)).waste == waste


@pytest.mark.parametrize(
    ("told", "loaded"),
    [
        ({}, False),
        ({"step": 41, "restored_step": 40}, True),
        ({"step": 40, "restored_step": 40}, False),
        ({"step": 41, "first_step": 40}, True),
        ({"step": 40, "first_step": 40}, False),
        ({"restored_step": 40, "first_step": 40}, False),
    ],
)
def test_a_step_beyond_the_one_restored_shows_that_a_checkpoint_is_good(told: dict[str, Any], loaded: bool) -> None:
    left = make_exit("failed", code=1, restored_from=KEY, tail=("ValueError: x",), **told)
    assert make_case(left).loaded is loaded


def test_accelerators_of_the_offering_are_those_that_count() -> None:
    """One that reports no device at all cannot be called idle."""
    assert GPU.gpus == 1
    job = hung(20)
    (facts,) = job.facts[2]
    assert isinstance(facts.heartbeat, Known) and facts.heartbeat.value is not None
    beat = facts.heartbeat.value
    assert beat.value.activity is not None
    blind = replace(beat, value=replace(beat.value, activity=replace(beat.value.activity, utilization=(), devices=0)))
    hidden = replace(job, facts={2: (replace(facts, heartbeat=Known(blind)),)})
    assert sightings(hidden, settings(STALL)) == [] and len(sightings(job, settings(STALL))) == 1


def test_of_several_nodes_the_newest_checkpoint_is_named() -> None:
    older, newer = (
        CheckpointRef(f"00000002/00000{number}-step", "step", 10 * number, committed_at=at(100)) for number in (1, 2)
    )
    lost = Waste(lost_s=30.0)
    first = make_exit("interrupted", "notice", at_s=130, started=True, checkpoint=newer, waste=lost)
    second = make_exit("interrupted", "notice", at_s=160, started=True, checkpoint=older)
    for exits in ((first, second), (second, first)):
        assert describe_saved_work(make_case(*exits)) == "in the store: step 20, saved 30 s before its end"
    unnumbered = replace(newer, step=None, committed_at=None)
    assert (
        describe_saved_work(make_case(replace(first, checkpoint=unnumbered, waste=None))) == "in the store: step (1.2)"
    )
    assert describe_saved_work(make_case(make_exit("interrupted", "notice"))) == "", "it never trained"


def test_what_an_attempt_began_from_is_named_where_it_saved_nothing() -> None:
    began = make_exit("interrupted", "notice", started=True, restored_from=KEY)
    assert (
        describe_saved_work(make_case(began))
        == "nothing new was saved: the store has step-10 (1.1), from which it began"
    )
    beat = make_beat(0, trained_s=5.0, checkpoint_files=1).value
    told = describe_saved_work(make_case(None, beat=beat))
    assert told == "nothing was saved: what was written to checkpoints/ was not whole in time"
    elsewhere = make_exit("interrupted", "notice", started=True, saves_elsewhere=("out/a.pt", "out/b.pt"))
    assert describe_saved_work(make_case(elsewhere)).endswith(
        "; out/a.pt, out/b.pt look like saves: write `checkpoints: {dir: out}` in the job file"
    )
