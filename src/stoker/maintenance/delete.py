"""Delete jobs, and what only they used: code, agents, environments. Buckets are not unbounded either."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial

from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable, UserError, in_words
from stoker.model.job_state import JobState
from stoker.model.log_entries import Event, RemovalAsked
from stoker.store import job_index, job_log
from stoker.store.base import Meta, Store
from stoker.store.find_job import all_jobs
from stoker.submit.shared_objects import Shared, references

# Longer than a submission takes, as a rule. One that takes longer finds out, and sends what it needs again.
COLLECT_AFTER = timedelta(days=1)
# An environment that no machine has used for so long.
UNUSED_FOR = timedelta(days=30)
_BATCH = 1000


def remove_job(store: Store, job: str, by: str = "a person") -> None:
    """Delete everything of a job that has ended and whose machines are gone; the caller has checked both.

    The removal is appended to the log first, so that it and a `resume` cannot both win, however late one of them lands.
    Then comes the tombstone, which stays: from then on there is no such job for any reader, whatever is still there
    or lands late, and no governor launches anything for it. Safe to repeat after a crash. Raises UserError when the job
    was resumed meanwhile.
    """
    if not job_log.is_removed(store, job):
        _append_removal(store, job, by)
    store.create(keys.removed(job), b"")
    _delete_below(store, f"{keys.WORK}{job}/")
    forget_removed(store, job)
    _delete_below(store, keys.log_prefix(job))
    store.delete([keys.spec(job)])


def _append_removal(store: Store, job: str, by: str) -> None:
    def wanted(state: JobState | None) -> tuple[Event, str] | None:
        if state is None or state.removal_at is not None:
            return None
        if state.ended is None:
            raise UserError(f"{job} is active: it was resumed meanwhile; `stoker stop {job}` first")
        return RemovalAsked(by=by), f"removed by {by}"

    try:
        job_log.append_next(store, job, None, wanted, by)
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError:
        return  # Its log makes no sense: nothing can resume it.


def forget_removed(store: Store, job: str) -> None:
    """Delete the derived keys of a job that has its tombstone: markers and cached records.

    Governors call it. They may not delete log entries; what a late append left there is deleted by `finish_removals`.
    """
    for prefix in (f"{keys.ACTIVE}{job}/", keys.index_prefix(job)):
        _delete_below(store, prefix)


def clear_markers(store: Store, jobs: Iterable[str]) -> dict[str, str]:
    """Clear away those of these jobs, which have markers and no log, that were removed. Answers problems by job.

    A marker without a log and without a tombstone belongs to a submission that is under way.
    """
    problems: dict[str, str] = {}
    for job in jobs:
        try:
            if job_log.is_removed(store, job):
                forget_removed(store, job)
        except StoreError as error:
            problems[job] = in_words(error)
    return problems


def finish_removals(store: Store) -> list[str]:
    """Delete what is left of removed jobs: of a removal that was cut short, or of a write that landed after it.

    Answers the jobs of which something was left.
    """
    removed = job_log.removed_jobs(store)
    if not removed:
        return []
    there = {job for prefix in (keys.JOBS, keys.WORK, keys.ACTIVE, keys.INDEX) for job in store.folders(prefix)}
    left = sorted(removed & there)
    for job in left:
        remove_job(store, job)
    return left


def collect_code(store: Store) -> int:
    """Delete packed code that no job refers to and that is older than a day. Answers how many archives went."""
    return _collect(store, keys.CODE)


def collect_bundles(store: Store) -> int:
    """The same for agents that no job's machines install any more."""
    return _collect(store, keys.BUNDLES)


def collect_tools(store: Store) -> int:
    """The same for programs that no job's machines fetch any more."""
    return _collect(store, keys.TOOLS)


