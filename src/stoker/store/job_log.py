"""Append to a job's log, and read it back.

An append is create-if-absent, the one conditional write that every store has. If two writers race for a number, one
wins; the other reads the new entry and decides again.

Create-if-absent does not remember deleted objects. So the removal of a job begins with a permanent tombstone
(`removed/<job>`): an existing number can be created again only after its deletion, hence after the tombstone. A writer
that checks for the tombstone after its append, and before it acts on it, always notices the removal.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace

from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreError, StoreUnavailable, describe_error
from stoker.model.job_state import JobState, fold
from stoker.model.log_entries import PROTOCOL_VERSION, Entry, Event, Opaque, Record
from stoker.store.base import Object, Store

# Entries of Stoker are far smaller; a larger one was not written by Stoker.
MAX_ENTRY_BYTES = 256 * 1024
# Reasons may quote long messages of clouds or scripts. They are cut, because every entry must stay readable.
MAX_REASON_CHARS = 8000

# Retries of a conflicting create before it counts as an outage.
_CONFLICT_TRIES = 20


def new_token() -> str:
    """Create a token for one append, by which a writer recognises its own entry if the reply was lost."""
    return secrets.token_hex(8)


def append(store: Store, job: str, seq: int, record: Record) -> bool:
    """Write entry `seq`. True: the entry is in the log and is this one. False: another writer's entry has the number.

    Safe to repeat with the same record. Raises StoreUnavailable if that cannot be known, and StoreError for an entry
    that readers would refuse: it would end the log for every reader.
    """
    key = keys.log_entry(job, seq)
    data = codec.dumps(replace(record, reason=record.reason[:MAX_REASON_CHARS]))
    return create_entry(store, key, data, record.token)


def create_entry(store: Store, key: str, data: bytes, token: str) -> bool:
    """Write the entry of any append-only log. Returns whether the entry under `key` is the one with this token.

    Safe to repeat. Raises like `append`.
    """
    if len(data) > MAX_ENTRY_BYTES:
        raise StoreError(f"{key}: an entry of {len(data)} bytes is too large to be written")
    for _ in range(_CONFLICT_TRIES):
        lost: StoreUnavailable | None = None
        try:
            if store.create(key, data):
                return True
        except StoreUnavailable as error:
            lost = error  # The write may have happened nevertheless: read it back.
        there = store.get(key, limit=MAX_ENTRY_BYTES)
        if there is not None:
            return _token(there.data) == token
        if lost is not None:
            raise lost
        # Reported as existing and yet absent: S3 answers a conflict with a concurrent write like that. Try again.
    raise StoreUnavailable(f"{key}: the store keeps answering that it exists, and that it does not")


def append_next(
    store: Store,
    job: str,
    state: JobState | None,
    decide: Callable[[JobState | None], tuple[Event, str] | None],
    by: str,
    before: Callable[[int], None] | None = None,
    *,
    policy: str = "",
) -> JobState | None:
    """Append the event that `decide` returns for the newest state; after a lost race, read on and decide again.

    `before(seq)` runs before each try, for objects that must be written first. `policy` is the digest of the policy by
    which it was decided. Returns the state after the append, or the newest one if `decide` returns None.
    """
    lost_the_first = False
    while True:
        state = read(store, job, state)
        if state is None and lost_the_first:
            raise StoreError(f"{keys.log_entry(job, 1)}: does not open a job; only submitters may write it")
        wanted = decide(state)
        if wanted is None:
            return state
        event, reason = wanted
        seq = state.seq + 1 if state else 1
        if before is not None:
            before(seq)
        if append(store, job, seq, Record(token=new_token(), by=by, reason=reason, event=event, policy=policy)):
            return read(store, job, state)
        lost_the_first = seq == 1


def read(store: Store, job: str, state: JobState | None = None) -> JobState | None:
    """Read the newest state, continuing from `state` if given. None: there is no such job (any more).

    Without a `state`, entries of a removed job do not count: a create that landed late may have brought some back. A
    caller that continues from a state and then acts on it checks for the tombstone itself (`is_removed`).
    """
    found = fold(job, entries(store, job, state.seq + 1 if state else 1), state)
    return None if state is None and found is not None and is_removed(store, job) else found


def is_removed(store: Store, job: str) -> bool:
    """Return whether the job has a tombstone. True is permanent."""
    return store.head(keys.removed(job)) is not None


def removed_jobs(store: Store) -> frozenset[str]:
    """The jobs that were removed, or whose removal has begun."""
    return frozenset(meta.key.removeprefix(keys.REMOVED) for meta in store.list(keys.REMOVED))


def entries(store: Store, job: str, start: int = 1) -> Iterator[Entry]:
    """Read the entries from number `start` on, until one is absent."""
    seq = start
    while True:
        found = store.get(keys.log_entry(job, seq), limit=MAX_ENTRY_BYTES)
        if found is None:
            return
        yield parse(seq, found)
        seq += 1


def parse(seq: int, found: Object) -> Entry:
    """Parse an entry. An unknown entry of a newer Stoker becomes `Opaque`."""
    where = found.meta.key
    try:
        tree = codec.parse_object(found.data)
        min_version = tree["min_version"]
        kind = str(tree["event"]["kind"])
    except (CodecError, KeyError, TypeError) as error:
        raise StoreError(
            f"{where}: not a log entry ({describe_error(error)}); only submitters and governors may write here"
        ) from None
    try:
        record = codec.load(Record, tree, where=where)
    except CodecError as error:
        if not isinstance(min_version, int) or min_version <= PROTOCOL_VERSION:
            raise StoreError(f"{error}; only submitters and governors may write here") from None
        return Entry(
            seq=seq,
            at=found.meta.modified,
            reason=f"{kind} (by a newer Stoker)",
            event=Opaque(name=kind),
            min_version=min_version,
        )
    return Entry(
        seq=seq,
        at=found.meta.modified,
        reason=record.reason,
        event=record.event,
        by=record.by,
        min_version=record.min_version,
        policy=record.policy,
    )


def _token(data: bytes) -> str | None:
    try:
        token = codec.parse(data)["token"]
    except (CodecError, KeyError, TypeError):
        return None
    return token if isinstance(token, str) else None
