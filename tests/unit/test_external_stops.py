"""Who stopped a training job: whoever governs, so that it goes on, or a person, who is not contradicted."""

from __future__ import annotations

from datetime import timedelta

import pytest
from external_world import HOUR_S, INTERNAL, POLICY, REGION, World, events

from stoker.core.governor_settings import DEFAULT
from stoker.external_jobs import chain_log, notifications
from stoker.external_jobs.clone_chain import GaveUp
from stoker.external_jobs.govern import ExternalJobGovernor
from stoker.external_jobs.notifications import JobContext
from stoker.model import keys
from stoker.model.errors import Transient
from stoker.testing.memory_store import MemoryStore


def silent(operation: str) -> bool:
    """SageMaker does not answer a request to stop."""
    if operation == "StopTrainingJob":
        raise Transient("throttled")
    return False


@pytest.mark.parametrize("heard", [False, True])
def test_one_that_a_person_stopped_is_not_cloned_because_we_meant_to_stop_it(heard: bool) -> None:
    world = World("- name: calm\n  spot: {on_demand_after: 1}")
    world.account.start(training_s=9000)
    world.account.interrupt(times=2)
    if not heard:
        world.account.trouble = silent
    world.governor.wake(REGION, "bert")
    world.account.trouble = lambda _operation: False
    world.account.stop("bert")
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.wake()
    assert len(world.clones) == heard
    assert [event for event in events(world) if isinstance(event, GaveUp)] == (
        [] if heard else [GaveUp("bert", "stop-unclear", meant=True)]
    )


def test_one_that_a_person_stops_in_the_same_moment_is_not_cloned(monkeypatch: pytest.MonkeyPatch) -> None:
    """SageMaker then refuses our own request."""
    world = World("- name: calm\n  spot: {on_demand_after: 1}")
    world.account.start(training_s=9000)
    world.wake()
    world.account.interrupt(times=2)
    theirs = world.account.stop

    def refused(name: str) -> bool:
        theirs(name)
        return False

    monkeypatch.setattr(world.account, "stop", refused)
    world.wake()
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.wake()
    assert world.clones == [] and events(world)[-1] == GaveUp("bert", "stop-unclear", meant=True)


class Crash(BaseException):
    """The governor's process ends here."""


def crash_before(world: World, operation: str, key: str) -> None:
    """A governor looks, and ends before it does this to the store."""

    def ends(asked: str, about: str) -> None:
        if asked == operation and key in about:
            raise Crash

    assert isinstance(world.store, MemoryStore)
    store = world.store.client(ends)
    with pytest.raises(Crash):
        ExternalJobGovernor(store, lambda _region: world.account, name="gone", now=world.account.clock.now).tick()


def stopped_and_crashed(ahead_s: float = 0.0) -> World:
    """Spot was given up for bert: it was asked to stop, and who asked ended before that was written down. The store's
    clock is ahead of SageMaker's."""
    world = World()
    ahead = timedelta(seconds=ahead_s)
    world.store = MemoryStore(clock=lambda: world.account.clock.now() + ahead)
    world.governor = world.another()
    world.legislate("")
    world.account.clock.move(HOUR_S)
    world.account.start(training_s=9000)
    world.wake()
    world.account.interrupt(times=4)
    # After `Seen` and `Stopping`.
    crash_before(world, "create", keys.clone_chain_entry(REGION, "bert", 3))
    assert world.account.job().status == "Stopping"
    return world


@pytest.mark.parametrize("ahead_s", [-200.0, -5.0, 0.0, 5.0, 50.0])
def test_a_stop_that_nobody_saw_answered_was_ours_by_its_time(ahead_s: float) -> None:
    world = stopped_and_crashed(ahead_s)
    world.account.clock.move(60)
    world.governor.tick()
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.wake()
    (clone,) = world.clones
    assert not world.account.job(clone).spot


@pytest.mark.parametrize(("moved_s", "told"), [(-120.0, []), (400.0, [GaveUp("bert", "stop-unclear", meant=True)])])
def test_a_stop_of_another_time_is_a_persons_or_nobody_knows(moved_s: float, told: list[GaveUp]) -> None:
    world = stopped_and_crashed()
    world.account.job().transitions[-1].start += timedelta(seconds=moved_s)
    world.account.clock.move(500)
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.wake()
    assert world.clones == [] and [event for event in events(world) if isinstance(event, GaveUp)] == told
    *_, last = chain_log.entries(world.store, REGION, "bert")
    assert not told or notifications.notification_of(last, JobContext("bert", REGION), DEFAULT.policy) is not None


def test_what_was_stopped_to_go_on_and_may_not_any_more_is_told_of() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.account.interrupt(times=4)
    world.wake()
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.legislate("", POLICY.replace("}", ", clone: false}"))
    world.wake()
    assert events(world)[-1] == GaveUp("bert", "unwanted", meant=True) and world.clones == []


def test_what_was_stopped_to_go_on_and_is_refused_by_now_is_told_of() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.account.interrupt(times=4)
    world.wake()
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.legislate("- max_nodes: 1")
    world.wake()
    *_, last = chain_log.entries(world.store, REGION, "bert")
    assert last.record.event == GaveUp("bert", "policy:max-nodes", meant=True) and world.clones == []
    assert notifications.notification_of(last, JobContext("bert", REGION), DEFAULT.policy) is not None


def test_a_request_that_was_not_answered_is_forgotten_with_the_stop_itself() -> None:
    world = World("- name: calm\n  spot: {on_demand_after: 1}")
    world.account.start(training_s=9000)
    world.account.interrupt(times=2)
    world.account.trouble = silent
    world.governor.wake(REGION, "bert")
    world.account.trouble = lambda _operation: False
    world.legislate("")
    world.account.clock.move(600)
    world.wake()
    world.account.interrupt(times=2)
    # `Seen`, `Stopping`, `Unheard`, `Relented`, and `Stopping` once more.
    crash_before(world, "create", keys.clone_chain_entry(REGION, "bert", 6))
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.wake()
    assert len(world.clones) == 1


def test_one_that_fails_after_a_person_stopped_it_is_not_cloned() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.wake()
    world.account.stop("bert")
    world.account.fail(reason=INTERNAL)
    world.wake()
    assert world.clones == [] and not any(isinstance(event, GaveUp) for event in events(world))