def collect_environments(store: Store) -> int:
    """Delete environments that no machine used for long, and what was left of those that were never finished.

    Answers how many environments went. A machine that is just restoring one makes its own instead.
    """
    now = datetime.now(timezone.utc)
    below: dict[str, list[Meta]] = {}
    for meta in store.list(keys.ENVIRONMENTS):
        below.setdefault(meta.key.removeprefix(keys.ENVIRONMENTS).partition("/")[0], []).append(meta)
    gone = 0
    for key, found in below.items():
        manifest = keys.environment_manifest(keys.ENVIRONMENTS, key)
        if now - max(meta.modified for meta in found) > UNUSED_FOR:
            # Without its manifest the rest is nothing, whenever this is cut short.
            store.delete([manifest])
            store.delete(meta.key for meta in found)
            gone += 1
        else:
            needed = _parts_of(store, manifest)
            old = [meta.key for meta in found if now - meta.modified > COLLECT_AFTER]
            unneeded = [one for one in old if needed is not None and one.rpartition("/")[2] not in needed]
            store.delete(
                one for one in unneeded if one not in (manifest, keys.environment_used(keys.ENVIRONMENTS, key))
            )
    return gone


def _parts_of(store: Store, manifest: str) -> set[str] | None:
    """The parts that a manifest names: none where there is no manifest. None: it cannot be known."""
    found = store.get(manifest)
    if found is None:
        return set()
    try:
        tree = json.loads(found.data)
        return {str(part["digest"]) for part in (tree["listing"], *tree["parts"])}
    except (ValueError, KeyError, TypeError):
        return None


def collect_wheels(store: Store) -> int:
    """The same for packages that no job's machines install any more."""
    return _collect(store, keys.WHEELS)


def _collect(store: Store, kind: str) -> int:
    found: dict[str, list[Meta]] = {}
    for meta in store.list(kind):
        found.setdefault(meta.key.removeprefix(kind).partition(".")[0], []).append(meta)
    return sweep(store, kind, {name: partial(list, metas) for name, metas in found.items()})


def sweep(store: Store, kind: str, found: Mapping[str, Callable[[], list[Meta]]]) -> int:
    """Delete those of these names that no job refers to, and that are given up or older than a day. Answers how many.

    `found` gives the objects of a name. A name is given up before the jobs are read anew, and for good: see
    `submit.generations` for why a submission under way loses nothing. The age only spares it a second try.
    """
    now = datetime.now(timezone.utc)
    given_up = {meta.key.removeprefix(keys.collected(kind, "")) for meta in store.list(keys.collected(kind, ""))}
    needed = _References(store)
    unneeded: dict[str, list[Meta]] = {}
    for name in found.keys() - needed.read(kind) if found else ():
        metas = found[name]()
        if metas and (name in given_up or now - max(meta.modified for meta in metas) > COLLECT_AFTER):
            unneeded[name] = metas
    for name in unneeded.keys() - given_up:
        # Either answer means that the mark is there.
        store.create(keys.collected(kind, name), b"")
    gone = unneeded.keys() - needed.read(kind) if unneeded else set()
    for name in sorted(gone):
        for key_list in _batches(meta.key for meta in unneeded[name]):
            store.delete(key_list)
    return len(gone)


class _References:
    """The shared names that jobs refer to. A spec never changes once it is there: each is read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_job: dict[str, frozenset[Shared]] = {}

    def read(self, kind: str) -> set[str]:
        """The names of one kind that the present jobs refer to. Raises StoreError when a spec cannot be read."""
        names: set[str] = set()
        for job in all_jobs(self._store):
            if job not in self._by_job:
                found = self._store.get(keys.spec(job))
                if found is None:
                    continue
                self._by_job[job] = references(found.data, self._store.url, found.meta.key)
            names |= {shared.name for shared in self._by_job[job] if shared.kind == kind}
        return names


def ended_before(store: Store, age: timedelta) -> list[str]:
    """The jobs that ended longer ago than `age`, oldest first. Jobs that have not ended are never among them."""
    now = datetime.now(timezone.utc)
    found = []
    for meta in job_index.list_index(store):
        # A record is written when the job ends, so what is younger cannot be of an older end.
        job = job_index.job_of(meta)
        summary = job_index.read_summary(store, job, meta)
        if summary is not None and summary.ended_at is not None and now - summary.ended_at > age:
            found.append((summary.ended_at, job))
    # The index is derived: the verdict is the log's.
    return [
        job for _, job in sorted(found) if (state := job_log.read(store, job)) is not None and state.ended is not None
    ]


def _delete_below(store: Store, prefix: str) -> None:
    for key_list in _batches(meta.key for meta in store.list(prefix)):
        store.delete(key_list)


def _batches(keys: Iterable[str]) -> Iterable[list[str]]:
    rest = iter(list(keys))
    while batch := list(itertools.islice(rest, _BATCH)):
        yield batch
