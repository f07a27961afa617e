"""The clock of a deployed governor and the training jobs of others: on while there are some, or nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from external_world import POLICY, REGION, START, World
from woken_world import Clock

from stoker.external_jobs.serverless_adapter import ServerlessExternalJobs
from stoker.governor.serverless.event_governor import EventGovernor
from stoker.governor.serverless.events import Tick, TrainingWake
from stoker.governor.serverless.external_jobs import ExternalJobsResult
from stoker.governor.serverless.schedule import ScheduleSwitch
from stoker.model.errors import AuthDenied, ProviderError, StoreUnavailable, Throttled
from stoker.policy import versions
from stoker.testing.memory_store import MemoryStore

WAKE = TrainingWake("bert", REGION)


class Others(ServerlessExternalJobs):
    """As a function has it, with the governor of a world."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store, "test")
        self._governor = world.governor


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path))
    return World("- max_runtime: 1h")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def event_governor(world: World, clock: Clock) -> EventGovernor:
    return EventGovernor(world.store, clock, name="test", external_jobs=Others(world))


def refusing(error: ProviderError, operation: str) -> Callable[[str], bool]:
    def trouble(asked: str) -> bool:
        if asked == operation:
            raise error
        return False

    return trouble


def test_one_of_others_switches_the_clock_on_and_its_bounds_hold(
    world: World, clock: Clock, event_governor: EventGovernor
) -> None:
    world.account.start(training_s=60)
    event_governor.handle([WAKE])
    assert clock.told == ["on"]
    world.account.clock.move(2 * 3600)
    event_governor.handle([Tick()])
    assert world.account.job().status == "Stopping" and clock.told == ["on"]


def test_one_that_is_over_leaves_the_clock_alone(world: World, clock: Clock, event_governor: EventGovernor) -> None:
    world.account.start(training_s=60)
    world.account.jobs.advance(world.account.job(), "Completed")
    event_governor.handle([WAKE])
    assert clock.told == []
    event_governor.handle([Tick()])
    assert clock.told == ["off"]


def test_one_that_could_not_be_looked_at_switches_the_clock_on(
    world: World, clock: Clock, event_governor: EventGovernor
) -> None:
    world.account.start(training_s=60)
    world.account.trouble = refusing(Throttled("Rate exceeded"), "DescribeTrainingJob")
    assert event_governor.handle([WAKE]).problems
    assert clock.told == ["on"]


def test_one_of_others_switches_it_on_whatever_was_switched_before(
    world: World, clock: Clock, event_governor: EventGovernor
) -> None:
    """Another function may have switched it off meanwhile, and looks at no list that has this one."""
    world.account.start(training_s=60)
    event_governor.handle([WAKE])
    event_governor.handle([WAKE])
    assert clock.told == ["on", "on"]


def test_a_store_that_fails_in_the_middle_of_an_event_leaves_the_clock_on(
    world: World, clock: Clock, event_governor: EventGovernor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> ExternalJobsResult:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(world.governor, "wake", fails)
    with pytest.raises(StoreUnavailable):
        event_governor.handle([WAKE])
    assert clock.told == ["on"]


def test_a_list_that_fails_switches_nothing_off(world: World, clock: Clock, event_governor: EventGovernor) -> None:
    world.account.start(training_s=60)
    world.account.trouble = refusing(Throttled("Rate exceeded"), "ListTrainingJobs")
    assert event_governor.handle([Tick()]).problems
    assert clock.told == ["on"]


def test_who_may_see_none_does_not_look_for_ever(world: World, clock: Clock, event_governor: EventGovernor) -> None:
    world.account.trouble = refusing(AuthDenied("not allowed"), "ListTrainingJobs")
    assert event_governor.handle([Tick()]).problems
    assert clock.told == ["off"]


def test_a_policy_that_nobody_can_read_switches_nothing_off(
    world: World, clock: Clock, event_governor: EventGovernor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.governor, "tick", lambda: ExternalJobsResult(problems={"policy": "newer"}, unknown=True))
    event_governor.handle([Tick()])
    assert clock.told == ["on"]


def test_one_that_comes_while_it_is_switched_off_is_seen(world: World) -> None:
    """Its event found the clock on."""

    class Racing(Clock):
        def off(self) -> None:
            super().off()
            world.account.start(training_s=60)

    clock = Racing()
    EventGovernor(world.store, clock, name="test", external_jobs=Others(world)).handle([Tick()])
    assert clock.told == ["off", "on"]


@pytest.mark.parametrize(("policy", "told"), [(POLICY, ["on"]), ("rules: []\n", ["off"])])
def test_a_deployment_leaves_it_to_the_first_tick_where_others_are_governed(
    clock: Clock, policy: str, told: list[str]
) -> None:
    store = MemoryStore(clock=lambda: START)
    versions.write(store, policy, "jane@desk")
    assert ScheduleSwitch(store, clock).begin() is (told == ["on"])
    assert clock.told == told
