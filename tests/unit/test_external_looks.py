"""Training jobs of others: what a look, a plan and a sweep answer when there is nothing, or no answer."""

from __future__ import annotations

import pytest
from external_world import CAPACITY, HOUR_S, INTERNAL, REGION, WASTE, World, kinds

from stoker.external_jobs import govern
from stoker.external_jobs.gpu_alarms import Alarm
from stoker.governor.serverless.external_jobs import ExternalJobsResult
from stoker.model import keys
from stoker.model.errors import AuthDenied, NotInstalled, ProviderError, Transient
from stoker.store import external_job_index

UNREADABLE = b'{"text": "rules: [{no_such: 1}]", "author": "newer"}'


def refuse(world: World, operation: str, error: ProviderError | NotInstalled) -> None:
    """AWS does not do this any more."""

    def trouble(each: str) -> bool:
        if each == operation:
            raise error
        return False

    world.account.trouble = trouble


# ── What is left to do ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_goes_on_is_looked_at_again_and_one_that_is_over_is_not() -> None:
    world = World()
    world.account.start(training_s=60)
    assert world.governor.wake(REGION, "bert").active == 1
    looked = world.governor.tick()
    assert looked.active == 1 and not looked.unsent and not looked.unknown
    world.account.jobs.advance(world.account.job(), "Completed")
    assert world.governor.wake(REGION, "bert").active == 0
    assert world.governor.tick().active == 0


def test_a_job_that_could_not_be_looked_at_is_looked_at_again_and_one_that_is_gone_is_not() -> None:
    world = World()
    world.account.start(training_s=60)
    refuse(world, "DescribeTrainingJob", Transient("away"))
    looked = world.governor.wake(REGION, "bert")
    assert looked.active == 1 and looked.problems == {"bert": "away"}
    assert world.governor.tick().active == 1, "it is listed, and nothing is known of it"
    world.account.trouble = lambda _operation: False
    looked = world.governor.wake(REGION, "nobody")
    assert looked == ExternalJobsResult(gone={"nobody"}) and (looked.active, looked.unsent, looked.unknown) == (
        0,
        False,
        False,
    )


@pytest.mark.parametrize(
    ("error", "unknown"), [(Transient("away"), True), (AuthDenied("not yours"), False), (NotInstalled("boto3"), False)]
)
def test_a_list_that_failed_is_no_reason_to_rest_unless_it_always_fails(error: ProviderError, unknown: bool) -> None:
    world = World()
    world.account.start(training_s=60)
    refuse(world, "ListTrainingJobs", error)
    looked = world.governor.tick()
    assert looked.unknown is unknown and looked.active == 0
    assert list(looked.problems) == [f"sagemaker {REGION}"]


def test_rules_that_cannot_be_read_are_told_by_every_look_and_sweep_nothing() -> None:
    world = World(WASTE)
    world.account.start(training_s=60)
    world.wake()
    world.account.jobs.enter(world.account.job(), "Stopped")
    world.store.put(keys.rules(2), UNREADABLE)
    for looked in (world.governor.wake(REGION, "bert"), world.governor.tick(), world.governor.plan()):
        assert list(looked.problems) == ["policy"] and looked.unknown and looked.done == []
    swept = world.governor.sweep()
    assert list(swept.problems) == ["policy"] and swept.found == [] and len(world.account.rings) == 2


# ── Plans and sweeps ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_plan_tells_of_jobs_that_ended_lately_and_does_nothing() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.account.fail(reason=INTERNAL)
    world.account.start("old", training_s=9000)
    world.account.fail("old", INTERNAL)
    world.account.clock.move(HOUR_S)
    planned = world.governor.plan()
    assert any(line.startswith("bert: ") for line in planned.done) and planned.problems == {}
    assert world.clones == [] and kinds(world) == [] and external_job_index.read(world.store, REGION).rows == {}
    assert not any(operation == "CreateTrainingJob" for operation, _ in world.account.calls)


def test_a_plan_asks_nothing_where_the_policy_governs_no_region() -> None:
    world = World(policy="rules: []\n")
    world.account.start(training_s=60)
    assert world.governor.plan() == ExternalJobsResult() and world.account.calls == []


def test_a_plan_tells_of_a_region_that_does_not_answer() -> None:
    world = World()
    refuse(world, "ListTrainingJobs", Transient("away"))
    assert world.governor.plan().problems == {f"sagemaker {REGION}": "away"}


def test_a_sweep_tells_of_a_region_that_does_not_answer() -> None:
    world = World(WASTE)
    refuse(world, "DescribeAlarms", Transient("away"))
    swept = world.governor.sweep()
    assert swept.problems == {f"sagemaker {REGION}": "away"} and swept.found == []


def test_a_sweep_leaves_alarms_of_jobs_that_train() -> None:
    world = World(WASTE)
    world.account.start(training_s=60)
    world.wake()
    assert world.governor.sweep().found == [] and len(world.account.rings) == 2
    world.account.fail(reason=CAPACITY)
    assert len(world.governor.sweep(dry=True).found) == 2 and len(world.account.rings) == 2


# ── Answers that are missing or strange ───────────────────────────────────────────────────────────────────────────────


def test_where_alarms_cannot_be_listed_none_is_made_or_removed_until_they_can() -> None:
    world = World(WASTE)
    world.account.start(training_s=60)
    refuse(world, "DescribeAlarms", Transient("away"))
    world.governor.wake(REGION, "bert")
    assert not any(operation in ("PutMetricAlarm", "DeleteAlarms") for operation, _ in world.account.calls)
    world.account.trouble = lambda _operation: False
    world.wake()
    assert len(world.account.rings) == 2


@pytest.mark.parametrize("error", [Transient("away"), AuthDenied("not allowed")])
def test_other_rules_hold_where_alarms_cannot_be_listed(error: ProviderError) -> None:
    """A role without cloudwatch:DescribeAlarms would otherwise end the enforcement of `max_cost` in the region."""
    world = World("- max_nodes: 1")
    world.account.start(
        training_s=60, ResourceConfig={"InstanceType": "ml.g5.xlarge", "InstanceCount": 8, "VolumeSizeInGB": 50}
    )
    refuse(world, "DescribeAlarms", error)
    ticked = world.governor.tick()
    assert ticked.problems == {f"sagemaker {REGION}": str(error)}
    assert world.account.job().status == "Stopping"


def test_an_alarm_about_what_can_be_no_job_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.account.start(training_s=60)
    odd = f"{world.governor.start}odd"
    world.account.rings[odd] = Alarm(odd, "-odd/algo-1", ringing=True)
    monkeypatch.setattr(govern.random, "shuffle", lambda names: names.sort())
    world.governor.tick()
    assert external_job_index.read(world.store, REGION).rows.keys() == {"bert"}
    assert {name for operation, name in world.account.calls if operation == "DescribeTrainingJob"} == {"bert"}
