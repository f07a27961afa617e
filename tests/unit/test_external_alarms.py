"""Alarms on the accelerators of training jobs that others started: made, rung, removed; alone they stop nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from external_world import (
    HOUR_S,
    INTERNAL,
    REGION,
    STALL,
    TOPIC,
    WASTE,
    World,
    asked,
    events,
    idle,
    kinds,
)

from stoker.external_jobs import index_rows
from stoker.external_jobs.clone_chain import Stopping
from stoker.external_jobs.gpu_alarms import HostMetrics, WantedAlarm
from stoker.model.errors import AuthDenied
from stoker.store import external_job_index


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
    assert {alarm.topic for alarm in made} == {TOPIC}
    calls = len([call for call in world.account.calls if call[0] == "PutMetricAlarm"])
    world.wake()
    assert len([call for call in world.account.calls if call[0] == "PutMetricAlarm"]) == calls == 4
    world.account.jobs.advance(world.account.job(), "Completed")
    world.wake()
    assert world.account.rings == {}


def topics(world: World) -> set[tuple[str, ...]]:
    return {alarm.topics for alarm in world.account.rings.values()}


def test_an_alarm_that_tells_nobody_is_made_again_by_who_has_somebody_to_tell() -> None:
    world = World(WASTE)
    world.account.start(training_s=60)
    world.another("desk", topic=None).tick()
    assert topics(world) == {()} and len(world.account.rings) == 2
    world.wake()
    assert topics(world) == {(TOPIC,)}
    world.account.calls.clear()
    for governor in (world.governor, world.another("desk", topic=None)):
        governor.wake(REGION, "bert")
    assert topics(world) == {(TOPIC,)} and "PutMetricAlarm" not in {name for name, _ in world.account.calls}


def test_one_that_is_told_late_of_is_made_again_once() -> None:
    world = World(WASTE)
    world.account.start(training_s=60)
    world.another("desk", topic=None).tick()
    listed, world.account.calls[:] = list(world.account.rings.values()), []
    world.account.alarms = lambda prefix: listed  # type: ignore[method-assign]
    world.wake()
    assert [name for name, _ in world.account.calls].count("PutMetricAlarm") == 2


def test_a_topic_elsewhere_cannot_be_told() -> None:
    world = World(WASTE)
    world.account.start(training_s=60)
    world.another(topic=TOPIC.replace(REGION, "eu-west-1")).wake(REGION, "bert")
    world.another(topic="strange").wake(REGION, "bert")
    assert topics(world) == {()}


GROUPS = [
    {"InstanceType": machine, "InstanceCount": 1, "InstanceGroupName": name}
    for machine, name in (("ml.g5.12xlarge", "a"), ("ml.c5.xlarge", "b"))
]


@pytest.mark.parametrize(
    ("resources", "why"),
    [
        (
            {"InstanceType": "ml.trn1.32xlarge"},
            "no alarms: there is no way to read the accelerators of ml.trn1.32xlarge",
        ),
        ({"InstanceType": "ml.x99.huge"}, "no alarms: there is no way to read the accelerators of ml.x99.huge"),
        ({"InstanceGroups": GROUPS}, "no alarms: its hosts are of several types"),
        ({}, "no alarms: there is no way to read the accelerators of its machines"),
        ({"InstanceType": "ml.c5.xlarge"}, ""),
    ],
)
def test_no_alarm_on_what_nobody_can_read_and_lists_say_why(resources: dict[str, object], why: str) -> None:
    for rules in (WASTE, ""):
        world = World(rules)
        world.account.start()
        world.account.job().asked["ResourceConfig"] = {"InstanceCount": 1, "VolumeSizeInGB": 1, **resources}
        world.wake()
        assert "no alarms" not in index_rows.summaries(world.store)[0].reason, "it does not train yet"
        world.account.train("bert", 60)
        world.wake()
        (listed,) = index_rows.summaries(world.store)
        assert world.account.rings == {}
        assert why in listed.reason if rules and why else "no alarms" not in listed.reason


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
    assert world.account.job(clone).spot and kinds(world)[-3:] == ["JobEnded", "Cloning", "Cloned"]


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


def hang(world: World, minutes: int, cpu: float = 300.0) -> None:
    """It was at full load for hours, and hangs for so many minutes: the log is silent, and the GPUs rest."""
    account, now = world.account, world.account.clock.now()
    since = now - timedelta(minutes=minutes)
    times = [now - timedelta(minutes=90 - number) for number in range(90)]
    for host in ("bert/algo-1", "bert/algo-2"):
        gpu = tuple((at, 380.0 if at < since else 0.0) for at in times)
        account.figures[host] = HostMetrics(host, gpu, tuple((at, 300.0 if at < since else cpu) for at in times))
    account.line_at = since
    account.rings = {name: replace(alarm, ringing="-stall-" not in name) for name, alarm in account.rings.items()}


@pytest.mark.parametrize("stall", [STALL, f"{STALL}\n  then: stop"])
@pytest.mark.parametrize("order", [1, -1])
def test_one_that_hangs_is_not_ended_as_a_wasteful_one(stall: str, order: int) -> None:
    world = World("\n".join([WASTE, stall][::order]))
    world.account.start(training_s=60)
    world.wake()
    world.account.clock.move(3 * HOUR_S)
    for minutes in range(1, 16):
        hang(world, minutes, cpu=0.0)
        done = world.governor.tick().done
        assert bool(done) == (minutes == 15), minutes
        world.account.clock.move(60)
    stop = next(event for event in events(world) if isinstance(event, Stopping))
    assert stop == Stopping("bert", "policy:stall", "" if "then" in stall else "restart")


@pytest.mark.parametrize(
    "stall", [f"{STALL}\n  then: warn", f"{STALL}\n  audit: true", f"{STALL}\n  for: {{team: cv}}"]
)
def test_a_rule_about_hangs_that_does_nothing_is_not_waited_for(stall: str) -> None:
    world = World(f"{WASTE}\n{stall}")
    world.account.start(training_s=60)
    world.wake()
    world.account.clock.move(3 * HOUR_S)
    hang(world, 12, cpu=0.0)
    assert "min-gpu-utilization" in world.wake()[0]


def test_after_the_span_of_a_stall_what_is_at_work_is_held_to_its_utilisation() -> None:
    world = World(f"{WASTE}\n{STALL}")
    world.account.start(training_s=60)
    world.wake()
    world.account.clock.move(3 * HOUR_S)
    hang(world, 14)
    assert world.wake() == []
    hang(world, 15)
    assert "min-gpu-utilization" in world.wake()[0]


@pytest.mark.parametrize(("idle_min", "silent_min"), [(12, 60), (60, 10)], ids=["seldom a line", "seldom busy"])
def test_it_may_hang_while_either_is_too_young(idle_min: int, silent_min: int) -> None:
    world = World(f"{WASTE}\n{STALL}")
    world.account.start(training_s=60)
    world.wake()
    world.account.clock.move(3 * HOUR_S)
    hang(world, idle_min, cpu=0.0)
    world.account.line_at = world.account.clock.now() - timedelta(minutes=silent_min)
    assert world.wake() == [] and world.account.job().status == "InProgress"


def test_a_line_of_the_log_is_no_hang() -> None:
    world = World(f"{WASTE}\n{STALL}")
    world.account.start(training_s=60)
    world.wake()
    world.account.clock.move(3 * HOUR_S)
    hang(world, 14, cpu=0.0)
    world.account.line_at = world.account.clock.now() - timedelta(minutes=2)
    assert "min-gpu-utilization" in world.wake()[0]


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


def test_alarms_are_removed_although_no_clone_can_be_made() -> None:
    world = World(WASTE)
    world.account.start(training_s=3 * HOUR_S)
    world.wake()
    world.account.fail(reason=INTERNAL)

    def denied(operation: str) -> bool:
        if operation == "CreateTrainingJob":
            raise AuthDenied("iam:PassRole")
        return False

    world.account.trouble = denied
    assert "iam:PassRole" in world.governor.tick().problems["bert"] and world.account.rings == {}


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


def test_a_tick_removes_alarms_of_a_job_that_is_listed_nowhere() -> None:
    world = World(WASTE)
    world.account.start(training_s=60)
    world.wake()
    left = dict(world.account.rings)
    world.account.jobs.advance(world.account.job(), "Completed")
    world.wake()
    # Somebody's late reply; and lists have forgotten the job for long.
    world.account.rings = left
    world.account.clock.move(48 * HOUR_S)
    external_job_index.write(world.store, REGION, {}, world.account.clock.now())
    world.governor.tick()
    assert world.account.rings == {}


def test_alarms_that_are_not_listed_at_once_are_removed_all_the_same() -> None:
    world = World(WASTE)
    world.account.start(training_s=60)
    make, listed = world.account.make_alarm, world.account.alarms

    def ends(wanted: WantedAlarm) -> None:
        make(wanted)
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


def test_an_alarm_of_one_rule_is_none_of_another() -> None:
    world = World(f"{WASTE}\n{STALL}")
    idle(world)
    # Only those of the rule about standing still ring, and somebody logged a line.
    world.account.line_at = world.account.clock.now()
    world.account.rings = {
        name: replace(alarm, ringing="-stall-" in name) for name, alarm in world.account.rings.items()
    }
    assert world.wake() == [] and world.account.job().status == "InProgress"
