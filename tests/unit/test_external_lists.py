"""Training jobs of others in lists and messages: what a tick asks for, what `ps` shows, what people are told."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from external_world import (
    HOUR_S,
    POLICY,
    REGION,
    WASTE,
    MemoryAccount,
    World,
    asked,
    events,
)

from stoker.external_jobs import index_rows
from stoker.external_jobs.aws_account import TrainingJobDescription
from stoker.external_jobs.clone_chain import JobEnded
from stoker.external_jobs.govern import ExternalJobGovernor
from stoker.model.errors import StoreUnavailable
from stoker.notifications.dispatcher import NotificationDispatcher
from stoker.notifications.events import Message, event_line
from stoker.notifications.events import Notification as News
from stoker.store.base import Store


def test_a_tick_asks_only_about_what_may_have_changed() -> None:
    world = World(WASTE)
    world.account.start(training_s=60)
    world.account.start("done")
    world.account.jobs.advance(world.account.job("done"), "Completed")
    assert world.governor.tick().active == 1
    world.account.calls.clear()
    world.governor.tick()
    assert [name for name, _ in world.account.calls] == ["ListTrainingJobs", "ListTrainingJobs", "DescribeAlarms"]
    world.account.clock.move(HOUR_S)
    world.governor.tick()
    assert ("DescribeTrainingJob", "bert") in world.account.calls
    assert ("DescribeTrainingJob", "done") not in world.account.calls


def test_a_tick_that_takes_too_long_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for number in range(6):
        world.account.start(f"job-{number}")
    monkeypatch.setattr("stoker.external_jobs.govern._TICK_S", -1.0)
    world.governor.tick()
    assert index_rows.summaries(world.store) == []
    monkeypatch.setattr("stoker.external_jobs.govern._TICK_S", 60.0)
    assert world.governor.tick().active == 6 and len(index_rows.summaries(world.store)) == 6


def test_those_that_ring_all_the_time_leave_their_turn_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look takes all the time that there is."""
    world = World(WASTE)
    for name in ("aa", "bb"):
        world.account.start(name, training_s=60)
    world.governor.tick()
    world.account.ring()
    world.account.start("new")
    looked: set[str] = set()
    moment = 0.0

    def look(self: object, _looked: object, _policy: object, _region: str, name: str, *_: object) -> None:
        nonlocal moment
        looked.add(name)
        moment += 61.0

    monkeypatch.setattr(ExternalJobGovernor, "_govern_job", look)
    monkeypatch.setattr("stoker.external_jobs.govern.time.monotonic", lambda: moment)
    for _ in range(200):
        world.governor.tick()
    assert looked == {"aa", "bb", "new"}


@pytest.mark.parametrize("ago_s", [0.0, 23 * HOUR_S])
def test_all_that_is_listed_yet_is_known_and_not_asked_about_again(
    monkeypatch: pytest.MonkeyPatch, ago_s: float
) -> None:
    monkeypatch.setattr("stoker.store.external_job_index._MOST_ENDED", 5)
    world = World()
    for number in range(12):
        world.account.start(f"sweep-{number}")
        world.account.jobs.advance(world.account.job(f"sweep-{number}"), "Completed")
    world.account.clock.move(ago_s)
    world.governor.tick()
    world.account.calls.clear()
    world.governor.tick()
    assert [name for name, _ in world.account.calls] == ["ListTrainingJobs", "ListTrainingJobs", "DescribeAlarms"]
    # Those that are not listed any more are forgotten, but for the last.
    world.account.clock.move(26 * HOUR_S)
    world.account.start("another")
    world.account.jobs.advance(world.account.job("another"), "Completed")
    world.governor.tick()
    kept = [summary.id for summary in index_rows.summaries(world.store)]
    assert len(kept) == 5 and "another" in kept


def test_all_regions_share_the_time_of_a_tick_and_each_comes_to_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    regions = ("eu-west-1", "eu-west-2", "us-east-1", "us-west-2")
    world = World(policy=f"sagemaker: {{regions: [{', '.join(regions)}]}}\n")
    passed_s, looked_at = [0.0], []

    class Slow(MemoryAccount):
        def describe(self, name: str) -> TrainingJobDescription | None:
            passed_s[0] += 25
            looked_at.append(self.region)
            return super().describe(name)

    accounts = {region: Slow(region) for region in regions}
    for account in accounts.values():
        account.clock = account.jobs.clock = world.account.clock
        for number in range(20):
            account.start(f"job-{number}")
    monkeypatch.setattr("stoker.external_jobs.govern.time.monotonic", lambda: passed_s[0])
    for _ in regions:
        before = len(looked_at)
        # As a function has it: nothing is remembered from one tick to the next.
        ExternalJobGovernor(world.store, accounts.__getitem__, name="one", now=world.account.clock.now).tick()
        world.account.clock.move(60)
        assert len(looked_at) - before < 10, "one deadline for all regions"
    assert set(looked_at) == set(regions)


