"""Who stands still, and who wastes accelerators: every rank counts, on its way to the training as well as in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stoker.core.decide import decide_job
from stoker.core.policy import DEFAULT
from stoker.core.snapshot import Append, JobSnapshot
from stoker.core.stalls import silent, stalled, wasteful
from stoker.model import Activity, Claimed, Draining, Heartbeat, Launched, Stamped, Warned
from stoker.policyfile import parse_policy
from stoker.rules import Stall, Utilization
from stoker.series import pack
from stoker.spec import Gpus, Limits, Resources
from stoker.testing.sim_data import (
    ON_DEMAND,
    at,
    make_beat,
    make_facts,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

RULE = Stall()
SPAN_S = RULE.span_s
IDLE = (pack(60.0, [[0.0] * 90]),)
STILL = Activity(2000.0, idle_s=2000.0, utilization=IDLE, devices=1)
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


def is_stalled(*beats: Stamped[Heartbeat] | None, rule: Stall = RULE) -> bool:
    job = seen(*beats)
    return stalled(rule, job, job.state.claims[0], NOW) is not None


def is_silent(*beats: Stamped[Heartbeat] | None, longest_s: float = 900.0) -> bool:
    job = seen(*beats)
    return silent(longest_s, job, job.state.claims[0], NOW) is not None


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
    assert is_stalled(beat(phase, Activity(2000.0, idle_s=2000.0, devices=8)))
    job = seen(beat(phase))
    assert stalled(RULE, job, job.state.claims[0], NOW) == (
        f"no line of the log and no work for 33 min 20 s, before the training ({phase})"
    )


@pytest.mark.parametrize("phase", ["setup", "restoring"])
def test_before_the_training_too_what_moves_works_or_cannot_be_seen_is_no_stall(phase: str) -> None:
    for activity in (BUSY, replace(STILL, idle_s=None), None, replace(STILL, silent_s=float("nan"))):
        assert not is_stalled(beat(phase, activity)) and not is_silent(beat(phase, activity)), activity
    assert not is_stalled(beat(phase), rule=replace(RULE, after_s=2001.0)), "it may be younger than that"


def test_what_works_before_the_training_is_given_longer() -> None:
    for silent_s, told in ((SPAN_S + RULE.working_s - 1, False), (SPAN_S + RULE.working_s, True)):
        assert is_stalled(beat("setup", Activity(silent_s, idle_s=3.0))) is told
    # A job has no say in how long what it waits for may take.
    assert not is_silent(beat("setup", Activity(1e6, idle_s=3.0)))
    assert is_silent(beat("training", Activity(1e6, idle_s=3.0))), "and it has, in how long it may say nothing itself"


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
    house = parse_policy(b"rules: [{name: hangs, stall: {}}]", "p.yaml")
    for policy, spec, code in (
        (replace(DEFAULT, house=house), make_spec(), "policy:hangs"),
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
            (action,) = decide_job(job, policy, NOW).actions
            assert isinstance(action, Append) and action.event == event


# ── Waste ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

WANTED = Utilization(0.8, 3600.0, 1800.0)


def used(*shares: float) -> Activity:
    return Activity(5.0, idle_s=1.0, utilization=(pack(60.0, [[share] * 90 for share in shares]),), devices=len(shares))


def wastes(job: JobSnapshot, wanted: Utilization = WANTED) -> str | None:
    return wasteful(wanted, job, job.state.claims[0], NOW)


def test_a_young_training_wastes_nothing_yet() -> None:
    for trained_s, told in ((5399.0, False), (5400.0, True)):
        assert (wastes(seen(beat(activity=used(0.1), trained_s=trained_s))) is not None) is told
    assert wastes(seen(beat("setup", activity=used(0.0), trained_s=1e5))) is None
    assert wastes(seen(beat(activity=used(0.0)), beat("waiting"))) is None


def at_home(*shares: float, asked: int | None) -> JobSnapshot:
    job = seen(beat(activity=used(*shares)), gpus=len(shares))
    gpus = None if asked is None else Gpus("", asked)
    spec = replace(job.spec, resources=Resources(provider="local", gpus=gpus))
    return replace(job, spec=spec, capabilities=replace(job.capabilities, here=True))


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
