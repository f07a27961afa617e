"""An account with training jobs of others, its alarms, figures and logs, all in memory: as fast as a property test
needs, and as untrustworthy as it likes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from stoker.external_jobs import chain_log
from stoker.external_jobs.aws_account import SageMakerAccount, TrainingJobDescription, TrainingJobSummary
from stoker.external_jobs.clone_chain import ChainRecord
from stoker.external_jobs.govern import ExternalJobGovernor
from stoker.external_jobs.gpu_alarms import Alarm, HostMetrics, JobFigures, WantedAlarm
from stoker.model.errors import InvalidRequest, Transient
from stoker.policy import versions
from stoker.store.base import Store
from stoker.testing.memory_store import MemoryStore
from tests.support.sagemaker import Clock
from tests.support.sagemaker.account import Account
from tests.support.sagemaker.faults import Failure
from tests.support.sagemaker.jobs import Job

REGION = "us-east-1"
START = datetime(2026, 11, 2, 9, 0, tzinfo=timezone.utc)
POLICY = f"sagemaker: {{regions: [{REGION}]}}\n"
TOPIC = f"arn:aws:sns:{REGION}:123456789012:stoker"
HOUR_S = 3600.0
WASTE = "- min_gpu_utilization: {value: 80%, over: 1h, after: 30m}\n  then: stop"
STALL = "- stall: {window: 5m, windows: 3}"
INTERNAL = "InternalServerError: We encountered an internal error. Please try again."
CAPACITY = "CapacityError: Unable to provision requested ML compute capacity."


def asked(name: str = "bert", **changes: Any) -> dict[str, Any]:
    """A request for a training job, on spot and with checkpoints."""
    return {
        "TrainingJobName": name,
        "AlgorithmSpecification": {"TrainingImage": "1234.dkr.ecr/bert:1", "TrainingInputMode": "File"},
        "RoleArn": "arn:aws:iam::123456789012:role/jane",
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "ResourceConfig": {"InstanceType": "ml.g5.12xlarge", "InstanceCount": 2, "VolumeSizeInGB": 50},
        "StoppingCondition": {"MaxRuntimeInSeconds": 432000, "MaxWaitTimeInSeconds": 864000},
        "EnableManagedSpotTraining": True,
        "CheckpointConfig": {"S3Uri": "s3://bucket/checkpoints/bert"},
        "Tags": [{"Key": "team", "Value": "nlp"}],
        **changes,
    }


class MemoryAccount(SageMakerAccount):
    """`trouble(operation)` may raise before a call, or answer that its reply is lost after it."""

    def __init__(self, region: str = REGION) -> None:
        self.region = region
        self.clock = Clock()
        self.clock.set(START)
        self.jobs = Account(self.clock)
        self.rings: dict[str, Alarm] = {}
        self.wanted: dict[str, WantedAlarm] = {}
        self.figures: dict[str, HostMetrics] = {}
        self.line_at: datetime | None = None
        self.lines: tuple[str, ...] = ()
        self.calls: list[tuple[str, str]] = []
        self.trouble: Callable[[str], bool] = lambda _operation: False

    # ── The test's hands ──────────────────────────────────────────────────────────────────────────────────────────────

    def job(self, name: str = "bert") -> Job:
        return self.jobs.job(name)

    def start(self, name: str = "bert", *, training_s: float | None = None, **changes: Any) -> None:
        """Make a training job; with `training_s` it has trained for so long."""
        self.jobs.answer("CreateTrainingJob", self.region, asked(name, **changes))
        if training_s is not None:
            self.train(name, training_s)

    def train(self, name: str, seconds: float) -> None:
        if self.job(name).secondary != "Training":
            self.jobs.advance(self.job(name), "Training")
        self.clock.move(seconds)

    def fail(self, name: str = "bert", reason: str = "AlgorithmError: , exit code: 1") -> None:
        self.jobs.enter(self.job(name), "Failed", reason=reason)

    def interrupt(self, name: str = "bert", times: int = 1) -> None:
        for _ in range(times):
            self.jobs.enter(self.job(name), "Interrupted")
            self.jobs.advance(self.job(name), "Training")

    def measure(self, name: str, gpu: float, cpu: float = 0.0, minutes: int = 90) -> None:
        """So many percent of every host, as CloudWatch sums them, in the minutes until now."""
        now = self.clock.now()
        times = [now - timedelta(minutes=minutes - number) for number in range(minutes)]
        nodes = int(self.job(name).resources["InstanceCount"])
        for host in (f"{name}/algo-{number}" for number in range(1, nodes + 1)):
            self.figures[host] = HostMetrics(host, tuple((at, gpu) for at in times), tuple((at, cpu) for at in times))

    def ring(self) -> None:
        """Every alarm rings."""
        self.rings = {name: replace(alarm, ringing=True) for name, alarm in self.rings.items()}

    @property
    def names(self) -> list[str]:
        return self.jobs.names()

    def statuses(self) -> dict[str, str]:
        return {name: self.job(name).status for name in self.names}

    # ── What a governor asks ──────────────────────────────────────────────────────────────────────────────────────────

    def describe(self, name: str) -> TrainingJobDescription | None:
        found = self._answer("DescribeTrainingJob", {"TrainingJobName": name})
        if found is None:
            return None
        tags = self._answer("ListTags", {"ResourceArn": found["TrainingJobArn"]})
        return None if tags is None else TrainingJobDescription(found, tuple(tags["Tags"]))

    def in_progress(self) -> list[TrainingJobSummary]:
        return self._listed("InProgress")

    def changed_since(self, moment: datetime) -> list[TrainingJobSummary]:
        return [each for each in self._listed("") if each.modified_at is not None and each.modified_at > moment]

    def stop(self, name: str) -> bool:
        try:
            found = self._answer("StopTrainingJob", {"TrainingJobName": name})
        except InvalidRequest:
            return False
        return found is not None

    def create(self, request: dict[str, Any]) -> bool:
        try:
            self._answer("CreateTrainingJob", request)
        except InvalidRequest as error:
            if "ResourceInUse" in str(error):
                return False
            raise
        return True

    def alarms(self, prefix: str) -> list[Alarm]:
        self._meet("DescribeAlarms")
        return [alarm for name, alarm in self.rings.items() if name.startswith(prefix)]

    def make_alarm(self, wanted: WantedAlarm) -> None:
        lost = self._meet("PutMetricAlarm", wanted.name)
        topics = (wanted.topic,) if wanted.topic else ()
        self.rings[wanted.name] = Alarm(wanted.name, wanted.host, False, topics)
        self.wanted[wanted.name] = wanted
        self._lose(lost)

    def remove_alarms(self, names: Sequence[str]) -> None:
        lost = self._meet("DeleteAlarms")
        for name in names:
            self.rings.pop(name, None)
        self._lose(lost)

    def readings(self, name: str, hosts: Sequence[str], since: datetime, until: datetime) -> JobFigures:
        self._meet("GetMetricData")
        kept = {host: self.figures.get(host, HostMetrics(host)) for host in hosts}
        inside = [
            HostMetrics(
                host,
                tuple(each for each in found.gpu if since <= each[0] <= until),
                tuple(each for each in found.cpu if since <= each[0] <= until),
            )
            for host, found in kept.items()
        ]
        return JobFigures(tuple(inside), self.line_at)

    def tail(self, name: str, since: datetime | None = None) -> tuple[str, ...]:
        self._meet("GetLogEvents", name)
        return self.lines

    def _listed(self, status: str) -> list[TrainingJobSummary]:
        self._meet("ListTrainingJobs")
        found = [self.job(name) for name in self.names]
        return [
            TrainingJobSummary(job.name, job.status, job.secondary, job.modified)
            for job in found
            if status in ("", job.status)
        ]

    def _answer(self, operation: str, request: dict[str, Any]) -> dict[str, Any] | None:
        lost = self._meet(operation, str(request.get("TrainingJobName", "")))
        try:
            found = self.jobs.answer(operation, self.region, request)
        except Failure as failure:
            if "not found" in failure.message:
                return None
            raise InvalidRequest(str(failure)) from failure
        self._lose(lost)
        return found

    def _meet(self, operation: str, name: str = "") -> bool:
        lost = self.trouble(operation)
        self.calls.append((operation, name))
        return lost

    @staticmethod
    def _lose(lost: bool) -> None:
        if lost:
            raise Transient("the reply was lost")


class World:
    """A store with rules, and an account that obeys them."""

    def __init__(self, rules: str = "", policy: str = POLICY, store: Store | None = None) -> None:
        self.account = MemoryAccount()
        self.store = store or MemoryStore(clock=self.account.clock.now)
        self.governor = self.another()
        self.legislate(rules, policy)

    def another(self, name: str = "one", topic: str | None = TOPIC) -> ExternalJobGovernor:
        """One more governor."""
        return ExternalJobGovernor(self.store, self._at, name=name, topic=topic, now=self.account.clock.now)

    def _at(self, region: str) -> MemoryAccount:
        return self.account if region == REGION else MemoryAccount(region)

    def legislate(self, rules: str, policy: str = POLICY) -> None:
        versions.write(self.store, f"{policy}rules:\n{rules}" if rules else policy, "jane@desk")

    def wake(self, name: str = "bert") -> list[str]:
        """Look, and tell what was done. Nothing may go wrong."""
        looked = self.governor.wake(REGION, name)
        assert looked.problems == {}
        return looked.done

    @property
    def clones(self) -> list[str]:
        return [name for name in self.account.names if "-r" in name]


def told(world: World, origin: str = "bert") -> list[ChainRecord]:
    return [entry.record for entry in chain_log.entries(world.store, REGION, origin)]


def events(world: World, origin: str = "bert") -> list[object]:
    return [record.event for record in told(world, origin)]


def kinds(world: World, origin: str = "bert") -> list[str]:
    return [type(event).__name__ for event in events(world, origin)]


def idle(
    world: World,
    gpu: float = 0.0,
    cpu: float = 0.0,
    silent_s: float = HOUR_S,
    tags: Sequence[dict[str, str]] = ({"Key": "team", "Value": "nlp"},),
) -> None:
    """A job that trained for three hours, with alarms that ring."""
    world.account.start(training_s=60, Tags=list(tags))
    world.wake()
    world.account.clock.move(3 * HOUR_S)
    world.account.measure("bert", gpu, cpu)
    world.account.line_at = world.account.clock.now() - timedelta(seconds=silent_s)
    world.account.ring()
