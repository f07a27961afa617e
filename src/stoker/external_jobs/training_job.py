"""Parse the description of a training job (`DescribeTrainingJob`), and convert it to a spec that rules can be checked
against. Pure. Missing or malformed values are left open, and break no rule."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from stoker.external_jobs.clone_request import parse_lineage
from stoker.model.offerings import Offering
from stoker.model.resources import Resources
from stoker.model.spec import SUBMITTER_TAG, Container, Environment, Limits, Spec

PROVIDER = "sagemaker"
# Valid names of training jobs.
NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
OVER = frozenset({"Completed", "Failed", "Stopped"})
# Secondary statuses in which no machine trains, and none may exist.
_WAITING = frozenset({"Starting", "Pending", "Interrupted", "Restarting", "LaunchingMLInstances"})
MAX_WAIT = "MaxWaitTimeInSeconds"
_OWN_LIMITS = {"MaxWaitTimeExceeded": MAX_WAIT, "MaxRuntimeExceeded": "MaxRuntimeInSeconds"}
# The services that start these training jobs watch them, and would not know of a clone.
_PARENTS = {"TuningJobArn": "tuning job", "AutoMLJobArn": "AutoML job", "LabelingJobArn": "labelling job"}
_PIPELINE = ("sagemaker:pipeline", "aws:sagemaker:pipeline")
_STATE_MACHINE = "AWS_STEP_FUNCTIONS_EXECUTION_ARN"
_MANAGED = "MANAGED_BY_AWS"
# Name prefixes of services whose jobs may have no tag of the service.
_NAME_PREFIXES = {"pipelines-": "pipeline", "AWSBatch": "AWS Batch"}


@dataclass(frozen=True)
class ExternalJob:
    """The relevant parts of a description. Times are SageMaker's."""

    name: str
    region: str
    status: str
    secondary: str
    created_at: datetime | None = None
    ended_at: datetime | None = None
    modified_at: datetime | None = None
    # The types of its machines; more than one in a cluster of groups.
    machines: tuple[str, ...] = ()
    nodes: int = 1
    # The type and the number of machines of each group; empty where only their sum is known.
    groups: tuple[tuple[str, int], ...] = ()
    spot: bool = False
    image: str | None = None
    role: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    # Seconds of completed training, and the start of the current one.
    trained_before_s: float = 0.0
    training_since: datetime | None = None
    # The start of the last training, current or completed.
    last_training_at: datetime | None = None
    waiting_since: datetime | None = None
    interruptions: int = 0
    # When SageMaker began to stop it on request, however it ended then.
    stop_asked_at: datetime | None = None
    failure: str = ""
    # The URI of its checkpoints; empty: it has none.
    checkpoints: str = ""
    # The service that started it and waits for it, for messages.
    parent: str = ""
    # The number of the clone by its tags, which anybody may write; 0: no clone.
    clone: int = 0
    max_runtime_s: float | None = None
    billable_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return self.status in OVER

    @property
    def training(self) -> bool:
        return self.status == "InProgress" and self.secondary == "Training"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts in CloudWatch."""
        return tuple(f"{self.name}/algo-{number}" for number in range(1, self.nodes + 1))

    @property
    def exceeded(self) -> str:
        """The job's own limit at which SageMaker ended it, as a field of the request; empty: none."""
        return _OWN_LIMITS.get(self.secondary, "") if self.status == "Stopped" else ""

    def trained_s(self, now: datetime) -> float:
        running = 0.0 if self.training_since is None else (now - self.training_since).total_seconds()
        return self.trained_before_s + max(0.0, running)

    def spec(self) -> Spec:
        """The job as a spec that rules can be checked against. It has no `max_wait`: SageMaker's limit includes the
        training."""
        return Spec(
            name=self.name,
            run="",
            nodes=self.nodes,
            resources=Resources(
                provider=PROVIDER,
                machine=self.machines,
                spot="only" if self.spot else "never",
                region=self.region,
            ),
            environment=Environment(container=Container(image=self.image) if self.image else None),
            limits=Limits(max_runtime_s=self.max_runtime_s),
            tags=dict(self.tags),
        )

    def offerings(self, price: float | None = None, gpus: int | None = None) -> tuple[Offering, ...]:
        """One offering for each of its machine types. The job uses all of them, so each is checked against the
        rules."""
        return tuple(
            Offering(PROVIDER, machine, "", self.spot, self.region, price=price, gpus=gpus or 0)
            for machine in self.machines or ("",)
        )


