"""Append to a job's log, and read it back.

Append is create-if-absent, the one conditional write every store has. Two writers race for a number: one wins, the
other reads on and decides again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace

from stoker import codec, layout
from stoker.errors import CodecError, StoreError, StoreUnavailable
from stoker.fold import JobState, fold
from stoker.model import PROTOCOL_VERSION, Entry, Event, Opaque, Record
from stoker.store import Object, Store

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
    key = layout.log_entry(job, seq)
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
            raise StoreError(f"{layout.log_entry(job, 1)}: does not open a job; only submitters may write it")
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
    """The newest state, carried on from `state` where given. None: there is no such job."""
    return fold(job, entries(store, job, state.seq + 1 if state else 1), state)


def entries(store: Store, job: str, start: int = 1) -> Iterator[Entry]:
    """The entries from number `start` on, until there is none."""
    seq = start
    while True:
        found = store.get(layout.log_entry(job, seq), limit=MAX_ENTRY_BYTES)
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
