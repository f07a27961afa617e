"""An agent that was started again: what it inherits from the one that died, what it saves, and what it tells."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_world import JOB, AgentWorld
from noticing_machine import Here

from stoker.agent import flush_after_restart as flush_module
from stoker.agent.flush_after_restart import flush
from stoker.agent.node import AgentNode
from stoker.agent.output_files import Baseline
from stoker.model import codec, keys
from stoker.model.log_entries import Waste
from stoker.model.node_facts import CheckpointRef, Exit, Heartbeat
from stoker.model.observed import Known
from stoker.model.spec import Checkpoints
from stoker.processes import boot_id
from stoker.store.checkpoint_manifests import trusted_claims
from stoker.store.node_facts import read_fact
from stoker.testing.memory_store import Fault

SINCE = datetime(2026, 1, 1, tzinfo=timezone.utc)
SAVED = CheckpointRef(f"{2:08d}/000001-step-9", "step-9", step=9)


@pytest.fixture
def world(tmp_path: Path) -> AgentWorld:
    return AgentWorld(tmp_path)


def restarted(world: AgentWorld, *, told: dict[str, Any] | None = None, rank: int = 0, **spec: Any) -> AgentNode:
    """The second boot of a node whose first agent died; `told` is what that one said last."""
    world.submit("true", **spec)
    node = world.node(world.claim(nodes=rank + 1), rank, boots=1)
    node.paths.code.mkdir(parents=True)
    if told is not None:
        beat = Heartbeat(**{"beat": 7, "phase": "training", "at": SINCE, "interval_s": 2.0} | told)
        world.store.put(keys.heartbeat(node.earlier[0]), codec.dumps(beat))
    return node


def exit_of(world: AgentWorld, node: AgentNode) -> Exit:
    found = read_fact(world.store, keys.exit_(node.key), Exit)
    assert isinstance(found, Known) and found.value is not None
    return found.value.value


def beat_of(world: AgentWorld, node: AgentNode) -> Heartbeat:
    found = read_fact(world.store, keys.heartbeat(node.key), Heartbeat)
    assert isinstance(found, Known) and found.value is not None
    return found.value.value


def said(node: AgentNode) -> str:
    return node.paths.train_log.read_text()


def test_what_the_dead_agent_had_told_stays_told(world: AgentWorld) -> None:
    told = {
        "trained_s": 50.0,
        "training_since": SINCE,
        "step": 12,
        "first_step": 3,
        "restored_from": "00000001/000004-step-2",
        "restored_step": 2,
        "checkpoint": SAVED,
        "metrics": {"loss": 0.5},
        "image": "repository@sha256:1",
        "waste": Waste(waited_s=1.0, idle_s=2.0, lost_s=3.0),
    }
    node = restarted(world, told=told)
    flush(node)
    beat = beat_of(world, node)
    assert {name: getattr(beat, name) for name in told} == told and beat.phase == "flushing"
    left = exit_of(world, node)
    assert (left.started, left.trained_s, left.started_at) == (True, 50.0, SINCE)
    assert (left.restored_from, left.restored_step) == ("00000001/000004-step-2", 2)
    assert (left.checkpoint, left.commits, left.waste) == (SAVED, 0, told["waste"])
    assert left.reason == "the agent died; step 9 was saved before"
    assert "[stoker] step 9 was saved before\n" in said(node) and "nothing was saved" not in said(node)
    assert left.outputs is None, "no training began on this disk"


def test_a_checkpoint_without_a_step_is_told_by_its_name(world: AgentWorld) -> None:
    node = restarted(world, told={"training_since": SINCE, "checkpoint": replace(SAVED, step=None)})
    flush(node)
    assert exit_of(world, node).reason == "the agent died; step-9 was saved before"


def test_an_agent_that_died_before_the_training_leaves_an_exit_that_says_so(world: AgentWorld) -> None:
    node = restarted(world, told={"phase": "setup"})
    flush(node)
    left = exit_of(world, node)
    assert (left.started, left.started_at, left.reason) == (False, None, "the agent died")
    assert "nothing was saved" not in said(node) and "the agent was restarted" in said(node)


def test_without_a_word_of_the_dead_agent_there_is_an_exit_all_the_same(world: AgentWorld) -> None:
    node = restarted(world)
    flush(node)
    left = exit_of(world, node)
    assert (left.started, left.trained_s, left.restored_from, left.restored_step) == (False, 0.0, None, None)
    assert (left.checkpoint, left.waste, left.step, left.first_step) == (None, None, None, None)
    assert "nothing was saved" not in said(node)


def test_the_newest_of_several_boots_is_inherited_from(world: AgentWorld) -> None:
    world.submit("true")
    node = world.node(world.claim(), boots=3)
    for key, trained_s in zip(node.earlier[:2], (10.0, 20.0), strict=True):
        beat = Heartbeat(beat=1, phase="training", at=SINCE, interval_s=2.0, trained_s=trained_s)
        world.store.put(keys.heartbeat(key), codec.dumps(beat))
    flush(node)
    assert exit_of(world, node).trained_s == 20.0, "the third boot told nothing"


def saved_by(node: AgentNode, name: str, folder: str = "checkpoints") -> None:
    """A save that the training wrote long before its agent died."""
    path = node.paths.code / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"weights")
    node.paths.scratch.mkdir(parents=True, exist_ok=True)
    (node.paths.scratch / "alive").write_text(json.dumps({"boot": boot_id(), "maybe_half_written": []}))
    for each in (path, path.parent):
        os.utime(each, (1e9, 1e9))


def test_a_save_that_no_commit_has_is_committed_and_told(world: AgentWorld) -> None:
    node = restarted(world, told={"training_since": SINCE, "checkpoint": SAVED})
    saved_by(node, "a.pt")
    flush(node)
    left = exit_of(world, node)
    assert left.commits == 1 and left.checkpoint is not None and left.checkpoint != SAVED
    title = f"step {left.checkpoint.step}" if left.checkpoint.step is not None else left.checkpoint.name
    assert left.reason == f"the agent died; the next one saved {title}"
    assert f"[stoker] the next one saved {title}\n" in said(node)
    assert beat_of(world, node).checkpoint_files == 1
    assert left.saves_elsewhere == ()


def test_a_training_that_saved_elsewhere_is_told_where(world: AgentWorld) -> None:
    node = restarted(world, told={"training_since": SINCE})
    (node.paths.code / "old.pt").write_bytes(b"came with the code")
    Baseline.take([node.paths.code]).write(node.paths.baseline)
    (node.paths.code / "model.pt").write_bytes(b"weights")
    flush(node)
    left = exit_of(world, node)
    assert left.saves_elsewhere == ("model.pt",) and left.reason == "the agent died"
    assert "nothing was saved: no file was written to checkpoints/; model.pt looks like a save" in said(node)


def test_files_older_than_the_training_are_no_saves_of_it(world: AgentWorld) -> None:
    node = restarted(world, told={"training_since": datetime.now(timezone.utc)})
    saved_by(node, "old.pt", ".")
    flush(node)
    assert exit_of(world, node).saves_elsewhere == () and "nothing was saved" in said(node)


def test_files_that_the_pattern_of_the_checkpoints_takes_are_not_elsewhere(world: AgentWorld) -> None:
    node = restarted(world, told={"training_since": SINCE}, checkpoints=Checkpoints(dir="*.ckpt"))
    Baseline().write(node.paths.baseline)
    for name in ("a.ckpt", "b.pt"):
        (node.paths.code / name).write_bytes(b"weights")
    flush(node)
    assert exit_of(world, node).saves_elsewhere in ((), ("b.pt",)), "a.ckpt is a checkpoint, perhaps unfinished"
    assert "a.ckpt look" not in said(node)


@pytest.mark.parametrize("told", [{"restored_from": "00000001/000004-step-2"}, {"rank": 1}])
def test_a_rank_that_does_not_save_or_has_something_to_resume_from_is_told_nothing(
    world: AgentWorld, told: dict[str, Any]
) -> None:
    rank = told.pop("rank", 0)
    node = restarted(world, told={"training_since": SINCE, **told}, rank=rank)
    (node.paths.code / "model.pt").write_bytes(b"weights")
    flush(node)
    assert exit_of(world, node).saves_elsewhere == () and "nothing was saved" not in said(node)


def test_files_of_the_checkpoint_folder_that_are_not_whole_are_told(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = restarted(world, told={"training_since": SINCE})
    status = flush_module.SyncStatus(files=2)
    sync = SimpleNamespace(status=lambda: status, loose=dict, torn=set)
    monkeypatch.setattr(flush_module, "_flush_checkpoints", lambda *_: sync)
    flush(node)
    assert "nothing was saved: what was written to checkpoints/ was not whole in time" in said(node)


def test_outputs_and_metrics_of_the_dead_training_are_in_the_store(world: AgentWorld) -> None:
    node = restarted(world, told={"training_since": SINCE})
    (node.paths.code / "train.py").write_text("came with the code")
    Baseline.take([node.paths.code]).write(node.paths.baseline)
    (node.paths.code / "result.txt").write_text("result")
    reports = [{"t": 1.0, "step": 3, "loss": 2.0}, {"t": 2.0, "step": 5, "loss": 1.5}]
    node.paths.metrics.write_text("".join(json.dumps(one) + "\n" for one in reports))
    flush(node)
    left = exit_of(world, node)
    assert left.outputs is not None and (left.outputs.files, left.outputs.size) == (1, len("result"))
    assert (left.first_step, left.step, left.metrics) == (3, 5, {"loss": 1.5})
    assert list(world.store.list(f"{node.key}/metrics/"))
    assert left.tail[-1].endswith("the job file") or "nothing was saved" in left.tail[-1]


def test_an_exit_that_an_earlier_boot_wrote_is_the_last_word(world: AgentWorld) -> None:
    world.submit("true")
    node = world.node(world.claim(), boots=2)
    world.store.put(keys.exit_(node.earlier[0]), codec.dumps(Exit("succeeded", "finished", SINCE)))
    flush(node)
    assert not world.store.holds(keys.exit_(node.key)) and not node.paths.train_log.exists()


class Copy:
    """The cloud's copy of the log, that keeps what it is fed and how long it may take."""

    def __init__(self) -> None:
        self.fed = b""
        self.drained: list[float] = []

    def feed(self, data: bytes, at: float) -> None:
        self.fed += data

    def drain(self, seconds: float) -> bool:
        self.drained.append(seconds)
        return True


