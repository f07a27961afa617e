"""Training jobs that others started go on as clones: once, a bounded number of times, and only for a reason."""

from __future__ import annotations

import pytest
from external_world import (
    CAPACITY,
    HOUR_S,
    INTERNAL,
    POLICY,
    REGION,
    STALL,
    World,
    asked,
    events,
    idle,
    kinds,
    told,
)

from stoker.external_jobs import index_rows
from stoker.external_jobs.clone_chain import Cloning, GaveUp, RuleWarning, StopAccepted, Stopping
from stoker.model import keys
from stoker.model.errors import Transient


@pytest.mark.parametrize(
    ("reason", "lines"),
    [
        (INTERNAL, ()),
        (CAPACITY, ()),
        ("AlgorithmError: ExecuteUserScriptError, exit code: 1", ("RuntimeError: NCCL error: unhandled system error",)),
        ("AlgorithmError: , exit code: 1", ("something odd",)),
        ("", ()),
    ],
)
def test_a_failure_after_long_training_goes_on_as_a_clone(reason: str, lines: tuple[str, ...]) -> None:
    world = World()
    world.account.start(training_s=2 * HOUR_S)
    world.wake()
    world.account.fail(reason=reason)
    world.account.lines = lines
    (done,) = world.wake()
    (clone,) = world.clones
    assert done.startswith(f"bert: cloned as {clone}: ")
    assert world.account.job(clone).tags == {
        "team": "nlp",
        "stoker:origin": "bert",
        "stoker:clone-of": "bert",
        "stoker:clone": "1",
    }
    assert world.wake() == [] and world.wake(clone) == [] and world.clones == [clone]
    assert kinds(world) == ["JobSeen", "JobEnded", "Cloning", "Cloned", "JobSeen"]


@pytest.mark.parametrize(
    ("training_s", "reason", "changes", "rule"),
    [
        (7000, "AlgorithmError: , exit code: 1", {}, "too-short"),
        (7000, "AlgorithmError: out of InternalServerError, exit code: 1", {}, "too-short"),
        (9000, "ClientError: Unable to access S3 bucket", {}, "request"),
        (9000, "AlgorithmError: , exit code: 1", {"CheckpointConfig": None}, "no-checkpoints"),
        (9000, INTERNAL, {"TrainingJobName": "pipelines-abc-train"}, "bounded"),
    ],
)
def test_what_is_given_up(training_s: float, reason: str, changes: dict[str, object], rule: str) -> None:
    world = World()
    request = {key: value for key, value in {**asked(), **changes}.items() if value is not None}
    name = request["TrainingJobName"]
    world.account.jobs.answer("CreateTrainingJob", REGION, request)
    world.account.train(name, training_s)
    world.wake(name)
    world.account.fail(name, reason)
    assert world.wake(name) == [] and world.clones == []
    *_, last = events(world, name)
    assert isinstance(last, GaveUp) and last.rule == rule


@pytest.mark.parametrize("reason", [INTERNAL, CAPACITY])
@pytest.mark.parametrize("training_s", [None, 60.0, 7000.0])
def test_the_services_own_failure_is_resumed_at_any_time(reason: str, training_s: float | None) -> None:
    """`RetryStrategy`: "The retry strategy to use when a training job fails due to an InternalServerError", without a
    least time of training: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_RetryStrategy.html"""
    world = World()
    world.account.start(training_s=training_s)
    world.wake()
    world.account.fail(reason=reason)
    (done,) = world.wake()
    assert world.clones and done.startswith(f"bert: cloned as {world.clones[0]}: ")


def test_the_services_own_failures_are_resumed_a_limited_number_of_times() -> None:
    world = World()
    world.account.start()
    world.wake()
    names = ["bert"]
    for _ in range(3):
        world.account.fail(names[-1], CAPACITY)
        world.wake(names[-1])
        names += [each for each in world.clones if each not in names]
        world.wake(names[-1])
    assert len(names) == 4
    world.account.fail(names[-1], CAPACITY)
    assert world.wake(names[-1]) == [] and len(world.clones) == 3


def test_what_the_machine_did_is_begun_anew_even_without_checkpoints() -> None:
    world = World()
    request = asked()
    del request["CheckpointConfig"]
    world.account.jobs.answer("CreateTrainingJob", REGION, request)
    world.account.train("bert", 9000)
    world.wake()
    world.account.fail(reason=INTERNAL)
    world.wake()
    assert len(world.clones) == 1


