"""ListTrainingJobs: filters, order and pages."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from tests.support.sagemaker.faults import invalid
from tests.support.sagemaker.jobs import Job, Json

_PAGE = 10


def listed(jobs: list[Job], asked: Json, now: datetime) -> Json:
    """One page."""
    found = [job for job in jobs if _fits(job, asked, now)]
    order: dict[str, Callable[[Job], Any]] = {
        "Name": lambda job: job.name,
        "CreationTime": lambda job: (job.created, job.name),
        "Status": lambda job: (job.status, job.created),
    }
    found.sort(key=order[asked.get("SortBy") or "CreationTime"], reverse=asked.get("SortOrder") == "Descending")
    return page([job.summary(now) for job in found], asked, "TrainingJobSummaries", _PAGE)


def page(all_: list[Json], asked: Json, name: str, most: int) -> Json:
    """As many as were asked for, from where the page before ended. Raises Failure for a token that nobody gave."""
    start = 0
    if token := asked.get("NextToken"):
        try:
            start = int(base64.b64decode(token, validate=True))
        except ValueError as error:
            raise invalid("Invalid NextToken.") from error
    end = start + int(asked.get("MaxResults") or most)
    told: Json = {name: all_[start:end]}
    return told if end >= len(all_) else {**told, "NextToken": base64.b64encode(str(end).encode()).decode()}


def _fits(job: Job, asked: Json, now: datetime) -> bool:
    after, before = asked.get("CreationTimeAfter"), asked.get("CreationTimeBefore")
    since, until = asked.get("LastModifiedTimeAfter"), asked.get("LastModifiedTimeBefore")
    status = (job.pool_status(now) if job.pool is not None else {}).get("Status")
    return (
        (not asked.get("NameContains") or asked["NameContains"] in job.name)
        and (not asked.get("StatusEquals") or asked["StatusEquals"] == job.status)
        and (not asked.get("WarmPoolStatusEquals") or asked["WarmPoolStatusEquals"] == status)
        and (after is None or job.created > _time(after))
        and (before is None or job.created < _time(before))
        and (since is None or job.modified > _time(since))
        and (until is None or job.modified < _time(until))
    )


def _time(stamp: float) -> datetime:
    return datetime.fromtimestamp(stamp, timezone.utc)