def test_the_clouds_copy_gets_the_rest_of_the_log(world: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    node = restarted(world)
    node.paths.train_log.write_text("the last line\n")
    copy = Copy()
    monkeypatch.setattr(flush_module, "open_log_copy", lambda *_: copy)
    flush(node)
    assert b"the last line\n" in copy.fed and len(copy.drained) == 1 and 1.0 < copy.drained[0] <= 10.0


def test_the_job_is_asked_for_until_the_store_answers(world: AgentWorld) -> None:
    node = restarted(world, told={"training_since": SINCE})
    failed: list[str] = []

    def faults(_method: str, key: str) -> Fault | None:
        if key == keys.spec(JOB) and len(failed) < 2:
            failed.append(key)
            return Fault()
        return None

    flush(replace(node, store=world.store.client(faults)))
    assert len(failed) == 2 and "nothing was saved: no file was written to checkpoints/" in said(node)


def test_signals_are_heard_as_before_when_all_is_flushed(world: AgentWorld) -> None:
    before = signal.getsignal(signal.SIGTERM)
    flush(restarted(world))
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_claim_that_the_log_does_not_have_is_still_awaited(world: AgentWorld) -> None:
    node = restarted(world)
    other = replace(node, config=replace(node.config, claim=99))
    assert flush_module._is_claim_open(other, world.state) and flush_module._is_claim_open(node, None)


def test_the_store_may_be_away_where_the_dead_agent_told_something(world: AgentWorld) -> None:
    node = restarted(world, told={"trained_s": 3.0})

    def faults(_method: str, key: str) -> Fault | None:
        return Fault() if key == keys.heartbeat(node.earlier[0]) else None

    flush(replace(node, store=world.store.client(faults)))
    assert exit_of(world, node).trained_s == 0.0


def test_what_the_dead_agent_had_mounted_is_unmounted_first(world: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    node = restarted(world)
    asked: list[tuple[Path, bool]] = []
    monkeypatch.setattr(
        flush_module, "unmount_below", lambda folder: asked.append((folder, node.paths.train_log.exists()))
    )
    flush(node)
    assert asked == [(node.paths.mounts, False)]


def test_under_a_notice_the_log_and_the_metrics_share_the_time_before_the_exit(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, float] = {}
    for name, pump in (("log", flush_module.LogPump), ("metrics", flush_module.MetricsPump)):
        drain = pump.drain

        def drained(self: Any, seconds: float, until_s: Any, name: str = name, drain: Any = drain) -> bool:
            given[name] = seconds
            return bool(drain(self, seconds, until_s))

        monkeypatch.setattr(pump, "drain", drained)
    machine = Here()
    machine.give(100.0)
    world.submit("true")
    node = world.node(world.claim(), machine=machine, boots=1)
    flush(node)
    # Two seconds are the exit's own; on a busy machine some have passed.
    assert 20.0 < given["metrics"] <= given["log"] <= 49.0


def test_nothing_beats_behind_the_exit(world: AgentWorld) -> None:
    before = {*threading.enumerate()}
    flush(restarted(world))
    assert not [one for one in {*threading.enumerate()} - before if one.name == "heartbeat"]


def test_files_that_came_with_the_code_are_no_checkpoint_of_a_dead_training(world: AgentWorld) -> None:
    node = restarted(world, told={"training_since": SINCE}, checkpoints=Checkpoints(dir="*.ckpt"))
    saved_by(node, "base.ckpt", ".")
    Baseline.take([node.paths.code]).write(node.paths.baseline)
    flush(node)
    assert exit_of(world, node).commits == 0


def test_what_older_attempts_saved_is_known_to_the_agent_that_commits(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    class Sync:
        def __init__(self, options: Any) -> None:
            made.append(vars(options))

        def final(self, seconds: float, until_s: Any) -> None: ...

        def status(self) -> flush_module.SyncStatus:
            return flush_module.SyncStatus()

    monkeypatch.setattr(flush_module, "CheckpointSync", Sync)
    node = restarted(world, checkpoints=Checkpoints(keep=7))
    saved_by(node, "a.pt")
    flush(node)
    [options] = made
    named = {"job": JOB, "claim": node.config.claim, "rank": 0, "nodes": 1, "keep": 7, "recovering": True}
    assert {name: options[name] for name in named} == named
    assert options["trust"] == trusted_claims(world.state, own=node.config.claim)
    assert options["folder"] == node.paths.code / "checkpoints"
    assert (options["channel"], options["scratch"]) == (node.paths.channel, node.paths.scratch)


@pytest.mark.parametrize("saved", [True, False])
def test_what_was_lost_is_not_known_where_something_was_saved_since(world: AgentWorld, saved: bool) -> None:
    node = restarted(world, told={"waste": Waste(1.0, 2.0, 30.0), "training_since": SINCE})
    if saved:
        weights = node.paths.code / "checkpoints/step-7/weights"
        weights.parent.mkdir(parents=True)
        weights.write_bytes(b"w")
        node.paths.scratch.mkdir(parents=True)
        (node.paths.scratch / "alive").write_text(json.dumps({"boot": boot_id(), "maybe_half_written": []}))
        for path in (weights, weights.parent, weights.parent.parent):
            os.utime(path, (1e9, 1e9))
    flush(node)
    left = exit_of(world, node)
    assert left.commits == (1 if saved else 0)
    assert left.waste == Waste(1.0, 2.0, None if saved else 30.0)
