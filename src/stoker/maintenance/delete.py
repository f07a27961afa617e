"""Delete jobs, and the objects that only they used: code, agents, environments."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.model.job_state import JobState
from stoker.model.log_entries import Event, RemovalAsked
from stoker.store import job_index, job_log
from stoker.store.base import Meta, Store
from stoker.store.removed_jobs import delete_below, delete_derived_keys
from stoker.store.store_clock import read_time
from stoker.submit.shared_objects import COLLECT_AFTER, collect_unused

# An environment that no machine has used for this long is deleted.
UNUSED_FOR = timedelta(days=30)


def remove_job(store: Store, job: str, by: str = "a person", *, governed: bool = True) -> None:
    """Delete everything of a job that has ended and whose machines are gone; the caller has checked both.

    `governed` is False for a job whose log or spec cannot be read: it counts as ended, because no governor can run it.

    The removal is appended to the log first, so that it and a `resume` cannot both succeed, however late one of them
    lands. Then the tombstone is written, which stays: from then on the job does not exist for any reader, whatever keys
    are left or land late, and no governor launches anything for it. Safe to repeat after a crash. Raises UserError when
    the job was resumed meanwhile.
    """
    if governed and not job_log.is_removed(store, job):
        _append_removal(store, job, by)
    store.create(keys.removed(job), b"")
    delete_below(store, f"{keys.WORK}{job}/")
    delete_derived_keys(store, job)
    delete_below(store, keys.log_prefix(job))
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
        return  # The log is corrupt: nothing can resume the job.


def finish_removals(store: Store) -> list[str]:
    """Delete leftover keys of removed jobs, from an interrupted removal or a write that landed after it.

    Returns the jobs that had any.
    """
    removed = job_log.removed_jobs(store)
    if not removed:
        return []
    existing = {job for prefix in (keys.JOBS, keys.WORK, keys.ACTIVE, keys.INDEX) for job in store.folders(prefix)}
    left = sorted(removed & existing)
    for job in left:
        remove_job(store, job)
    return left


def collect_shared(store: Store, kind: str) -> int:
    """Delete objects of one kind (`keys.CODE`, `keys.BUNDLES`, `keys.TOOLS` or `keys.WHEELS`) that no job refers to and
    that are older than a day. Returns their number."""
    found: dict[str, list[Meta]] = {}
    for meta in store.list(kind):
        found.setdefault(meta.key.removeprefix(kind).partition(".")[0], []).append(meta)
    return collect_unused(store, kind, {name: partial(list, metas) for name, metas in found.items()})


def collect_environments(store: Store) -> int:
    """Delete environments that no machine has used for long, and parts of those that were never finished.

    Returns the number of deleted environments. A machine that is restoring one of them builds it anew instead.
    """
    below: dict[str, list[Meta]] = {}
    for meta in store.list(keys.ENVIRONMENTS):
        below.setdefault(meta.key.removeprefix(keys.ENVIRONMENTS).partition("/")[0], []).append(meta)
    if not below:
        return 0
    now, gone = read_time(store), 0
    for key, found in below.items():
        manifest = keys.environment_manifest(keys.ENVIRONMENTS, key)
        if now - max(meta.modified for meta in found) > UNUSED_FOR:
            # The manifest goes first: without it the other parts are unused, even if the deletion is interrupted.
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
    """The parts that a manifest names; empty where there is no manifest, None where it cannot be parsed."""
    try:
        found = store.get(manifest)
        if found is None:
            return set()
        tree = codec.parse(found.data)
        return {str(part["digest"]) for part in (tree["listing"], *tree["parts"])}
    except (StoreUnavailable, StoreDenied):
        raise
    except (StoreError, CodecError, KeyError, TypeError):
        return None


def ended_before(store: Store, age: timedelta) -> list[str]:
    """The jobs that ended longer ago than `age`, oldest first.

    Jobs that have not ended, and those whose log cannot be read, are never among them.

    The end of a job is a time of the store, and so is the present here: this computer's clock may be a month fast.
    """
    now = read_time(store)
    found = []
    for meta in job_index.list_index(store):
        # A record is written when the job ends.
        job = job_index.job_of(meta)
        summary = job_index.read_summary(store, job, meta)
        if summary is not None and summary.ended_at is not None and now - summary.ended_at > age:
            found.append((summary.ended_at, job))
    # The index is derived, so the log decides.
    return [job for _, job in sorted(found) if _has_ended(store, job)]


def _has_ended(store: Store, job: str) -> bool:
    try:
        state = job_log.read(store, job)
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError:
        return False
    return state is not None and state.ended is not None
