"""Governing training jobs of others while events, replies and rivals go wrong."""

from __future__ import annotations

import pytest
from external_world import (
    HOUR_S,
    INTERNAL,
    REGION,
    WASTE,
    World,
    events,
    kinds,
)

from stoker.core.governor_settings import DEFAULT
from stoker.external_jobs import chain_log, index_rows, notifications
from stoker.external_jobs.clone_chain import Cloned, GaveUp
from stoker.external_jobs.govern import ExternalJobGovernor
from stoker.external_jobs.notifications import JobContext
from stoker.model import keys
from stoker.model.errors import AuthDenied, Transient


@pytest.mark.parametrize("name", ["nobody", "", "a" * 64, "../../policy", "a/b", "bert\n", "-x", "ä", "x" * 5000])
def test_an_event_about_nothing_is_nothing(name: str) -> None:
    world = World()
    world.account.start()
    assert world.wake(name) == []
    assert name == "nobody" or world.account.calls == [], "AWS is asked about nothing that can be no name"
    assert world.governor.wake("nowhere", "bert").done == [] and not list(world.store.list(keys.CLONE_CHAINS))


@pytest.mark.parametrize("operation", ["CreateTrainingJob", "StopTrainingJob", "PutMetricAlarm"])
def test_a_lost_reply_is_as_good_as_one(operation: str) -> None:
    world = World(WASTE)
    world.account.start(training_s=9000)
    world.account.interrupt(times=4)
    lost = [operation]
    world.account.trouble = lambda each: each in lost and not lost.remove(each)  # type: ignore[func-returns-value]
    for _ in range(3):
        world.governor.wake(REGION, "bert")
    assert world.account.job().status == "Stopping"
    world.account.jobs.advance(world.account.job(), "Stopped")
    for _ in range(3):
        world.governor.wake(REGION, "bert")
    assert len(world.clones) == 1 and lost == [] and world.account.rings == {}
    assert kinds(world).count("Cloning") == kinds(world).count("Cloned") == 1


@pytest.mark.parametrize("operation", ["GetLogEvents", "DescribeTrainingJob", "ListTags", "ListTrainingJobs"])
def test_what_does_not_answer_causes_nothing(operation: str) -> None:
    world = World("- max_nodes: 1\n  for: {team: vision}")
    world.account.start(training_s=9000)
    world.wake()
    world.account.fail()

    def refuse(each: str) -> bool:
        if each == operation:
            raise Transient("nobody answers")
        return False

    world.account.trouble = refuse
    looked = world.governor.tick()
    assert "nobody answers" in str(looked.problems)
    assert world.clones == [] and kinds(world)[-1] != "GaveUp"
    world.account.trouble = lambda _each: False
    world.governor.tick()
    assert len(world.clones) == 1


def test_a_log_that_can_never_be_read_is_told_of_and_given_up() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.wake()
    world.account.fail()

    def denied(each: str) -> bool:
        if each == "GetLogEvents":
            raise AuthDenied("logs:GetLogEvents")
        return False

    world.account.trouble = denied
    assert "logs:GetLogEvents" in world.governor.tick().problems["bert"]
    (listed,) = index_rows.summaries(world.store)
    assert "its log cannot be read" in listed.reason and "logs:GetLogEvents" in listed.reason
    world.account.clock.move(25 * HOUR_S)
    assert world.governor.tick().active == 0 and events(world)[-1] == GaveUp("bert", "unread")
    assert world.governor.tick().problems == {}
    *_, last = chain_log.entries(world.store, REGION, "bert")
    told = notifications.notification_of(last, JobContext("bert", REGION), DEFAULT.policy)
    assert told is not None and "logs:GetLogEvents" in told.reason


def test_a_clone_that_sagemaker_refuses_is_not_asked_for_again() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.wake()
    world.account.fail(reason=INTERNAL)
    world.account.job().asked["InputDataConfig"] = [{"ChannelName": "a"}, {"ChannelName": "a"}]
    assert world.wake() == [] and events(world)[-1] == GaveUp("bert", "refused")
    calls = len(world.account.calls)
    world.wake()
    assert ("CreateTrainingJob", "bert") not in world.account.calls[calls:] and world.clones == []


def test_one_that_may_not_be_made_now_is_made_later() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.wake()
    world.account.fail(reason=INTERNAL)

    def denied(each: str) -> bool:
        if each == "CreateTrainingJob":
            raise AuthDenied("iam:PassRole")
        return False

    world.account.trouble = denied
    assert "iam:PassRole" in world.governor.tick().problems["bert"]
    world.account.trouble = lambda _each: False
    world.governor.tick()
    assert len(world.clones) == 1


def test_a_stranger_with_the_clones_name_is_not_taken_for_it() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.wake()
    world.account.fail(reason=INTERNAL)
    twin = World()
    twin.account.start(training_s=9000)
    twin.account.fail(reason=INTERNAL)
    twin.wake()
    world.account.start(twin.clones[0])
    world.wake()
    assert events(world)[-1] == GaveUp("bert", "name-taken")


def test_two_stores_make_one_clone() -> None:
    world = World()
    other = World()
    other.account = world.account
    other.governor = other.another("other")
    world.account.start(training_s=9000)
    for each in (world, other):
        each.wake()
    world.account.fail(reason=INTERNAL)
    for each in (world, other):
        each.wake()
    assert len(world.clones) == 1
    assert events(world)[-1] == events(other)[-1] == Cloned("bert", world.clones[0])


def test_two_governors_at_once_write_one_story() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.wake()
    world.account.fail(reason=INTERNAL)
    second: ExternalJobGovernor = world.another("two")
    busy = []

    def between(operation: str) -> bool:
        # A rival does all of it between any two calls.
        if operation in ("DescribeAlarms", "CreateTrainingJob") and not busy:
            busy.append(1)
            second.wake(REGION, "bert")
            busy.clear()
        return False

    world.account.trouble = between
    world.wake()
    assert len(world.clones) == 1 and kinds(world).count("Cloning") == 1
