"""The training jobs of an account, in all regions, and the operations on them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

from tests.support.sagemaker import asking, listing
from tests.support.sagemaker.clock import Clock
from tests.support.sagemaker.events import state_change
from tests.support.sagemaker.faults import Failure, invalid, missing
from tests.support.sagemaker.jobs import ENDED, NEXT, Job, Json

_MOST_TAGS = 50
# What must be the same for a job to take over the machines of another.
_POOLED = ("RoleArn", "VpcConfig", "EnableInterContainerTrafficEncryption", "EnableNetworkIsolation")


class Account:
    """Safe to use from many threads."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.listing_lag_s = 0.0
        # Jobs are moved by whoever listens here, where somebody runs them; else by the test alone.
        self.on_created: Callable[[Job], None] | None = None
        self.on_stop: Callable[[Job], None] | None = None
        self._jobs: dict[tuple[str, str], Job] = {}
        self._told: list[tuple[Json, Json]] = []
        self._listeners: list[Callable[[Json], None]] = []

    # ── Operations ────────────────────────────────────────────────────────────────────────────────────────────────────

    def answer(self, operation: str, region: str, asked: Json) -> Json:
        """What an operation answers, times as datetimes. Raises Failure."""
        match operation:
            case "CreateTrainingJob":
                return self._create(region, asked)
            case "DescribeTrainingJob":
                with self.lock:
                    return self._find(region, asked["TrainingJobName"]).describe(self.clock.now())
            case "ListTrainingJobs":
                return self._list(region, asked)
            case "StopTrainingJob":
                return self._stop(region, asked["TrainingJobName"])
            case "UpdateTrainingJob":
                return self._update(region, asked)
            case "DeleteTrainingJob":
                return self._delete(region, asked["TrainingJobName"])
            case "AddTags" | "ListTags" | "DeleteTags":
                return self._tags(operation, asked)
            case _:
                raise Failure("UnknownOperationException", f"{operation} is not known here", 404)

    def _create(self, region: str, asked: Json) -> Json:
        refused = asking.refusal(asked)
        if refused is not None:
            raise refused
        name, now = asked["TrainingJobName"], self.clock.now()
        with self.lock:
            taken = self._jobs.get((region, name))
            if taken is not None:
                raise Failure(
                    "ResourceInUse",
                    "Training job names must be unique within an AWS account and region, and a training job with this"
                    f" name already exists ({taken.arn})",
                )
            tags = {each["Key"]: each["Value"] for each in asked.get("Tags") or []}
            job = Job(name, region, asked, tags, created=now, modified=now)
            if job.resources.get("KeepAlivePeriodInSeconds"):
                job.pool = {"Status": "InUse"}
            self._reuse_pool(job)
            self._jobs[region, name] = job
            self.enter(job, "Starting")
        if self.on_created is not None:
            self.on_created(job)
        return {"TrainingJobArn": job.arn}

    def _reuse_pool(self, job: Job) -> None:
        now = self.clock.now()
        kept = ("InstanceType", "InstanceCount", "VolumeSizeInGB", "VolumeKmsKeyId")
        for other in self._jobs.values():
            if other.pool is None or other.region != job.region or other.pool_status(now)["Status"] != "Available":
                continue
            same = all(other.asked.get(name) == job.asked.get(name) for name in _POOLED)
            if same and all(other.resources.get(name) == job.resources.get(name) for name in kept):
                lasted_s = other.pool_status(now)["ResourceRetainedBillableTimeInSeconds"]
                other.pool = {
                    "Status": "Reused",
                    "ReusedByJob": job.name,
                    "ResourceRetainedBillableTimeInSeconds": lasted_s,
                }
                return

    def _list(self, region: str, asked: Json) -> Json:
        with self.lock:
            now = self.clock.now()
            seen = now - timedelta(seconds=self.listing_lag_s)
            jobs = [job for job in self._jobs.values() if job.region == region and job.created <= seen]
            return listing.listed(jobs, asked, now)

    def _stop(self, region: str, name: str) -> Json:
        with self.lock:
            job = self._find(region, name)
            if job.status in ENDED:
                raise invalid(f"The request was rejected because the training job is in status {job.status}.")
            if job.status != "Stopping":
                self.enter(job, "Stopping")
        if self.on_stop is not None:
            self.on_stop(job)
        return {}

    def _update(self, region: str, asked: Json) -> Json:
        with self.lock:
            job = self._find(region, asked["TrainingJobName"])
            resources = asked.get("ResourceConfig")
            if resources is not None:
                now = self.clock.now()
                if job.pool is None or job.pool_status(now)["Status"] not in ("Available", "InUse"):
                    raise invalid("The request was rejected because the training job has no warm pool.")
                job.asked = {**job.asked, "ResourceConfig": {**job.resources, **resources}}
            elif job.status in ENDED:
                raise invalid(f"The request was rejected because the training job is in status {job.status}.")
            for name in ("ProfilerConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig"):
                if name in asked:
                    job.asked = {**job.asked, name: asked[name]}
            job.modified = self.clock.now()
            return {"TrainingJobArn": job.arn}

    def _delete(self, region: str, name: str) -> Json:
        with self.lock:
            job = self._find(region, name)
            if job.status not in ENDED:
                raise Failure("ResourceInUse", f"The training job is in status {job.status}.")
            del self._jobs[region, name]
            return {}

    def _tags(self, operation: str, asked: Json) -> Json:
        with self.lock:
            arn = asked["ResourceArn"]
            job = next((job for job in self._jobs.values() if job.arn == arn), None)
            if job is None:
                raise missing()
            match operation:
                case "AddTags":
                    refused = asking.about_tags(asked["Tags"])
                    added = {**job.tags, **{each["Key"]: each["Value"] for each in asked["Tags"]}}
                    if refused is not None or len(added) > _MOST_TAGS:
                        raise invalid(refused or f"A resource can have at most {_MOST_TAGS} tags.")
                    job.tags = added
                    return {"Tags": _told(job.tags)}
                case "DeleteTags":
                    job.tags = {key: value for key, value in job.tags.items() if key not in asked["TagKeys"]}
                    return {}
                case _:
                    return listing.page(_told(job.tags), asked, "Tags", _MOST_TAGS)

    # ── For the test, and for whoever runs jobs ───────────────────────────────────────────────────────────────────────

    def job(self, name: str, region: str | None = None) -> Job:
        """Raises LookupError where there is none of that name."""
        with self.lock:
            for (where, called), job in self._jobs.items():
                if called == name and region in (None, where):
                    return job
        raise LookupError(f"there is no training job {name}")

    def names(self) -> list[str]:
        with self.lock:
            return [name for _, name in self._jobs]

    def clear(self) -> None:
        with self.lock:
            self._jobs.clear()
            self._told.clear()
            self.listing_lag_s = 0.0

    def listen(self, listener: Callable[[Json], None]) -> None:
        self._listeners.append(listener)

    def events(self, *, numbers: bool, reset: bool) -> list[Json]:
        with self.lock:
            found = [pair[numbers] for pair in self._told]
            if reset:
                self._told.clear()
            return found

    def enter(self, job: Job, secondary: str, *, message: str = "", reason: str | None = None) -> None:
        """A job goes over to this secondary status, and the world is told. Nothing where it has ended already."""
        with self.lock:
            if job.transitions and job.status in ENDED:
                return
            now = self.clock.now()
            if reason is None:
                job.enter(secondary, now, message)
            else:
                job.fail(reason, now)
            if job.status in ENDED and job.pool is not None:
                job.pool = {"Status": "Available"}
            told = (state_change(job, now), state_change(job, now, numbers=True))
            # The same event, written in two ways.
            told[1]["id"] = told[0]["id"]
            self._told.append(told)
        for listener in self._listeners:
            listener(told[0])

    def advance(self, job: Job, to: str | None) -> None:
        """Along the usual way, up to this secondary status or by one. Raises ValueError where it leads elsewhere."""
        with self.lock:
            if to is not None and to not in NEXT.values():
                self.enter(job, to)
                return
            while True:
                following = NEXT.get(job.secondary)
                if following is None:
                    raise ValueError(f"{job.name} is {job.secondary}: nothing follows")
                self.enter(job, following)
                if to in (None, following):
                    return

    def _find(self, region: str, name: str) -> Job:
        job = self._jobs.get((region, name))
        if job is None:
            raise missing()
        return job


def _told(tags: dict[str, str]) -> list[Json]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
