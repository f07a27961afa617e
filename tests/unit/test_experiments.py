"""Experiments that lead nowhere: by what they report, and by nothing else."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from stoker.agent.metric_progress import MAX_NAMES, MAX_TRENDS
from stoker.agent.metrics import MetricsPump
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.metric_rules import metric_violation
from stoker.core.snapshot import Append, JobSnapshot
from stoker.model.log_entries import Claimed, Draining, Event, Launched, Warned
from stoker.model.node_facts import Trend
from stoker.model.policy import MetricRule
from stoker.policy.policy_file import parse_policy
from stoker.store.base import open_store
from tests.support.sim_data import SPOT_A, at, make_beat, make_exit, make_facts, make_snapshot, make_state, nodes

RUNNING = (Claimed(offering=SPOT_A, nodes=1), Launched(2, nodes(2)))


def job(
    *more: Event | tuple[Event, float],
    now_s: float = 95.0,
    trained_s: float = 60.0,
    phase: str = "training",
    **beat: object,
) -> JobSnapshot:
    told = make_beat(now_s, phase, trained_s=trained_s, **beat)
    return make_snapshot(make_state(*RUNNING, *more), make_facts(2, beat=told))


def told(wanted: MetricRule, found: JobSnapshot) -> str | None:
    return metric_violation(wanted, found, found.state.claims[0], at(100))


TREND = Trend(low=0.5, low_s=400.0, high=2.0, high_s=30.0)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (MetricRule("loss", nan=True), None),
        (MetricRule("gone", nan=True), None),
        (MetricRule("bad", nan=True), "bad is nan"),
        (MetricRule("loss", above=0.9), "loss is 1, above 0.9"),
        (MetricRule("loss", above=1.0), None),
        (MetricRule("bad", above=0.0), None),
        (MetricRule("loss", below=1.5), "loss is 1, below 1.5"),
        (MetricRule("loss", no_improvement_s=300.0), "loss has not improved on 0.5 for 6 min 40 s"),
        (MetricRule("loss", no_improvement_s=500.0), None),
        (MetricRule("loss", no_improvement_s=20.0, goal="max"), "loss has not improved on 2 for 30 s"),
        (MetricRule("bad", no_improvement_s=1.0), None),
        (MetricRule("loss", above=0.9, after_s=61.0), None),
    ],
)
def test_what_is_reported(wanted: MetricRule, reason: str | None) -> None:
    found = job(metrics={"loss": 1.0, "bad": math.nan}, trends={"loss": TREND})
    assert told(wanted, found) == reason


def test_what_is_old_or_not_training_says_nothing() -> None:
    wanted = MetricRule("loss", nan=True)
    assert told(wanted, job(metrics={"loss": math.inf})) == "loss is inf"
    assert told(wanted, job(metrics={"loss": math.inf}, now_s=0.0)) is None
    assert told(wanted, job(metrics={"loss": math.inf}, phase="restoring")) is None


def settings(text: str) -> GovernorSettings:
    from dataclasses import replace

    return replace(DEFAULT, policy=parse_policy(f"rules: [{{{text}}}]".encode(), "p.yaml"))


def test_it_is_told_then_stopped_without_waiting_for_a_witness() -> None:
    by = settings("name: diverged, metric: {name: loss, nan: true}")
    (first,) = decide_job(job(metrics={"loss": math.nan}), by, at(100)).actions
    assert isinstance(first, Append) and first.event == Warned(code="policy:diverged:2")
    assert first.reason == "policy diverged: loss is nan"
    warned = (first.event, 100.0)
    assert decide_job(job(warned, metrics={"loss": math.nan}), by, at(101)).actions == (), "one odd number ends nothing"
    (second,) = decide_job(job(warned, metrics={"loss": math.nan}, now_s=110.0), by, at(111)).actions
    assert isinstance(second, Append)
    assert second.event == Draining(claim=2, outcome="limit", rule="policy:diverged")
    assert decide_job(job(warned, metrics={"loss": 2.0}, now_s=110.0), by, at(111)).actions == ()


def test_who_looks_seldom_comes_to_an_end_too() -> None:
    by = settings("name: diverged, metric: {name: loss, nan: true}")
    words: list[tuple[Event, float]] = []
    for now_s in (1000.0, 1900.0, 2800.0):
        (action,) = decide_job(job(*words, metrics={"loss": math.nan}, now_s=now_s), by, at(now_s + 1)).actions
        assert isinstance(action, Append)
        words.append((action.event, now_s + 1))
    assert [type(event) for event, _ in words] == [Warned, Warned, Draining]


def test_a_rank_that_has_left_is_not_waited_for() -> None:
    by = settings("name: diverged, metric: {name: loss, nan: true}")
    gang = (Claimed(offering=SPOT_A, nodes=2), Launched(2, nodes(2, 2)))
    left = make_facts(2, 1, beat=make_beat(50.0), left=make_exit("succeeded", started=True, code=0))
    bad = make_facts(2, beat=make_beat(200.0, trained_s=60.0, metrics={"loss": math.nan}))
    state = make_state(*gang, (Warned(code="policy:diverged:2"), 100.0))
    (action,) = decide_job(make_snapshot(state, bad, left), by, at(201)).actions
    assert isinstance(action, Append) and isinstance(action.event, Draining)


def test_agents_remember_the_best_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    path.write_text('{"loss": 3}\n{"loss": 1}\n{"loss": "nan"}\n{"loss": 2, "acc": 0.5}\n' + '{"loss": 5}\n')
    pump = MetricsPump(open_store((tmp_path / "store").as_uri()), "work/j/1/0/i.1", path)
    pump.start()
    assert pump.drain(10.0)
    time.sleep(0.01)
    trends = pump.progress.trends
    pump.stop()
    assert (trends["loss"].low, trends["loss"].high, trends["acc"].low) == (1.0, 5.0, 0.5)
    assert trends["loss"].low_s > 0


def test_what_a_job_names_is_not_crowded_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    path.write_text("".join(f'{{"m{number}": 1}}\n' for number in range(MAX_NAMES + 1)))
    pump = MetricsPump(open_store((tmp_path / "store").as_uri()), "work/j/1/0/i.1", path, {"loss": r"loss=(\S+)"})
    pump.start()
    assert pump.drain(10.0)
    assert (len(pump.progress.values), len(pump.progress.trends)) == (MAX_NAMES, MAX_TRENDS)
    pump.scan(b"loss=0.5\n", 1.0)
    assert pump.progress.values["loss"] == pump.progress.trends["loss"].low == 0.5
    pump.stop()
