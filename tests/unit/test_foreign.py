"""Training jobs that others started obey the house: stopped, watched, cloned; once, and only for a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest
from foreign_world import HOUR_S, HOUSE, REGION, World, asked

from stoker import layout
from stoker.core.foreign.alarms import WantedAlarm
from stoker.core.foreign.family import Cloned, Cloning, FamilyRecord, GaveUp, Heard, Over, Seen, Stopping, Told
from stoker.core.telling import Letter, line
from stoker.core.telling import Told as News
from stoker.errors import AuthDenied, StoreUnavailable, Transient
from stoker.governor.foreign import families, index
from stoker.governor.foreign.govern import ForeignGovernor
from stoker.governor.telling import Teller
from stoker.providers.pricing import Price
from stoker.store import Store

INTERNAL = "InternalServerError: We encountered an internal error. Please try again."
CAPACITY = "CapacityError: Unable to provision requested ML compute capacity."


def told(world: World, origin: str = "bert") -> list[FamilyRecord]:
    return [entry.record for entry in families.entries(world.store, REGION, origin)]


def events(world: World, origin: str = "bert") -> list[object]:
    return [record.event for record in told(world, origin)]


def kinds(world: World, origin: str = "bert") -> list[str]:
    return [type(event).__name__ for event in events(world, origin)]


# ── Rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_governed_that_the_house_did_not_ask_for() -> None:
    for house in ("rules: []\n", "sagemaker: {regions: [eu-west-1]}\n"):
        world = World(house=house)
        world.account.start(training_s=0)
        assert world.wake() == [] and world.governor.tick().done == []
        assert world.account.calls == [] and not list(world.store.list(layout.FOREIGN))


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("tags: {project: any}", "tags.project is missing"),
        ("tags: {team: [vision]}", "tags.team: nlp is not allowed"),
        ("providers: [ec2, gce]", "sagemaker may not be used"),
        ("regions: [eu-*]", "us-east-1 may not be used"),
        ("machines: [ml.g5.xlarge]", "ml.g5.12xlarge may not be used"),
        ("images: ['*/house/*']", "the image 1234.dkr.ecr/bert:1 is not allowed"),
        ("max_nodes: 1", "2 nodes are more than 1"),
        ("{max_runtime: 1h, then: refuse}", "5 d is more than 1 h"),
    ],
)
def test_what_would_have_been_refused_is_stopped_when_it_is_seen(rule: str, why: str) -> None:
    world = World(f"- {rule}")
    world.account.start()
    (done,) = world.wake()
    assert why in done and world.account.job().status == "Stopping"
    seen, stopping = events(world)
    assert isinstance(seen, Seen) and seen.in_progress
    assert isinstance(stopping, Stopping) and stopping.rule.startswith("policy:") and stopping.after == ""
    assert why in told(world)[1].reason and len(told(world)[1].policy) == 64
    # It was not ended for its own sake: no clone.
    world.account.jobs.advance(world.account.job(), "Stopped")
    assert world.wake() == [] and world.clones == [] and kinds(world) == ["Seen", "Stopping", "Over"]


@pytest.mark.parametrize("how", ["audit: true", "then: warn"])
def test_a_rule_that_only_tells_tells_once(how: str) -> None:
    world = World(f"- max_nodes: 1\n  {how}")
    world.account.start()
    for _ in range(3):
        assert world.wake() == []
    _, warning = events(world)
    assert isinstance(warning, Told) and "2 nodes are more" in told(world)[1].reason
    assert world.account.job().status == "InProgress"


@pytest.mark.parametrize("beside", ["for: {team: vision}", "except: [{job: bert, until: 2026-11-02, why: the demo}]"])
def test_scopes_and_exemptions_hold(beside: str) -> None:
    world = World(f"- max_nodes: 1\n  {beside}")
    world.account.start()
    assert world.wake() == []
    if beside.startswith("except"):
        world.account.clock.move(24 * HOUR_S)
        assert "2 nodes" in world.wake()[0]


def test_the_longest_runtime_is_of_a_job_and_its_clones() -> None:
    world = World("- max_runtime: 10h")
    world.account.start(training_s=6 * HOUR_S)
    world.wake()
    world.account.fail(reason=INTERNAL)
    world.wake()
    (clone,) = world.clones
    world.account.train(clone, 3 * HOUR_S)
    assert world.wake(clone) == []
    world.account.clock.move(1.1 * HOUR_S)
    assert "max-runtime: 10 h of training are reached" in world.wake(clone)[0]


def test_the_longest_wait() -> None:
    world = World("- max_wait: 6h")
    world.account.start()
    world.account.clock.move(5 * HOUR_S)
    assert world.wake() == []
    world.account.clock.move(HOUR_S)
    assert "it waited for a machine for 6 h" in world.wake()[0]


def test_the_most_dollars(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("- max_cost: 100")
    known = {"ml.g5.12xlarge": Price(10.0, "a table", date(2026, 11, 1))}
    monkeypatch.setattr("stoker.providers.sagemaker.prices.on_demand", lambda _region, name: known.get(name))
    dear = {"EnableManagedSpotTraining": False, "StoppingCondition": {"MaxRuntimeInSeconds": 432000}}
    world.account.start(training_s=4.9 * HOUR_S, **dear)
    world.account.start("spot", training_s=0)
    assert world.wake() == []
    world.account.clock.move(600)
    assert "max-cost: $100 are reached" in world.wake()[0]
    world.account.clock.move(100 * HOUR_S)
    # Nobody knows what spot costs until it is over.
    assert world.wake("spot") == []
    world.account.jobs.advance(world.account.job("spot"), "Completed")
    world.wake("spot")
    over = events(world, "spot")[-1]
    assert isinstance(over, Over) and over.cost is not None and over.cost > 0
    assert index.read(world.store, REGION).rows["spot"].cost == over.cost


def test_a_price_that_nobody_knows_reaches_no_bound() -> None:
    world = World("- max_cost: 1")
    world.account.start(training_s=100 * HOUR_S)
    assert world.wake() == []


def test_a_hopeless_experiment() -> None:
    world = World("- metric: {name: loss, above: 100, after: 1h}")
    world.account.start(training_s=60)
    world.account.job().metrics = ({"MetricName": "loss", "Value": 1e6, "Timestamp": world.account.clock.now()},)
    assert world.wake() == []
    world.account.clock.move(HOUR_S)
    assert "loss is 1e+06, above 100" in world.wake()[0]


def test_a_rule_that_was_taken_back_stops_nothing() -> None:
    world = World("- max_nodes: 1")
    world.account.start()
    world.account.clock.move(60)
    world.legislate("- max_nodes: 2")
    assert world.wake() == []
    assert world.account.job().status == "InProgress"


def test_a_job_that_was_there_before_the_rule_goes_on_and_is_not_cloned() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.wake()
    world.legislate("- max_nodes: 1")
    assert world.wake() == [] and world.account.job().status == "InProgress"
    assert "it was there before the rule, and goes on" in told(world)[-1].reason
    # A version that has the rule, too, makes it no younger for who came in between.
    world.account.start("between")
    world.account.clock.move(60)
    world.legislate("- max_nodes: 1\n- max_runtime: 90d")
    assert "2 nodes are more than 1" in world.wake("between")[0] and world.wake() == []
    world.account.fail(reason=INTERNAL)
    world.wake()
    assert world.clones == [] and events(world)[-1] == GaveUp("bert", "policy:max-nodes")


def test_an_exemption_holds_for_clones() -> None:
    world = World("- max_nodes: 1\n  except: [{job: bert, until: 2026-12-31, why: the demo}]")
    world.account.start(training_s=9000)
    world.wake()
    world.account.fail(reason=INTERNAL)
    world.wake()
    (clone,) = world.clones
    assert world.wake(clone) == [] and world.account.job(clone).status == "InProgress"


def test_rules_that_cannot_be_read_cause_nothing() -> None:
    world = World()
    world.account.start()
    text = '{"text":"rules: [{no_such: 1}]","author":"newer"}'
    world.store.create(layout.rules(2), text.encode())
    looked = world.governor.wake(REGION, "bert")
    assert "update this one" in looked.problems["policy"] and world.account.calls == []
    assert "update this one" in world.governor.tick().problems["policy"]


# ── Alarms ────────────────────────────────────────────────────────────────────────────────────────────────────────────

WASTE = "- min_gpu_utilization: {value: 80%, over: 1h, after: 30m}\n  then: stop"
STALL = "- stall: {window: 5m, windows: 3}"


def test_an_alarm_for_every_host_scaled_to_its_gpus_while_it_trains() -> None:
    world = World(f"{WASTE}\n{STALL}")
    world.account.start()
    world.wake()
    assert world.account.rings == {}
    world.account.train("bert", 60)
    world.wake()
    made = sorted(world.account.wanted.values(), key=lambda alarm: (alarm.rule, alarm.host))
    assert [(alarm.rule, alarm.host) for alarm in made] == [
        ("min-gpu-utilization", "bert/algo-1"),
        ("min-gpu-utilization", "bert/algo-2"),
        ("stall", "bert/algo-1"),
        ("stall", "bert/algo-2"),
    ]
    # An ml.g5.12xlarge has four.
    assert [(alarm.threshold, alarm.period_s, alarm.periods, alarm.inclusive) for alarm in (made[0], made[2])] == [
        (320, 3600, 1, False),
        (4, 300, 3, True),
    ]
    assert world.account.topic == "arn:topic"
    calls = len([call for call in world.account.calls if call[0] == "PutMetricAlarm"])
    world.wake()
    assert len([call for call in world.account.calls if call[0] == "PutMetricAlarm"]) == calls == 4
    world.account.jobs.advance(world.account.job(), "Completed")
    world.wake()
    assert world.account.rings == {}


@pytest.mark.parametrize("machine", ["ml.trn1.32xlarge", "ml.c5.xlarge", "ml.x99.huge"])
def test_no_alarm_on_what_nobody_can_read(machine: str) -> None:
    world = World(WASTE)
    resources = {"InstanceType": machine, "InstanceCount": 1, "VolumeSizeInGB": 1}
    world.account.start(training_s=60, ResourceConfig=resources)
    world.wake()
    assert world.account.rings == {}


def test_an_alarm_of_a_rule_that_changed_is_another() -> None:
    world = World(WASTE)
    world.account.start(training_s=60)
    world.wake()
    before = set(world.account.rings)
    world.legislate(WASTE.replace("80%", "50%"))
    world.wake()
    assert len(world.account.rings) == 2 and not before & set(world.account.rings)
    world.legislate("")
    world.wake()
    assert world.account.rings == {}


def test_a_late_event_makes_no_alarm() -> None:
    world = World(WASTE)
    world.account.start(training_s=60)
    describe = world.account.describe

    def late(name: str) -> object:
        found = describe(name)
        # It ends right after it was looked at.
        world.account.jobs.enter(world.account.job(), "Stopped")
        return found

    world.account.describe = late  # type: ignore[assignment,method-assign]
    world.wake()
    assert world.account.rings == {} and ("PutMetricAlarm", next(iter(world.account.wanted))) in world.account.calls


def idle(world: World, gpu: float = 0.0, cpu: float = 0.0, silent_s: float = HOUR_S) -> None:
    """A job that trained for three hours, with alarms that ring."""
    world.account.start(training_s=60)
    world.wake()
    world.account.clock.move(3 * HOUR_S)
    world.account.measure("bert", gpu, cpu)
    world.account.line_at = world.account.clock.now() - timedelta(seconds=silent_s)
    world.account.ring()


def test_a_wasteful_job_is_stopped() -> None:
    world = World(WASTE)
    idle(world, gpu=200)
    assert "its 8 accelerators were used 50% over 1 h" in world.wake()[0]
    assert world.account.job().status == "Stopping" and world.account.rings == {}


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda world: world.account.rings.clear(), id="no alarm rings"),
        pytest.param(lambda world: world.account.measure("bert", 330), id="it is busy again"),
        pytest.param(lambda world: world.account.figures.pop("bert/algo-2"), id="a host that nobody can read"),
        pytest.param(lambda world: world.account.measure("bert", 0, minutes=20), id="too few figures"),
        pytest.param(lambda world: world.account.clock.move(HOUR_S), id="old figures"),
        pytest.param(lambda world: world.legislate(WASTE + "\n  audit: true"), id="audit"),
        pytest.param(lambda world: world.legislate(WASTE + "\n  for: {team: vision}"), id="another's rule"),
        pytest.param(lambda world: world.legislate(WASTE.replace("80%", "70%")), id="another rule's alarm"),
        pytest.param(lambda world: world.account.jobs.enter(world.account.job(), "Uploading"), id="it is done"),
        pytest.param(lambda world: world.account.interrupt(), id="it has just begun again"),
        pytest.param(lambda world: world.account.measure("bert", float("nan")), id="no number"),
    ],
)
def test_an_alarm_alone_stops_nothing(spoil: Callable[[World], object]) -> None:
    world = World(WASTE)
    idle(world)
    spoil(world)
    world.governor.tick()
    assert world.account.job().status == "InProgress"


def test_a_stalled_job_is_stopped_and_cloned() -> None:
    world = World(STALL)
    idle(world)
    assert "no line of the log and no work of its GPUs for 1 h" in world.wake()[0]
    assert world.clones == []
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.wake()
    (clone,) = world.clones
    assert world.account.job(clone).spot and kinds(world)[-3:] == ["Over", "Cloning", "Cloned"]


@pytest.mark.parametrize(
    ("gpu", "cpu", "silent_s"), [(4.1, 0, HOUR_S), (0, 100, HOUR_S), (0, 0, 600)], ids=["gpu", "cpu", "log"]
)
def test_a_job_in_which_something_moves_is_not_stalled(gpu: float, cpu: float, silent_s: float) -> None:
    world = World(STALL)
    idle(world, gpu, cpu, silent_s)
    assert world.wake() == [] and world.account.job().status == "InProgress"


def test_processors_at_work_are_no_excuse_for_ever() -> None:
    world = World(STALL)
    idle(world, cpu=1600, silent_s=2.4 * HOUR_S)
    assert "no work of its GPUs" in world.wake()[0]


def test_a_stalled_job_without_checkpoints_is_only_stopped() -> None:
    world = World(STALL)
    changed = asked()
    del changed["CheckpointConfig"]
    world.account.jobs.answer("CreateTrainingJob", REGION, changed)
    world.account.train("bert", 60)
    world.wake()
    world.account.clock.move(3 * HOUR_S)
    world.account.measure("bert", 0)
    world.account.line_at = world.account.clock.now() - timedelta(hours=1)
    world.account.ring()
    world.wake()
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.wake()
    assert world.clones == []


def test_reap_sweeps_the_alarms_that_are_left() -> None:
    world = World(WASTE)
    world.account.start(training_s=60)
    world.account.start("gone", training_s=60)
    world.account.start("over", training_s=60)
    for name in ("bert", "gone", "over"):
        world.wake(name)
    world.account.jobs.enter(world.account.job("over"), "Failed", reason="x")
    world.account.jobs.enter(world.account.job("gone"), "Stopped")
    world.account.jobs.answer("DeleteTrainingJob", REGION, {"TrainingJobName": "gone"})
    assert len(world.governor.sweep(dry=True).found) == 4 and len(world.account.rings) == 6
    found = world.governor.sweep().found
    assert sorted({reason for _, reason in found}) == ["over is Failed", "there is no training job gone"]
    assert {alarm.host for alarm in world.account.rings.values()} == {"bert/algo-1", "bert/algo-2"}
    world.legislate("", "sagemaker: {regions: [eu-west-1]}\n")
    world.governor.sweep()
    assert world.account.rings == {}


def test_a_tick_finds_what_events_did_not_tell() -> None:
    world = World(WASTE)
    world.account.start(training_s=60)
    world.governor.tick()
    assert len(world.account.rings) == 2
    world.account.jobs.enter(world.account.job(), "Stopped")
    world.account.jobs.answer("DeleteTrainingJob", REGION, {"TrainingJobName": "bert"})
    world.governor.tick()
    assert world.account.rings == {}


# ── Clones ────────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    assert kinds(world) == ["Seen", "Over", "Cloning", "Cloned", "Seen"]


@pytest.mark.parametrize(
    ("training_s", "reason", "changes", "rule"),
    [
        (7000, "AlgorithmError: , exit code: 1", {}, "too-short"),
        (7000, INTERNAL, {}, "too-short"),
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


def test_the_house_knows_failures_better() -> None:
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


def test_a_house_without_clones() -> None:
    world = World(STALL, HOUSE.replace("}", ", clone: false}"))
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


@pytest.mark.parametrize(("reason", "clones"), [("ClientError: no such bucket", 0), (INTERNAL, 1)])
def test_one_that_fails_while_it_stops(reason: str, clones: int) -> None:
    world = World()
    world.account.start(training_s=60)
    world.account.interrupt(times=4)
    world.wake()
    world.account.fail(reason=reason)
    world.wake()
    assert len(world.clones) == clones


def test_a_house_that_wants_no_more_clones_gets_none_of_those_that_were_to_come() -> None:
    world = World()
    world.account.start(training_s=60)
    world.account.interrupt(times=4)
    world.wake()
    world.legislate("", HOUSE.replace("}", ", clone: false}"))
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.wake()
    assert world.clones == []


def test_how_many_interruptions_are_too_many_is_the_houses() -> None:
    world = World("- name: calm\n  spot: {on_demand_after: 1}")
    world.account.start(training_s=60)
    world.account.interrupt(times=2)
    world.wake()
    assert events(world)[-2:] == [Stopping("bert", "policy:calm", "on-demand"), Heard("bert")]


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


def test_alarms_that_are_not_listed_at_once_are_removed_all_the_same() -> None:
    world = World(WASTE)
    world.account.start(training_s=60)
    make, listed = world.account.make_alarm, world.account.alarms

    def ends(wanted: WantedAlarm, topic: str | None) -> None:
        make(wanted, topic)
        world.account.jobs.enter(world.account.job(), "Stopped")

    world.account.make_alarm = ends  # type: ignore[method-assign]
    world.account.alarms = lambda prefix: []  # type: ignore[method-assign]
    world.wake()
    world.account.alarms = listed  # type: ignore[method-assign]
    assert world.account.wanted != {} and world.account.rings == {}


def test_alarms_of_a_namesake_are_not_touched() -> None:
    world = World(WASTE)
    world.account.start(training_s=60)
    world.account.start("bert-2", training_s=60)
    world.wake("bert-2")
    world.account.jobs.advance(world.account.job(), "Completed")
    world.wake()
    assert {alarm.host for alarm in world.account.rings.values()} == {"bert-2/algo-1", "bert-2/algo-2"}


def test_what_failed_while_the_house_looked_away_is_left_alone() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.wake()
    world.legislate("", "sagemaker: {regions: [eu-west-1]}\n")
    world.account.fail(reason=INTERNAL)
    world.account.clock.move(60)
    world.legislate("", HOUSE)
    world.wake()
    assert world.clones == []


def test_an_alarm_of_one_rule_is_none_of_another() -> None:
    world = World(f"{WASTE}\n{STALL}")
    idle(world)
    # Only those of the rule about standing still ring, and somebody logged a line.
    world.account.line_at = world.account.clock.now()
    world.account.rings = {
        name: replace(alarm, ringing="-stall-" in name) for name, alarm in world.account.rings.items()
    }
    assert world.wake() == [] and world.account.job().status == "InProgress"


def test_a_budget_that_is_spent_keeps_clones_back() -> None:
    world = World("- budget: {dollars: 100, period: day}")
    world.account.start(training_s=9000)
    world.wake()
    world.account.fail(reason=INTERNAL)
    day = layout.spent_day(world.account.clock.now().date())
    world.store.create(f"{day}train-1a2b/{layout.number(9)}.100000000.100000000.", b"")
    world.wake()
    assert world.clones == [] and "waits to go on: policy budget" in index.summaries(world.store)[0].reason
    world.account.clock.move(14 * HOUR_S)
    world.governor.tick()
    assert len(world.clones) == 1


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
    assert kinds(world) == ["Seen", "Stopping"]
    world.account.clock.move(600)
    world.wake()
    assert kinds(world) == ["Seen", "Stopping", "Relented"] and world.account.job().status == "InProgress"
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
    assert len(world.clones) == 1 and kinds(world) == ["Seen", "Over", "Cloning", "Cloned"]
    assert events(world, "another") == []


def test_what_ended_before_the_house_wanted_it_is_left_alone() -> None:
    world = World(house="rules: []\n")
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


# ── What goes wrong ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["nobody", "", "a" * 64, "../../policy", "a/b", "bert\n", "-x", "ä", "x" * 5000])
def test_an_event_about_nothing_is_nothing(name: str) -> None:
    world = World()
    world.account.start()
    assert world.wake(name) == []
    assert world.governor.wake("nowhere", "bert").done == [] and not list(world.store.list(layout.FAMILIES))


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
    if operation == "GetLogEvents":
        world.governor.wake(REGION, "bert")
    else:
        assert "nobody answers" in str(looked.problems)
    assert world.clones == [] and kinds(world)[-1] != "GaveUp"
    world.account.trouble = lambda _each: False
    world.governor.tick()
    assert len(world.clones) == 1


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


def test_two_houses_make_one_clone() -> None:
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
    second: ForeignGovernor = world.another("two")
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


# ── Lists ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    monkeypatch.setattr("stoker.governor.foreign.govern._TICK_S", -1.0)
    world.governor.tick()
    assert index.summaries(world.store) == []
    monkeypatch.setattr("stoker.governor.foreign.govern._TICK_S", 60.0)
    assert world.governor.tick().active == 6 and len(index.summaries(world.store)) == 6


def test_lists_tell_whose_they_are_and_how_they_do() -> None:
    world = World("- max_nodes: 1")
    world.account.start(training_s=60)
    world.account.start("done", training_s=60, ResourceConfig={**asked()["ResourceConfig"], "InstanceCount": 1})
    world.account.jobs.advance(world.account.job("done"), "Completed")
    world.governor.tick()
    world.governor.tick()
    found = {summary.id: summary for summary in index.summaries(world.store)}
    assert found["done"].phase == "succeeded" and found["done"].ended_at is not None
    assert found["bert"].phase == "stopping" and found["bert"].provider == "sagemaker"
    assert found["bert"].reason == "SageMaker us-east-1, jane: asked to stop: policy:max-nodes"
    assert found["bert"].attempts[0].machine == "ml.g5.12xlarge" and found["bert"].nodes == 2


class Letters(Teller):
    """Tells a list."""

    def __init__(self, store: Store) -> None:
        self.letters: list[Letter] = []
        super().__init__(store, "one", open_=lambda _to: self.letters.append)


def test_what_cannot_be_noted_is_told_by_the_next_look() -> None:
    """The store stumbles once; the function that looked then is gone, or goes on."""
    for again in (True, False):
        house = f"{HOUSE}notify: [{{to: 'https://example.com/hook', at_most: 100}}]\n"
        world = World("- max_nodes: 1\n  then: warn", house)
        world.account.start(training_s=60)

        class Stumbling(Letters):
            stumbled = False

            def note(self, *given: Any, **named: Any) -> None:
                if not self.stumbled:
                    self.stumbled = True
                    raise StoreUnavailable("a stumble")
                super().note(*given, **named)

        def governor(teller: Teller, world: World = world) -> ForeignGovernor:
            return ForeignGovernor(
                world.store, lambda _region: world.account, now=world.account.clock.now, teller=teller
            )

        first = Stumbling(world.store)
        one = governor(first)
        looked = one.wake(REGION, "bert")
        assert looked.problems == {"notify": "a stumble"} and looked.untold
        teller = first if again else Letters(world.store)
        looked = (one if again else governor(teller)).tick()
        kinds = [told.kind for letter in teller.letters for told in letter.events]
        assert kinds == ["started", "rule"] and not looked.untold


def test_people_are_told_once_though_governors_are_many() -> None:
    house = f"{HOUSE}notify: [{{to: 'https://example.com/hook', at_most: 100}}]\n"
    world = World("- stall: {window: 5m}\n- max_nodes: 1\n  then: warn", house)
    tellers = [Letters(world.store) for _ in range(2)]
    governors = [
        ForeignGovernor(world.store, lambda _region: world.account, now=world.account.clock.now, teller=teller)
        for teller in tellers
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
    found = sorted((told for teller in tellers for letter in teller.letters for told in letter.events), key=_seq)
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
    assert line(found[2]).startswith("bert stands still: policy stall: no line of the log")
    assert "2 × ml.g5.12xlarge spot on SageMaker, of bert" in line(found[-1])


def _seq(told: News) -> int:
    return told.seq


def test_a_channel_that_fails_harms_nothing() -> None:
    world = World("- max_nodes: 1", f"{HOUSE}notify: [{{to: 'https://127.0.0.1:9/hook'}}]\n")
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
    assert events(world)[1:] == [Over("bert", "Completed", 60.0, None, 1)]
