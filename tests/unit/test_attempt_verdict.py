"""How an attempt ended: each rule once, with the reason it gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from attempt_cases import KEY, SAVED, ended, make_case, past

from stoker.core.attempt_evidence import AttemptEvidence, evidence_of, facts_complete
from stoker.core.attempt_verdict import closed_entry, judge
from stoker.core.governor_settings import DEFAULT
from stoker.core.poisoned_checkpoints import NONE_POISONED, PoisonedCheckpoints, poisoned_checkpoints
from stoker.core.saved_work import nothing_saved
from stoker.model.log_entries import Claimed, Closed, Draining, Event, Launched, ResumeAsked, StopAsked
from stoker.model.node_facts import CheckpointRef, Exit, FailureCause, Trend
from stoker.model.observed import Unknown
from tests.support.sim_data import (
    SPOT_A,
    at,
    make_beat,
    make_exit,
    make_facts,
    make_snapshot,
    make_state,
    nodes,
)

OK = make_exit("succeeded", started=True, code=0)
DRAINED = make_exit("interrupted", "drain", step=40, started=True)
ERROR = make_exit("failed", code=1, trained_s=500.0, step=40, tail=("ValueError: no",))
NOTHING = nothing_saved("checkpoints")


BEAT = make_beat(0, step=40).value

CASES: list[tuple[AttemptEvidence, str, str, bool, str]] = [
    (make_case(OK, OK), "succeeded", "finished", False, "the training finished on all 2 nodes"),
    (make_case(OK), "succeeded", "finished", False, "the training finished"),
    (make_case(None, None, named=1), "dry", "partial-gang", True, "only 1 of 2 machines came"),
    (make_case(SAVED, events=(StopAsked("jane"),)), "stopped", "stop", False, f"stopped by jane; {NOTHING}"),
    (
        make_case(SAVED, events=(Draining(2, "limit", "max_cost"),)),
        "limit",
        "max_cost",
        False,
        f"draining at 4; {NOTHING}",
    ),
    (make_case(make_exit("interrupted", "limit", reason="24h")), "limit", "max_runtime", False, "24h"),
    (make_case(SAVED, noticed=True), "reclaimed", "notice", True, f"reclaimed after a notice at step 40; {NOTHING}"),
    (make_case(ERROR, noticed=True), "reclaimed", "notice", True, f"reclaimed after a notice at step 40; {NOTHING}"),
    (make_case(None), "lost", "boot", True, "the machine was gone before it reported anything"),
    (
        make_case(OK, None, beat=BEAT),
        "lost",
        "gone",
        True,
        f"the machine of node 1 is gone, and nothing says how its training ended; {NOTHING}",
    ),
    (make_case(None, beat=BEAT, events=(Draining(2, "lost", "gang"),)), "lost", "gang", True, "draining at 4"),
    (make_case(make_exit("infrastructure", "agent")), "infrastructure", "agent", True, "the agent crashed"),
    (make_case(make_exit("infrastructure", "setup", reason="apt")), "infrastructure", "setup", True, "apt"),
    (
        make_case(make_exit("failed", evidence=("xid:79",))),
        "infrastructure",
        "xid:79",
        True,
        "the machine reported xid:79",
    ),
    (
        make_case(make_exit("failed", signal=9)),
        "infrastructure",
        "killed",
        True,
        "the training was killed from outside (SIGKILL)",
    ),
    (
        make_case(make_exit("failed", code=1, tail=("NCCL error",))),
        "infrastructure",
        "nccl",
        True,
        "the log ends with a nccl error",
    ),
    (
        make_case(make_exit("failed", code=1, tail=("OSError: No space left on device",))),
        "infrastructure",
        "disk-full",
        True,
        "the log ends with a disk-full error",
    ),
    (
        make_case(make_exit("failed", "setup", code=1, reason="uv failed", tail=("No space left on device",))),
        "failed",
        "no-room",
        False,
        "uv failed; make room on its disk, or ask for a larger one with resources.disk",
    ),
    (
        make_case(make_exit("interrupted", "waited")),
        "abandoned",
        "waited",
        True,
        "waited too long for the attempt before it to leave",
    ),
    # An end by a stall has the stall's rule, by the policy as by the job's own bound; an end of a broken gang has none.
    *(
        (
            make_case(DRAINED, events=(Draining(2, "infrastructure", rule),)),
            "infrastructure",
            rule,
            True,
            f"draining at 4; {NOTHING}",
        )
        for rule in ("policy:hangs", "stall")
    ),
    (make_case(DRAINED, events=(Draining(2, "lost", "gang"),)), "abandoned", "left", True, f"draining at 4; {NOTHING}"),
    (make_case(make_exit("interrupted", "peer")), "abandoned", "left", True, "was asked to leave before it finished"),
    (make_case(ERROR), "failed", "user-error", False, "the command exited with 1: ValueError: no"),
    (
        make_case(ERROR, user_errors=2),
        "failed",
        "user-error",
        True,
        "the command exited with 1: ValueError: no; retry 1 of 2",
    ),
]


@pytest.mark.parametrize(("case", "outcome", "rule", "restart", "reason"), CASES, ids=lambda value: str(value)[:40])
def test_each_rule(case: AttemptEvidence, outcome: str, rule: str, restart: bool, reason: str) -> None:
    found = judge(case)
    assert (found.outcome, found.rule, found.restart) == (outcome, rule, restart)
    assert found.reason == reason


def test_success_needs_every_rank() -> None:
    assert judge(make_case(OK, SAVED)).outcome != "succeeded"


def test_a_success_stays_one_although_a_stop_came() -> None:
    assert judge(make_case(OK, events=(StopAsked("jane"),))).outcome == "succeeded"


def test_the_last_lines_and_the_exit_code_are_kept() -> None:
    case = make_case(ERROR)
    closed = closed_entry(case, judge(case))
    assert (closed.exit_code, closed.tail, closed.counted, closed.trained_s) == (1, ("ValueError: no",), True, 500.0)


def test_user_errors_restart_only_as_often_as_the_spec_says() -> None:
    assert judge(make_case(ERROR, history=past(1, counted=True, progressed=True), user_errors=2)).restart
    assert not judge(make_case(ERROR, history=past(2, counted=True, progressed=True), user_errors=2)).restart


def test_two_failures_right_after_the_start_end_it() -> None:
    early = make_exit("failed", code=1, trained_s=1.0)
    found = judge(make_case(early, history=past(1, counted=True, at_startup=True), user_errors=5))
    assert not found.restart
    assert found.reason == "the command exited with 1; it failed twice right after its start"


def on_checkpoint(key: str = KEY, **told: Any) -> Exit:
    """The script failed after it restored a checkpoint, and before it reported anything. It took its time."""
    return make_exit("failed", **{"code": 1, "trained_s": 4000.0, "restored_from": key, "older_checkpoints": 1} | told)


def test_a_checkpoint_that_attempts_fail_on_is_tried_twice_then_the_one_before() -> None:
    first = judge(make_case(on_checkpoint()))
    assert (first.rule, first.restart, first.counted) == ("checkpoint", True, False)
    assert (
        first.reason
        == "failed on checkpoint step-10 (1.1) before any progress; after 2 such failures it is passed over"
    )
    once = past(1, suspects_checkpoint=True, restored_from=KEY)
    assert judge(make_case(on_checkpoint(), history=once)).reason.endswith(
        " before any progress, 2 times: it is passed over from now on"
    )
    assert poisoned_checkpoints(make_state(*once), DEFAULT) == NONE_POISONED
    assert poisoned_checkpoints(
        make_state(*past(2, suspects_checkpoint=True, restored_from=KEY)), DEFAULT
    ) == PoisonedCheckpoints(frozenset({KEY}))


def test_the_only_checkpoint_is_not_given_up_on() -> None:
    left = on_checkpoint(older_checkpoints=0)
    found = judge(make_case(left, history=past(1, suspects_checkpoint=True, restored_from=KEY)))
    assert (found.rule, found.restart) == ("user-error", False)


@pytest.mark.parametrize("trained_s", [1.0, 61.0, 4000.0, 90_000.0])
@pytest.mark.parametrize(
    ("told", "suspect"),
    [
        ({}, True),
        ({"code": None, "signal": 11}, True),
        ({"code": None, "signal": 6}, True),
        ({"code": 139}, True),
        ({"tail": ("torch.OutOfMemoryError: CUDA out of memory",)}, False),
        ({"step": 10, "first_step": 10, "restored_step": 10}, True),
        ({"code": None, "signal": 9}, False),
        ({"code": 137}, False),
        ({"code": None, "signal": 15}, False),
        ({"code": 143}, False),
        ({"evidence": ("oom",)}, False),
        ({"evidence": ("xid:79",)}, False),
        ({"tail": ("NCCL error in: x.cc",)}, False),
        ({"tail": ("OSError: [Errno 5] Input/output error",)}, False),
        ({"step": 11, "first_step": 11, "restored_step": 10}, False),
        ({"step": 3, "first_step": 2}, False),
        ({"checkpoint": CheckpointRef("00000009/000001-x", "x")}, False),
    ],
)
def test_a_checkpoint_is_suspect_by_what_failed_not_by_a_clock(
    trained_s: float, told: dict[str, Any], suspect: bool
) -> None:
    case = make_case(on_checkpoint(**told, trained_s=trained_s), user_errors=9)
    found = judge(case)
    assert closed_entry(case, found).suspects_checkpoint is case.suspects_checkpoint is suspect
    assert (found.rule == "checkpoint") is suspect


def test_an_infrastructure_failure_says_nothing_about_what_it_restored() -> None:
    crashed = make_case(make_exit("infrastructure", "agent", trained_s=1.0, restored_from=KEY))
    assert not closed_entry(crashed, judge(crashed)).suspects_checkpoint
    noticed = make_case(on_checkpoint(), noticed=True)
    assert not closed_entry(noticed, judge(noticed)).suspects_checkpoint


def test_small_additions_to_what_was_restored_are_no_save() -> None:
    """A script that writes its settings into the folder, and then fails to load what is there."""
    copy = CheckpointRef("00000005/000001-args", "args", is_save=False)
    case = make_case(on_checkpoint(checkpoint=copy))
    found = judge(case)
    closed = closed_entry(case, found)
    assert found.rule == "checkpoint" and closed.suspects_checkpoint and not closed.loaded
    events: list[Event] = []
    for number in (2, 5):
        again = replace(closed, claim=number, checkpoint=f"{number:08d}/000001-args")
        events += [Claimed(SPOT_A, 1), Launched(number, nodes(number)), again]
    assert poisoned_checkpoints(make_state(*events[:3]), DEFAULT) == PoisonedCheckpoints(claims=frozenset({2})), (
        "its copy is never restored"
    )
    assert poisoned_checkpoints(make_state(*events), DEFAULT) == PoisonedCheckpoints(
        frozenset({KEY}), frozenset({2, 5})
    )


def test_failing_on_checkpoints_ends_whatever_they_are() -> None:
    events: list[Event] = []
    for number in range(2, 20, 3):
        closed = Closed(number, "failed", "checkpoint", True, restored_from=f"k{number}", suspects_checkpoint=True)
        events += [Claimed(SPOT_A, 1), Launched(number, nodes(number)), replace(closed, progressed=True)]
    assert judge(make_case(on_checkpoint("x"), history=tuple(events[:15]))).rule == "checkpoint"
    assert judge(make_case(on_checkpoint("x"), history=tuple(events))).rule == "user-error"


def test_numbers_that_change_show_that_a_checkpoint_was_loaded() -> None:
    moved = make_beat(0, restored_from=KEY, trends={"loss": Trend(1.0, 5.0, 2.0, 9.0)}).value
    still = make_beat(0, restored_from=KEY, trends={"params": Trend(2.0, 5.0, 2.0, 5.0)}).value
    assert make_case(on_checkpoint(), beat=moved).loaded
    assert not make_case(on_checkpoint(), beat=still).loaded


def test_a_checkpoint_that_was_loaded_once_is_never_condemned() -> None:
    good = Closed(2, "reclaimed", "notice", restored_from=KEY, loaded=True, restart=True)
    bad = [Closed(5 + 3 * n, "failed", "checkpoint", restored_from=KEY, suspects_checkpoint=True) for n in range(3)]
    events: list[Event] = []
    for closed in (good, *bad):
        events += [Claimed(SPOT_A, 1), Launched(closed.claim, nodes(closed.claim)), closed]
    assert poisoned_checkpoints(make_state(*events), DEFAULT) == NONE_POISONED
    assert poisoned_checkpoints(make_state(*events, ended(), ResumeAsked("jane")), DEFAULT) == NONE_POISONED
    case = make_case(on_checkpoint(), history=tuple(events[:3]))
    assert judge(case).rule == "user-error", "the script is to blame"


def test_resume_remembers_what_is_poisoned() -> None:
    twice = past(2, suspects_checkpoint=True, restored_from=KEY)
    assert poisoned_checkpoints(make_state(*twice, ended(), ResumeAsked("jane")), DEFAULT) == PoisonedCheckpoints(
        frozenset({KEY})
    )
    # But counts anew how many were given up on.
    keys = ("00000009/000001-a", "00000009/000002-b")
    four: list[Event] = []
    for number, key in zip(range(2, 99, 3), (*keys, *keys), strict=False):
        closed = Closed(number, "failed", "checkpoint", restored_from=key, suspects_checkpoint=True)
        four += [Claimed(SPOT_A, 1), Launched(number, nodes(number)), closed]
    third = on_checkpoint("00000001/000001-step-1")
    assert judge(make_case(third, history=tuple(four))).rule == "user-error"
    assert judge(make_case(third, history=(*four, ended(), ResumeAsked("jane")))).rule == "checkpoint"


def test_a_chosen_checkpoint_that_fails_again_ends_the_job() -> None:
    """A person chose it: nothing older is taken in its place."""
    twice = past(2, suspects_checkpoint=True, restored_from=KEY)
    history = (*twice, ended(), ResumeAsked("jane", checkpoint=KEY))
    state = make_state(*history)
    assert state.chosen_checkpoint is not None and (state.chosen_checkpoint.key, state.chosen_checkpoint.seq) == (
        KEY,
        9,
    )
    found = judge(make_case(on_checkpoint(older_checkpoints=0), history=history))
    assert (found.rule, found.restart) == ("user-error", False)
    kept = make_state(*history, ended(), ResumeAsked("jane"))
    assert kept.chosen_checkpoint == state.chosen_checkpoint, "until another is chosen"


def test_a_users_exception_on_one_rank_is_the_cause_of_the_noise_on_another() -> None:
    noise = make_exit("failed", code=1, tail=("RuntimeError: Connection reset by peer",))
    own = make_exit("failed", code=1, at_s=5.0, reason="rank 1 failed", tail=("ValueError: no",))
    for exits in ((noise, own), (own, noise)):
        found = judge(make_case(*exits))
        assert (found.outcome, found.rule, found.reason) == ("failed", "user-error", "rank 1 failed: ValueError: no")
    assert judge(make_case(noise, replace(noise, tail=("NCCL error",)))).outcome == "infrastructure"
    lost = make_exit("failed", code=1, at_s=9.0, tail=("CUDA error: uncorrectable ECC error encountered",))
    assert judge(make_case(noise, lost)).rule == "gpu"


def test_a_worker_that_a_launcher_saw_killed_is_no_user_error() -> None:
    left = make_exit("failed", code=1, tail=("  traceback : Signal 9 (SIGKILL) received by PID 3437",))
    found = judge(make_case(left))
    assert (found.rule, found.reason) == ("killed", "a process of the training was killed from outside (SIGKILL)")


@pytest.mark.parametrize(("number", "name"), [(1, "SIGHUP"), (2, "SIGINT"), (15, "SIGTERM")])
def test_what_was_ended_from_outside_is_no_user_error(number: int, name: str) -> None:
    """By a person, a closed shell or a service that saves memory: as with SIGKILL, no doing of the script's."""
    for told in ({"code": None, "signal": number}, {"code": 128 + number}):
        for tail in ((), ("KeyboardInterrupt",), ("RuntimeError: Connection reset by peer",)):
            found = judge(make_case(make_exit("failed", tail=tail, **told)))
            assert (found.outcome, found.rule, found.restart) == ("infrastructure", "killed", True)
            assert found.reason == f"the training was ended from outside ({name})"
    # A wrapper that ends its whole group after its program failed.
    own = make_exit("failed", code=128 + number, reason="it failed", tail=("ValueError: no",))
    assert judge(make_case(own)).rule == "user-error"
    said = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 3424 got signal: 15"
    asked = judge(make_case(make_exit("failed", code=1, tail=("Traceback (most recent call last):", " x", said))))
    assert (asked.rule, asked.reason) == ("killed", "a process of the training was ended from outside")


