"""A governor that events wake: it looks at the right job at once, and no event can make it do anything wrong."""

from __future__ import annotations

import itertools
import logging
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest
import woken_world
from woken_world import Clock, Cloud, beat, state_of, submit, warn

from stoker import client
from stoker.external_jobs import govern as foreign
from stoker.external_jobs.serverless_adapter import ServerlessExternalJobs
from stoker.governor.loop import Pass
from stoker.governor.observe import active_jobs
from stoker.governor.serverless import external_jobs, schedule
from stoker.governor.serverless.event_governor import CallResult, EventGovernor, log_result
from stoker.governor.serverless.events import IgnoredEvent, JobWake, MachineWake, Tick, TrainingWake, WakeEvent
from stoker.governor.serverless.schedule import ScheduleNotOn, ScheduleSwitch
from stoker.model import keys
from stoker.model.errors import AuthDenied, StoreUnavailable, Transient, UserError
from stoker.model.spec import Spec
from stoker.notifications import outbox
from stoker.policy import versions
from stoker.providers import registry
from stoker.providers.base import SupportsJobLookup
from stoker.providers.sagemaker import names
from stoker.store import job_log
from stoker.store.base import Store, open_store
from tests.support.webhooks import webhook


class World:
    """A store, a cloud, a clock, and the governor of them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.store: Store = open_store((folder / "store").as_uri())
        self.cloud, self.clock = Cloud(), Clock()
        self.slept: list[float] = []
        self.event_governor = self.fresh()

    def fresh(self) -> EventGovernor:
        """Another function that knows nothing yet, as a cold start is."""
        fleet = woken_world.fleet(self.store, self.cloud)
        others = ServerlessExternalJobs(self.store, "test")
        return EventGovernor(
            self.store, self.clock, name="test", external_jobs=others, fleet=fleet, sleep=self.slept.append
        )

    def training(self) -> tuple[str, str]:
        """A job that trains, and its machine."""
        job = submit(self.store, self.folder)
        self.event_governor.handle([JobWake(job)])
        beat(self.store, job)
        return job, next(iter(self.cloud.machines))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    return World(tmp_path)


def machine(instance: str, *, warned: bool = False) -> MachineWake:
    return MachineWake("local", instance, "us-east-1", warned=warned)


def attempts(world: World, job: str) -> int:
    return len(state_of(world.store, job).attempts)


def test_a_new_job_is_launched_at_once_and_switches_the_clock_on(world: World) -> None:
    job, _ = world.training()
    assert attempts(world, job) == 1
    assert world.clock.told == ["on"]


def test_a_job_whose_wake_was_lost_is_found_by_the_slow_tick(world: World) -> None:
    job = submit(world.store, world.folder)
    world.event_governor.handle([Tick()])
    assert attempts(world, job) == 1
    assert world.clock.told == ["on"], "the fast tick goes on from there"


def test_a_warning_leads_to_the_next_attempt(world: World) -> None:
    job, instance = world.training()
    warn(world.store, job)
    done = world.event_governor.handle([machine(instance, warned=True)])
    assert done.jobs == [job] and done.actions
    assert attempts(world, job) == 2
    assert world.slept == [], "its agent had spoken"


def test_a_warning_that_is_here_before_the_agents_word_waits_for_that(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, instance = world.training()

    def speak(pause_s: float) -> None:
        world.slept.append(pause_s)
        if len(world.slept) == 3:
            warn(world.store, job)

    monkeypatch.setattr(world.event_governor, "_sleep", speak)
    world.event_governor.handle([machine(instance, warned=True)])
    assert attempts(world, job) == 2
    assert len(world.slept) == 3


def test_a_warning_alone_is_not_believed(world: World) -> None:
    """The agent never says so: somebody made it up, or the agent is dead and silence will tell."""
    job, instance = world.training()
    before = state_of(world.store, job).seq
    done = world.event_governor.handle([machine(instance, warned=True)])
    assert state_of(world.store, job).seq == before
    assert done.jobs == [job]
    assert 5 <= sum(world.slept) <= 10


def test_an_event_is_about_one_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand others nothing is read."""
    job, instance = world.training()
    other = submit(world.store, world.folder)
    world.event_governor.handle([JobWake(other)])
    read: list[str] = []
    get = type(world.store).get
    monkeypatch.setattr(type(world.store), "get", lambda self, key, **how: read.append(key) or get(self, key, **how))
    world.event_governor.handle([machine(instance)])
    assert any(job in key for key in read) and not any(other in key for key in read)


