"""Append to a job's log, and read it back.

Append is create-if-absent, the one conditional write every store has. Two writers race for a number: one wins, the
other reads on and decides again.

Create-if-absent does not remember what was deleted. So the removal of a job begins with a tombstone that stays for good
(`removed/<job>`): a number that existed can be created anew only after its deletion, hence after the tombstone. A
writer that looks for the tombstone after its append, and before it acts on it, always finds out.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace

from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreError, StoreUnavailable
from stoker.model.job_state import JobState, fold
from stoker.model.log_entries import PROTOCOL_VERSION, Entry, Event, Opaque, Record
from stoker.store.base import Object, Store

# No entry that Stoker writes comes near this; a larger one is not ours.
MAX_ENTRY_BYTES = 256 * 1024
# Reasons may quote what a cloud or a script said, however long: what is written here must be readable for good.
MAX_REASON_CHARS = 8000

# How often a conflicting create is tried again before it counts as an outage.
_CONFLICT_TRIES = 20


def new_token() -> str:
    """Unique to one append, so that a writer recognises its own entry when the reply was lost."""
    return secrets.token_hex(8)


def append(store: Store, job: str, seq: int, record: Record) -> bool:
    """Write entry `seq`. True: it is there and it is mine. False: a rival's entry is there.

    Safe to repeat with the same record. Raises StoreUnavailable when it cannot be known which, and StoreError for
    an entry that no reader would take: one such would end the log for everybody.
    """
    key = keys.log_entry(job, seq)
    data = codec.dumps(replace(record, reason=record.reason[:MAX_REASON_CHARS]))
    if len(data) > MAX_ENTRY_BYTES:
        raise StoreError(f"{key}: an entry of {len(data)} bytes is too large to be written")
    for _ in range(_CONFLICT_TRIES):
        lost: StoreUnavailable | None = None
        try:
            if store.create(key, data):
                return True
        except StoreUnavailable as error:
            lost = error  # The write may have happened all the same: look.
        there = store.get(key, limit=MAX_ENTRY_BYTES)
        if there is not None:
            return _token(there.data) == record.token
        if lost is not None:
            raise lost
        # "Exists" and yet absent: S3 answers a conflict with a concurrent write like that. Put again.
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
    """Append what `decide` wants for the newest state, reading on and asking again after every lost race.

    `before(seq)` runs before each try, for what must be written first. `policy` is the digest of the rules by
    which it was decided. Returns the state after the append, or the
    newest one if `decide` had nothing to add.
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
    """The newest state, carried on from `state` where given. None: there is no such job (any more).

    Without a `state`, entries of a removed job do not count: a create that landed late may have put some back. A caller
    that carries on from a state and then acts on it looks for the tombstone itself (`is_removed`).
    """
    found = fold(job, entries(store, job, state.seq + 1 if state else 1), state)
    return None if state is None and found is not None and is_removed(store, job) else found


def is_removed(store: Store, job: str) -> bool:
    """Whether the job's tombstone is there. True is for good."""
    return store.head(keys.removed(job)) is not None


def removed_jobs(store: Store) -> frozenset[str]:
    """The jobs that were ever removed, or whose removal has begun."""
    return frozenset(meta.key.removeprefix(keys.REMOVED) for meta in store.list(keys.REMOVED))


def entries(store: Store, job: str, start: int = 1) -> Iterator[Entry]:
    """The entries from number `start` on, until there is none."""
    seq = start
    while True:
        found = store.get(keys.log_entry(job, seq), limit=MAX_ENTRY_BYTES)
        if found is None:
            return
        yield parse(seq, found)
        seq += 1


def parse(seq: int, found: Object) -> Entry:
    """An entry from its object. One that a newer Stoker wrote comes back as `Opaque`."""
    where = found.meta.key
    try:
        tree = json.loads(found.data)
        min_version = tree["min_version"]
        kind = str(tree["event"]["kind"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{where}: not a log entry ({error!r}); only submitters and governors may write here"
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
        token = json.loads(data)["token"]
    except (ValueError, KeyError, TypeError):
        return None
    return token if isinstance(token, str) else None