def test_the_reason_names_the_error_of_the_script() -> None:
    def reason(line: str, said: str = "the command ended with exit code 1", **more: object) -> str:
        tail = ("Traceback (most recent call last):", '  File "x.py", line 1', line)
        return judge(make_case(make_exit("failed", code=1, reason=said, tail=tail, **more))).reason

    assert reason("ValueError: no lr") == "the command ended with exit code 1: ValueError: no lr"
    long = reason(f"ValueError: {'x' * 500}")
    assert long.endswith("xxx…") and len(long) == len("the command ended with exit code 1: ") + 160
    # The script has said why itself.
    assert reason("ValueError: no", "the command ended with exit code 1: no lr").endswith("exit code 1: no lr")
    retried = make_case(make_exit("failed", code=1, tail=("KeyError: 'a'",)), user_errors=1)
    assert judge(retried).reason == "the command exited with 1: KeyError: 'a'; retry 1 of 1"


def test_what_a_gpu_corrected_excuses_nothing() -> None:
    for evidence in ("xid:63", "xid:92", "xid:121"):
        own = make_exit("failed", code=1, evidence=(evidence,), tail=("ValueError: no",))
        assert judge(make_case(own)).rule == "user-error"


def test_what_a_program_did_to_its_gpu_excuses_nothing() -> None:
    own = make_exit(
        "failed", code=1, evidence=("xid:31",), tail=("RuntimeError: CUDA error: an illegal memory access",)
    )
    assert judge(make_case(own)).rule == "user-error"
    lost = make_exit("failed", code=1, evidence=("xid:31", "xid:79"))
    assert judge(make_case(lost)).rule == "xid:79"