def test_the_end_of_a_machine_is_seen_by_asking_for_it(world: World) -> None:
    job, instance = world.training()
    world.event_governor.handle([machine(instance)])
    assert attempts(world, job) == 1, "it says that it ended, and it runs"
    world.cloud.end(instance)
    world.event_governor.handle([machine(instance)])
    assert attempts(world, job) == 2


def test_a_machine_that_is_not_ours_costs_one_question(world: World) -> None:
    job, _ = world.training()
    passed = [meta.modified for meta in world.store.list(keys.GOVERNORS)]
    done = world.event_governor.handle([machine("i-0123456789abcdef0")])
    assert "i-0123456789abcdef0" in done.ignored[0]
    assert world.cloud.asked == ["i-0123456789abcdef0"]
    assert [meta.modified for meta in world.store.list(keys.GOVERNORS)] == passed
    assert attempts(world, job) == 1


def test_a_cloud_that_does_not_answer_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _, instance = world.training()

    def fail(*_: object) -> None:
        raise Transient("no answer")

    monkeypatch.setattr(world.cloud, "job_of", fail)
    assert world.event_governor.handle([machine(instance)]).problems == {instance: "no answer"}


def test_a_store_that_does_not_answer_is_the_callers_to_try_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = world.training()

    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(world.event_governor.governor, "run_pass", fail)
    for woken in (JobWake(job), Tick()):
        with pytest.raises(StoreUnavailable):
            world.event_governor.handle([woken])


def test_events_twice_late_and_in_any_order_come_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One reclaim, told by three events: whatever their order, how often they come and who hears them."""
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    told = []
    for number, order in enumerate(itertools.permutations(range(3))):
        world = World(tmp_path / str(number))
        job, instance = world.training()
        warn(world.store, job)
        events = [machine(instance, warned=True), machine(instance), JobWake(job)]
        for index in order:
            world.event_governor.handle([events[index]])
        first = state_of(world.store, job)
        for index in (*order, *order):
            world.fresh().handle([events[index], events[index]])
        assert state_of(world.store, job).seq == first.seq
        told.append([(claim.number, claim.open) for claim in first.claims])
        assert len(world.cloud.machines) == len(first.claims) == 2
    assert all(each == told[0] for each in told)


def test_events_for_what_is_over_do_nothing(world: World) -> None:
    job, instance = world.training()
    client.stop(job, world.store)
    world.event_governor.handle([JobWake(job)])
    world.cloud.end(instance)
    for _ in range(3):
        world.event_governor.handle([Tick()])
    assert state_of(world.store, job).ended is not None
    seq, machines = state_of(world.store, job).seq, dict(world.cloud.machines)
    late: list[WakeEvent] = [machine(instance, warned=True), machine(instance), JobWake(job), JobWake("never-was1")]
    for each in late:
        world.event_governor.handle([each])
        world.fresh().handle([each])
    assert (state_of(world.store, job).seq, world.cloud.machines) == (seq, machines)
    assert world.slept == []


def test_what_is_nothing_asks_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        world.event_governor.governor, "run_pass", lambda **_: pytest.fail("nothing was to be looked at")
    )
    assert world.event_governor.handle([IgnoredEvent("why")]).ignored == ["why"]


def test_other_peoples_training_jobs_are_passed_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[tuple[str, str]] = []

    def wake(_self: object, region: str, name: str) -> external_jobs.ExternalJobsResult:
        woken.append((region, name))
        return external_jobs.ExternalJobsResult(done=["stopped it"])

    monkeypatch.setattr(foreign.ExternalJobGovernor, "wake", wake)
    done = world.event_governor.handle([TrainingWake("theirs", "us-east-1"), TrainingWake("theirs", "us-east-1")])
    assert woken == [("us-east-1", "theirs")] and done.actions == ["stopped it"]


def test_actions_on_external_jobs_are_reported_beside_those_on_our_jobs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SNS delivers several alarms in one call."""
    looked = external_jobs.ExternalJobsResult(done=["stopped it"])
    monkeypatch.setattr(foreign.ExternalJobGovernor, "wake", lambda *_: looked)
    done = world.event_governor.handle(
        [TrainingWake("theirs", "us-east-1"), JobWake(submit(world.store, world.folder))]
    )
    assert done.actions[0] == "stopped it" and len(done.actions) > 1


