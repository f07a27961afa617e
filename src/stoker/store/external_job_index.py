"""The index of external jobs: one object a region, derived and rewritten by every tick."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from stoker.model import codec, keys
from stoker.model.errors import CodecError
from stoker.model.log_entries import Phase
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
