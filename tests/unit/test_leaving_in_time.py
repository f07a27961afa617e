"""The last seconds of an attempt: shares of the time, and what is told of what was not stored."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from agent_world import JOB, AgentWorld
from attempt_parts import FakeSync, a_life, said, world

from stoker.agent import flush_after_restart as flush_module
from stoker.agent.checkpoints.restore import RestoredCheckpoint
from stoker.agent.checkpoints.sync import SyncOptions, SyncStatus
from stoker.agent.exit_report import TrainingRecord, make_exit
from stoker.agent.phases import finish
from stoker.agent.shutdown_budget import ShutdownBudget
from stoker.agent.supervise import TrainingOutcome
from stoker.model.node_facts import CheckpointRef
from stoker.model.spec import Spec
from stoker.model.submission import Submission

__all__ = ["world"]


class Pump:
    """Keeps how long it was given."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def drain(self, seconds: float, until_s: Any = None) -> bool:
        self.given.append(f"drain {seconds:.0f}")
        return True

    def stop(self, timeout_s: float = 5.0) -> None:
        self.given.append(f"stop {timeout_s:.0f}")


def test_what_comes_before_the_exit_gets_its_share_of_the_time(world: AgentWorld) -> None:
    life = a_life(world)
    logs, metrics, copy = Pump(), Pump(), Pump()
    final: list[tuple[float, bool]] = []
    stopped: list[str] = []
    life.pumps.logs, life.pumps.metrics, life.pumps.copy = logs, metrics, copy  # type: ignore[assignment]
    settled: list[float] = []
    life.setup = SimpleNamespace(wait_for_uploads=lambda until_s: settled.append(until_s() - time.monotonic()))  # type: ignore[assignment]

    def outputs(seconds: None, until_s: Any, publish: bool) -> bool:
        final.append((until_s() - clock[0], publish))
        return True

    life.syncs.outputs = SimpleNamespace(final=outputs, stored_saves=list, stored_loose=list)  # type: ignore[assignment]
    sync = FakeSync()
    life.syncs.checkpoints = sync  # type: ignore[assignment]
    for owner, name in ((life.leaving, "peers"), *((life.monitors, name) for name in ("usage", "setup", "training"))):
        setattr(owner, name, SimpleNamespace(stop=lambda name=name: stopped.append(name)))
    left = make_exit("succeeded", "finished", "done", TrainingRecord())
    clock = [0.0]
    assert finish.flush(life, left, ShutdownBudget(100.0, lambda: None, lambda: clock[0])) is left
    assert logs.given == ["drain 50", "stop 5"] and metrics.given == ["drain 50", "stop 5"]
    assert copy.given == ["drain 2"] and final == [(100.0, True)] and 50.0 < settled[0] <= 60.0
    assert stopped == ["peers", "usage", "setup", "training"] and sync.did == ["close"]
    # A machine that is taken away has no time for copies, names and environments.
    life.notices.poll = lambda: 1.0  # type: ignore[method-assign]
    pressed = ShutdownBudget(100.0, lambda: 12.0, lambda: clock[0])
    assert pressed.share_s() == 10.0
    found = finish.flush(life, left, pressed)
    assert found is left and final[-1] == (10.0, False) and len(copy.given) == 1 and settled[-1] < 0.0
    sync.now = SyncStatus(unsynced_bytes=1)
    found = finish.flush(life, left, pressed)
    assert (found.outcome, found.why) == ("interrupted", "notice")
    assert found.reason == "the command finished, but the machine was taken before everything was safe"
    failed = make_exit("failed", "finished", "oh", TrainingRecord())
    assert finish.flush(life, failed, pressed) is failed


def test_what_is_not_in_the_store_is_told_to_those_whom_it_concerns(world: AgentWorld) -> None:
    life = a_life(world)
    life.submission = Submission(JOB, Spec(name="job", run="true"), "test")
    failed = make_exit("failed", "finished", "oh", TrainingRecord())
    lost = "nothing was saved: "
    concluded: list[float] = []

    def missing(*elsewhere: str) -> Any:
        return SimpleNamespace(conclude=concluded.append, settle=lambda: None, elsewhere=elsewhere)

    assert finish.say_nothing_saved(life, failed) is failed, "it never trained"
    life.syncs.checkpoints = FakeSync()  # type: ignore[assignment]
    life.syncs.missing = missing()
    assert finish.say_nothing_saved(life, failed) is failed
    life.record.outcome = TrainingOutcome(1, None, 7.0)
    finish.say_nothing_saved(life, failed)
    assert concluded == [7.0] and lost not in said(life), "it failed by itself, and saved nowhere"
    finish.say_nothing_saved(life, make_exit("infrastructure", "finished", "oh", life.record))
    assert said(life).count(lost) == 1
    life.syncs.missing = missing("m.pt")
    assert finish.say_nothing_saved(life, failed).saves_elsewhere == ("m.pt",) and said(life).count(lost) == 2
    life.syncs.checkpoints = FakeSync(files=2)  # type: ignore[assignment]
    finish.say_nothing_saved(life, failed)
    assert "was not whole in time" in said(life)
    count = said(life).count(lost)
    done = make_exit("succeeded", "finished", "done", life.record)
    assert finish.say_nothing_saved(life, done).saves_elsewhere == (), "the folder has files"
    life.syncs.checkpoints = FakeSync()  # type: ignore[assignment]
    assert finish.say_nothing_saved(life, done).saves_elsewhere == ("m.pt",)
    advice = "m.pt looks like a save: write `checkpoints: {dir: "
    assert f"no checkpoint was made: no file was written to checkpoints/; {advice}" in said(life)
    life.syncs.missing = missing()
    spoken = said(life)
    assert finish.say_nothing_saved(life, done) is done and said(life) == spoken, (
        "it saved nothing, and needs no advice"
    )
    life.record.restored = RestoredCheckpoint("key", ())
    finish.say_nothing_saved(life, failed)
    life.record.restored = None
    life.syncs.checkpoints = FakeSync(last=CheckpointRef("key", "name"))  # type: ignore[assignment]
    finish.say_nothing_saved(life, failed)
    assert said(life).count(lost) == count


@pytest.mark.parametrize("grace_s", [None, 10.0])
def test_a_restarted_agent_hurries_under_a_notice_alone(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch, grace_s: float | None
) -> None:
    did: list[tuple[str, float]] = []

    class Sync:
        def __init__(self, options: SyncOptions) -> None:
            assert options.recovering is True

        def hurry(self, seconds: float) -> None:
            did.append(("hurry", round(seconds)))

        def final(self, seconds: float | None, until_s: Any) -> None:
            did.append(("final", round(until_s() if seconds is None else seconds)))

        def status(self) -> SyncStatus:
            return SyncStatus(commits=3)

    monkeypatch.setattr(flush_module, "CheckpointSync", Sync)
    node = world.node(world.claim())
    submission = Submission(JOB, Spec(name="job", run="true"), "test")
    clock = [0.0]
    closing = ShutdownBudget(100.0, lambda: grace_s, lambda: clock[0])
    assert flush_module._flush_checkpoints(node, world.state, submission, closing) is None, "there is no folder"
    (node.paths.code / "checkpoints").mkdir(parents=True)
    closing.flush_by_s()
    sync = flush_module._flush_checkpoints(node, world.state, submission, closing)
    assert sync is not None and sync.status().commits == 3
    assert did == ([("final", 100)] if grace_s is None else [("hurry", 8), ("final", 6)])
