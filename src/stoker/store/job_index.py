"""`index/<job>/<seq>.json`: the cached state and summary of a job's first `seq` entries.

Derived: `stoker reindex` rebuilds it from the log. The number of the last entry is part of the key, and readers take
the highest. So a write that lands late can bring back an older record beside the newest one, but never replace it: once
a job has ended, the record with the highest number always says so. Records of removed jobs are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from stoker.core.summary import Summary
from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreDenied, StoreError, StoreUnavailable
from stoker.model.job_state import JobState
from stoker.model.submission import Submission
from stoker.store.base import Meta, Object, Store
from stoker.store.job_log import is_removed, removed_jobs

# A record is replaced when its log grows. If that happens more often than this between a list and a read, the record
# counts as absent.
_TRIES = 5


@dataclass(frozen=True)
class IndexRecord:
    """A cached state, and the summary of the job."""

    state: JobState
    summary: Summary


def read_index(store: Store, job: str, listed: Meta | None = None) -> IndexRecord | None:
    """Read the cached record, or None if there is no valid one: then the log is the source.

    `listed` is the job's entry of `list_index`, which saves a listing.
    """
    found = _newest(store, job, listed)
    if found is None:
        return None
    try:
        record = codec.loads(IndexRecord, found.data, where=found.meta.key)
    except CodecError:
        return None
    return record if record.state.job == record.summary.id == job else None


def read_summary(store: Store, job: str, listed: Meta | None = None) -> Summary | None:
    """Read only the summary, which is cheaper, for lists."""
    found = _newest(store, job, listed)
    if found is None:
        return None
    try:
        summary = codec.load(Summary, codec.parse(found.data)["summary"])
    except (CodecError, KeyError, TypeError):
        return None
    return summary if summary.id == job else None


def write_index(store: Store, record: IndexRecord, *, written: int | None = None) -> None:
    """Write the record, and delete records of earlier entries.

    `written` is the last number that this process wrote for this job: if it is the same, there is nothing to delete.
    """
    job, seq = record.state.job, record.state.seq
    store.put(keys.index(job, seq), codec.dumps(record))
    if written != seq:
        # Also deletes its own record if another governor's is higher. A delete that lands late only removes records
        # that have a higher one beside them.
        found = {meta.key: _number(meta) for meta in store.list(keys.index_prefix(job))}
        newest = max(found.values(), default=seq)
        store.delete([key for key, number in found.items() if number < newest])


def list_index(store: Store) -> list[Meta]:
    """List the newest cached record of every job that was not removed, without reading the records."""
    newest: dict[str, Meta] = {}
    for meta in store.list(keys.INDEX):
        job = job_of(meta)
        if job not in newest or _number(newest[job]) < _number(meta):
            newest[job] = meta
    removed = removed_jobs(store) if newest else frozenset()
    return [meta for job, meta in newest.items() if job not in removed]


def job_of(meta: Meta) -> str:
    """The job of a record."""
    return meta.key.removeprefix(keys.INDEX).partition("/")[0]


def delete_index(store: Store, job: str) -> int:
    """Delete every record of a job, and return their number."""
    key_list = [meta.key for meta in store.list(keys.index_prefix(job))]
    store.delete(key_list)
    return len(key_list)


def _newest(store: Store, job: str, listed: Meta | None) -> Object | None:
    if listed is not None:
        found = _get(store, listed.key)
        if found is not None:
            return found
    for _ in range(_TRIES):
        newest = max(store.list(keys.index_prefix(job)), key=_number, default=None)
        if newest is None or is_removed(store, job):
            return None
        found = _get(store, newest.key)
        if found is not None:
            return found
    return None


def _get(store: Store, key: str) -> Object | None:
    """Get a record. One that is too large counts as absent: Stoker did not write it."""
    try:
        return store.get(key)
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError:
        return None


def _number(meta: Meta) -> int:
    """The number of the last entry in a record; -1 for an invalid key."""
    text = meta.key.rpartition("/")[2].removesuffix(".json")
    return int(text) if len(text) == 8 and text.isascii() and text.isdigit() else -1


def read_submission(store: Store, state: JobState) -> Submission:
    """Read the frozen spec and check it against the log. Raises StoreError if it is not what was submitted."""
    key = keys.spec(state.job)
    found = store.get(key)
    if found is None:
        raise StoreError(f"{key}: missing; the job cannot be governed without its spec")
    if codec.digest(found.data) != state.spec_digest:
        raise StoreError(f"{key}: is not what was submitted (its digest differs from the log's)")
    try:
        return codec.loads(Submission, found.data, where=key)
    except CodecError as error:
        raise StoreError(f"{error}; the job was submitted by another version of Stoker, or by something else") from None
