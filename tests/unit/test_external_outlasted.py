"""Training jobs that SageMaker ended at a bound of their own."""

from __future__ import annotations

import pytest
from external_world import HOUR_S, World, events, kinds, told

from stoker.external_jobs import index_rows
from stoker.external_jobs.clone_chain import GaveUp
from stoker.model.errors import Transient


def outlasted(world: World, secondary: str, **changes: object) -> None:
    """SageMaker ends it at a bound of its own."""
    world.account.start(training_s=3 * HOUR_S, **changes)
    world.wake()
    world.account.jobs.enter(world.account.job(), "Interrupted")
    world.account.clock.move(3 * HOUR_S)
    world.wake()
    world.account.jobs.enter(world.account.job(), secondary)
    world.wake()


def test_one_that_sagemaker_let_wait_no_longer_goes_on_without_spot_where_the_policy_says_so() -> None:
    world = World("- max_wait: 4h\n  then: on-demand")
    outlasted(world, "MaxWaitTimeExceeded")
    (clone,) = world.clones
    made = world.account.job(clone)
    assert not made.spot and "MaxWaitTimeInSeconds" not in made.asked["StoppingCondition"]
    assert "policy max-wait: SageMaker ended it: its MaxWaitTimeInSeconds are over" in told(world)[-1].reason
    # Once.
    world.account.train(clone, 60)
    world.account.jobs.enter(made, "MaxWaitTimeExceeded")
    assert world.wake(clone) == [] and world.clones == [clone]


def test_one_that_was_to_be_stopped_and_outlasted_its_wait_first() -> None:
    world = World("- max_wait: 4h\n  then: on-demand")
    world.account.start()
    world.account.clock.move(5 * HOUR_S)

    def silent(operation: str) -> bool:
        if operation == "StopTrainingJob":
            raise Transient("throttled")
        return False

    world.account.trouble = silent
    world.governor.tick()
    world.account.trouble = lambda _operation: False
    world.account.jobs.enter(world.account.job(), "MaxWaitTimeExceeded")
    world.wake()
    assert len(world.clones) == 1


@pytest.mark.parametrize(
    ("rules", "secondary", "changes"),
    [
        ("", "MaxWaitTimeExceeded", {}),
        ("- max_wait: 4h", "MaxWaitTimeExceeded", {}),
        ("- max_wait: 4h\n  then: on-demand", "MaxRuntimeExceeded", {}),
        ("- max_wait: 4h\n  then: on-demand", "MaxWaitTimeExceeded", {"CheckpointConfig": {}}),
    ],
)
def test_what_sagemaker_ended_at_a_bound_of_its_own_is_told(
    rules: str, secondary: str, changes: dict[str, object]
) -> None:
    world = World(rules)
    outlasted(world, secondary, **changes)
    said = f"SageMaker ended it: its {secondary.replace('Exceeded', 'InSeconds')} are over"
    assert world.clones == [] and kinds(world)[-1] == "JobEnded" and told(world)[-1].reason == said
    (listed,) = index_rows.summaries(world.store)
    assert said in listed.reason and world.governor.tick().active == 0


def test_one_that_outlasted_its_wait_long_ago_is_left_alone() -> None:
    world = World("- max_wait: 9h\n  then: on-demand")
    world.account.start(training_s=3 * HOUR_S)
    world.account.jobs.enter(world.account.job(), "MaxWaitTimeExceeded")
    world.account.clock.move(25 * HOUR_S)
    world.wake()
    assert world.clones == [] and events(world)[-1] == GaveUp("bert", "late")
    world = World("- max_wait: 9h\n  then: on-demand", "")
    world.account.start(training_s=3 * HOUR_S)
    world.account.jobs.enter(world.account.job(), "MaxWaitTimeExceeded")
    world.account.clock.move(60)
    world.legislate("- max_wait: 9h\n  then: on-demand")
    world.governor.tick()
    assert world.clones == [] and events(world)[-1] == GaveUp("bert", "before")
