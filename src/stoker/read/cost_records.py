"""Read the records behind `stoker costs`: those of all jobs, and the costs of removed jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta

from stoker.core.summary import summarize
from stoker.governor.cost_ledger import DailyCost, read_daily_costs
from stoker.governor.observe import active_jobs
from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.store import job_index, job_log
from stoker.store.base import Store
from stoker.store.job_index import IndexRecord
from stoker.store.parallel import read_each


@dataclass(frozen=True)
class Accounts:
    """The records of existing jobs, and the costs of removed ones. `unreadable` are jobs whose log is corrupt."""

    records: tuple[IndexRecord, ...]
    removed: tuple[DailyCost, ...]
    unreadable: tuple[str, ...] = ()


def read_accounts(store: Store, now: datetime, since: datetime | None = None) -> Accounts:
    """All jobs that may have cost money since then. Raises StoreUnavailable when the store does not answer."""
    # Jobs are listed before the costs of removed jobs: one that is removed meanwhile is counted by its record.
    active = set(active_jobs(store))
    listed = {job_index.job_of(meta): meta for meta in job_index.list_index(store)}
    # The record of an ended job was last written when it ended.
    wanted = [job for job, meta in listed.items() if since is None or job in active or meta.modified >= since]
    wanted += [job for job in active if job not in listed]
    unreadable: list[str] = []

    def read(job: str) -> IndexRecord | None:
        try:
            return job_index.read_index(store, job, listed.get(job)) or _from_log(store, job, now)
        except (StoreUnavailable, StoreDenied):
            raise
        except StoreError:
            unreadable.append(job)
            return None

    records = tuple(found for found in read_each(read, sorted(wanted), is_local=store.is_local) if found is not None)
    known = {*listed, *(record.state.job for record in records)}
    spent = read_daily_costs(store, _months(since.date(), now.date()) if since is not None else [keys.SPENT])
    return Accounts(records, tuple(each for each in spent if each.job not in known), tuple(sorted(unreadable)))


def _from_log(store: Store, job: str, now: datetime) -> IndexRecord | None:
    """The record of a job that is not indexed yet, or only by another version of Stoker."""
    state = job_log.read(store, job)
    if state is None:
        return None
    return IndexRecord(state, summarize(state, job_index.read_submission(store, state), {}, now))


def _months(first: date, last: date) -> list[str]:
    found = []
    day = first.replace(day=1)
    while day <= last:
        found.append(keys.spent_month(day))
        day = (day + timedelta(days=31)).replace(day=1)
    return found
