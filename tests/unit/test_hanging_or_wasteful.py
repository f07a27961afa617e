"""A job that hangs is not ended as a wasteful one: the rule about standing still is waited for, and comes first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.core import health_rules
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.policy_rules import Subject
from stoker.core.snapshot import Append, JobSnapshot
from stoker.model.log_entries import Claimed, Draining, Event, Launched, Warned
from stoker.model.node_facts import Activity, CheckpointRef
from stoker.model.spec import Limits
from stoker.model.usage_series import pack
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import SPOT_A, at, make_beat, make_facts, make_snapshot, make_spec, make_state, nodes

GPU = replace(SPOT_A, gpus=1)
RUNNING = (Claimed(offering=GPU, nodes=1), Launched(2, nodes(2)))
NOW_S = 4 * 3600.0
WASTE = "name: waste, min_gpu_utilization: {value: 80%, over: 1h, after: 30m}, then: stop"
STALL = "name: hangs, stall: {window: 5m, windows: 3}"


def settings(*rules: str) -> GovernorSettings:
    text = "rules:\n" + "".join(f"- {{{rule}}}\n" for rule in rules)
    return replace(DEFAULT, policy=parse_policy(text.encode(), "p.yaml"))


def hung(
    minutes: int,
    *events: Event | tuple[Event, float],
    silent: int | None = None,
    use: float = 0.0,
    working: bool = False,
    evidence: tuple[str, ...] = (),
    stall_s: float | None = None,
) -> JobSnapshot:
    """One that was at 81 % for hours, and has hung for so many minutes."""
    used = [0.81] * (90 - minutes) + [use] * minutes
    silent_s = 60.0 * (minutes if silent is None else silent)
    work = pack(60.0, [[1.0] * 90 if working else [0.0] * 90])
    did = Activity(silent_s, (work,), (pack(60.0, [used]),), devices=1)
    saved = CheckpointRef("c1", 1, at(0), 1)
    beat = make_beat(NOW_S - 5, trained_s=NOW_S - 60, activity=did, evidence=evidence, checkpoint=saved)
    spec = replace(make_spec(), limits=Limits(stall_s=stall_s))
    return make_snapshot(make_state(*RUNNING, *events), make_facts(2, beat=beat), spec=spec)


def found(job: JobSnapshot, by: GovernorSettings) -> list[str]:
    (claim,) = job.state.open_claims
    subject = Subject(job.spec, at(NOW_S).date(), job.state.job)
    return [each.rule for each in health_rules.find_violations(job, claim, by.policy, subject, at(NOW_S))]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("then", ["restart", "stop"])
def test_the_rule_about_standing_still_is_waited_for_and_comes_first(order: int, then: str) -> None:
    by = settings(*[WASTE, f"{STALL}, then: {then}"][::order])
    # Nothing can be told before the first idle window is over.
    assert found(hung(4), by) == ["policy:waste"]
    for minutes in range(5, 15):
        assert found(hung(minutes), by) == [], minutes
    assert found(hung(15), by) == ["policy:hangs"]


def test_it_is_started_again_although_both_have_had_their_word() -> None:
    by = settings(WASTE, STALL)
    words = [(Warned(code=f"policy:{rule}:2", evidence=True), NOW_S - 10) for rule in ("waste", "hangs")]
    job = hung(15, *words, evidence=("policy:waste:2", "policy:hangs:2"))
    (action,) = [each for each in decide_job(job, by, at(NOW_S)).actions if isinstance(each, Append)]
    assert action.event == Draining(claim=2, outcome="infrastructure", rule="policy:hangs")
    # While its ranks still collect what they were doing, too.
    waits = hung(15, *words, evidence=("policy:waste:2",))
    assert not [each for each in decide_job(waits, by, at(NOW_S)).actions if isinstance(each, Append)]


@pytest.mark.parametrize(
    "rule", [f"{STALL}, then: warn", f"{STALL}, audit: true", f"{STALL}, for: {{team: vision}}", "max_nodes: 4"]
)
def test_a_rule_that_does_nothing_is_not_waited_for(rule: str) -> None:
    assert found(hung(10), settings(WASTE, rule)) == ["policy:waste"]


def test_what_moves_does_not_hang() -> None:
    by = settings(WASTE, STALL)
    assert found(hung(10, silent=2), by) == ["policy:waste"], "somebody logs"
    assert found(hung(14, working=True), by) == []
    assert found(hung(10, silent=60), by) == found(hung(60, silent=10), by) == [], "one is too young yet"
    assert found(hung(15, working=True), by) == ["policy:waste"], "the span is over, and its processors are at work"


def test_the_bound_of_a_job_itself_is_waited_for_too() -> None:
    by = settings(WASTE)
    assert found(hung(3, stall_s=600.0), by) == ["policy:waste"]
    assert found(hung(4, stall_s=600.0), by) == found(hung(9, stall_s=600.0), by) == []
    assert found(hung(10, stall_s=600.0), by) == ["stall"]
    # Whatever its accelerators do meanwhile.
    assert found(hung(20, use=0.5, stall_s=600.0), by) == ["stall"]


def test_windows_that_nobody_has_are_not_waited_for() -> None:
    by = settings(WASTE, "stall: {window: 10m, windows: 12}")
    assert found(hung(60, silent=119), by) == []
    assert found(hung(60, silent=120), by) == ["policy:waste"]
