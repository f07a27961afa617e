"""Delete the derived keys of removed jobs."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.model import keys
from stoker.model.errors import StoreError, describe_error
from stoker.store import job_log
from stoker.store.base import Store


def delete_derived_keys(store: Store, job: str) -> None:
    """Delete the derived keys of a job with a tombstone: markers and cached records.

    For governors, which may not delete log entries; `finish_removals` deletes entries that a late append left.
    """
    for prefix in (f"{keys.ACTIVE}{job}/", keys.index_prefix(job)):
        delete_below(store, prefix)


def clear_markers(store: Store, jobs: Iterable[str]) -> dict[str, str]:
    """Delete the derived keys of removed jobs among these, which have markers and no log. Returns problems by job.

    A marker without a log and without a tombstone belongs to a submission in progress.
    """
    problems: dict[str, str] = {}
    for job in jobs:
        try:
            if job_log.is_removed(store, job):
                delete_derived_keys(store, job)
        except StoreError as error:
            problems[job] = describe_error(error)
    return problems


def delete_below(store: Store, prefix: str) -> None:
    store.delete([meta.key for meta in store.list(prefix)])
