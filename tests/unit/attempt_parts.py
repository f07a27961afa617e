"""An attempt in a world of its own, with stand-ins for what the agent has running."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from agent_world import JOB, AgentWorld
from noticing_machine import Here

from stoker.agent.checkpoints.sync import SyncStatus
from stoker.agent.checkpoints.whole_saves import TrainingEnd
from stoker.agent.phases.context import AttemptContext
from stoker.agent.phases.training import TrainingPhase
from stoker.model.spec import Spec
from stoker.model.submission import Submission

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


class FakeSync:
    """A sync whose status the test sets."""

    sending = False

    def __init__(self, **status: Any) -> None:
        self.now = SyncStatus(**status)
        self.did: list[str] = []
        self.final_s: list[float] = []

    def status(self) -> SyncStatus:
        return self.now

    def wake(self) -> None:
        self.did.append("wake")

    def close(self) -> None:
        self.did.append("close")

    def final(self, seconds: None, end: TrainingEnd, until_s: Any) -> None:
        self.did.append(end.how)
        self.final_s.append(until_s() - time.monotonic())


@pytest.fixture
def world(tmp_path: Path) -> AgentWorld:
    found = AgentWorld(tmp_path)
    found.submit("true")
    return found


def a_life(world: AgentWorld, machine: Here | None = None, rank: int = 0, nodes: int = 1) -> AttemptContext:
    life = world.life(world.claim(nodes), rank, machine=machine)
    life.log_watch.poll()
    return life


def phase_of(life: AttemptContext) -> TrainingPhase:
    return TrainingPhase(life, Submission(JOB, Spec(name="job", run="true"), "test"))


def said(life: AttemptContext) -> str:
    return life.paths.train_log.read_text() if life.paths.train_log.exists() else ""
