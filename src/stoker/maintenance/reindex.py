"""Rebuild what is derived (`index/`, `active/`, `spent/`) from the logs. Safe at any time, beside any governors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from stoker.core.summary import summarize
from stoker.governor.connected_providers import Fleet
from stoker.governor.cost_ledger import record_job_costs
from stoker.governor.observe import active_jobs
from stoker.maintenance.delete import finish_removals
from stoker.model import keys
from stoker.model.errors import ProviderError, describe_error
from stoker.model.job_state import JobState
from stoker.store import job_index, job_log, node_facts
from stoker.store.base import Store
from stoker.store.find_job import all_jobs
from stoker.store.job_index import IndexRecord
from stoker.store.parallel import READERS, each_in_order
from stoker.store.store_clock import StoreClock, read_clock

T = TypeVar("T")

# Parallel calls to clouds: a cloud that throttles them would leave ended jobs marked.
_CLOUD_CALLS = threading.BoundedSemaphore(4)
# A marker is written moments before the entry that it announces. After this time without the entry it is abandoned.
_ABANDONED_AFTER = timedelta(hours=1)


@dataclass
class ReindexResult:
    """The numbers of jobs that were read, marked and removed from the index, and the problems by job."""

    jobs: int = 0
    marked: int = 0
    forgotten: int = 0
    problems: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _JobResult:
    """The result for one job. `exists` is false where it has no log."""

    exists: bool = False
    marked: bool = False
    problem: str | None = None


def reindex(store: Store, progress: Callable[[int, int], None] | None = None) -> ReindexResult:
    """Rewrite every job's index record, mark active jobs that have no marker, and delete records without a job.

    Logs and facts are read in parallel from a remote store: nearly all of the time is spent waiting for them.
    """
    fleet, clock = Fleet(store.url), read_clock(store)
    done = ReindexResult()
    done.forgotten += len(finish_removals(store))
    # Listed before the logs are read: a job that is marked meanwhile is marked again here, with the same key.
    marked = active_jobs(store)
    jobs = all_jobs(store)
    exists: set[str] = set()

    def reindex_one(job: str) -> _JobResult:
        try:
            return _reindex_job(store, fleet, job, clock, marked=job in marked)
        except Exception as error:  # noqa: BLE001 - one unreadable job must not stop the others
            return _JobResult(exists=True, problem=describe_error(error))

    for number, (job, found) in enumerate(zip(jobs, _each(reindex_one, jobs, store), strict=True), 1):
        done.jobs += found.exists and found.problem is None
        done.marked += found.marked
        if found.exists:
            exists.add(job)
        if found.problem is not None:
            done.problems[job] = found.problem
        if progress is not None:
            progress(number, len(jobs))
    _forget_absent(store, done, exists, clock)
    return done


def _each(reindex_one: Callable[[str], T], jobs: Sequence[str], store: Store) -> Iterator[T]:
    return map(reindex_one, jobs) if store.is_local else each_in_order(reindex_one, jobs, READERS)


def _reindex_job(store: Store, fleet: Fleet, job: str, clock: StoreClock, *, marked: bool) -> _JobResult:
    state = job_log.read(store, job)
    if state is None:
        return _JobResult()
    submission = job_index.read_submission(store, state)
    facts = {claim.number: node_facts.read_claim(store, job, claim) for claim in state.attempts}
    summary = summarize(state, submission, facts, clock.now())
    job_index.write_index(store, IndexRecord(state=state, summary=summary))
    if marked:
        return _JobResult(exists=True)
    if _is_over(fleet, state):
        record_job_costs(store, state, submission.spec, clock.now())
        return _JobResult(exists=True)
    # If a governor unmarks the job at this moment, the next pass finds the new marker and removes it.
    store.put(keys.active(job, state.opened_seq), b"")
    return _JobResult(exists=True, marked=True)


def _is_over(fleet: Fleet, state: JobState) -> bool:
    """Return whether the job has ended and every machine that its log names is known to be gone."""
    if state.ended is None:
        return False
    for claim in state.claims:
        ids = [node.instance for node in claim.launched or ()]
        if not ids:
            continue
        try:
            with _CLOUD_CALLS:
                states = fleet.provider(claim.offering.provider).state(ids, claim.offering.region)
        except ProviderError:
            return False  # Unknown is not gone.
        if any(states.get(instance) != "gone" for instance in ids):
            return False
    return True


def _forget_absent(store: Store, done: ReindexResult, exists: set[str], clock: StoreClock) -> None:
    """Delete records and markers without a log: of jobs that were removed, or never submitted. The logs of the jobs in
    `exists` were just read."""

    def forget_record(job: str) -> bool:
        return store.head(keys.log_entry(job, 1)) is None and bool(job_index.delete_index(store, job))

    without_log = [job for job in map(job_index.job_of, job_index.list_index(store)) if job not in exists]
    done.forgotten += sum(_each(forget_record, without_log, store))
    now = clock.now()
    for job in active_jobs(store):
        if job in exists or store.head(keys.log_entry(job, 1)) is not None:
            continue
        markers = list(store.list(f"{keys.ACTIVE}{job}/"))
        # A submission that is slower than this writes its marker again.
        if all(now - marker.modified > _ABANDONED_AFTER for marker in markers):
            store.delete([marker.key for marker in markers])
            done.forgotten += 1