def test_one_whose_machines_sagemaker_chose_is_cloned_with_the_same_choice() -> None:
    world = World("- machines: [ml.g5.12xlarge]\n- max_nodes: 2")
    preferred = [{"InstanceType": "ml.g5.12xlarge", "InstanceCount": 2}]
    request = {**asked(), "ResourceConfig": {"InstancePreferences": preferred, "VolumeSizeInGB": 50}}
    request |= {"EnableManagedSpotTraining": False, "StoppingCondition": {"MaxRuntimeInSeconds": 432000}}
    world.account.jobs.answer("CreateTrainingJob", REGION, request)
    world.wake()
    world.account.train("bert", 9000)
    assert world.wake() == []
    world.account.fail(reason=INTERNAL)
    world.wake()
    (clone,) = world.clones
    assert world.account.job(clone).asked["ResourceConfig"] == request["ResourceConfig"]


def test_a_serverless_one_breaks_no_rule_about_machines() -> None:
    world = World("- machines: [ml.g5.12xlarge]\n- max_nodes: 2\n- images: ['*/house/*']")
    request = {key: value for key, value in asked().items() if key not in ("ResourceConfig", "AlgorithmSpecification")}
    request["ServerlessJobConfig"] = {"BaseModelArn": "arn:aws:sagemaker:us-east-1:aws:hub-content/x/Model/y"}
    world.account.clock.move(60)
    world.account.jobs.answer("CreateTrainingJob", REGION, request)
    assert world.wake() == [] and world.account.job().status == "InProgress"


def test_the_policy_knows_failures_better() -> None:
    rules = """
- name: efa
  failure: {log: "Unresponsive receiver"}
- name: bad-batch
  failure: {exit_code: 42}
  then: stop
"""
    world = World(rules)
    world.account.start("other", training_s=9000)
    world.account.start(training_s=60)
    for name in ("bert", "other"):
        world.wake(name)
    world.account.lines = ("libfabric: Unresponsive receiver",)
    world.account.fail()
    assert "policy efa" in world.wake()[0]
    world.account.lines = ()
    world.account.fail("other", "AlgorithmError: , exit code: 42")
    assert world.wake("other") == [] and len(world.clones) == 1
    assert events(world, "other")[-1] == GaveUp("other", "policy:bad-batch")


def test_clones_are_bounded() -> None:
    world = World("- resume: {min_runtime: 1h, times: 2}")
    world.account.start(training_s=HOUR_S)
    name, made = "bert", []
    for _ in range(4):
        world.wake(name)
        world.account.fail(name)
        world.wake(name)
        if len(world.clones) == len(made):
            break
        made = world.clones
        name = made[-1]
        world.account.train(name, HOUR_S)
    assert len(world.clones) == 2
    assert [world.account.job(clone).tags["stoker:clone"] for clone in world.clones] == ["1", "2"]
    assert {world.account.job(clone).tags["stoker:origin"] for clone in world.clones} == {"bert"}
    assert events(world)[-1] == GaveUp(name, "bounded") and len(set(world.clones)) == 2


def test_a_policy_without_clones() -> None:
    world = World(STALL, POLICY.replace("}", ", clone: false}"))
    world.account.start(training_s=9000)
    world.account.interrupt(times=5)
    world.wake()
    world.account.fail(reason=INTERNAL)
    assert world.wake() == [] and world.clones == []


def test_spot_is_given_up_after_more_than_three_interruptions() -> None:
    world = World()
    world.account.start(training_s=60)
    world.account.interrupt(times=3)
    assert world.wake() == []
    world.account.interrupt()
    assert "reclaimed 4 times" in world.wake()[0]
    assert world.account.job().status == "Stopping"
    # Not before it has positively stopped: two of them would write the same checkpoints.
    assert world.wake() == [] and world.clones == []
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.wake()
    (clone,) = world.clones
    made = world.account.job(clone).asked
    assert made["EnableManagedSpotTraining"] is False and made["StoppingCondition"] == {"MaxRuntimeInSeconds": 432000}
    assert made["CheckpointConfig"] == asked()["CheckpointConfig"]
    cloning = next(event for event in events(world) if isinstance(event, Cloning))
    assert (cloning.rule, cloning.spot) == ("on-demand", False)


