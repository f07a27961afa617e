"""Heartbeats and evidence: what an attempt reports of its training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_world import AgentWorld
from attempt_parts import NOW, FakeSync, a_life, said, world

from stoker.agent.checkpoints.restore import RestoredCheckpoint
from stoker.agent.metric_progress import Progress
from stoker.agent.phases import context
from stoker.model.errors import SetupFailed
from stoker.model.node_facts import Activity, CheckpointRef, Heartbeat, Trend, Usage

__all__ = ["world"]

# ── The heartbeat ─────────────────────────────────────────────────────────────────────────────────────────────────────


def a_beat(**more: Any) -> Heartbeat:
    return Heartbeat(**{"beat": 1, "phase": "training", "at": NOW, "interval_s": 2.0} | more)


def test_a_heartbeat_says_what_is_known_now(world: AgentWorld) -> None:
    life = a_life(world)
    life.monitors.usage._latest = Usage(cpu_percent=7.0)
    life.record.restored = RestoredCheckpoint("key", (), step=40)
    ref = CheckpointRef("key", "name")
    life.syncs.checkpoints = FakeSync(
        last=ref, files=3, unsynced_bytes=5, error="the store is slow", held_back="a is cut off"
    )  # type: ignore[assignment]
    life.syncs.missing = SimpleNamespace(warning="nothing has been saved", elsewhere=("m.pt",))  # type: ignore[assignment]
    life.pumps.copy = SimpleNamespace(warning="the store is slow")  # type: ignore[assignment]
    life.log_watch.error = "no answer"
    found = life.fill_heartbeat(a_beat(restored_from="key"))
    assert found.usage == Usage(cpu_percent=7.0) and found.restored_step == 40
    assert (found.checkpoint, found.checkpoint_files, found.unsynced_bytes) == (ref, 3, 5)
    assert found.saves_elsewhere == ("m.pt",)
    assert found.warnings == ("no answer", "the store is slow", "a is cut off", "nothing has been saved")
    assert life.fill_heartbeat(a_beat()).restored_step is None, "it has not said what it restored yet"
    plain = a_life(world).fill_heartbeat(a_beat())
    assert plain.warnings == () and plain.checkpoint is None and plain.trained_s == 0.0


def test_a_look_at_the_training_passes_on_its_steps_values_and_saves(world: AgentWorld) -> None:
    life = a_life(world)
    told: list[Any] = []
    fact = Activity(silent_s=1.0)
    life.monitors.training = SimpleNamespace(  # type: ignore[assignment]
        note_step=lambda step, moves: told.append((step, moves)),
        note_metrics=told.append,
        note_checkpoints=told.append,
        report=lambda: None,
        idle_s=lambda gpus: 4.0 + gpus,
    )
    life.monitors.setup.report = lambda: fact  # type: ignore[method-assign]
    trends = {"a": Trend(1.0, 2.0, 3.0, 4.0)}
    life.pumps.metrics = SimpleNamespace(progress=Progress(1, 5, {"a": 1.0}, trends, 3))  # type: ignore[assignment]
    life.syncs.checkpoints = FakeSync(files=1, unsynced_bytes=2, bytes_moved=3, commits=4)  # type: ignore[assignment]
    found = life.fill_heartbeat(a_beat())
    assert told == [(5, 3), {"a": 1.0}, (1, 2, 3, 4)]
    assert (found.step, found.first_step, found.metrics, found.trends) == (5, 1, {"a": 1.0}, trends)
    assert found.activity is fact and found.waste is not None and found.waste.idle_s == 4.0
    own = Activity(silent_s=9.0)
    life.monitors.training.report = lambda: own  # type: ignore[method-assign]
    assert life.fill_heartbeat(a_beat()).activity is own, "of the training, once it has begun"


@pytest.mark.parametrize(
    ("last_age_s", "over_s", "asked_s", "lost_s"),
    [
        (None, 0.0, None, 100.0),
        (30.0, 0.0, None, 30.0),
        (30.0, 20.0, None, 10.0),
        (5.0, 20.0, None, 0.0),
        (500.0, 0.0, None, 100.0),
        (None, 0.0, 10.0, 100.0),
        (11.0, 1.0, 10.0, 10.0),
        (9.0, 1.0, 10.0, 0.0),
    ],
)
def test_what_was_trained_since_the_last_checkpoint_is_lost(
    world: AgentWorld, last_age_s: float | None, over_s: float, asked_s: float | None, lost_s: float
) -> None:
    """But not the time of a save that was begun because the training was asked to end."""
    life = a_life(world)
    life.training = SimpleNamespace(trained_s=100.0, over_s=over_s, asked_s=asked_s)  # type: ignore[assignment]
    life.syncs.checkpoints = FakeSync(last_age_s=last_age_s)  # type: ignore[assignment]
    life.record.waited_s = 1.23456
    found = life.waste()
    assert (found.lost_s, found.waited_s) == (lost_s, 1.235)


def test_what_the_training_prints_goes_to_all_who_read_it(world: AgentWorld) -> None:
    life = a_life(world)
    heard: list[str] = []
    life.pumps.copy = SimpleNamespace(feed=lambda data, at: heard.append(f"copy {data!r} {at}"))  # type: ignore[assignment]
    life.monitors.setup.note_output = lambda data: heard.append("preparing")  # type: ignore[method-assign]
    life.monitors.training.note_output = lambda data: heard.append("activity")  # type: ignore[method-assign]
    life.take_output(b"x", 1.0)
    assert heard == ["copy b'x' 1.0", "preparing", "activity"]
    life.pumps.metrics = SimpleNamespace(  # type: ignore[assignment]
        scan=lambda data, at: heard.append("metrics"), add_usage=lambda usage: heard.append("usage")
    )
    life.take_output(b"x", 1.0)
    life.take_usage(Usage())
    assert heard[-2:] == ["metrics", "usage"]


# ── Evidence ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("early", [True, False])
def test_evidence_is_of_the_training_or_of_what_comes_before_it(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    life = a_life(world)
    asked: list[dict[str, Any]] = []

    def testify(members: set[int], log: Path, secrets: dict[str, str], **options: Any) -> bytes:
        asked.append({"members": members, "log": log, "secrets": secrets, **options})
        return b"text"

    monkeypatch.setattr(context, "collect_stack_dump", testify)
    monkeypatch.setattr(context, "find_py_spy", lambda: Path("/spy"))
    life.monitors.setup.members = lambda: {1}  # type: ignore[method-assign]
    life.runtime = SimpleNamespace(group=SimpleNamespace(members=lambda: {2}))  # type: ignore[assignment]
    life.setup = SimpleNamespace(secrets={"A": "1", "B": "1"})  # type: ignore[assignment]
    life.setup_result = replace(life.setup_result, secrets={"B": "2"})
    life.record.started_at = None if early else NOW
    assert life.collect_stacks() == b"text"
    [found] = asked
    assert found["members"] == ({1} if early else {2}) and found["agent"] is early
    assert found["secrets"] == {"A": "1", "B": "2"} and found["log"] == life.paths.train_log
    assert found["spy"] == Path("/spy")


def test_a_py_spy_that_cannot_be_had_is_told(world: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    life = a_life(world)
    monkeypatch.setattr(context, "find_py_spy", lambda: None)
    monkeypatch.setattr(context, "fetch_program", lambda *_: Path("/fetched"))
    assert life.find_py_spy() == Path("/fetched")

    def fail(*_: object) -> None:
        raise SetupFailed("it is gone", user=False)

    monkeypatch.setattr(context, "fetch_program", fail)
    assert life.find_py_spy() is None and "py-spy is not available: it is gone" in said(life)