def test_lists_tell_whose_they_are_and_how_they_do() -> None:
    world = World("- max_nodes: 1")
    world.account.start(training_s=60)
    world.account.start("done", training_s=60, ResourceConfig={**asked()["ResourceConfig"], "InstanceCount": 1})
    world.account.jobs.advance(world.account.job("done"), "Completed")
    world.governor.tick()
    world.governor.tick()
    found = {summary.id: summary for summary in index_rows.summaries(world.store)}
    assert found["done"].phase == "succeeded" and found["done"].ended_at is not None
    assert found["bert"].phase == "stopping" and found["bert"].provider == "sagemaker"
    assert found["bert"].reason == "SageMaker us-east-1, jane: asked to stop: policy:max-nodes"
    assert found["bert"].attempts[0].machine == "ml.g5.12xlarge" and found["bert"].nodes == 2


class Letters(NotificationDispatcher):
    """Tells a list."""

    def __init__(self, store: Store) -> None:
        self.messages: list[Message] = []
        super().__init__(store, "one", open_=lambda _to: self.messages.append)


def test_what_cannot_be_noted_is_told_by_the_next_look() -> None:
    """The store stumbles once; the function that looked then is gone, or goes on."""
    for again in (True, False):
        policy = f"{POLICY}notify: [{{to: 'https://example.com/hook', at_most: 100}}]\n"
        world = World("- max_nodes: 1\n  then: warn", policy)
        world.account.start(training_s=60)

        class Stumbling(Letters):
            stumbled = False

            def record(self, *given: Any, **named: Any) -> None:
                if not self.stumbled:
                    self.stumbled = True
                    raise StoreUnavailable("a stumble")
                super().record(*given, **named)

        def governor(dispatcher: NotificationDispatcher, world: World = world) -> ExternalJobGovernor:
            return ExternalJobGovernor(
                world.store, lambda _region: world.account, now=world.account.clock.now, dispatcher=dispatcher
            )

        first = Stumbling(world.store)
        one = governor(first)
        looked = one.wake(REGION, "bert")
        assert looked.problems == {"notify": "a stumble"} and looked.unsent
        dispatcher = first if again else Letters(world.store)
        looked = (one if again else governor(dispatcher)).tick()
        kinds = [told.kind for message in dispatcher.messages for told in message.events]
        assert kinds == ["started", "rule"] and not looked.unsent


def test_people_are_told_once_though_governors_are_many() -> None:
    policy = f"{POLICY}notify: [{{to: 'https://example.com/hook', at_most: 100}}]\n"
    world = World("- stall: {window: 5m}\n- max_nodes: 1\n  then: warn", policy)
    tellers = [Letters(world.store) for _ in range(2)]
    governors = [
        ExternalJobGovernor(
            world.store, lambda _region: world.account, now=world.account.clock.now, dispatcher=dispatcher
        )
        for dispatcher in tellers
    ]

    def look(name: str = "bert") -> None:
        for governor in (*governors, *governors):
            assert governor.wake(REGION, name).problems == {}
        governors[0].tick()

    world.account.start(training_s=60)
    look()
    world.account.clock.move(3 * HOUR_S)
    world.account.measure("bert", 0)
    world.account.line_at = world.account.clock.now() - timedelta(hours=1)
    world.account.ring()
    look()
    world.account.jobs.advance(world.account.job(), "Stopped")
    look()
    (clone,) = world.clones
    look(clone)
    world.account.jobs.advance(world.account.job(clone), "Completed")
    look(clone)
    # Their order is that of the family's log.
    found = sorted(
        (told for dispatcher in tellers for message in dispatcher.messages for told in message.events), key=_seq
    )
    assert [(told.kind, told.thing) for told in found] == [
        ("started", "bert"),
        ("rule", "bert"),
        ("stalled", "bert"),
        ("stopped", "bert"),
        ("resumed", clone),
        ("rule", clone),
        ("finished", clone),
    ]
    assert all(told.tags["team"] == "nlp" and told.job == "bert" for told in found)
    assert event_line(found[2]).startswith("bert stands still: policy stall: no line of the log")
    assert "2 × ml.g5.12xlarge spot on SageMaker, of bert" in event_line(found[-1])


def _seq(told: News) -> int:
    return told.seq


def test_a_channel_that_fails_harms_nothing() -> None:
    world = World("- max_nodes: 1", f"{POLICY}notify: [{{to: 'https://127.0.0.1:9/hook'}}]\n")
    world.account.start()
    looked = world.governor.wake(REGION, "bert")
    assert world.account.job().status == "Stopping" and "bert" not in looked.problems


def test_over_is_told_once() -> None:
    world = World()
    world.account.start(training_s=60)
    world.wake()
    world.account.interrupt()
    world.account.jobs.advance(world.account.job(), "Completed")
    for _ in range(3):
        world.wake()
    (ended,) = events(world)[1:]
    # A minute on demand, at the packaged price of the machine.
    assert isinstance(ended, JobEnded) and ended.cost is not None and 0.01 < ended.cost < 1.0
    assert replace(ended, cost=None) == JobEnded("bert", "Completed", 60.0, None, 1)
