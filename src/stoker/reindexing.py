"""Rebuild what is derived (`index/`, `active/`, `spent/`) from the logs. Safe at any time, beside any governors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from stoker import facts, index, layout, log
from stoker.errors import STUMBLES, ProviderError, StokerError, in_words
from stoker.finding import all_jobs
from stoker.fold import JobState
from stoker.governor.fleet import Fleet
from stoker.governor.observe import active_jobs
from stoker.index import IndexRecord
from stoker.removing import finish_removals
from stoker.spent import write_spent
from stoker.store import Store
from stoker.summary import summarize

# A marker comes moments before the entry that it announces. One that has waited this long announces nothing.
_ABANDONED_AFTER = timedelta(hours=1)


@dataclass
class Reindexed:
    """What was done."""

    jobs: int = 0
    marked: int = 0
    forgotten: int = 0
    problems: dict[str, str] = field(default_factory=dict)


def reindex(store: Store, progress: Callable[[int, int], None] | None = None) -> Reindexed:
    """Write every job's record anew, mark what is active and unmarked, and drop what belongs to no job."""
    fleet = Fleet(store.url)
    done = Reindexed()
    done.forgotten += len(finish_removals(store))
    jobs = all_jobs(store)
    for number, job in enumerate(jobs, 1):
        try:
            _reindex_job(store, fleet, job, done)
        except (StokerError, *STUMBLES) as error:
            done.problems[job] = in_words(error)  # One that cannot be read must not keep the others from it.
        if progress is not None:
            progress(number, len(jobs))
    _forget_absent(store, done)
    return done


def _reindex_job(store: Store, fleet: Fleet, job: str, done: Reindexed) -> None:
    state = log.read(store, job)
    if state is None:
        return
    submission = index.read_submission(store, state)
    told = {claim.number: facts.read_claim(store, job, claim) for claim in state.attempts}
    summary = summarize(state, submission, told, datetime.now(timezone.utc))
    index.write_index(store, IndexRecord(state=state, summary=summary))
    done.jobs += 1
    if _marked(store, job):
        return
    if _over(fleet, state):
        write_spent(store, state, submission.spec, datetime.now(timezone.utc))
    else:
        # If it is retired at this very moment, the next pass finds the marker and removes it again.
        store.put(layout.active(job, state.opened_seq), b"")
        done.marked += 1


def _marked(store: Store, job: str) -> bool:
    return next(iter(store.list(f"{layout.ACTIVE}{job}/")), None) is not None


def _over(fleet: Fleet, state: JobState) -> bool:
    """Ended, and every machine that the log names is positively gone."""
    if state.ended is None:
        return False
    for claim in state.claims:
        ids = [node.instance for node in claim.launched or ()]
        if not ids:
            continue
        try:
            states = fleet.provider(claim.offering.provider).state(ids, claim.offering.region)
        except ProviderError:
            return False  # Unknown is not gone.
        if any(states.get(instance) != "gone" for instance in ids):
            return False
    return True


def _forget_absent(store: Store, done: Reindexed) -> None:
    """Records and markers without a log: of jobs that were removed, or that were never submitted."""
    for meta in index.list_index(store):
        job = index.job_of(meta)
        if store.head(layout.log_entry(job, 1)) is None:
            done.forgotten += bool(index.forget_index(store, job))
    now = datetime.now(timezone.utc)
    for job in active_jobs(store):
        if store.head(layout.log_entry(job, 1)) is not None:
            continue
        markers = list(store.list(f"{layout.ACTIVE}{job}/"))
        # A submission that is under way puts its marker back, should it be slower than this.
        if all(now - marker.modified > _ABANDONED_AFTER for marker in markers):
            store.delete([marker.key for marker in markers])
            done.forgotten += 1
