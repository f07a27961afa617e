"""Decisions at the very edge of what they rest on: a bound that is just reached, and one rank or job among others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from attempt_cases import KEY, make_case, past

from stoker.core.attempt_evidence import cause_of, evidence_of
from stoker.core.decide import decide, decide_job
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.place_capacity import CapacityQueue
from stoker.core.snapshot import Append, JobSnapshot, Launch, Plan, Snapshot, Terminate
from stoker.model.log_entries import (
    AttemptOutcome,
    Claimed,
    Closed,
    Draining,
    Event,
    Launched,
    NodeRef,
    Suspected,
    Warned,
)
from stoker.model.node_facts import Activity, CheckpointRef, Exit
from stoker.model.observed import Known, Unknown
from stoker.model.offerings import Instance
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import (
    CAPABILITIES,
    ON_DEMAND,
    SPOT_A,
    at,
    make_beat,
    make_exit,
    make_facts,
    make_snapshot,
    make_state,
    nodes,
)

RUNNING: tuple[Event, ...] = (Claimed(SPOT_A, 1), Launched(2, nodes(2)))


def entry(job: JobSnapshot, now_s: float, settings: GovernorSettings = DEFAULT) -> Event | None:
    plan = decide_job(job, settings, at(now_s))
    return next((action.event for action in plan.actions if isinstance(action, Append)), None)


def ended(plan: Plan) -> list[str]:
    return [action.instance for action in plan.actions if isinstance(action, Terminate)]


# ── Silence ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_machine_may_take_all_of_its_time_to_boot() -> None:
    state = make_state(Claimed(SPOT_A, 1), (Launched(2, nodes(2)), 20))
    job = make_snapshot(state, make_facts(2))
    assert entry(job, 20 + CAPABILITIES.boot_timeout_s) is None
    assert entry(job, 21 + CAPABILITIES.boot_timeout_s) == Suspected(2, 0, "")


def silent_jobs(silent: int, heard: int) -> Snapshot:
    jobs = []
    for number in range(silent + heard):
        state = make_state(*RUNNING, (Suspected(2, 0, "e1"), 300), job=f"job-{number}")
        jobs.append(make_snapshot(state, make_facts(2, beat=make_beat(100 if number < silent else 1000))))
    return Snapshot(tuple(jobs))


def test_half_of_the_nodes_may_fall_silent_by_themselves_and_one_more_may_not() -> None:
    assert len(ended(decide(silent_jobs(3, 3), DEFAULT, at(1000)))) == 3
    assert ended(decide(silent_jobs(3, 2), DEFAULT, at(1000))) == []
    assert len(ended(decide(silent_jobs(2, 0), DEFAULT, at(1000)))) == 2, "two are no crowd"


def test_what_a_blind_governor_waits_for_is_told() -> None:
    job = make_snapshot(make_state(*RUNNING), make_facts(2, beat=make_beat(100)))
    plan = decide_job(job, DEFAULT, at(1000), silence_inconclusive=True)
    assert plan.actions == () and "may be this governor's own trouble with the store" in plan.waiting["job-1"]


def test_a_blind_governor_gives_up_on_what_was_never_heard_behind_one_that_fell_silent() -> None:
    state = make_state(Claimed(SPOT_A, 2), Launched(2, nodes(2, 2)))
    job = make_snapshot(state, make_facts(2, 0, beat=make_beat(100)), make_facts(2, 1))
    plan = decide_job(job, DEFAULT, at(1000), silence_inconclusive=True)
    assert [action.event for action in plan.actions if isinstance(action, Append)] == [Suspected(2, 1, "")]


def test_the_second_step_of_silence_is_looked_at_when_it_is_due() -> None:
    state = make_state(*RUNNING, (Suspected(2, 0, "e1"), 300))
    plan = decide_job(make_snapshot(state, make_facts(2, beat=make_beat(100))), DEFAULT, at(310))
    assert plan.actions == () and plan.wake_at == at(300 + CAPABILITIES.silence_s)


# ── Claims that nobody has launched yet ───────────────────────────────────────────────────────────────────────────────


def test_a_claim_is_launched_while_its_token_lives_and_closed_at_its_end() -> None:
    job = make_snapshot(make_state((Claimed(SPOT_A, 1), 100)))
    last = 100 + CAPABILITIES.token_lifetime_s
    plan = decide_job(job, DEFAULT, at(last - 1))
    assert [type(action) for action in plan.actions] == [Launch]
    assert entry(job, last) == Closed(claim=2, outcome="abandoned", rule="token-expired", restart=True)


# ── What an attempt that is over comes to ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("moved_s", "progressed"), [(DEFAULT.long_s, True), (DEFAULT.long_s - 1, False)])
def test_an_hour_of_training_that_was_saved_is_progress_whatever_its_steps_say(
    moved_s: float, progressed: bool
) -> None:
    left = make_exit("failed", code=1, step=3, trained_s=moved_s, checkpoint=CheckpointRef("00000005/000001-a", "a"))
    assert make_case(left, history=past(1, step=40)).progressed is progressed


def test_the_silence_at_its_end_is_no_training() -> None:
    told = Activity(silent_s=500.0)
    left = make_exit("failed", code=1, trained_s=800.0)
    assert make_case(left, beat=make_beat(0, activity=told).value).moved_s == 300.0
    assert make_case(left, beat=make_beat(0, activity=Activity(silent_s=900.0)).value).moved_s == 0.0
    assert make_case(left, beat=make_beat(0).value).moved_s == 800.0


def test_a_step_that_an_attempt_reached_before_is_no_progress() -> None:
    assert make_case(make_exit("failed", code=1, step=41), history=past(1, step=40)).progressed
    assert not make_case(make_exit("failed", code=1, step=40), history=past(1, step=40)).progressed


def test_an_attempt_that_trained_for_a_minute_is_past_its_startup() -> None:
    def startup(trained_s: float) -> bool:
        return make_case(make_exit("failed", code=1, trained_s=trained_s)).at_startup

    assert startup(DEFAULT.startup_s - 1) and not startup(DEFAULT.startup_s)


def test_a_cloud_that_found_no_machine_is_quoted() -> None:
    job = make_snapshot(
        make_state(Claimed(SPOT_A, 2), Launched(2, nodes(2, 2))),
        make_facts(2, 0),
        replace(make_facts(2, 1), dry="CapacityError: none left"),
    )
    case = evidence_of(job, job.state.open_claims[0], DEFAULT)
    assert case.dry == "CapacityError: none left"
    assert evidence_of(make_snapshot(make_state(*RUNNING)), job.state.open_claims[0], DEFAULT).dry == ""


def test_a_notice_is_known_from_the_exit_of_an_agent_that_left_before_it_was_written() -> None:
    left = make_exit("interrupted", "notice")
    job = make_snapshot(make_state(*RUNNING), make_facts(2, left=left))
    assert evidence_of(job, job.state.open_claims[0], DEFAULT).noticed
    other = make_snapshot(make_state(*RUNNING), make_facts(2, left=make_exit("interrupted", "drain")))
    assert not evidence_of(other, other.state.open_claims[0], DEFAULT).noticed


@pytest.mark.parametrize(
    ("left", "name", "line"),
    [
        (make_exit("failed", signal=9), "killed", "the training was killed from outside (SIGKILL)"),
        (make_exit("failed", code=137), "killed", "the training was killed from outside (SIGKILL)"),
        (make_exit("failed", signal=15), "killed", "the training was ended from outside (SIGTERM)"),
        (make_exit("failed", code=143), "killed", "the training was ended from outside (SIGTERM)"),
        (make_exit("failed", signal=1), "killed", "the training was ended from outside (SIGHUP)"),
        (make_exit("failed", signal=2), "killed", "the training was ended from outside (SIGINT)"),
        (make_exit("failed", signal=2, tail=("ValueError: x",)), "exception", "ValueError: x"),
        (make_exit("failed", signal=9, tail=("ValueError: x",)), "killed", None),
        (make_exit("failed", signal=15, tail=("NCCL error",)), "killed", None),
        (make_exit("failed", signal=9, evidence=("xid:79",)), "xid:79", "the machine reported xid:79"),
    ],
)
def test_why_a_node_failed(left: Exit, name: str, line: str | None) -> None:
    found = cause_of(left)
    assert found is not None and found.name == name
    assert line is None or found.line == line


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 92, 121])
def test_what_a_program_did_to_its_gpu_is_no_fault_of_the_machine(xid: int) -> None:
    assert cause_of(make_exit("failed", code=1, evidence=(f"xid:{xid}",))) is None


@pytest.mark.parametrize("code", [1, 6, 139])
def test_an_exit_code_that_no_signal_from_outside_has_tells_nothing(code: int) -> None:
    assert cause_of(make_exit("failed", code=code)) is None


@pytest.mark.parametrize(
    ("signal", "code", "suspected"),
    [
        *((number, None, True) for number in (4, 5, 6, 7, 8, 11, 31)),
        *((number, None, False) for number in (1, 2, 9, 10, 15)),
        *((None, code, False) for code in (129, 130, 137, 143)),
        *((None, code, True) for code in (1, 128, 139)),
    ],
)
def test_a_checkpoint_is_suspected_only_where_the_script_ended_itself(
    signal: int | None, code: int | None, suspected: bool
) -> None:
    left = make_exit("failed", signal=signal, code=code, restored_from=KEY, tail=("ValueError: bad weights",))
    assert make_case(left).suspects_checkpoint is suspected


@pytest.mark.parametrize("said", ["CUDA out of memory", "RuntimeError: out of shared memory"])
def test_too_little_memory_is_no_fault_of_a_checkpoint(said: str) -> None:
    assert not make_case(make_exit("failed", code=1, restored_from=KEY, tail=(said,))).suspects_checkpoint


# ── Closing one attempt among others ──────────────────────────────────────────────────────────────────────────────────


def test_an_attempt_whose_facts_cannot_be_read_keeps_no_other_one_open() -> None:
    state = make_state(*RUNNING, (Claimed(SPOT_A, 1), 40), (Launched(4, nodes(4)), 50))
    unread = replace(make_facts(2, left=make_exit("interrupted", "notice")), notice=Unknown("no answer"))
    other = make_facts(4, left=make_exit("interrupted", "notice"))
    found = entry(make_snapshot(state, unread, other), 100)
    assert isinstance(found, Closed) and found.claim == 4


def test_an_older_attempt_that_is_not_over_keeps_no_other_one_open() -> None:
    state = make_state(*RUNNING, (Claimed(SPOT_A, 1), 40), (Launched(4, nodes(4)), 50))
    job = make_snapshot(
        state, make_facts(2, beat=make_beat(100)), make_facts(4, left=make_exit("interrupted", "notice"))
    )
    found = entry(job, 100)
    assert isinstance(found, Closed) and found.claim == 4


# ── Room ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

BOUNDED = replace(ON_DEMAND, most_nodes=4)


def in_use(job: JobSnapshot) -> str:
    return CapacityQueue.of([job], complete=True).why_wait("other", BOUNDED, 5) or ""


def machine(claim: int, rank: int) -> Instance:
    return Instance(f"i-{claim}-{rank}", "sim", "job-1", claim, rank, "running", at(0), zone="a")


def test_of_a_claim_that_is_being_launched_the_machines_that_are_there_count_once() -> None:
    state = make_state(Claimed(BOUNDED, 2), Launched(2, nodes(2, 2)), Claimed(BOUNDED, 2))
    older = (machine(2, 0), machine(2, 1))
    for there in ((), (machine(4, 0),), (machine(4, 0), machine(4, 1))):
        job = make_snapshot(state, instances=Known((*older, *there)), states={"i-2-0": "running", "i-2-1": "running"})
        assert "4 of at most 4 nodes are in use by job-1" in in_use(job), there


def test_a_launched_machine_that_is_gone_takes_no_room() -> None:
    state = make_state(Claimed(BOUNDED, 2), Launched(2, (NodeRef(0, "i-2-0"), NodeRef(1, "i-2-1"))))
    job = make_snapshot(state, states={"i-2-0": "running", "i-2-1": "gone"})
    assert "1 of at most 4 nodes are in use" in in_use(job)


def test_a_place_says_how_much_of_it_is_in_use_by_whom_and_how_many_wait() -> None:
    capacity = CapacityQueue()
    one = replace(BOUNDED, most_nodes=1)
    assert capacity.why_wait("a", one, 1) is None
    begin = "no room yet: 1 of at most 1 node is in use by a (resources.sim.capacity)"
    assert capacity.why_wait("b", one, 1) == begin
    assert capacity.why_wait("c", one, 1) == f"{begin}; 1 job is ahead of it"
    assert capacity.why_wait("d", one, 1) == f"{begin}; 2 jobs are ahead of it"
    empty = CapacityQueue()
    assert empty.why_wait("a", one, 2) == "no room yet: 0 of at most 1 node is in use (resources.sim.capacity)"


def test_of_many_jobs_that_take_the_room_two_are_named() -> None:
    capacity = CapacityQueue()
    for job in "dcba":
        assert capacity.why_wait(job, BOUNDED, 1) is None
    assert "4 of at most 4 nodes are in use by a, b and 2 more (" in (capacity.why_wait("e", BOUNDED, 1) or "")
    three = CapacityQueue()
    for job in "cba":
        assert three.why_wait(job, replace(BOUNDED, most_nodes=3), 1) is None
    assert "by a, b and 1 more (" in (three.why_wait("e", replace(BOUNDED, most_nodes=3), 1) or "")


def test_a_job_that_takes_more_nodes_has_all_of_them_counted() -> None:
    capacity = CapacityQueue()
    assert capacity.why_wait("a", BOUNDED, 1) is None and capacity.why_wait("a", BOUNDED, 2) is None
    assert "3 of at most 4" in (capacity.why_wait("b", BOUNDED, 2) or "")


# ── Conduct ───────────────────────────────────────────────────────────────────────────────────────────────────────────

HIGH = replace(
    DEFAULT, policy=parse_policy(b"rules: [{name: high, metric: {name: loss, above: 5}, then: stop}]", "p.yaml")
)
WORD = Warned(code="policy:high:2")


def diverging(heard_s: float, *events: Event | tuple[Event, float], left: Exit | None = None) -> JobSnapshot:
    """A job of one or two nodes of which rank 0 tells a number that a rule finds fault with."""
    count = 1 if left is None else 2
    state = make_state(Claimed(SPOT_A, count), Launched(2, nodes(2, count)), *events)
    told = [make_facts(2, beat=make_beat(heard_s, metrics={"loss": 9.0}))]
    if left is not None:
        told.append(make_facts(2, 1, beat=make_beat(50), left=left))
    return make_snapshot(state, *told)


def test_one_odd_number_ends_nothing_until_a_newer_heartbeat_says_the_same() -> None:
    assert entry(diverging(100), 100, HIGH) == WORD
    assert entry(diverging(100, (WORD, 100)), 105, HIGH) is None
    assert entry(diverging(101, (WORD, 100)), 105, HIGH) == Draining(2, "limit", "policy:high")


def test_a_rank_that_has_left_says_nothing_newer_and_is_not_waited_for() -> None:
    left = make_exit("succeeded", code=0)
    assert entry(diverging(101, (WORD, 100), left=left), 105, HIGH) == Draining(2, "limit", "policy:high")


def test_a_word_of_long_ago_about_a_number_is_said_once_more() -> None:
    assert entry(diverging(1000, (WORD, 100)), 700, HIGH) == Draining(2, "limit", "policy:high")
    assert entry(diverging(1000, (WORD, 100)), 701, HIGH) == Warned(code="policy:high:2:2")
    second = ((WORD, 100), (Warned(code="policy:high:2:2"), 5000))
    assert entry(diverging(90_000, *second), 90_000, HIGH) == Draining(2, "limit", "policy:high")


# ── Checkpoints that are missing ──────────────────────────────────────────────────────────────────────────────────────


def warning(trained_s: float, claimed: Claimed | None = None, **told: Any) -> str:
    state = make_state(claimed or Claimed(SPOT_A, 1), Launched(2, nodes(2)))
    beat = make_beat(100, trained_s=trained_s, **told)
    for action in decide_job(make_snapshot(state, make_facts(2, beat=beat)), DEFAULT, at(100)).actions:
        if isinstance(action, Append) and isinstance(action.event, Warned):
            assert action.event.code == "no-checkpoint:2"
            return action.reason
    return ""


def test_an_empty_folder_is_told_of_two_heartbeats_after_it_is_due() -> None:
    due_s = DEFAULT.empty_folder_s + 20.0
    assert warning(due_s).startswith("nothing has been saved in ") and warning(due_s - 1) == ""
    assert warning(due_s, checkpoint_files=1) == "" and warning(due_s, restored_from=KEY) == ""
    assert warning(due_s, Claimed(ON_DEMAND, 1)) != "", "machines that nobody reclaims break, too"


def test_a_spot_machine_without_a_checkpoint_for_long_is_told_of() -> None:
    due_s = DEFAULT.checkpoint_warning_s
    files: dict[str, Any] = {"checkpoint_files": 1}
    assert warning(due_s - 1, **files) == "" and warning(due_s, Claimed(ON_DEMAND, 1), **files) == ""
    told = warning(due_s, **files)
    assert told == (
        "no checkpoint for 30 min on a spot machine: a reclaim would lose everything; the folder watched is checkpoints"
    )
    assert "would lose what was trained since its start" in warning(due_s, restored_from=KEY)
    assert warning(due_s, checkpoint=CheckpointRef(KEY, "step-10")) == ""


def after(end: Closed) -> Event | None:
    """What is decided after this end, where no machine is to be had at the moment."""
    return entry(make_snapshot(make_state(*RUNNING, end), offerings=None), 100)


@pytest.mark.parametrize("outcome", ["reclaimed", "lost", "infrastructure", "abandoned"])
def test_an_attempt_that_left_no_checkpoint_is_told_of_while_the_next_one_waits(outcome: AttemptOutcome) -> None:
    end = Closed(2, outcome, "rule", restart=True, trained_s=1.0)
    assert after(end) == Warned(code="no-checkpoint:2")
    assert isinstance(entry(make_snapshot(make_state(*RUNNING, end)), 100), Claimed), "the next machine comes first"
    assert after(replace(end, trained_s=0.0)) is None
    assert after(replace(end, checkpoint=KEY)) is None
    assert after(replace(end, restored_from=KEY)) is None


def test_an_attempt_that_failed_by_itself_needs_no_word_about_its_checkpoints() -> None:
    assert after(Closed(2, "failed", "user-error", restart=True, trained_s=9.0)) is None


def test_a_job_whose_offerings_are_unknown_waits_and_says_why() -> None:
    plan = decide_job(make_snapshot(make_state(), offerings=Unknown("the region is away")), DEFAULT, at(100))
    assert plan.actions == ()
    assert plan.waiting == {"job-1": "the provider's offerings are unknown: the region is away"}