def test_interruptions_of_the_whole_family_count() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.account.interrupt(times=2)
    world.wake()
    world.account.fail(reason=INTERNAL)
    world.wake()
    (clone,) = world.clones
    world.account.train(clone, 60)
    world.account.interrupt(clone)
    assert world.wake(clone) == [] and world.account.job(clone).spot
    world.account.interrupt(clone)
    assert "reclaimed 4 times" in world.wake(clone)[0]


def test_what_would_lose_its_training_stays_on_spot_however_often_it_is_interrupted() -> None:
    world = World()
    world.account.start(training_s=9000, CheckpointConfig={})
    world.account.interrupt(times=9)
    assert world.wake() == [] and world.account.job().status == "InProgress"


def test_spot_is_not_given_up_a_day_late() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.account.interrupt(times=4)
    world.wake()
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.account.clock.move(25 * HOUR_S)
    world.wake()
    assert world.clones == [] and events(world)[-1] == GaveUp("bert", "late", meant=True)


@pytest.mark.parametrize(("reason", "clones"), [("ClientError: no such bucket", 0), (INTERNAL, 1)])
def test_one_that_fails_while_it_stops(reason: str, clones: int) -> None:
    world = World()
    world.account.start(training_s=60)
    world.account.interrupt(times=4)
    world.wake()
    world.account.fail(reason=reason)
    world.wake()
    assert len(world.clones) == clones


def test_a_policy_that_wants_no_more_clones_gets_none_of_those_that_were_to_come() -> None:
    world = World()
    world.account.start(training_s=60)
    world.account.interrupt(times=4)
    world.wake()
    world.legislate("", POLICY.replace("}", ", clone: false}"))
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.wake()
    assert world.clones == []


def test_how_many_interruptions_are_too_many_is_the_policys() -> None:
    world = World("- name: calm\n  spot: {on_demand_after: 1}")
    world.account.start(training_s=60)
    world.account.interrupt(times=2)
    world.wake()
    assert events(world)[-2:] == [Stopping("bert", "policy:calm", "on-demand"), StopAccepted("bert")]


def test_no_spot_within_max_wait() -> None:
    world = World("- max_wait: 2h\n  then: on-demand")
    world.account.start()
    world.account.clock.move(HOUR_S)
    assert world.wake() == []
    world.account.clock.move(HOUR_S)
    assert "policy max-wait: it waited for spot machines for 2 h" in world.wake()[0]
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.wake()
    (clone,) = world.clones
    assert not world.account.job(clone).spot


def test_what_would_lose_its_training_rather_waits_for_spot() -> None:
    world = World("- max_wait: 2h\n  then: on-demand")
    request = asked()
    del request["CheckpointConfig"]
    world.account.jobs.answer("CreateTrainingJob", REGION, request)
    world.account.train("bert", HOUR_S)
    world.account.jobs.enter(world.account.job(), "Interrupted")
    world.account.clock.move(3 * HOUR_S)
    assert world.wake() == []


def test_giving_up_spot_is_none_of_the_resumes() -> None:
    world = World("- resume: {min_runtime: 1h, times: 1}")
    world.account.start(training_s=60)
    world.account.interrupt(times=4)
    world.wake()
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.wake()
    for number in (1, 2):
        assert len(world.clones) == number
        world.account.train(world.clones[-1], 2 * HOUR_S)
        world.wake(world.clones[-1])
        world.account.fail(world.clones[-1], INTERNAL)
        world.wake(world.clones[-1])
    assert len(world.clones) == 2 and events(world)[-1] == GaveUp(world.clones[-1], "bounded")


def test_what_failed_while_the_policy_looked_away_is_left_alone() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.wake()
    world.legislate("", "sagemaker: {regions: [eu-west-1]}\n")
    world.account.fail(reason=INTERNAL)
    world.account.clock.move(60)
    world.legislate("", POLICY)
    world.wake()
    assert world.clones == []


def test_a_budget_that_is_spent_keeps_clones_back() -> None:
    world = World("- budget: {dollars: 100, period: day}")
    world.account.start(training_s=9000)
    world.wake()
    world.account.fail(reason=INTERNAL)
    day = keys.spent_day(world.account.clock.now().date())
    world.store.create(f"{day}train-1a2b/{keys.number(9)}.100000000.100000000.", b"")
    world.wake()
    assert world.clones == [] and "waits to go on: policy budget" in index_rows.summaries(world.store)[0].reason
    world.account.clock.move(14 * HOUR_S)
    world.governor.tick()
    assert len(world.clones) == 1


