"""Rows of external training jobs, one object for each region: `ps` reads them, and a tick skips unchanged jobs by them.

Derived: a writer that overwrites another's rows loses nothing that the next tick does not find again.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from stoker.core.governor_settings import DEFAULT
from stoker.core.summary import AttemptSummary, Summary
from stoker.model import keys
from stoker.store.base import Store
from stoker.store.external_job_index import ExternalJobRow, read

if TYPE_CHECKING:
    from stoker.external_jobs.aws_account import TrainingJobSummary
    from stoker.external_jobs.snapshot import ExternalJobPlan, ExternalJobSnapshot
    from stoker.model.policy import Policy


def summaries(store: Store) -> list[Summary]:
    """Summaries of all external jobs, without those in regions that are not governed any more."""
    indexed = [
        meta.key.removeprefix(keys.EXTERNAL_JOB_INDEX).removesuffix(".json")
        for meta in store.list(keys.EXTERNAL_JOB_INDEX)
    ]
    if not indexed:
        return []
    from stoker.policy.reader import PolicyReader  # Here, because few stores have external jobs, and `ps` asks all.

    settings = PolicyReader(store, DEFAULT).read()
    wanted = settings.policy.sagemaker.regions if settings.policy.sagemaker is not None else ()
    regions = [region for region in indexed if settings.policy_error or region in wanted]
    rows = [row for region in regions for row in read(store, region).rows.values()]
    return [summary(row) for row in rows if not row.own]


def summary(row: ExternalJobRow) -> Summary:
    """The summary of an external job. It has one attempt: each clone is a training job of its own."""
    where = f"SageMaker {row.region}"
    context = f"{where}, {row.role}" if row.role else where
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
        reason=f"{context}: {row.note}" if row.note else context,
        attempts=(attempt,),
        interruptions=row.interruptions,
        cost=row.cost,
        trained_s=row.trained_s,
        ended_at=row.ended_at,
        tags=row.tags,
        origin=None if row.origin == row.name else row.origin,
        heard_at=None if row.ended_at else row.looked_at,
    )


def is_due(row: ExternalJobRow | None, listed: TrainingJobSummary, policy: Policy, now: datetime) -> bool:
    """Return whether the job may have changed since its row, or may have reached a limit by now."""
    if row is None or row.policy != policy.digest:
        return True
    if (row.status, row.secondary, row.modified_at) != (listed.status, listed.secondary, listed.modified_at):
        return True
    return not row.settled and (row.look_at is None or now >= row.look_at)


def row_of(snapshot: ExternalJobSnapshot, plan: ExternalJobPlan, policy: Policy, now: datetime) -> ExternalJobRow:
    """The row of a job that was just observed."""
    from stoker.external_jobs.decide import cost_of  # Here, because `ps` reads rows and decides nothing.

    job = snapshot.job
    return ExternalJobRow(
        name=job.name,
        region=job.region,
        origin=snapshot.chain.origin,
        status=job.status,
        secondary=job.secondary,
        created_at=job.created_at or now,
        looked_at=now,
        modified_at=job.modified_at,
        ended_at=job.ended_at,
        machine=", ".join(job.machines),
        nodes=job.nodes,
        gpus=snapshot.gpus,
        accelerators=snapshot.accelerators,
        spot=job.spot,
        role=job.role,
        tags=dict(job.tags),
        checkpoints=job.checkpoints,
        trained_s=job.trained_s(now),
        cost=cost_of(snapshot, now),
        interruptions=job.interruptions,
        seq=snapshot.chain.seq,
        note=plan.note,
        settled=plan.settled,
        policy=policy.digest,
        look_at=None if plan.settled else now + timedelta(seconds=plan.next_pass_in_s),
    )
