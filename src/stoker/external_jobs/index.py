"""Training jobs of others in short, one object a region: what `ps` reads, and what spares a tick a second look.

Derived: a writer that overwrites another's loses nothing that the next tick does not find again.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from stoker.core.governor_settings import DEFAULT
from stoker.core.summary import AttemptSummary, Summary
from stoker.external_jobs.aws_account import Listed
from stoker.external_jobs.decide import cost_of
from stoker.external_jobs.snapshot import ForeignPlan, Sight
from stoker.model import keys
from stoker.model.policy import House
from stoker.policy.reader import HouseReader
from stoker.store.base import Store
from stoker.store.external_job_index import Row, read


def summaries(store: Store) -> list[Summary]:
    """All of them, as other jobs are summed up; none of regions that are not governed any more."""
    kept = [meta.key.removeprefix(keys.FOREIGN_INDEX).removesuffix(".json") for meta in store.list(keys.FOREIGN_INDEX)]
    policy = HouseReader(store, DEFAULT).read() if kept else DEFAULT
    wanted = policy.house.sagemaker.regions if policy.house.sagemaker is not None else ()
    regions = [region for region in kept if policy.unread or region in wanted]
    rows = [row for region in regions for row in read(store, region).rows.values()]
    return [summary(row) for row in rows if not row.own]


def summary(row: Row) -> Summary:
    """As another job is summed up. It has one attempt: each clone is a training job of its own."""
    where = f"SageMaker {row.region}"
    whose = f"{where}, {row.role}" if row.role else where
    attempt = AttemptSummary(
        n=1,
        claim=0,
        provider="sagemaker",
        machine=row.machine,
        zone=row.region,
        spot=row.spot,
        started_at=row.created_at,
        nodes=(),
        ended_at=row.ended_at,
        trained_s=row.trained_s,
    )
    return Summary(
        id=row.name,
        name=row.name,
        phase=row.phase,
        submitted_at=row.created_at,
        updated_at=row.looked_at,
        submitter=row.role,
        provider="sagemaker",
        nodes=row.nodes,
        outcome=row.phase if row.phase in ("succeeded", "failed", "stopped") else None,
        reason=f"{whose}: {row.note}" if row.note else whose,
        attempts=(attempt,),
        interruptions=row.interruptions,
        cost=row.cost,
        trained_s=row.trained_s,
        ended_at=row.ended_at,
        tags=row.tags,
        origin=None if row.origin == row.name else row.origin,
        heard_at=None if row.ended_at else row.looked_at,
    )


def is_due(row: Row | None, listed: Listed, house: House, now: datetime) -> bool:
    """Whether it may have changed, or time alone may have brought it to a bound."""
    if row is None or row.policy != house.digest:
        return True
    if (row.status, row.secondary, row.modified_at) != (listed.status, listed.secondary, listed.modified_at):
        return True
    return not row.settled and (row.look_at is None or now >= row.look_at)


def row_of(sight: Sight, plan: ForeignPlan, house: House, now: datetime) -> Row:
    """What lists tell of a job that was just looked at."""
    job = sight.job
    return Row(
        name=job.name,
        region=job.region,
        origin=sight.family.origin,
        status=job.status,
        secondary=job.secondary,
        created_at=job.created_at or now,
        looked_at=now,
        modified_at=job.modified_at,
        ended_at=job.ended_at,
        machine=", ".join(job.machines),
        nodes=job.nodes,
        spot=job.spot,
        role=job.role,
        tags=dict(job.tags),
        checkpoints=job.checkpoints,
        trained_s=job.trained_s(now),
        cost=cost_of(sight, now),
        interruptions=job.interruptions,
        seq=sight.family.seq,
        note=plan.note,
        settled=plan.settled,
        policy=house.digest,
        look_at=None if plan.settled else now + timedelta(seconds=plan.look_in_s),
    )
