"""A training job that its owner has started again from the same checkpoints is not cloned beside that one."""

from __future__ import annotations

from external_world import HOUR_S, INTERNAL, REGION, World, events

from stoker.core.governor_settings import DEFAULT
from stoker.external_jobs import chain_log, index_rows, notifications
from stoker.external_jobs.clone_chain import Cloned, GaveUp
from stoker.external_jobs.notifications import JobContext
from stoker.model.errors import QuotaExceeded, Transient
from stoker.testing.memory_store import MemoryStore


def failed(world: World) -> None:
    """It trained for long, was seen, and failed; and nobody governs for half an hour."""
    world.account.start(training_s=3 * HOUR_S)
    world.wake()
    world.account.fail(reason=INTERNAL)
    world.account.clock.move(HOUR_S / 2)


def test_what_its_owner_has_resumed_is_not_cloned_and_that_is_told() -> None:
    world = World()
    failed(world)
    again = {"S3Uri": "s3://bucket/checkpoints/bert/"}
    world.account.start("bert-again", training_s=60, CheckpointConfig=again)
    world.governor.tick()
    assert world.clones == [] and events(world)[-1] == GaveUp("bert", "resumed-by-owner")
    *_, last = chain_log.entries(world.store, REGION, "bert")
    told = notifications.notification_of(last, JobContext("bert", REGION), DEFAULT.policy)
    assert told is not None and told.reason.startswith("bert-again goes on from its checkpoints already")
    world.governor.tick()
    assert "resumed-by-owner" in next(each for each in index_rows.summaries(world.store) if each.id == "bert").reason


def test_an_owner_who_copies_the_tags_too_is_one() -> None:
    world = World()
    failed(world)
    tags = [{"Key": "stoker:origin", "Value": "bert"}, {"Key": "stoker:clone-of", "Value": "bert"}]
    again = {"S3Uri": "s3://bucket/checkpoints/bert/"}
    world.account.start("bert-again", training_s=60, CheckpointConfig=again, Tags=tags)
    world.governor.tick()
    assert world.clones == [] and events(world)[-1] == GaveUp("bert", "resumed-by-owner")


def test_other_jobs_are_none_of_its_business() -> None:
    world = World()
    failed(world)
    world.account.start("other", training_s=60, CheckpointConfig={"S3Uri": "s3://bucket/checkpoints/bert-2"})
    world.account.start("none", training_s=60, CheckpointConfig={})
    # It is over, too.
    world.account.start("before", training_s=60)
    world.account.jobs.advance(world.account.job("before"), "Completed")
    world.governor.tick()
    assert len(world.clones) == 1


def test_it_is_asked_once_and_not_at_once() -> None:
    world = World()
    for name in ("one", "two"):
        world.account.start(name, CheckpointConfig={"S3Uri": f"s3://bucket/{name}"})
    world.governor.tick()
    world.account.start(training_s=3 * HOUR_S)
    world.wake()
    world.account.fail(reason=INTERNAL)
    world.account.calls.clear()
    world.wake()
    assert len(world.clones) == 1 and "ListTrainingJobs" not in {operation for operation, _ in world.account.calls}
    clone = world.clones[0]
    world.account.train(clone, 3 * HOUR_S)
    world.account.fail(clone, INTERNAL)
    world.account.clock.move(600)
    world.account.calls.clear()
    world.wake(clone)
    asked_for = [name for operation, name in world.account.calls if operation == "DescribeTrainingJob"]
    # What lists know of the others is enough.
    assert len(world.clones) == 2 and not {"one", "two"} & set(asked_for)
    assert [operation for operation, _ in world.account.calls].count("ListTrainingJobs") == 1


def test_where_nobody_can_say_it_waits() -> None:
    world = World()
    failed(world)

    def silent(operation: str) -> bool:
        if operation == "ListTrainingJobs":
            raise Transient("nobody answers")
        return False

    world.account.trouble = silent
    world.wake()
    (listed,) = index_rows.summaries(world.store)
    assert world.clones == [] and "waits to go on" in listed.reason and "nobody answers" in listed.reason
    world.account.trouble = lambda _operation: False
    world.governor.tick()
    assert len(world.clones) == 1


def test_one_that_is_resumed_while_its_clone_cannot_be_had() -> None:
    world = World()
    failed(world)

    def none_left(operation: str) -> bool:
        if operation == "CreateTrainingJob":
            raise QuotaExceeded("ml.g5.12xlarge is 0")
        return False

    world.account.trouble = none_left
    world.governor.tick()
    world.account.trouble = lambda _operation: False
    world.account.start("bert-again")
    world.governor.tick()
    assert world.clones == [] and events(world)[-1] == GaveUp("bert", "resumed-by-owner", meant=True)


def test_its_own_clone_is_no_owners() -> None:
    world = World()
    failed(world)
    world.account.trouble = lambda operation: operation == "CreateTrainingJob"
    assert "the reply was lost" in str(world.governor.tick().problems)
    world.account.trouble = lambda _operation: False
    world.governor.wake(REGION, "bert")
    assert events(world)[-1] == Cloned("bert", world.clones[0]) and len(world.clones) == 1


def test_the_clone_of_a_clone_that_another_store_made_is_no_owners() -> None:
    world, other = World(), World()
    failed(world)
    world.governor.tick()
    (clone,) = world.clones
    # The other one knows nothing of what it is a clone of.
    other.account = world.account
    other.store = MemoryStore(clock=world.account.clock.now)
    other.governor = other.another("other")
    other.legislate("")
    world.account.train(clone, 3 * HOUR_S)
    world.account.fail(clone, INTERNAL)
    other.governor.tick()
    world.account.clock.move(HOUR_S)
    world.wake(clone)
    assert events(world)[-1] == Cloned(clone, world.clones[1]) and len(world.clones) == 2


def test_a_clone_that_another_store_made_is_no_owners() -> None:
    world, other = World(), World()
    other.account = world.account
    other.store = MemoryStore(clock=world.account.clock.now)
    other.governor = other.another("other")
    other.legislate("")
    failed(world)
    world.governor.tick()
    (clone,) = world.clones
    world.account.train(clone, 3 * HOUR_S)
    world.governor.tick()
    world.account.fail(clone, INTERNAL)
    world.governor.tick()
    # The other one looks only now, while the clone of the clone is at work.
    assert len(world.clones) == 2
    world.account.clock.move(HOUR_S)
    other.wake()
    assert events(other)[-1] == Cloned("bert", clone) and len(world.clones) == 2