def test_a_training_job_of_ours_is_one_of_our_machines(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job, instance = world.training()
    monkeypatch.setattr(foreign.ExternalJobGovernor, "wake", lambda *_: pytest.fail("it is not others'"))
    world.cloud.end(instance)
    assert world.event_governor.handle([TrainingWake(instance, "us-east-1")]).jobs == [job]
    assert attempts(world, job) == 2


def test_whose_a_training_job_is_stands_in_its_name() -> None:
    store = "s3://bucket/team"
    provider = registry.connect("sagemaker", registry.Context(store))
    assert isinstance(provider, SupportsJobLookup)
    training = names.training_job(store, "x-bcdf", 2, 1)
    assert provider.job_of(training) == provider.job_of(names.host(training, 0)) == "x-bcdf"
    assert provider.job_of(names.training_job("s3://another", "x-bcdf", 2, 1)) is None
    assert provider.job_of("somebody-elses-2026") is None


def test_other_peoples_training_jobs_keep_the_clock_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign.ExternalJobGovernor, "tick", lambda _self: external_jobs.ExternalJobsResult(active=1))
    world.event_governor.handle([Tick()])
    assert world.clock.told == ["on"]
    monkeypatch.setattr(foreign.ExternalJobGovernor, "tick", lambda _self: external_jobs.ExternalJobsResult())
    world.event_governor.handle([Tick()])
    assert world.clock.told == ["on", "off"]


@pytest.mark.parametrize(
    ("looked", "on"),
    [
        (external_jobs.ExternalJobsResult(), False),
        (external_jobs.ExternalJobsResult(active=1), True),
        (external_jobs.ExternalJobsResult(unknown=True), True),
        (external_jobs.ExternalJobsResult(unsent=True), True),
    ],
)
def test_what_is_left_of_other_peoples_training_jobs_keeps_the_clock_on(
    world: World, monkeypatch: pytest.MonkeyPatch, looked: external_jobs.ExternalJobsResult, on: bool
) -> None:
    monkeypatch.setattr(foreign.ExternalJobGovernor, "wake", lambda *_: looked)
    monkeypatch.setattr(foreign.ExternalJobGovernor, "tick", lambda _self: looked)
    world.event_governor.handle([Tick()])
    assert world.clock.told == (["on"] if on else ["off"])
    for _ in range(2):
        world.event_governor.handle([TrainingWake("theirs", "us-east-1")])
    assert world.clock.told[1:] == (["on", "on"] if on else []), "another function may have switched it off"


def test_what_went_wrong_with_other_peoples_training_jobs_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = external_jobs.ExternalJobsResult(done=["stopped it"], problems={"theirs": "no answer"})
    monkeypatch.setattr(foreign.ExternalJobGovernor, "wake", lambda *_: looked)
    monkeypatch.setattr(foreign.ExternalJobGovernor, "tick", lambda _self: looked)
    for woken in (TrainingWake("theirs", "us-east-1"), Tick()):
        done = world.event_governor.handle([woken])
        assert done.actions == ["stopped it"] and done.problems == {"theirs": "no answer"}


