"""Delete jobs, and what only they used: code, agents, environments. Buckets are not unbounded either."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone

from stoker import index, layout, log
from stoker.errors import StoreDenied, StoreError, StoreUnavailable, UserError, in_words
from stoker.finding import all_jobs
from stoker.fold import JobState
from stoker.model import Event, RemovalAsked
from stoker.store import Meta, Store

# Twice as long as a submission may rely on code it found (`sending.CODE_FRESH_FOR`).
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
    if not log.is_removed(store, job):
        _append_removal(store, job, by)
    store.create(layout.removed(job), b"")
    _delete_below(store, f"{layout.WORK}{job}/")
    forget_removed(store, job)
    _delete_below(store, layout.log_prefix(job))
    store.delete([layout.spec(job)])


def _append_removal(store: Store, job: str, by: str) -> None:
    def wanted(state: JobState | None) -> tuple[Event, str] | None:
        if state is None or state.removal_at is not None:
            return None
        if state.ended is None:
            raise UserError(f"{job} is active: it was resumed meanwhile; `stoker stop {job}` first")
        return RemovalAsked(by=by), f"removed by {by}"

    try:
        log.append_next(store, job, None, wanted, by)
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError:
        return  # Its log makes no sense: nothing can resume it.


def forget_removed(store: Store, job: str) -> None:
    """Delete the derived keys of a job that has its tombstone: markers and cached records.

    Governors call it. They may not delete log entries; what a late append left there is deleted by `finish_removals`.
    """
    for prefix in (f"{layout.ACTIVE}{job}/", layout.index_prefix(job)):
        _delete_below(store, prefix)


def clear_markers(store: Store, jobs: Iterable[str]) -> dict[str, str]:
    """Clear away those of these jobs, which have markers and no log, that were removed. Answers problems by job.

    A marker without a log and without a tombstone belongs to a submission that is under way.
    """
    problems: dict[str, str] = {}
    for job in jobs:
        try:
            if log.is_removed(store, job):
                forget_removed(store, job)
        except StoreError as error:
            problems[job] = in_words(error)
    return problems


def finish_removals(store: Store) -> list[str]:
    """Delete what is left of removed jobs: of a removal that was cut short, or of a write that landed after it.

    Answers the jobs of which something was left.
    """
    removed = log.removed_jobs(store)
    if not removed:
        return []
    there = {job for prefix in (layout.JOBS, layout.WORK, layout.ACTIVE, layout.INDEX) for job in store.folders(prefix)}
    left = sorted(removed & there)
    for job in left:
        remove_job(store, job)
    return left


def collect_code(store: Store) -> int:
    """Delete packed code that no job refers to and that is older than a day. Answers how many archives went."""
    return _collect(store, layout.CODE, _code_of)


def collect_bundles(store: Store) -> int:
    """The same for agents that no job's machines install any more."""
    return _collect(store, layout.BUNDLES, _bundles_of)


def collect_tools(store: Store) -> int:
    """The same for programs that no job's machines fetch any more."""
    return _collect(store, layout.TOOLS, _tools_of)


def collect_environments(store: Store) -> int:
    """Delete environments that no machine used for long, and what was left of those that were never finished.

    Answers how many environments went. A machine that is just restoring one makes its own instead.
    """
    now = datetime.now(timezone.utc)
    below: dict[str, list[Meta]] = {}
    for meta in store.list(layout.ENVIRONMENTS):
        below.setdefault(meta.key.removeprefix(layout.ENVIRONMENTS).partition("/")[0], []).append(meta)
    gone = 0
    for key, found in below.items():
        manifest = layout.environment_manifest(layout.ENVIRONMENTS, key)
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
                one for one in unneeded if one not in (manifest, layout.environment_used(layout.ENVIRONMENTS, key))
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
    return _collect(store, layout.WHEELS, _wheels_of)


def _collect(store: Store, prefix: str, needed_by: Callable[[Store, str], set[str]]) -> int:
    now = datetime.now(timezone.utc)
    # A submission makes what it relies on younger than half a day, so what is old here has no job on the way.
    old = {meta.key: meta.modified for meta in store.list(prefix) if now - meta.modified > COLLECT_AFTER}
    if not old:
        return 0
    needed = {key for job in all_jobs(store) for key in needed_by(store, job)}
    unneeded = [key for key in old if key not in needed]
    # Made young again since it was listed: somebody is about to need it.
    unneeded = [key for key in unneeded if (meta := store.head(key)) is not None and meta.modified == old[key]]
    store.delete(unneeded)
    return len(unneeded)


def ended_before(store: Store, age: timedelta) -> list[str]:
    """The jobs that ended longer ago than `age`, oldest first. Jobs that have not ended are never among them."""
    now = datetime.now(timezone.utc)
    found = []
    for meta in index.list_index(store):
        # A record is written when the job ends, so what is younger cannot be of an older end.
        job = index.job_of(meta)
        summary = index.read_summary(store, job, meta)
        if summary is not None and summary.ended_at is not None and now - summary.ended_at > age:
            found.append((summary.ended_at, job))
    # The index is derived: the verdict is the log's.
    return [job for _, job in sorted(found) if (state := log.read(store, job)) is not None and state.ended is not None]


def _code_of(store: Store, job: str) -> set[str]:
    """The code that a job refers to. Raises StoreError when it cannot be known: then nothing may be collected."""
    found = store.get(layout.log_entry(job, 1)) or store.get(layout.spec(job))
    if found is None:
        return set()
    try:
        tree = json.loads(found.data)
        code = tree["event"].get("code_digest") if "event" in tree else (tree.get("code") or {}).get("digest")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{found.meta.key}: cannot be read ({error!r}); no code is collected") from None
    return {layout.code(str(code))} if code is not None else set()


def _bundles_of(store: Store, job: str) -> set[str]:
    """The agents that a job refers to. Raises StoreError as above."""
    return {layout.bundle(digest) for digest in _digests_of(store, job, "bundles", "agent")}


def _tools_of(store: Store, job: str) -> set[str]:
    return {layout.tool(digest) for digest in _digests_of(store, job, "tools", "program")}


def _wheels_of(store: Store, job: str) -> set[str]:
    found = store.get(layout.spec(job))
    if found is None:
        return set()
    try:
        targets = json.loads(found.data).get("wheels") or {}
        return {layout.wheel(str(wheel["digest"])) for wheels in targets.values() for wheel in wheels}
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise StoreError(f"{found.meta.key}: cannot be read ({error!r}); no wheel is collected") from None


def _digests_of(store: Store, job: str, field: str, what: str) -> list[str]:
    found = store.get(layout.spec(job))
    if found is None:
        return []
    try:
        return [str(digest) for digest in (json.loads(found.data).get(field) or {}).values()]
    except (ValueError, AttributeError) as error:
        raise StoreError(f"{found.meta.key}: cannot be read ({error!r}); no {what} is collected") from None


def _delete_below(store: Store, prefix: str) -> None:
    for keys in _batches(meta.key for meta in store.list(prefix)):
        store.delete(keys)


def _batches(keys: Iterable[str]) -> Iterable[list[str]]:
    rest = iter(list(keys))
    while batch := list(itertools.islice(rest, _BATCH)):
        yield batch
