"""`index/<job>.json`: the cached fold and summary of a job. Derived; `stoker reindex` rebuilds it from the log."""

from __future__ import annotations

import json
from dataclasses import dataclass

from stoker import codec, layout
from stoker.errors import CodecError, StoreError
from stoker.fold import JobState
from stoker.spec import Submission
from stoker.store import Meta, Store
from stoker.summary import Summary


@dataclass(frozen=True)
class IndexRecord:
    """The newest fold somebody made, and the job in short."""

    state: JobState
    summary: Summary


def read_index(store: Store, job: str) -> IndexRecord | None:
    """The cached record, or None when there is none that makes sense: then the log tells everything."""
    found = store.get(layout.index(job))
    if found is None:
        return None
    try:
        record = codec.loads(IndexRecord, found.data, where=layout.index(job))
    except CodecError:
        return None
    return record if record.state.job == job else None


def read_summary(store: Store, job: str) -> Summary | None:
    """Only the summary: cheaper, for lists."""
    found = store.get(layout.index(job))
    if found is None:
        return None
    try:
        return codec.load(Summary, json.loads(found.data)["summary"])
    except (CodecError, ValueError, KeyError, TypeError):
        return None


def write_index(store: Store, record: IndexRecord) -> None:
    """Cache the record. A slower writer may put an older fold over a newer one: readers carry on from either."""
    store.put(layout.index(record.state.job), codec.dumps(record))


def list_index(store: Store) -> list[Meta]:
    """The cached records there are, without reading them."""
    return list(store.list(layout.INDEX))


def job_of(meta: Meta) -> str:
    """The job whose record this is."""
    return meta.key.removeprefix(layout.INDEX).removesuffix(".json")


def read_submission(store: Store, state: JobState) -> Submission:
    """The frozen spec, checked against the log. Raises StoreError when it is not what was submitted."""
    key = layout.spec(state.job)
    found = store.get(key)
    if found is None:
        raise StoreError(f"{key}: missing; the job cannot be governed without its spec")
    if codec.digest(found.data) != state.spec_digest:
        raise StoreError(f"{key}: is not what was submitted (its digest differs from the log's)")
    return codec.loads(Submission, found.data, where=key)