def test_what_was_done_is_logged_and_answered_in_numbers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="stoker")
    done = CallResult(["a-aaaa"], 3, ["a-aaaa: Launch: x", "y"], {"schedule": "no answer"}, ["not for us"])
    assert log_result(done) == {"jobs": ["a-aaaa"], "active": 3, "actions": 2, "problems": 1, "ignored": 1}
    assert caplog.record_tuples == [
        ("stoker", logging.INFO, "a-aaaa: Launch: x"),
        ("stoker", logging.INFO, "y"),
        ("stoker", logging.WARNING, "schedule: no answer"),
        ("stoker", logging.INFO, "ignored: not for us"),
    ]


# ── The clock ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_job_switches_the_clock_off(world: World) -> None:
    world.event_governor.handle([Tick()])
    assert world.clock.told == ["off"]
    world.training()
    world.event_governor.handle([Tick()])
    assert world.clock.told == ["off", "on"], "a tick with a job leaves it alone"


def test_the_clock_stays_on_while_somebody_is_to_be_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    passing = world.event_governor.governor.run_pass
    monkeypatch.setattr(world.event_governor.governor, "run_pass", lambda: replace(passing(), can_send=True))
    world.event_governor.handle([Tick()])
    assert world.clock.told == ["on"]


def test_a_job_that_comes_while_it_is_switched_off_is_seen(world: World) -> None:
    """The submitter's own call came before the clock was off, and switched on what was on."""

    class Racing(Clock):
        def off(self) -> None:
            super().off()
            if len(self.told) == 1:
                submit(world.store, world.folder)

    clock = Racing()
    assert ScheduleSwitch(world.store, clock).rest_if_idle() is False
    assert clock.told == ["off", "on"]


def test_a_submission_that_failed_keeps_no_clock_on(world: World) -> None:
    world.store.put(keys.active("gone-bcdf", 1), b"")
    assert list(active_jobs(world.store)) == ["gone-bcdf"]
    assert job_log.read(world.store, "gone-bcdf") is None
    assert ScheduleSwitch(world.store, world.clock).rest_if_idle() is True


def test_events_of_machines_switch_it_on_now_and_then(world: World) -> None:
    """Should the submitter's own call have failed. A new job always does: another function may have switched it off."""
    job, instance = world.training()
    for _ in range(3):
        world.event_governor.handle([machine(instance)])
    assert world.clock.told == ["on"]
    world.fresh().handle([machine(instance)])
    world.event_governor.handle([JobWake(job)])
    assert world.clock.told == ["on"] * 3


