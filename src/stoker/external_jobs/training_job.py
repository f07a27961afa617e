"""A training job of SageMaker's, as `DescribeTrainingJob` tells it, and the same as a job that rules can be held
against. Pure. What is not told, or not with sense, is left open and breaks no rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from stoker.external_jobs.clone_request import lineage
from stoker.model.offerings import Offering
from stoker.model.spec import SUBMITTER, Container, Environment, Limits, Resources, Spec

PROVIDER = "sagemaker"
OVER = frozenset({"Completed", "Failed", "Stopped"})
# Secondary statuses in which no machine trains, and none is there for sure.
_WAITING = frozenset({"Starting", "Pending", "Interrupted", "Restarting", "LaunchingMLInstances"})
MAX_WAIT = "MaxWaitTimeInSeconds"
_BOUNDS = {"MaxWaitTimeExceeded": MAX_WAIT, "MaxRuntimeExceeded": "MaxRuntimeInSeconds"}
# Whoever starts these watches them, and would not know of a clone.
_PARENTS = {"TuningJobArn": "tuning job", "AutoMLJobArn": "AutoML job", "LabelingJobArn": "labelling job"}
_PIPELINE = ("sagemaker:pipeline", "aws:sagemaker:pipeline")
_STATE_MACHINE = "AWS_STEP_FUNCTIONS_EXECUTION_ARN"
_MANAGED = "MANAGED_BY_AWS"
# What these call their jobs, whose tags may be of the person alone.
_NAMED_BY = {"pipelines-": "pipeline", "AWSBatch": "AWS Batch"}


@dataclass(frozen=True)
class TrainingJob:
    """What counts of a description. Times are SageMaker's."""

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
    spot: bool = False
    image: str | None = None
    role: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    # The training that is over, and since when one goes on.
    trained_before_s: float = 0.0
    training_since: datetime | None = None
    # When the last one began, that goes on or is over.
    last_training_at: datetime | None = None
    waiting_since: datetime | None = None
    interruptions: int = 0
    # When somebody asked it to stop, however it ended then.
    stop_asked_at: datetime | None = None
    failure: str = ""
    # Where it keeps its checkpoints; empty: it has none.
    checkpoints: str = ""
    # Who started it and waits for it, in words.
    parent: str = ""
    # Which clone it is by its tags, which anybody may write; 0: none.
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
        """As CloudWatch calls them."""
        return tuple(f"{self.name}/algo-{number}" for number in range(1, self.nodes + 1))

    @property
    def exceeded(self) -> str:
        """The bound of its own at which SageMaker ended it, as a request calls it; empty: at none."""
        return _BOUNDS.get(self.secondary, "") if self.status == "Stopped" else ""

    def trained_s(self, now: datetime) -> float:
        running = 0.0 if self.training_since is None else (now - self.training_since).total_seconds()
        return self.trained_before_s + max(0.0, running)

    def spec(self) -> Spec:
        """As a job that rules can be held against. It has no bound on waiting: SageMaker's counts the training too."""
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
        """What it has. All of it, not one or the other: each is held against the rules by itself."""
        return tuple(
            Offering(PROVIDER, machine, "", self.spot, self.region, price=price, gpus=gpus or 0)
            for machine in self.machines or ("",)
        )


def read(description: Mapping[str, Any], tags: Iterable[Mapping[str, Any]], region: str) -> TrainingJob:
    """From what SageMaker answered. Whatever is missing or strange in it is left open."""
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
    machines, nodes = _machines(resources)
    return TrainingJob(
        name=str(description.get("TrainingJobName", "")),
        region=region,
        status=status,
        secondary=str(description.get("SecondaryStatus", "")),
        created_at=_time(description.get("CreationTime")),
        ended_at=ended_at if status in OVER else None,
        modified_at=_time(description.get("LastModifiedTime")),
        machines=machines,
        nodes=nodes,
        spot=description.get("EnableManagedSpotTraining") is True,
        image=_text(algorithm.get("TrainingImage")),
        role=str(description.get("RoleArn", "")).rpartition("/")[2],
        # A tag of that name is what its owner wrote there. SageMaker does not tell who started a job.
        tags={key: value for key, value in named.items() if not key.startswith("aws:") and key != SUBMITTER},
        trained_before_s=before_s,
        training_since=since,
        last_training_at=max((start for name, start, _ in steps if name == "Training"), default=None),
        waiting_since=_waiting(steps) if status == "InProgress" else None,
        interruptions=sum(1 for name, _, _ in steps if name == "Interrupted"),
        stop_asked_at=next((start for name, start, _ in steps if name == "Stopping"), None),
        failure=str(description.get("FailureReason") or ""),
        checkpoints=(_text(_mapping(description.get("CheckpointConfig")).get("S3Uri")) or "").rstrip("/"),
        parent=_parent(description, named),
        clone=lineage(named).number,
        max_runtime_s=_number(stopping.get("MaxRuntimeInSeconds")),
        billable_s=_number(description.get("BillableTimeInSeconds")),
        metrics=_metrics(description.get("FinalMetricDataList")),
    )


_Step = tuple[str, datetime, datetime | None]


def _transitions(description: Mapping[str, Any]) -> list[_Step]:
    """In the order of their times, whatever order they were told in."""
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


def _machines(resources: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
    groups = _list(resources.get("InstanceGroups"))
    if groups:
        named = tuple(dict.fromkeys(str(group["InstanceType"]) for group in groups if group.get("InstanceType")))
        return named, sum(_count(group.get("InstanceCount")) for group in groups)
    machine = _text(resources.get("InstanceType")) or _text(resources.get("SelectedInstanceType"))
    count = resources.get("InstanceCount") or resources.get("SelectedInstanceCount")
    return (() if machine is None else (machine,)), _count(count)


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
    return next((what for begin, what in _NAMED_BY.items() if name.startswith(begin)), "")


def _metrics(told: object) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in _list(told):
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
