"""A governor that slept or was stopped between looking and acting looks again first."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from stoker import Job, client
from stoker.core.snapshot import Plan, Snapshot, Terminate
from stoker.governor import loop
from stoker.governor.freshness import FRESH_S, Freshness, with_sleep
from stoker.governor.loop import Governor
from stoker.providers.local.provider import LocalProvider
from stoker.store import job_log
from stoker.store.base import Store, open_store

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Clocks:
    """The clock that counts sleep, and the one that does not."""

    def __init__(self) -> None:
        self.with_sleep_s = self.monotonic_s = 0.0

    def sleep_computer(self, seconds: float) -> None:
        self.with_sleep_s += seconds

    def run(self, seconds: float) -> None:
        self.with_sleep_s += seconds
        self.monotonic_s += seconds

    def freshness(self) -> Freshness:
        return Freshness(T0, lambda: self.with_sleep_s, lambda: self.monotonic_s)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_STORE", (tmp_path / "store").as_uri())
    monkeypatch.chdir(tmp_path)
    return open_store(os.environ["STOKER_STORE"])


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The machines that a governor ended."""
    found: list[str] = []
    monkeypatch.setattr(LocalProvider, "terminate", lambda _self, instance, _region=None: found.append(instance))
    return found


def test_an_observation_is_fresh_from_its_beginning_for_as_long_as_is_said() -> None:
    clocks = Clocks()
    clocks.run(1000.0)
    clocks.sleep_computer(500.0)
    fresh = clocks.freshness()
    clocks.run(FRESH_S)
    assert fresh.still(), "also before it is complete"
    clocks.run(0.001)
    assert not fresh.still()


@pytest.mark.parametrize("happens", [Clocks.sleep_computer, Clocks.run])
def test_a_plan_that_outlasted_a_sleep_or_a_stop_is_dropped(
    happens: Callable[[Clocks, float], None], store: Store, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks, decided = Clocks(), []

    def decide(_snapshot: Snapshot, _policy: object, now: datetime) -> Plan:
        decided.append(now)
        if len(decided) == 1:
            happens(clocks, 8 * 3600)
        return Plan((Terminate("train-aaaa", f"machine-{len(decided)}", "local", "it fell silent"),))

    monkeypatch.setattr(loop, "decide", decide)
    governor = Governor(store, monotonic=lambda: clocks.monotonic_s, with_sleep=lambda: clocks.with_sleep_s)
    done = governor.run_pass()
    assert ended == [] and done.actions == ()
    assert done.wake_in_s == 0.0 and "decides anew" in done.problems["clock"]
    governor.run_pass()
    assert ended == ["machine-2"], "what was seen after waking is acted on"


def test_a_decision_is_as_of_the_time_when_the_observation_began(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped while it observes, a governor must not take everything that it saw for silent."""
    clocks, decided = Clocks(), []
    observe = loop.observe

    def slow(*arguments: object) -> object:
        clocks.run(3600)
        return observe(*arguments)  # type: ignore[arg-type]

    def decide(_snapshot: Snapshot, _policy: object, now: datetime) -> Plan:
        decided.append(now)
        return Plan()

    monkeypatch.setattr(loop, "observe", slow)
    monkeypatch.setattr(loop, "decide", decide)
    done = Governor(store, monotonic=lambda: clocks.monotonic_s, with_sleep=lambda: clocks.with_sleep_s).run_pass()
    assert done.at - decided[0] >= timedelta(seconds=3600)


def test_observing_for_long_ages_nothing_and_sleeping_meanwhile_does() -> None:
    clocks = Clocks()
    long = clocks.freshness()
    clocks.run(3600)
    assert long.observed() == T0 and long.still()
    clocks.run(FRESH_S + 1)
    assert not long.still()
    slept = clocks.freshness()
    clocks.sleep_computer(FRESH_S + 1)
    slept.observed()
    assert not slept.still()


def test_a_plan_of_half_a_minute_ago_is_carried_out_and_one_of_an_hour_ago_is_not() -> None:
    clocks = Clocks()
    plan = clocks.freshness()
    plan.observed()
    clocks.run(30.0)
    assert plan.still()
    clocks.run(3600.0)
    assert not plan.still()


def test_the_clock_that_counts_sleep_is_the_one_since_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 5000.0, time.CLOCK_MONOTONIC: 1000.0}.__getitem__)
    assert with_sleep() == 5000.0


def test_a_fresh_plan_launches_as_ever(store: Store, tmp_path: Path) -> None:
    job = client.submit(Job(name="x", run="true", code=str(tmp_path)), detach=False)
    Governor(store).run_pass()
    state = job_log.read(store, job)
    assert state is not None and state.claims
