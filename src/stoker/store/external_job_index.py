"""The index of external jobs: one derived object for each region, rewritten by every pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreDenied, StoreError, StoreUnavailable
from stoker.model.log_entries import Phase
from stoker.store.base import Store

# Jobs that ended longer ago were handled by an earlier pass, or are left to their owner.
ENDED_FOR = timedelta(hours=24)


# Retained ended jobs, besides all that SageMaker still lists: an unknown listed job would be handled again.
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
class ExternalJobRow:
    """One external job, as last observed."""

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
    # GPUs of one host; None: unknown.
    gpus: int | None = None
    # Accelerators of all hosts, of any maker; None in rows of earlier versions.
    accelerators: int | None = None
    spot: bool = False
    # The role that it runs as, which identifies the owner.
    role: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    # URL of its checkpoints; None if not read.
    checkpoints: str | None = None
    trained_s: float = 0.0
    # Dollars until the observation; None: unknown.
    cost: float | None = None
    interruptions: int = 0
    # Last entry of the log of its clone chain.
    seq: int = 0
    note: str = ""
    # It has ended, and by this policy no action will follow.
    settled: bool = False
    policy: str = ""
    # A job of Stoker itself, which is listed among the jobs.
    own: bool = False
    # Time of the next observation, even without an event.
    look_at: datetime | None = None

    @property
    def phase(self) -> Phase:
        if self.status in _PHASES:
            return _PHASES[self.status]
        return "running" if self.secondary in ("Training", "Uploading") else "launching"


@dataclass(frozen=True)
class ExternalJobIndex:
    """All external jobs of one region, by name."""

    rows: dict[str, ExternalJobRow] = field(default_factory=dict)


def read(store: Store, region: str) -> ExternalJobIndex:
    """Read the index of a region; empty if it is absent or invalid."""
    try:
        found = store.get(keys.external_job_index(region))
        return codec.loads(ExternalJobIndex, found.data) if found is not None else ExternalJobIndex()
    except (StoreUnavailable, StoreDenied):
        raise
    except (StoreError, CodecError):
        return ExternalJobIndex()


def write(store: Store, region: str, rows: dict[str, ExternalJobRow], now: datetime) -> None:
    """Write the jobs in progress and those that ended recently."""
    newest = sorted(rows.values(), key=_changed_at, reverse=True)
    ended = [row for row in newest if row.ended_at]
    late = {row.name for row in ended[_MOST_ENDED:] if now - _changed_at(row) > _LISTED_FOR}
    retained = {name: row for name, row in rows.items() if name not in late}
    store.put(keys.external_job_index(region), codec.dumps(ExternalJobIndex(retained)))


def _changed_at(row: ExternalJobRow) -> datetime:
    """Time of its last change, by which SageMaker sorts its lists."""
    return max(each for each in (row.ended_at, row.modified_at, row.created_at) if each is not None)
