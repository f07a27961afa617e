"""Rebuild what is derived (`index/`, `active/`, `spent/`) from the logs. Safe at any time, beside any governors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TypeVar

from stoker.core.summary import summarize
from stoker.governor.connected_providers import Fleet
from stoker.governor.cost_ledger import write_spent
from stoker.governor.observe import active_jobs
from stoker.maintenance.delete import finish_removals
from stoker.model import keys
from stoker.model.errors import STUMBLES, ProviderError, StokerError, in_words
from stoker.model.job_state import JobState
from stoker.store import job_index, job_log, node_facts
from stoker.store.base import Store
from stoker.store.find_job import all_jobs
from stoker.store.job_index import IndexRecord
from stoker.store.parallel import each_in_order

T = TypeVar("T")

# Jobs that are read at once from a far store.
_READERS = 32
# Questions to clouds at once: one that refuses to answer so many would leave ended jobs marked.
_ASKING = threading.BoundedSemaphore(4)
# A marker comes moments before the entry that it announces. One that has waited this long announces nothing.
_ABANDONED_AFTER = timedelta(hours=1)


@dataclass
class Reindexed:
    """What was done."""

    jobs: int = 0
    marked: int = 0
    forgotten: int = 0
    problems: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Job:
    """What was done about one job. Not `there`: it has no log."""

    there: bool = False
    marked: bool = False
    problem: str | None = None


def reindex(store: Store, progress: Callable[[int, int], None] | None = None) -> Reindexed:
    """Write every job's record anew, mark what is active and unmarked, and drop what belongs to no job.

    Logs and facts are read many at once where the store is far: nearly all of the time is spent waiting for them.
    """
    fleet = Fleet(store.url)
    done = Reindexed()
    done.forgotten += len(finish_removals(store))
    # Before the logs are read: a job that is marked later is marked again here, by the same key.
    marked = active_jobs(store)
    jobs = all_jobs(store)
    there: set[str] = set()

    def look(job: str) -> _Job:
        try:
            return _reindex_job(store, fleet, job, marked=job in marked)
        except (StokerError, *STUMBLES) as error:
            # One that cannot be read must not keep the others from it.
            return _Job(there=True, problem=in_words(error))

    for number, (job, found) in enumerate(zip(jobs, _each(look, jobs, store), strict=True), 1):
        done.jobs += found.there and found.problem is None
        done.marked += found.marked
        if found.there:
            there.add(job)
        if found.problem is not None:
            done.problems[job] = found.problem
        if progress is not None:
            progress(number, len(jobs))
    _forget_absent(store, done, there)
    return done


def _each(look: Callable[[str], T], jobs: Sequence[str], store: Store) -> Iterator[T]:
    return map(look, jobs) if store.near else each_in_order(look, jobs, _READERS)


def _reindex_job(store: Store, fleet: Fleet, job: str, *, marked: bool) -> _Job:
    state = job_log.read(store, job)
    if state is None:
        return _Job()
    submission = job_index.read_submission(store, state)
    told = {claim.number: node_facts.read_claim(store, job, claim) for claim in state.attempts}
    summary = summarize(state, submission, told, datetime.now(timezone.utc))
    job_index.write_index(store, IndexRecord(state=state, summary=summary))
    if marked:
        return _Job(there=True)
    if _over(fleet, state):
        write_spent(store, state, submission.spec, datetime.now(timezone.utc))
        return _Job(there=True)
    # If it is retired at this very moment, the next pass finds the marker and removes it again.
    store.put(keys.active(job, state.opened_seq), b"")
    return _Job(there=True, marked=True)


def _over(fleet: Fleet, state: JobState) -> bool:
    """Ended, and every machine that the log names is positively gone."""
    if state.ended is None:
        return False
    for claim in state.claims:
        ids = [node.instance for node in claim.launched or ()]
        if not ids:
            continue
        try:
            with _ASKING:
                states = fleet.provider(claim.offering.provider).state(ids, claim.offering.region)
        except ProviderError:
            return False  # Unknown is not gone.
        if any(states.get(instance) != "gone" for instance in ids):
            return False
    return True


def _forget_absent(store: Store, done: Reindexed, there: set[str]) -> None:
    """Drop records and markers without a log: of jobs that were removed, or that were never submitted. The jobs that
    are `there` were just read."""

    def forget_record(job: str) -> bool:
        return store.head(keys.log_entry(job, 1)) is None and bool(job_index.forget_index(store, job))

    unsure = [job for job in map(job_index.job_of, job_index.list_index(store)) if job not in there]
    done.forgotten += sum(_each(forget_record, unsure, store))
    now = datetime.now(timezone.utc)
    for job in active_jobs(store):
        if job in there or store.head(keys.log_entry(job, 1)) is not None:
            continue
        markers = list(store.list(f"{keys.ACTIVE}{job}/"))
        # A submission that is under way puts its marker back, should it be slower than this.
        if all(now - marker.modified > _ABANDONED_AFTER for marker in markers):
            store.delete([marker.key for marker in markers])
            done.forgotten += 1