def test_the_agents_diagnosis_counts_for_more_than_the_last_lines() -> None:
    told = make_exit("failed", code=1, cause=FailureCause("io", "machine", "OSError"), tail=("frame #1: x",))
    assert judge(make_case(told)).rule == "io"
    made_up = replace(told, cause=FailureCause("finished", "machine", "x"))
    assert judge(make_case(made_up)).rule == "user-error"


def test_an_exit_for_a_notice_is_a_reclaim_though_the_notice_was_not_written() -> None:
    state = make_state(Claimed(SPOT_A, 1), Launched(2, nodes(2)))
    claim = state.claim(2)
    assert claim is not None
    job = make_snapshot(state, make_facts(2, left=make_exit("interrupted", "notice")))
    assert judge(evidence_of(job, claim, DEFAULT)).outcome == "reclaimed"
    other = make_snapshot(state, make_facts(2, left=make_exit("interrupted", "waited")))
    assert judge(evidence_of(other, claim, DEFAULT)).outcome == "abandoned"


def test_what_a_person_named_is_never_poisoned() -> None:
    given = "00000000/000001-given"
    assert (
        poisoned_checkpoints(make_state(*past(3, suspects_checkpoint=True, restored_from=given)), DEFAULT)
        == NONE_POISONED
    )
    early = make_exit("failed", code=1, trained_s=1.0, restored_from=given, older_checkpoints=1)
    assert judge(make_case(early)).rule == "user-error"


@pytest.mark.parametrize("part", ["exit", "notice", "heartbeat"])
def test_a_verdict_waits_for_everything_it_rests_on(part: str) -> None:
    state = make_state(Claimed(SPOT_A, 1), Launched(2, nodes(2)))
    whole = make_facts(2, beat=make_beat(0), left=OK)
    assert facts_complete(make_snapshot(state, whole), state.claims[0])
    less = make_snapshot(state, type(whole)(**{**vars(whole), part: Unknown("no answer")}))
    assert not facts_complete(less, state.claims[0])


def test_times_are_the_stores() -> None:
    assert at(1) > at(0)


def test_a_launch_for_which_no_machine_was_found_later_is_dry_and_never_counted() -> None:
    found = judge(replace(make_case(None, history=past(30, "dry")), dry="CapacityError: none"))
    assert (found.outcome, found.rule, found.restart, found.counted) == ("dry", "no-capacity", True, False)
    # Who said a last word had a machine.
    assert judge(replace(make_case(OK), dry="CapacityError: none")).outcome == "succeeded"
    assert judge(replace(make_case(ERROR), dry="CapacityError: none")).outcome == "failed"
