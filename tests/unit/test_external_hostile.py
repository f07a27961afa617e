"""Training jobs of others in an account that is not as tidy as one would like: other stores, old jobs, names that come
back, people who stop things, and clones that cannot be made."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import woken_world
from external_world import HOUR_S, POLICY, REGION, START, World

from stoker.core.governor_settings import DEFAULT
from stoker.external_jobs import chain_log, index_rows, notifications
from stoker.external_jobs.aws_account import SageMakerAccount
from stoker.external_jobs.clone_chain import ChainEntry, ChainEvent, ChainRecord, Cloned, GaveUp, RuleWarning
from stoker.external_jobs.failure_diagnosis import diagnose
from stoker.external_jobs.notifications import JobContext
from stoker.external_jobs.serverless_adapter import ServerlessExternalJobs
from stoker.governor.serverless.event_governor import EventGovernor
from stoker.governor.serverless.events import Tick
from stoker.model import keys
from stoker.model.errors import InvalidRequest, ProviderError, QuotaExceeded, Transient
from stoker.policy.reader import PolicyReader
from stoker.providers.sagemaker import names
from stoker.store.base import open_store
from stoker.testing.memory_store import MemoryStore

INTERNAL = "InternalServerError: We encountered an internal error. Please try again."


def events(world: World, origin: str = "bert") -> list[ChainEvent]:
    return [entry.record.event for entry in chain_log.entries(world.store, REGION, origin)]


def second(world: World, rules: str = "") -> World:
    """Another store whose governor governs the same account from now on."""
    other = World()
    other.account = world.account
    other.store = MemoryStore(clock=world.account.clock.now)
    other.governor = other.another("other")
    other.legislate(rules)
    return other


def refusing(error: ProviderError, operation: str) -> Callable[[str], bool]:
    def trouble(asked: str) -> bool:
        if asked == operation:
            raise error
        return False

    return trouble


def spend(world: World) -> None:
    day = keys.spent_day(world.account.clock.now().date())
    world.store.create(f"{day}train-1a2b/{keys.number(9)}.100000000.100000000.", b"")


# ── Two stores ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_policies_that_judge_differently_make_one_clone_of_each() -> None:
    world = World("- resume: {min_runtime: 1h}")
    other = second(world, "- resume: {min_runtime: 4h}")
    world.account.start(training_s=2 * HOUR_S)
    name = "bert"
    for number in (1, 2):
        world.wake(name)
        other.wake(name)
        world.account.fail(name)
        world.wake(name)
        other.wake(name)
        assert len(world.clones) == number
        name = world.clones[-1]
        world.account.train(name, 5 * HOUR_S)


def test_clones_are_bounded_whichever_store_began_when() -> None:
    world = World()
    world.account.start(training_s=3 * HOUR_S)
    world.wake()
    world.account.fail(reason=INTERNAL)
    world.wake()
    other = second(world)
    for _ in range(6):
        for name in [name for name, status in world.account.statuses().items() if status == "InProgress"]:
            world.account.train(name, 3 * HOUR_S)
            world.wake(name)
            other.wake(name)
            world.account.fail(name, INTERNAL)
            # The one that knows less comes first.
            other.wake(name)
            world.wake(name)
    assert len(world.clones) == 3
    assert {world.account.job(name).tags["stoker:clone"] for name in world.clones} == {"1", "2", "3"}


# ── Since when ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_region_that_is_added_to_old_rules_stops_nothing_that_was_there() -> None:
    rules = "- tags: {team: [vision]}"
    world = World(rules, "")
    world.account.clock.move(HOUR_S)
    world.account.start(training_s=60)
    world.legislate(rules, POLICY)
    world.account.clock.move(60)
    world.governor.tick()
    assert world.account.job().status == "InProgress"
    world.account.start("later", training_s=60)
    world.governor.tick()
    assert world.account.job("later").status == "Stopping"


# ── What cannot go on is not stopped ──────────────────────────────────────────────────────────────────────────────────


def test_while_a_budget_is_spent_spot_is_not_given_up() -> None:
    world = World("- budget: {dollars: 100, period: month}")
    world.account.start(training_s=9000)
    world.wake()
    spend(world)
    world.account.interrupt(times=4)
    for _ in range(2):
        assert world.wake() == [] and world.account.job().status == "InProgress"
    assert [event.code for event in events(world) if isinstance(event, RuleWarning)] == ["on-demand/stays"]


def test_what_is_older_than_a_rule_that_would_refuse_it_stays_on_spot() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.wake()
    world.account.clock.move(60)
    world.legislate("- machines: [ml.p5.*]")
    world.account.interrupt(times=4)
    assert world.wake() == [] and world.account.job().status == "InProgress"
    assert "on-demand/stays" in [event.code for event in events(world) if isinstance(event, RuleWarning)]


def test_without_a_quota_for_machines_of_its_own_it_goes_on_with_spot() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.account.interrupt(times=4)
    world.wake()
    world.account.jobs.advance(world.account.job(), "Stopped")
    asked: list[int] = []

    def once(operation: str) -> bool:
        if operation == "CreateTrainingJob" and not asked:
            asked.append(1)
            raise QuotaExceeded("ml.g5.12xlarge for training job usage is 0")
        return False

    world.account.trouble = once
    assert "goes on with spot" in world.wake()[0]
    (clone,) = world.clones
    assert world.account.job(clone).spot and events(world)[-1] == Cloned("bert", clone)


def test_a_clone_that_never_could_be_made_is_told_of() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.account.interrupt(times=4)
    world.wake()
    world.account.jobs.advance(world.account.job(), "Stopped")
    world.account.trouble = refusing(QuotaExceeded("ml.g5.12xlarge is 0"), "CreateTrainingJob")
    for _ in range(26):
        world.governor.tick()
        world.account.clock.move(HOUR_S)
    assert events(world)[-1] == GaveUp("bert", "late", meant=True) and world.clones == []


# ── Names that come back ──────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_done_about_a_job_is_not_counted_for_the_next_of_its_name() -> None:
    world = World("- max_runtime: 10h")
    for number in (1, 2):
        world.account.start(training_s=9 * HOUR_S)
        assert world.wake() == [] and world.account.job().status == "InProgress"
        world.account.fail(reason=INTERNAL)
        world.wake()
        assert len(world.clones) == number
        world.account.jobs.answer("DeleteTrainingJob", REGION, {"TrainingJobName": "bert"})
        world.account.clock.move(HOUR_S)


# ── Whose it is ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("bert", {"MANAGED_BY_AWS": "STARTED_BY_STEP_FUNCTIONS"}),
        ("bert", {"AWS_STEP_FUNCTIONS_EXECUTION_ARN": "arn:aws:states:us-east-1:1:execution:m:x"}),
        ("AWSBatchnightly0123456789abcdef", {}),
    ],
)
def test_what_step_functions_or_batch_started_is_not_cloned(name: str, tags: dict[str, str]) -> None:
    world = World()
    world.account.start(name, training_s=9000, Tags=[{"Key": key, "Value": value} for key, value in tags.items()])
    world.wake(name)
    world.account.fail(name, INTERNAL)
    world.wake(name)
    assert world.clones == [] and events(world, name)[-1] == GaveUp(name, "bounded")


def test_what_stoker_itself_started_is_governed_as_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    store = open_store((tmp_path / "store").as_uri())
    job = woken_world.submit(store, tmp_path)
    fleet = woken_world.fleet(store, woken_world.Cloud())
    EventGovernor(
        store, woken_world.Clock(), name="test", external_jobs=ServerlessExternalJobs(store, "test"), fleet=fleet
    ).handle([Tick()])
    (claim,) = woken_world.state_of(store, job).claims
    world = World("- tags: {team: [vision]}", store=store)
    ours = names.training_job(store.url, job, claim.number, 2)
    tags = [{"Key": "stoker:job", "Value": job}, {"Key": "stoker:store", "Value": store.url}]
    elsewhere = "s3://another/store"
    theirs = names.training_job(elsewhere, "x", 1, 2)
    their_tags = [{"Key": "stoker:job", "Value": "x"}, {"Key": "stoker:store", "Value": elsewhere}]
    # After the rule, by the clock of this store.
    world.account.clock.set(datetime.now(timezone.utc) + timedelta(hours=1))
    world.account.start(ours, training_s=60, Tags=tags)
    world.account.start(theirs, training_s=60, Tags=their_tags)
    # Whatever it calls itself and is tagged with.
    pretenders = [names.training_job(store.url, job, 700, 2), names.training_job(store.url, "no-such", 1, 2), "bert"]
    for name in pretenders:
        world.account.start(name, training_s=60, Tags=tags)
    pretenders.append(names.training_job(elsewhere, "y", 1, 2))
    world.account.start(pretenders[-1], training_s=60, Tags=their_tags)
    world.governor.tick()
    assert {name for name, status in world.account.statuses().items() if status == "InProgress"} == {ours, theirs}
    assert {each.id for each in index_rows.summaries(store)} == set(pretenders)


# ── Logs and requests ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_end_of_the_log_is_that_of_the_last_training(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.account.start(training_s=9000)
    world.account.interrupt()
    began = world.account.clock.now()
    account = SageMakerAccount(REGION)
    before, after = int(began.timestamp()) - 9000, int(began.timestamp())
    lines = {
        f"bert/algo-1-{before}": (before, "NCCL error: unhandled system error"),
        f"bert/algo-1-{after}": (after, "ValueError: bad label"),
        # It never came up again.
        f"bert/algo-2-{before}": (before, "NCCL error: unhandled system error"),
    }
    monkeypatch.setattr(account, "_pages", lambda *_, **__: [{"logStreamName": name} for name in sorted(lines)])
    monkeypatch.setattr(account, "_events", lambda stream, _most: [(lines[stream][0] * 1000, lines[stream][1])])
    tail = account.tail("bert", began)
    assert tail == ("ValueError: bad label",)
    assert diagnose("AlgorithmError: ExitCode 1", tail, ()).blame == "unexplained"


def test_an_algorithm_of_sagemakers_own_is_cloned_without_the_metrics_that_it_tells_itself() -> None:
    image = {"TrainingImage": "683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-xgboost:1.7-1"}
    world = World()
    world.account.start(training_s=9000, AlgorithmSpecification={**image, "TrainingInputMode": "File"})
    world.wake()
    world.account.fail(reason=INTERNAL)
    world.wake()
    (clone,) = world.clones
    assert "MetricDefinitions" not in world.account.job(clone).asked["AlgorithmSpecification"]


# ── Lists ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def phases(world: World) -> dict[str, str]:
    return {each.id: each.phase for each in index_rows.summaries(world.store)}


def test_one_that_ended_while_nobody_governed_is_not_listed_as_running() -> None:
    world = World()
    world.account.start(training_s=600)
    assert world.governor.tick().active == 1
    world.account.jobs.advance(world.account.job(), "Completed")
    world.account.clock.move(30 * HOUR_S)
    assert world.governor.tick().active == 0
    assert phases(world) == {"bert": "succeeded"}


@pytest.mark.parametrize("by", ["tick", "wake"])
def test_one_that_is_deleted_is_not_listed(by: str) -> None:
    world = World()
    world.account.start(training_s=600)
    world.governor.tick()
    world.account.jobs.advance(world.account.job(), "Completed")
    world.account.jobs.answer("DeleteTrainingJob", REGION, {"TrainingJobName": "bert"})
    looked = world.governor.tick() if by == "tick" else world.governor.wake(REGION, "bert")
    assert looked.active == 0 and phases(world) == {}


def test_a_region_that_is_governed_no_more_is_not_listed() -> None:
    world = World()
    world.account.start(training_s=600)
    world.governor.tick()
    world.legislate("", POLICY.replace("us-east-1", "eu-west-1"))
    assert phases(world) == {}


def test_an_alarm_that_cannot_be_made_keeps_no_job_out_of_lists() -> None:
    world = World("- stall: {window: 5m, windows: 3}")
    world.account.start(training_s=600)
    world.account.trouble = refusing(InvalidRequest("LimitExceeded: 5000 alarms"), "PutMetricAlarm")
    looked = world.governor.tick()
    (listed,) = index_rows.summaries(world.store)
    assert "5000 alarms" in looked.problems["bert"] and "5000 alarms" in listed.reason
    world.account.trouble = lambda _operation: False
    world.account.clock.move(1000)
    assert world.governor.tick().problems == {} and len(world.account.rings) == 2


def test_an_alarm_that_cannot_be_removed_is_removed_later() -> None:
    world = World("- stall: {window: 5m, windows: 3}")
    world.account.start(training_s=600)
    world.governor.tick()
    world.account.jobs.advance(world.account.job(), "Completed")
    world.account.trouble = refusing(Transient("nobody answers"), "DeleteAlarms")
    assert world.governor.tick().active == 1 and phases(world) == {"bert": "succeeded"}
    world.account.trouble = lambda _operation: False
    world.account.clock.move(1000)
    assert world.governor.tick().active == 0 and world.account.rings == {}


def test_people_are_told_where_a_clone_was_meant_and_not_made() -> None:
    world = World()
    entry = ChainEntry(7, START, ChainRecord("t", "one", "it could not be made for a day", GaveUp("bert", "late")))
    policy = PolicyReader(world.store, DEFAULT).read().policy
    told = notifications.notification_of(entry, JobContext("bert", REGION), policy)
    assert told is not None and (told.kind, told.thing, told.reason) == ("failed", "bert", entry.record.reason)
    too_short = ChainRecord("t", "one", "it trained for a minute", GaveUp("bert", "too-short"))
    assert notifications.notification_of(ChainEntry(7, START, too_short), JobContext("bert", REGION), policy) is None