def test_what_was_switched_on_long_ago_is_switched_on_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [5000.0]
    monkeypatch.setattr(schedule, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    switch = ScheduleSwitch(world.store, world.clock)
    for after_s, told in ((0.0, 1), (60.0, 1), (600.0, 2), (60.0, 2)):
        now_s[0] += after_s
        switch.wanted()
        assert len(world.clock.told) == told
    switch.rest_if_idle()
    switch.wanted()
    assert world.clock.told == ["on", "on", "off", "on"]


def test_a_clock_that_cannot_be_switched_harms_no_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AuthDenied("events:EnableRule is not allowed")

    monkeypatch.setattr(world.clock, "on", fail)
    job = submit(world.store, world.folder)
    done = world.event_governor.handle([JobWake(job)])
    assert attempts(world, job) == 1
    assert done.problems == {"schedule": "events:EnableRule is not allowed"}
    with pytest.raises(ScheduleNotOn, match="EnableRule"):
        log_result(done)


def test_a_clock_that_could_not_be_switched_on_is_by_whoever_looks_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise Transient("tick: throttled")

    with monkeypatch.context() as patch:
        patch.setattr(world.clock, "on", fail)
        job = submit(world.store, world.folder)
        assert world.event_governor.handle([JobWake(job)]).unswitched is not None
    assert log_result(world.event_governor.handle([Tick()]))["active"] == 1
    assert world.clock.is_on


def test_off_whose_reply_was_lost_leaves_no_job_alone(world: World) -> None:
    class Lost(Clock):
        def off(self) -> None:
            super().off()
            submit(world.store, world.folder)
            raise Transient("events: no answer in time")

    clock = Lost()
    with pytest.raises(Transient, match="no answer in time"):
        ScheduleSwitch(world.store, clock).rest_if_idle()
    assert clock.told == ["off", "on"]


def test_off_without_a_second_look_is_no_rest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter((True, StoreUnavailable("503")))

    def look(_store: object) -> bool:
        found = next(looks)
        if isinstance(found, StoreUnavailable):
            raise found
        return found

    monkeypatch.setattr(schedule, "is_idle", look)
    with pytest.raises(StoreUnavailable):
        ScheduleSwitch(world.store, world.clock).rest_if_idle()
    assert world.clock.told == ["off", "on"]


def test_what_is_over_is_forgotten_by_events_too(world: World) -> None:
    """No whole pass may come for months."""
    first, instance = world.training()
    other = submit(world.store, world.folder)
    client.stop(first, world.store)
    world.cloud.end(instance)
    until_idle = 0
    while first in active_jobs(world.store):
        world.event_governor.handle([JobWake(first)])
        until_idle += 1
        assert until_idle < 20
    world.event_governor.handle([JobWake(other)])
    assert set(world.event_governor.governor.memory.states) == {other}


def test_a_spec_that_no_client_would_submit_gets_no_machine(world: World) -> None:
    """Whoever may write to the store may write any spec."""

    class Checking(Cloud):
        def check(self, spec: Spec) -> None:
            raise UserError("resources.ec2.overrides.InstanceType: is Stoker's own; leave it out")

    world.cloud = Checking()
    world.event_governor = world.fresh()
    job = submit(world.store, world.folder)
    world.event_governor.handle([JobWake(job)])
    assert not world.cloud.machines
    ended = state_of(world.store, job).ended
    assert ended is not None and "overrides.InstanceType: is Stoker's own" in ended.reason


def test_a_look_that_fails_leaves_the_clock_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(only: set[str] | None = None) -> Pass:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(world.event_governor.governor, "run_pass", fails)
    with pytest.raises(StoreUnavailable):
        world.event_governor.handle([JobWake("spirals-bcdf")])
    assert world.clock.told == ["on"]


@pytest.mark.parametrize("unsent", [True, False])
def test_what_the_last_job_left_to_be_told_keeps_the_clock_on(
    world: World, monkeypatch: pytest.MonkeyPatch, unsent: bool
) -> None:
    over = Pass(active=0, at=datetime.now(timezone.utc), unsent=unsent)
    monkeypatch.setattr(world.event_governor.governor, "run_pass", lambda only=None: over)
    world.event_governor.handle([JobWake("spirals-bcdf")])
    assert world.clock.told == (["on"] if unsent else [])


def test_the_clock_stays_on_until_what_waits_is_told_or_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when every call finds a function that remembers nothing."""
    monkeypatch.setattr(outbox, "RETRY_PAUSES", (timedelta(seconds=0.05),) * 4)
    with webhook() as hook:
        hook.status = 503
        versions.write(world.store, f"notify: [{{to: '{hook.url}', name: team}}]", "jane")
        world.training()
        # The job is over, and forgotten.
        world.store.delete([meta.key for meta in world.store.list(keys.ACTIVE)])
        world.cloud.machines.clear()
        for _ in range(6):
            world.event_governor = world.fresh()
            world.event_governor.handle([Tick()])
            time.sleep(0.1)
        assert "off" not in world.clock.told
        hook.status = 204
        world.event_governor = world.fresh()
        world.event_governor.handle([Tick()])
        assert world.clock.told[-1] == "off" and hook.events