def parse_description(description: Mapping[str, Any], tags: Iterable[Mapping[str, Any]], region: str) -> ExternalJob:
    """Parse SageMaker's description. Missing or malformed values are left open."""
    named = {str(tag.get("Key", "")): str(tag.get("Value", "")) for tag in tags}
    resources = _mapping(description.get("ResourceConfig"))
    stopping = _mapping(description.get("StoppingCondition"))
    algorithm = _mapping(description.get("AlgorithmSpecification"))
    status = str(description.get("TrainingJobStatus", ""))
    ended_at = _time(description.get("TrainingEndTime")) or (
        _time(description.get("LastModifiedTime")) if status in OVER else None
    )
    steps = _transitions(description)
    before_s, since = _trained(steps, ended_at if status in OVER else None)
    machines, nodes, groups = _machines(resources)
    return ExternalJob(
        name=str(description.get("TrainingJobName", "")),
        region=region,
        status=status,
        secondary=str(description.get("SecondaryStatus", "")),
        created_at=_time(description.get("CreationTime")),
        ended_at=ended_at if status in OVER else None,
        modified_at=_time(description.get("LastModifiedTime")),
        machines=machines,
        nodes=nodes,
        groups=groups,
        spot=description.get("EnableManagedSpotTraining") is True,
        image=_text(algorithm.get("TrainingImage")),
        role=str(description.get("RoleArn", "")).rpartition("/")[2],
        # The owner could have written anything into the submitter tag. SageMaker does not report who started a job.
        tags={key: value for key, value in named.items() if not key.startswith("aws:") and key != SUBMITTER_TAG},
        trained_before_s=before_s,
        training_since=since,
        last_training_at=max((start for name, start, _ in steps if name == "Training"), default=None),
        waiting_since=_waiting(steps) if status == "InProgress" else None,
        interruptions=sum(1 for name, _, _ in steps if name == "Interrupted"),
        stop_asked_at=next((start for name, start, _ in steps if name == "Stopping"), None),
        failure=str(description.get("FailureReason") or ""),
        checkpoints=(_text(_mapping(description.get("CheckpointConfig")).get("S3Uri")) or "").rstrip("/"),
        parent=_parent(description, named),
        clone=parse_lineage(named).number,
        max_runtime_s=_number(stopping.get("MaxRuntimeInSeconds")),
        billable_s=_number(description.get("BillableTimeInSeconds")),
        metrics=_parse_metrics(description.get("FinalMetricDataList")),
    )


_Step = tuple[str, datetime, datetime | None]


def _transitions(description: Mapping[str, Any]) -> list[_Step]:
    """The status transitions, sorted by time."""
    found: list[_Step] = []
    for each in _list(description.get("SecondaryStatusTransitions")):
        start = _time(each.get("StartTime"))
        if start is not None:
            found.append((str(each.get("Status", "")), start, _time(each.get("EndTime"))))
    return sorted(found, key=lambda step: step[1])


def _trained(steps: list[_Step], over_at: datetime | None) -> tuple[float, datetime | None]:
    total_s, since = 0.0, None
    for number, (name, start, end) in enumerate(steps):
        if name != "Training":
            continue
        following = steps[number + 1][1] if number + 1 < len(steps) else None
        until = end or following or over_at
        if until is None:
            since = start
        else:
            total_s += max(0.0, (until - start).total_seconds())
    return total_s, since


def _waiting(steps: list[_Step]) -> datetime | None:
    since = None
    for name, start, _ in reversed(steps):
        if name not in _WAITING:
            break
        since = start
    return since


def _machines(resources: Mapping[str, Any]) -> tuple[tuple[str, ...], int, tuple[tuple[str, int], ...]]:
    groups = _list(resources.get("InstanceGroups"))
    if groups:
        counts = tuple((_text(group.get("InstanceType")) or "", _count(group.get("InstanceCount"))) for group in groups)
        named = tuple(dict.fromkeys(machine for machine, _ in counts if machine))
        return named, sum(count for _, count in counts), counts
    machine = _text(resources.get("InstanceType")) or _text(resources.get("SelectedInstanceType"))
    count = resources.get("InstanceCount") or resources.get("SelectedInstanceCount")
    return (() if machine is None else (machine,)), _count(count), ()


def _parent(description: Mapping[str, Any], tags: Mapping[str, str]) -> str:
    for key, what in _PARENTS.items():
        if description.get(key):
            return f"{what} {str(description[key]).rpartition('/')[2]}"
    found = next((value for key, value in tags.items() if key.startswith(_PIPELINE)), None)
    if found is not None:
        return f"pipeline {found.rpartition('/')[2]}"
    if _STATE_MACHINE in tags or _MANAGED in tags:
        return f"Step Functions {tags.get(_STATE_MACHINE, '').rpartition(':')[2]}".rstrip()
    name = str(description.get("TrainingJobName", ""))
    return next((what for begin, what in _NAME_PREFIXES.items() if name.startswith(begin)), "")


def _parse_metrics(metric_list: object) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in _list(metric_list):
        value = each.get("Value")
        if isinstance(value, (int, float)) and each.get("MetricName"):
            found[str(each["MetricName"])] = float(value)
    return found


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, (list, tuple)) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _time(value: object) -> datetime | None:
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
