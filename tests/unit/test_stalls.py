"""Who stands still, and who wastes accelerators: every rank counts, on its way to the training as well as in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT
from stoker.core.snapshot import Append, JobSnapshot
from stoker.core.stalls import begins_to_stall, low_use_reason, no_progress_reason, stall_reason
from stoker.model.log_entries import Claimed, Draining, Launched, Warned
from stoker.model.node_facts import Activity, Heartbeat
from stoker.model.observed import Stamped
from stoker.model.policy import StallRule, UtilizationRule
from stoker.model.resources import Gpus, Resources
from stoker.model.spec import Limits
from stoker.model.usage_series import pack
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import (
    AT_WORK,
    NO_WORK,
    ON_DEMAND,
    at,
    make_beat,
    make_facts,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

RULE = StallRule()
SPAN_S = RULE.span_s
IDLE = (pack(60.0, [[0.0] * 90]),)
STILL = Activity(2000.0, work=NO_WORK, utilization=IDLE, devices=1)
BUSY = replace(STILL, silent_s=5.0)
WAITS = replace(BUSY, waits=True)
NOW = at(101)


def beat(phase: str = "training", activity: Activity | None = STILL, **rest: Any) -> Stamped[Heartbeat]:
    rest.setdefault("trained_s", 2e4 if phase == "training" else 0.0)
    return make_beat(100.0, phase, activity=activity, **rest)


def seen(*beats: Stamped[Heartbeat] | None, gpus: int = 1, **changes: Any) -> JobSnapshot:
    state = make_state(
        Claimed(offering=replace(ON_DEMAND, gpus=gpus), nodes=len(beats)), Launched(2, nodes(2, len(beats)))
    )
    facts = [make_facts(2, rank, beat=each) for rank, each in enumerate(beats)]
    return replace(make_snapshot(state, *facts), **changes)


def is_stalled(*beats: Stamped[Heartbeat] | None, rule: StallRule = RULE) -> bool:
    job = seen(*beats)
    return stall_reason(rule, job, job.state.claims[0], NOW) is not None


def is_silent(*beats: Stamped[Heartbeat] | None, longest_s: float = 900.0) -> bool:
    job = seen(*beats)
    return no_progress_reason(longest_s, job, job.state.claims[0], NOW) is not None


# ── Every rank ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_quiet_node_of_a_gang_is_no_stall() -> None:
    assert is_stalled(beat()) and is_stalled(beat(), beat())
    for judge in (is_stalled, is_silent):
        assert not judge(beat(), beat(activity=BUSY)) and not judge(beat(activity=BUSY), beat())
        assert not judge(beat(), None), "of that one nobody has heard"
        assert not judge(beat(), beat(activity=None)), "that one does not tell"
        assert not judge(beat(), make_beat(30.0, activity=STILL, trained_s=2e4)), "it was long ago"


def test_a_training_that_is_young_is_left_alone() -> None:
    assert not is_stalled(beat(trained_s=899.0)) and not is_silent(beat(trained_s=899.0))


# ── Before the training ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("phase", ["setup", "restoring"])
def test_one_that_hangs_before_its_training_stands_still(phase: str) -> None:
    assert is_stalled(beat(phase)) and is_silent(beat(phase))
    # Nobody has to know its accelerators: they have nothing to do yet.
    assert is_stalled(beat(phase, Activity(2000.0, work=NO_WORK, devices=8)))
    job = seen(beat(phase))
    assert stall_reason(RULE, job, job.state.claims[0], NOW) == (
        f"no line of the log and no work for 33 min 20 s, before the training ({phase})"
    )


@pytest.mark.parametrize("phase", ["setup", "restoring"])
def test_before_the_training_too_what_moves_works_or_cannot_be_seen_is_no_stall(phase: str) -> None:
    for activity in (BUSY, replace(STILL, work=()), None, replace(STILL, silent_s=float("nan"))):
        assert not is_stalled(beat(phase, activity)) and not is_silent(beat(phase, activity)), activity
    assert not is_stalled(beat(phase), rule=replace(RULE, after_s=2001.0)), "it may be younger than that"


def test_what_works_before_the_training_is_given_longer() -> None:
    for silent_s, told in ((SPAN_S + RULE.working_s - 1, False), (SPAN_S + RULE.working_s, True)):
        assert is_stalled(beat("setup", Activity(silent_s, work=AT_WORK))) is told
    # A job has no say in how long what it waits for may take.
    assert not is_silent(beat("setup", Activity(1e6, work=AT_WORK)))
    assert is_silent(beat("training", Activity(1e6, work=AT_WORK))), "and it has, in how long it may say nothing itself"


@pytest.mark.parametrize("phase", ["booting", "waiting", "saving", "flushing", "held"])
def test_who_waits_to_be_allowed_to_train_or_leaves_is_not_stalled(phase: str) -> None:
    assert not is_stalled(beat(phase)) and not is_silent(beat(phase))
    assert not is_stalled(beat(phase), beat(phase))


def test_a_gang_that_waits_for_one_that_hangs_stands_still() -> None:
    for others in (("waiting", "waiting"), ("restoring", "waiting"), ("setup", "waiting"), ("training", "training")):
        assert is_stalled(beat("setup"), *map(beat, others))
        assert is_silent(beat("setup"), *map(beat, others))
        assert is_stalled(beat("setup"), beat("restoring", WAITS), beat("setup", WAITS))
    assert not is_stalled(beat("setup", WAITS), beat("restoring", WAITS)) and not is_silent(beat("restoring", WAITS))
    assert not is_stalled(beat("setup", BUSY), beat("waiting")), "they wait for one that works"
    assert not is_stalled(beat("setup"), beat("setup", BUSY), beat("waiting"))
    assert not is_stalled(beat("setup"), make_beat(30.0, "waiting")), "that one was not heard for long"
    assert not is_stalled(beat("setup"), beat("flushing"))


def test_the_ladder_before_the_training_is_the_same() -> None:
    policy = parse_policy(b"rules: [{name: hangs, stall: {}}]", "p.yaml")
    for settings, spec, code in (
        (replace(DEFAULT, policy=policy), make_spec(), "policy:hangs"),
        (DEFAULT, make_spec(limits=Limits(stall_s=900.0)), "stall"),
    ):
        for evidence, event in (
            ((), Warned(code=f"{code}:2", evidence=True)),
            ((f"{code}:2",), Draining(claim=2, outcome="infrastructure", rule=code)),
        ):
            job = seen(beat("setup", evidence=evidence), spec=spec)
            if evidence:
                events = (
                    Claimed(offering=ON_DEMAND, nodes=1),
                    Launched(2, nodes(2)),
                    (Warned(f"{code}:2", True), 95.0),
                )
                job = replace(job, state=make_state(*events))
            (action,) = decide_job(job, settings, NOW).actions
            assert isinstance(action, Append) and action.event == event


# ── Steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

STEPS = replace(STILL, silent_s=1.0, stepped_s=2000.0)
SPINS = replace(STEPS, work=AT_WORK, utilization=(pack(60.0, [[1.0] * 90]),))
BY_STEPS = replace(RULE, steps_s=1800.0)


def test_where_any_rank_reports_steps_lines_of_the_others_are_no_progress() -> None:
    talks = replace(STILL, silent_s=1.0)
    assert is_stalled(beat(activity=STEPS)) and is_stalled(beat(activity=STEPS), beat(activity=talks))
    assert is_silent(beat(activity=STEPS), beat(activity=talks))
    assert not is_stalled(beat(activity=talks)) and not is_silent(beat(activity=talks)), "no steps are reported"
    fresh = replace(STEPS, stepped_s=5.0)
    assert not is_stalled(beat(activity=STEPS), beat(activity=fresh))
    works = replace(talks, work=AT_WORK)
    assert not is_stalled(beat(activity=STEPS), beat(activity=works)), "that one works, and has longer"
    longest_s = SPAN_S + RULE.working_s
    assert is_stalled(beat(activity=replace(STEPS, stepped_s=longest_s)), beat(activity=works))
    # One that prepares reports none yet.
    assert not is_stalled(beat(activity=STEPS), beat("setup", talks))


def test_a_rule_about_steps_finds_what_spins_on_all_ranks() -> None:
    for beats in ([SPINS], [SPINS, SPINS], [SPINS, replace(SPINS, stepped_s=None)]):
        assert is_stalled(*(beat(activity=each) for each in beats), rule=BY_STEPS)
        assert not is_stalled(*(beat(activity=each) for each in beats))
    young = replace(SPINS, stepped_s=1799.0)
    assert not is_stalled(beat(activity=young), rule=BY_STEPS)
    assert not is_stalled(beat(activity=SPINS), beat(activity=young), rule=BY_STEPS)
    assert not is_stalled(beat(activity=replace(SPINS, stepped_s=None)), rule=BY_STEPS)
    assert not is_stalled(beat(activity=SPINS), beat("setup", SPINS), rule=BY_STEPS)
    assert not is_stalled(beat(activity=SPINS, trained_s=899.0), rule=BY_STEPS)
    unseen = replace(SPINS, work=(), utilization=())
    assert is_stalled(beat(activity=unseen), rule=BY_STEPS), "steps are enough"


def test_a_save_that_goes_on_is_no_hang() -> None:
    saves = replace(SPINS, saving_s=10.0)
    assert not is_stalled(beat(activity=saves), rule=BY_STEPS) and not is_silent(beat(activity=saves))
    assert not is_stalled(beat(activity=SPINS), beat(activity=saves), rule=BY_STEPS), "the others wait for it"
    assert is_stalled(beat(activity=replace(saves, saving_s=RULE.window_s)), rule=BY_STEPS)
    assert is_stalled(beat(activity=replace(saves, stepped_s=1800 + RULE.working_s)), rule=BY_STEPS), "not for ever"
    assert not is_stalled(beat(activity=replace(STEPS, saving_s=10.0)))


def test_one_rank_in_a_debugger_keeps_all_from_being_ended() -> None:
    held = replace(STEPS, debugged_s=3.0)
    for judge in (is_stalled, is_silent):
        assert not judge(beat(activity=held)) and not judge(beat(activity=STEPS), beat(activity=held))
        assert not judge(beat("setup", replace(STILL, debugged_s=3.0)))
    assert wastes(seen(beat(activity=used(0.0)))) and not wastes(
        seen(beat(activity=replace(used(0.0), debugged_s=1.0)))
    )
    # When it is let go all ranks have their time again, whichever of them reports the steps.
    for released_s, told in ((SPAN_S - 1, False), (SPAN_S, True)):
        let_go = replace(STILL, released_s=released_s)
        assert is_stalled(beat(activity=STEPS), beat(activity=let_go)) is told


# ── Waste ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

WANTED = UtilizationRule(0.8, 3600.0, 1800.0)


def used(*shares: float) -> Activity:
    return Activity(
        5.0, work=AT_WORK, utilization=(pack(60.0, [[share] * 90 for share in shares]),), devices=len(shares)
    )


def wastes(job: JobSnapshot, wanted: UtilizationRule = WANTED) -> str | None:
    return low_use_reason(wanted, job, job.state.claims[0], NOW)


def test_a_young_training_wastes_nothing_yet() -> None:
    for trained_s, told in ((5399.0, False), (5400.0, True)):
        assert (wastes(seen(beat(activity=used(0.1), trained_s=trained_s))) is not None) is told
    assert wastes(seen(beat("setup", activity=used(0.0), trained_s=1e5))) is None
    assert wastes(seen(beat(activity=used(0.0)), beat("waiting"))) is None


def at_home(*shares: float, asked: int | None) -> JobSnapshot:
    job = seen(beat(activity=used(*shares)), gpus=len(shares))
    gpus = None if asked is None else Gpus("", asked)
    spec = replace(job.spec, resources=Resources(provider="local", gpus=gpus))
    return replace(job, spec=spec, capabilities=replace(job.capabilities, runs_locally=True))


def test_on_somebodys_own_computer_accelerators_that_are_not_the_jobs_do_not_count() -> None:
    one_busy = (1.0, *[0.0] * 7)
    for asked in (None, 0, 1):
        assert wastes(at_home(*one_busy, asked=asked)) is None
    assert wastes(at_home(*one_busy, asked=2)) == "its 2 accelerators were used 50% over 1 h"
    assert wastes(at_home(*[0.0] * 8, asked=1)) == "its accelerator was used 0% over 1 h"
    assert wastes(at_home(*[0.0] * 8, asked=None)) is None, "a job that wants none wastes none"


def test_on_a_machine_of_its_own_all_of_them_are_the_jobs() -> None:
    job = seen(beat(activity=used(1.0, *[0.0] * 7)), gpus=8)
    assert wastes(job) == "its 8 accelerators were used 12% over 1 h"


# ── Beginning to stall ────────────────────────────────────────────────────────────────────────────────────────────────


def begins(*beats: Stamped[Heartbeat] | None) -> bool:
    job = seen(*beats)
    return begins_to_stall(RULE, job, job.state.claims[0], NOW)


def test_a_training_begins_to_stall_when_every_rank_is_quiet_for_a_window() -> None:
    quiet = replace(STILL, silent_s=RULE.window_s)
    assert begins(beat(activity=quiet)) and begins(beat(activity=quiet), beat(activity=quiet))
    assert not begins(beat(activity=replace(STILL, silent_s=RULE.window_s - 5)))
    assert not begins(beat(activity=quiet), beat("setup", quiet)), "one does not train"
    assert not begins(beat("setup", quiet))
    assert not begins(None), "nothing is heard of it"
    assert not begins(beat(activity=quiet), None)
    assert not begins(beat()), "it has stalled for all of the windows"
