"""A node follows its job's log: what was read stands while the store is away, and each new entry wakes the agent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from agent_world import JOB, AgentWorld
from plain_store import wait_for

from stoker.agent import job_log_watch as watch_module
from stoker.agent.job_log_watch import JobLogWatch
from stoker.core.gate import Go, Wait
from stoker.model.job_state import JobState
from stoker.model.log_entries import StopAsked
from stoker.store import job_log
from stoker.store.base import Store
from stoker.testing.memory_store import Fault, MemoryStore


@pytest.fixture
def world(tmp_path: Path) -> AgentWorld:
    found = AgentWorld(tmp_path)
    found.submit("true")
    return found


class Away:
    """Whether the store answers."""

    def __init__(self) -> None:
        self.now = False
        self.asked = 0

    def __call__(self, _method: str, _key: str) -> Fault | None:
        self.asked += 1
        return Fault() if self.now else None


@pytest.fixture
def away() -> Away:
    return Away()


@pytest.fixture
def watch(world: AgentWorld, away: Away, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobLogWatch]:
    monkeypatch.setattr(watch_module, "LOCAL_POLL_S", 0.01)
    claim = world.claim()
    found = JobLogWatch(world.store.client(away), JOB, claim.number, world.instance(claim.number, 0))
    yield found
    found.stop()


def test_what_was_read_stands_while_the_store_is_away(world: AgentWorld, watch: JobLogWatch, away: Away) -> None:
    assert watch.claim() is None and watch.leave() is None, "nothing was read yet"
    before = watch.poll()
    assert before is not None and before.seq == world.state.seq and watch.state is before
    world.append(StopAsked("me"))
    away.now = True
    assert watch.poll() is before and watch.error == "injected fault"
    claim = watch.claim()
    assert claim is not None and claim.launched is not None and watch.leave() is None
    away.now = False
    after = watch.poll()
    assert after is not None and after.stop is not None and watch.error is None
    leave = watch.leave()
    assert leave is not None and leave.why == "stop"


def test_a_store_that_is_away_allows_no_training(watch: JobLogWatch, away: Away) -> None:
    assert watch.permission() == Go()
    away.now = True
    assert watch.permission() == Wait("the store does not answer: injected fault")
    away.now = False
    assert watch.permission() == Go()


def test_each_new_entry_wakes_the_agent_and_nothing_else_does(
    world: AgentWorld, watch: JobLogWatch, away: Away
) -> None:
    watch.poll()
    changes: list[int] = []
    watch.start(lambda: changes.append(watch.state.seq if watch.state else 0))
    before = away.asked
    wait_for(lambda: away.asked > before + 5)
    assert changes == []
    number = world.append(StopAsked("me"))
    wait_for(lambda: changes == [number])


def test_the_first_entries_that_are_read_wake_the_agent_too(world: AgentWorld, watch: JobLogWatch) -> None:
    changes: list[bool] = []
    watch.start(lambda: changes.append(True))
    wait_for(lambda: changes == [True])
    assert watch.state is not None and watch.state.seq == world.state.seq


def test_a_mistake_in_reading_does_not_end_the_watching(
    world: AgentWorld, watch: JobLogWatch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures, really = [True, True], job_log.read

    def read(store: Store, job: str, state: JobState | None) -> JobState | None:
        if failures:
            failures.pop()
            raise ValueError("a mistake")
        return really(store, job, state)

    monkeypatch.setattr(job_log, "read", read)
    changes: list[bool] = []
    watch.start(lambda: changes.append(True))
    wait_for(lambda: bool(changes))
    assert caplog.text.count("reading the job's log failed") == 2


class Pauses:
    """Keeps how long a watch wants to wait, and stops it."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.asked.append(seconds)
        return True


def test_the_log_is_read_less_often_in_a_store_far_away() -> None:
    asked: list[float] = []
    for is_local in (True, False):
        pauses = Pauses()
        watch = JobLogWatch(MemoryStore(lambda: datetime.now(timezone.utc), is_local=is_local), JOB, 2, "i-1")
        watch._stop = pauses  # type: ignore[assignment]
        watch.start(lambda: None)
        wait_for(lambda pauses=pauses: bool(pauses.asked))  # type: ignore[misc]
        asked += pauses.asked
    near_s, far_s = asked
    assert 0.1 <= near_s <= 1.0 <= far_s <= 10.0
