"""A training job: what was asked for, and the states that it went through."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

Json = dict[str, Any]

ACCOUNT = "123456789012"
# Images of SageMaker's own algorithms. It knows their metrics itself, and takes no other definitions.
BUILT_IN = re.compile(
    r"/(sagemaker-xgboost|xgboost|linear-learner|kmeans|image-classification|object-detection|blazingtext):"
)
# What FailureReason says where machines cannot be had.
NO_CAPACITY = (
    "CapacityError: Unable to provision requested ML compute capacity. Please retry using a different ML instance type."
)

# What each secondary status belongs to, with what SageMaker says about it.
_PRIMARY = {
    "Starting": ("InProgress", "Starting the training job"),
    "Pending": ("InProgress", "Training job waiting for capacity"),
    "Downloading": ("InProgress", "Downloading input data"),
    "Training": ("InProgress", "Training image download completed. Training in progress."),
    "Interrupted": ("InProgress", "Training job interrupted: managed spot instances were reclaimed"),
    "Restarting": ("InProgress", "Restarting the training job"),
    "Updating": ("InProgress", "Updating the training job"),
    "Uploading": ("InProgress", "Uploading generated training model"),
    "Completed": ("Completed", "Training job completed"),
    "Failed": ("Failed", "Training job failed"),
    "Stopping": ("Stopping", "Stopping the training job"),
    "Stopped": ("Stopped", "Training job stopped"),
    "MaxRuntimeExceeded": ("Stopped", "Training job runtime exceeded MaxRuntimeInSeconds provided"),
    "MaxWaitTimeExceeded": ("Stopped", "Training job exceeded MaxWaitTimeInSeconds provided"),
}
# What follows where nothing befalls a job.
NEXT = {
    "Starting": "Downloading",
    "Pending": "Downloading",
    "Downloading": "Training",
    "Training": "Uploading",
    "Uploading": "Completed",
    "Interrupted": "Starting",
    "Restarting": "Starting",
    "Updating": "Training",
    "Stopping": "Stopped",
}
ENDED = ("Completed", "Failed", "Stopped")
# In these the machines are there, and paid for.
_PAID = ("Downloading", "Training", "Uploading", "Stopping")
# What spot costs of the whole price here.
_SPOT_SHARE = 0.3
_MOST_REASON = 1024


@dataclass
class Transition:
    """One secondary status that a job was in."""

    status: str
    start: datetime
    message: str
    end: datetime | None = None


@dataclass
class Job:
    """One training job. Changed only by its account, under that one's lock."""

    name: str
    region: str
    asked: Json
    tags: dict[str, str]
    created: datetime
    modified: datetime
    transitions: list[Transition] = field(default_factory=list)
    started: datetime | None = None
    ended: datetime | None = None
    reason: str | None = None
    metrics: tuple[Json, ...] = ()
    pool: Json | None = None

    @property
    def arn(self) -> str:
        return f"arn:aws:sagemaker:{self.region}:{ACCOUNT}:training-job/{self.name}"

    @property
    def secondary(self) -> str:
        return self.transitions[-1].status

    @property
    def status(self) -> str:
        return _PRIMARY[self.secondary][0]

    @property
    def spot(self) -> bool:
        return bool(self.asked.get("EnableManagedSpotTraining"))

    @property
    def resources(self) -> Json:
        found: Json = self.asked.get("ResourceConfig") or {}
        return found

    def enter(self, secondary: str, now: datetime, message: str = "") -> None:
        """Go over to this secondary status."""
        if self.transitions:
            self.transitions[-1].end = now
        self.transitions.append(Transition(secondary, now, message or _PRIMARY[secondary][1]))
        self.modified = now
        if self.started is None and secondary in ("Downloading", "Training"):
            self.started = now
        if self.status in ENDED:
            self.transitions[-1].end = now
            self.ended = now

    def fail(self, reason: str, now: datetime) -> None:
        self.reason = reason[:_MOST_REASON]
        self.enter("Failed", now)

    def interruptions(self) -> int:
        return sum(each.status == "Interrupted" for each in self.transitions)

    def describe(self, now: datetime) -> Json:
        """As DescribeTrainingJob tells it, times as datetimes."""
        told: Json = {
            **{name: value for name, value in self.asked.items() if name != "Tags"},
            "TrainingJobName": self.name,
            "TrainingJobArn": self.arn,
            "TrainingJobStatus": self.status,
            "SecondaryStatus": self.secondary,
            "CreationTime": self.created,
            "LastModifiedTime": self.modified,
            "ModelArtifacts": {"S3ModelArtifacts": self._model()},
            "StoppingCondition": self.asked.get("StoppingCondition") or {"MaxRuntimeInSeconds": 86400},
            "SecondaryStatusTransitions": [self._told(each) for each in self.transitions],
            "EnableManagedSpotTraining": self.spot,
            "EnableNetworkIsolation": bool(self.asked.get("EnableNetworkIsolation")),
            "EnableInterContainerTrafficEncryption": bool(self.asked.get("EnableInterContainerTrafficEncryption")),
        }
        algorithm = self.asked.get("AlgorithmSpecification") or {}
        if BUILT_IN.search(algorithm.get("TrainingImage", "")):
            measured = [{"Name": "validation:rmse", "Regex": "rmse=(.*)"}]
            told["AlgorithmSpecification"] = {**algorithm, "MetricDefinitions": measured}
        if self.started is not None:
            told["TrainingStartTime"] = self.started
            told["ResourceConfig"] = self._with_choice()
        if self.ended is not None:
            told["TrainingEndTime"] = self.ended
        if self.started is not None and self.ended is not None:
            training_s = max(1, round((self.ended - self.started).total_seconds()))
            told["TrainingTimeInSeconds"] = training_s
            told["BillableTimeInSeconds"] = self._billable(training_s)
        if self.reason is not None:
            told["FailureReason"] = self.reason
        if self.metrics:
            told["FinalMetricDataList"] = list(self.metrics)
        if self.pool is not None:
            told["WarmPoolStatus"] = self.pool_status(now)
        return told

    def summary(self, now: datetime) -> Json:
        """As ListTrainingJobs tells it."""
        whole = self.describe(now)
        names = (
            *("TrainingJobName", "TrainingJobArn", "CreationTime", "TrainingEndTime", "LastModifiedTime"),
            *("TrainingJobStatus", "SecondaryStatus", "WarmPoolStatus"),
        )
        return {name: whole[name] for name in names if name in whole}

    def pool_status(self, now: datetime) -> Json:
        """Its warm pool, which ends by itself."""
        assert self.pool is not None
        if self.pool["Status"] != "Available" or self.ended is None:
            return dict(self.pool)
        kept_s = int(self.resources.get("KeepAlivePeriodInSeconds") or 0)
        over = now >= self.ended + timedelta(seconds=kept_s)
        lasted_s = kept_s if over else int((now - self.ended).total_seconds())
        status = "Terminated" if over else "Available"
        return {"Status": status, "ResourceRetainedBillableTimeInSeconds": lasted_s}

    def _billable(self, training_s: int) -> int:
        paid = [each for each in self.transitions if each.status in _PAID and each.end is not None]
        paid_s = sum((each.end - each.start).total_seconds() for each in paid if each.end is not None)
        return max(1, min(training_s, round(paid_s * (_SPOT_SHARE if self.spot else 1.0))))

    def _with_choice(self) -> Json:
        """With the machines that SageMaker chose where it had the choice: here the first."""
        preferred = self.resources.get("InstancePreferences") or [{}]
        chosen = {
            f"Selected{name}": preferred[0][name] for name in ("InstanceType", "InstanceCount") if name in preferred[0]
        }
        return {**self.resources, **chosen}

    def _model(self) -> str:
        return f"{self.asked['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{self.name}/output/model.tar.gz"

    @staticmethod
    def _told(each: Transition) -> Json:
        told: Json = {"Status": each.status, "StartTime": each.start, "StatusMessage": each.message}
        return told if each.end is None else {**told, "EndTime": each.end}
