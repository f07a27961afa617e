"""Read what `stoker costs` needs: one list, a record for each job, and what was kept of jobs that were removed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta

from stoker.core.summary import summarize
from stoker.governor.cost_ledger import Spent, read_spent
from stoker.governor.observe import active_jobs
from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.store import job_index, job_log
from stoker.store.base import Store
from stoker.store.job_index import IndexRecord
from stoker.store.parallel import for_each


@dataclass(frozen=True)
class Accounts:
    """Jobs that are there, and what those spent that are not. `unread` are jobs that make no sense."""

    records: tuple[IndexRecord, ...]
    removed: tuple[Spent, ...]
    unread: tuple[str, ...] = ()


def read_accounts(store: Store, now: datetime, since: datetime | None = None) -> Accounts:
    """All that may have cost something since then. Raises StoreUnavailable when the store does not answer."""
    # Before what is left of the forgotten: one that is forgotten meanwhile is counted by its record.
    active = set(active_jobs(store))
    listed = {job_index.job_of(meta): meta for meta in job_index.list_index(store)}
    # The record of an ended job was last written at its end.
    wanted = [job for job, meta in listed.items() if since is None or job in active or meta.modified >= since]
    wanted += [job for job in active if job not in listed]
    unread: list[str] = []

    def read(job: str) -> IndexRecord | None:
        try:
            return job_index.read_index(store, job, listed.get(job)) or _from_log(store, job, now)
        except (StoreUnavailable, StoreDenied):
            raise
        except StoreError:
            unread.append(job)
            return None

    records = tuple(found for found in for_each(read, sorted(wanted), near=store.near) if found is not None)
    known = {*listed, *(record.state.job for record in records)}
    spent = read_spent(store, _months(since.date(), now.date()) if since is not None else [keys.SPENT])
    return Accounts(records, tuple(each for each in spent if each.job not in known), tuple(sorted(unread)))


def _from_log(store: Store, job: str, now: datetime) -> IndexRecord | None:
    """Not indexed yet, or by a Stoker of another time."""
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
