"""Training jobs of others in short, one object a region: what `ps` reads, and what spares a tick a second look.

Derived: a writer that overwrites another's loses nothing that the next tick does not find again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from stoker.core.governor_settings import DEFAULT
from stoker.core.summary import AttemptSummary, Summary
from stoker.external_jobs.aws_account import Listed
from stoker.external_jobs.decide import cost_of
from stoker.external_jobs.snapshot import ForeignPlan, Sight
from stoker.model import codec, keys
from stoker.model.errors import CodecError
from stoker.model.log_entries import Phase
from stoker.model.policy import House
from stoker.policy.reader import HouseReader
from stoker.store.base import Store

# What ended longer ago was seen by some tick before, or is its owner's.
ENDED_FOR = timedelta(hours=24)
# So many that ended last, and all that are listed yet: one that is not known would be looked at again.
_MOST_ENDED = 500
_LISTED_FOR = ENDED_FOR + timedelta(hours=1)
_PHASES: dict[str, Phase] = {
    "Completed": "succeeded",
    "Failed": "failed",
    "Stopped": "stopped",
    "Stopping": "stopping",
    "Deleting": "stopping",
}


@dataclass(frozen=True)
class Row:
    """One training job, when it was last looked at."""

    name: str
    region: str
    origin: str
    status: str
    secondary: str
    created_at: datetime
    looked_at: datetime
    modified_at: datetime | None = None
    ended_at: datetime | None = None
    machine: str = ""
    nodes: int = 1
    spot: bool = False
    # Whose it is: the role that it runs as.
    role: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    # Where it keeps its checkpoints; None where nobody looked.
    checkpoints: str | None = None
    trained_s: float = 0.0
    # Dollars until it was looked at; None is unknown.
    cost: float | None = None
    interruptions: int = 0
    # Where the log of its family ended.
    seq: int = 0
    note: str = ""
    # It is over, and by this policy nothing will be done about it any more.
    settled: bool = False
    policy: str = ""
    # Stoker's own, which is listed as a job.
    own: bool = False
    # When it is to be looked at again, whatever happens.
    look_at: datetime | None = None

    @property
    def phase(self) -> Phase:
        if self.status in _PHASES:
            return _PHASES[self.status]
        return "running" if self.secondary in ("Training", "Uploading") else "launching"


@dataclass(frozen=True)
class ForeignIndex:
    """All of one region, by name."""

    rows: dict[str, Row] = field(default_factory=dict)


def read(store: Store, region: str) -> ForeignIndex:
    """What was written last; nothing where that cannot be read."""
    found = store.get(keys.foreign_index(region))
    try:
        return codec.loads(ForeignIndex, found.data) if found is not None else ForeignIndex()
    except CodecError:
        return ForeignIndex()


def write(store: Store, region: str, rows: dict[str, Row], now: datetime) -> None:
    """Those in progress, and those that ended last."""
    newest = sorted(rows.values(), key=_changed_at, reverse=True)
    ended = [row for row in newest if row.ended_at]
    late = {row.name for row in ended[_MOST_ENDED:] if now - _changed_at(row) > _LISTED_FOR}
    kept = {name: row for name, row in rows.items() if name not in late}
    store.put(keys.foreign_index(region), codec.dumps(ForeignIndex(kept)))


def _changed_at(row: Row) -> datetime:
    """When it last changed, as far as lists go by that."""
    return max(each for each in (row.ended_at, row.modified_at, row.created_at) if each is not None)


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