def tagged(count: int) -> list[dict[str, str]]:
    return [*({"Key": f"k{number}", "Value": "v"} for number in range(count - 1)), {"Key": "team", "Value": "nlp"}]


@pytest.mark.parametrize("count", [47, 48, 49])
def test_a_clone_has_all_tags_of_a_job_with_many_and_is_of_its_family(count: int) -> None:
    world = World("- tags: {team: [nlp]}")
    world.account.clock.move(60)
    world.account.start(training_s=3 * HOUR_S, Tags=tagged(count))
    name = "bert"
    for number in (1, 2):
        world.wake(name)
        world.account.fail(name, INTERNAL)
        world.wake(name)
        assert len(world.clones) == number
        name = world.clones[-1]
        world.account.train(name, 3 * HOUR_S)
        assert world.wake(name) == [] and world.account.job(name).status == "InProgress"
    assert set(world.account.job(name).tags) >= {each["Key"] for each in tagged(count)}
    assert kinds(world).count("Cloned") == 2


def test_without_room_for_a_tag_there_is_no_clone() -> None:
    world = World()
    world.account.start(training_s=3 * HOUR_S, Tags=tagged(50))
    world.account.interrupt(times=4)
    # It stays on spot, and that is said.
    assert world.wake() == [] and world.account.job().status == "InProgress"
    stays = events(world)[-1]
    assert isinstance(stays, RuleWarning) and stays.code == "on-demand/stays"
    world.account.fail(reason=INTERNAL)
    world.wake()
    assert world.clones == [] and events(world)[-1] == GaveUp("bert", "no-room")
    assert "as many tags as SageMaker takes" in told(world)[-1].reason


def test_one_that_stands_still_without_room_for_a_tag_is_only_stopped() -> None:
    world = World(STALL)
    idle(world, tags=tagged(50))
    world.wake()
    assert Stopping("bert", "policy:stall", "") in events(world)


def test_a_person_who_stops_a_job_is_not_contradicted() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.wake()
    world.account.stop("bert")
    world.account.jobs.advance(world.account.job(), "Stopped")
    assert world.wake() == [] and world.clones == []


def test_a_stop_that_never_came_is_forgotten_when_no_rule_wants_it() -> None:
    world = World("- name: calm\n  spot: {on_demand_after: 1}")
    world.account.start(training_s=9000)
    world.account.interrupt(times=2)

    def refuse(operation: str) -> bool:
        if operation == "StopTrainingJob":
            raise Transient("nobody answers")
        return False

    world.account.trouble = refuse
    assert "nobody answers" in world.governor.wake(REGION, "bert").problems["bert"]
    world.account.trouble = lambda _operation: False
    world.legislate("")
    world.wake()
    assert kinds(world) == ["JobSeen", "Stopping", "StopUnanswered"]
    world.account.clock.move(600)
    world.wake()
    assert (
        kinds(world) == ["JobSeen", "Stopping", "StopUnanswered", "StopCancelled"]
        and world.account.job().status == "InProgress"
    )
    # Somebody stops it now, for reasons of their own.
    world.account.stop("bert")
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.wake()
    assert world.clones == []


def test_tags_alone_make_nobody_a_clone() -> None:
    world = World()
    world.account.start(training_s=9000, Tags=[{"Key": "stoker:origin", "Value": "another"}])
    world.wake()
    world.account.fail(reason=INTERNAL)
    world.wake()
    assert len(world.clones) == 1 and kinds(world) == ["JobSeen", "JobEnded", "Cloning", "Cloned"]
    assert events(world, "another") == []


def test_what_ended_before_the_policy_wanted_it_is_left_alone() -> None:
    world = World(policy="rules: []\n")
    world.account.start(training_s=9000)
    world.account.fail(reason=INTERNAL)
    world.account.clock.move(60)
    world.legislate("")
    world.governor.tick()
    assert world.clones == [] and events(world)[-1] == GaveUp("bert", "before")


def test_the_first_event_may_be_the_last_one_late() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.account.fail(reason=INTERNAL)
    world.account.clock.move(HOUR_S)
    # Another version of the policy changes nothing: it was wanted all the time.
    world.legislate("- max_nodes: 8")
    world.wake()
    assert len(world.clones) == 1
    world = World()
    world.account.start(training_s=9000)
    world.account.fail(reason=INTERNAL)
    world.account.clock.move(25 * HOUR_S)
    world.wake()
    assert world.clones == [] and events(world)[-1] == GaveUp("bert", "late")
