"""Every way of leaving a job that one follows: who governs it then, and what is said."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.governor.background import GovernorChoice
from stoker.model import codec, keys
from stoker.model.errors import StokerError, StoreUnavailable
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, Record, Submitted
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.read import govern_while_following as following
from stoker.read.govern_while_following import RETIRE_S, follow_and_govern
from stoker.store import job_index, job_log
from stoker.store.base import Store, open_store
from tests.support.sim_data import SPOT_A, nodes

JOB = "job-1"
CHOICE = GovernorChoice(by="another")


class Screen:
    def __init__(self) -> None:
        self.events: list[str] = []

    def event(self, text: str) -> None:
        self.events.append(text)


class Guard:
    problem: str | None = None

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.closed = False

    def job(self, job: str) -> None:
        self.jobs.append(job)

    def passed(self) -> None: ...

    def close(self) -> None:
        self.closed = True


class World:
    """A job in a store, the end of following it, and what was asked of governors."""

    def __init__(self, store: Store) -> None:
        self.store, self.screen, self.guard = store, Screen(), Guard()
        self.leave: Callable[[], None] = lambda: None
        self.governed: list[list[str]] = []
        self.others: list[str] = []
        self.warning: str | None = None
        self.choice = CHOICE
        self.tails: list[object] = []

    def append(self, *events: Event) -> None:
        for event in events:
            state = job_log.read(self.store, JOB)
            seq = state.seq + 1 if state is not None else 1
            assert job_log.append(self.store, JOB, seq, Record(job_log.new_token(), "t", "because", event))

    def follow(self, since: int = 0) -> following.FollowResult:
        return follow_and_govern(self.store, JOB, self.screen, since=since, guard=self.guard)  # type: ignore[arg-type]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(open_store(str(tmp_path / "store")))
    data = codec.dumps(Submission(JOB, Spec(name="job", run="true"), "jane"))
    made.store.put(keys.spec(JOB), data)
    made.append(Submitted(codec.digest(data), "jane"))

    def ensure_governed(_store: Store, jobs: list[str]) -> GovernorChoice:
        made.governed.append(jobs)
        return made.choice

    def ensure_governor(url: str) -> str | None:
        made.others.append(url)
        return made.warning

    def follower(_store: Store, _job: str, _screen: object, *, since: int) -> SimpleNamespace:
        return SimpleNamespace(run=lambda tail: (made.tails.append((since, tail)), made.leave()))

    background: Any = SimpleNamespace(ensure_governed=ensure_governed, ensure_governor=ensure_governor)
    monkeypatch.setattr(following, "background", background)
    monkeypatch.setattr(following, "Follower", follower)
    monkeypatch.setattr(following, "governing_in_thread", lambda *_: nullcontext())
    monkeypatch.setattr(following, "may_be_held", lambda *_: False)
    monkeypatch.setattr(following, "guarding", lambda _url: nullcontext(made.guard))
    clock: Any = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _s: pytest.fail("nothing is waited for"))
    monkeypatch.setattr(following, "time", clock)
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    yield made
    assert {number: signal.getsignal(number) for number in before} == before


def raising(error: BaseException) -> Callable[[], None]:
    def leave() -> None:
        raise error

    return leave


def test_a_job_that_ends_has_its_record_and_needs_no_governor(world: World) -> None:
    world.leave = lambda: world.append(Ended("succeeded", "finished"))
    result = world.follow()
    assert (result.reason, result.governor, result.error) == ("ended", None, None)
    assert result.record is not None and result.record.summary.phase == "succeeded"
    # The governor of this process may be too late for that.
    assert job_index.read_index(world.store, JOB) == result.record
    assert (world.governed, world.others, world.screen.events) == ([], [], [])
    assert world.tails == [(0, None)] and not world.guard.closed


def test_after_a_resumption_earlier_lines_are_not_shown_again(world: World) -> None:
    world.append(Ended("failed", "test"))
    world.follow(since=2)
    assert world.tails == [(2, 0)]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_and_a_request_to_end_hand_the_job_over(world: World, number: signal.Signals) -> None:
    world.leave = lambda: os.kill(os.getpid(), number)
    result = world.follow()
    assert (result.reason, result.governor, result.record) == ("hung-up", CHOICE, None)
    assert world.governed == [[JOB]] and world.screen.events == [] and not world.guard.closed


def test_an_ignored_signal_stays_ignored(world: World) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        world.leave = lambda: os.kill(os.getpid(), signal.SIGHUP)
        world.append(Ended("succeeded", "finished"))
        assert world.follow().reason == "ended", "as under nohup"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interruption_and_a_lost_terminal_hand_the_job_over(world: World) -> None:
    world.leave = raising(KeyboardInterrupt())
    assert (world.follow().reason, world.governed) == ("interrupted", [[JOB]])
    error = OSError(5, "Input/output error")
    world.leave = raising(error)
    result = world.follow()
    assert (result.reason, result.governor, result.error) == ("output-lost", CHOICE, error)
    assert len(world.governed) == 2 and not world.guard.closed


def test_where_no_governor_can_be_had_the_guard_tries_again(world: World) -> None:
    world.leave, world.choice = raising(KeyboardInterrupt()), GovernorChoice(problem="no", is_governed=False)
    assert world.follow().governor == world.choice
    assert world.guard.closed


def test_an_error_says_that_the_job_was_submitted(world: World) -> None:
    world.leave = raising(StoreUnavailable("no route"))
    with pytest.raises(StokerError, match=f"^no route; {JOB} was submitted: look with `stoker show {JOB}`$"):
        world.follow()


def test_a_guard_that_cannot_guard_is_told_and_another_has_the_job(world: World) -> None:
    world.append(Ended("succeeded", "finished"))
    world.guard.problem = "no memory"
    follow_and_govern(world.store, JOB, world.screen)  # type: ignore[arg-type]
    assert world.guard.jobs == [JOB]
    assert world.screen.events == [
        f"warning: if this command is killed, {JOB} has no governor (no memory); run `stoker govern --watch` then"
    ]


# ── At the end of a job ───────────────────────────────────────────────────────────────────────────────────────────────


def test_other_jobs_of_the_store_get_a_governor(world: World) -> None:
    world.append(Ended("succeeded", "finished"))
    world.store.put(keys.active("other-1", 1), b"")
    world.follow()
    assert (world.others, world.screen.events) == ([world.store.url], [])
    world.warning = "it is asleep"
    world.follow()
    assert world.screen.events == ["warning: it is asleep"]


def test_messages_that_were_not_sent_get_a_governor(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.append(Ended("succeeded", "finished"))
    monkeypatch.setattr(following, "has_unsent_events", lambda _store: True)
    world.follow()
    assert world.others == [world.store.url]


def test_a_governor_that_cannot_be_had_for_the_others_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.append(Ended("succeeded", "finished"))
    monkeypatch.setattr(following, "active_jobs", lambda _store: raising(StokerError("no route"))())
    assert world.follow().reason == "ended"
    assert world.screen.events == ["no route"]


def ended_after_a_launch(world: World) -> None:
    world.append(Claimed(SPOT_A, 1), Launched(2, nodes(2)), Closed(2, "failed", "test"), Ended("failed", "test"))
    world.store.put(keys.active(JOB, 5), b"")


def test_machines_are_waited_for_until_they_have_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_after_a_launch(world)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            world.store.delete([keys.active(JOB, 5)])

    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    assert world.follow().reason == "ended"
    assert len(slept) == 3 and 0 < max(slept) <= 1


def test_machines_that_do_not_leave_are_waited_for_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_after_a_launch(world)
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    assert world.follow().reason == "ended"
    assert RETIRE_S <= now[0] - 100.0 < RETIRE_S + 2


def test_a_machine_that_is_held_and_a_job_without_machines_are_not_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.append(Claimed(SPOT_A, 1), Closed(2, "dry", "no-capacity"), Ended("failed", "test"))
    world.store.put(keys.active(JOB, 4), b"")
    assert world.follow().reason == "ended"
    monkeypatch.setattr(following, "may_be_held", lambda *_: True)
    world.append(Claimed(SPOT_A, 1), Launched(5, nodes(5)), Closed(5, "failed", "test"), Ended("failed", "test"))
    assert world.follow().reason == "ended"
