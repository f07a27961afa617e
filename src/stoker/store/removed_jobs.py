"""Clear away the derived keys of jobs that were removed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from stoker.model import keys
from stoker.model.errors import StoreError, in_words
from stoker.store import job_log
from stoker.store.base import Store

_BATCH = 1000


def forget_removed(store: Store, job: str) -> None:
    """Delete the derived keys of a job that has its tombstone: markers and cached records.

    Governors call it. They may not delete log entries; what a late append left there is deleted by `finish_removals`.
    """
    for prefix in (f"{keys.ACTIVE}{job}/", keys.index_prefix(job)):
        delete_below(store, prefix)


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


def delete_below(store: Store, prefix: str) -> None:
    for key_list in batches(meta.key for meta in store.list(prefix)):
        store.delete(key_list)


def batches(keys: Iterable[str]) -> Iterable[list[str]]:
    rest = iter(list(keys))
    while batch := list(itertools.islice(rest, _BATCH)):
        yield batch
