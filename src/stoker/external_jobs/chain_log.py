"""The logs of families of training jobs, in the store: append-only, create-if-absent, as the logs of jobs are."""

from __future__ import annotations

import json
from collections.abc import Iterator

from stoker.external_jobs.clone_chain import Family, FamilyEntry, FamilyRecord, fold
from stoker.external_jobs.clone_request import begin
from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreError, StoreUnavailable
from stoker.store.base import Store

# A reason may quote what a script said.
_MOST_BYTES = 64 * 1024
_MOST_REASON = 2000
_CONFLICT_TRIES = 20


def read(store: Store, region: str, origin: str, state: Family | None = None) -> Family:
    """The newest state, carried on from `state` where given. Raises StoreError for what only a newer Stoker can read:
    nothing is decided on half a log."""
    return fold(origin, entries(store, region, origin, state.seq + 1 if state else 1), state)


def entries(store: Store, region: str, origin: str, start: int = 1) -> Iterator[FamilyEntry]:
    """The entries from number `start` on, until there is none."""
    seq = start
    while True:
        key = keys.family_entry(region, origin, seq)
        found = store.get(key, limit=_MOST_BYTES)
        if found is None:
            return
        try:
            yield FamilyEntry(seq, found.meta.modified, codec.loads(FamilyRecord, found.data, where=key))
        except CodecError as error:
            raise StoreError(f"{error}; a newer Stoker may have written it: update this one") from error
        seq += 1


def append(store: Store, region: str, origin: str, seq: int, record: FamilyRecord) -> bool:
    """Write entry `seq`. True: it is there and mine. False: a rival's is. Safe to repeat with the same record.

    Raises StoreUnavailable when it cannot be known which.
    """
    key = keys.family_entry(region, origin, seq)
    told = FamilyRecord(
        record.token, record.by, record.reason[:_MOST_REASON], record.event, record.policy, record.version
    )
    data = codec.dumps(told)
    for _ in range(_CONFLICT_TRIES):
        lost: StoreUnavailable | None = None
        try:
            if store.create(key, data):
                return True
        except StoreUnavailable as error:
            lost = error  # It may have been written all the same: look.
        there = store.get(key, limit=_MOST_BYTES)
        if there is not None:
            return _token(there.data) == record.token
        if lost is not None:
            raise lost
    raise StoreUnavailable(f"{key}: the store keeps answering that it exists, and that it does not")


def find(store: Store, name: str) -> list[tuple[str, str]]:
    """The regions and origins of the families with a training job of this name."""
    found = []
    for region in store.folders(keys.FAMILIES):
        origins = store.folders(f"{keys.FAMILIES}{region}/")
        # A clone's name begins with its origin's, as far as there was room.
        likely = [origin for origin in origins if origin == name or name.startswith(begin(origin)[:40])]
        found += [(region, origin) for origin in likely if read(store, region, origin).holds(name)]
    return found


def _token(data: bytes) -> str | None:
    try:
        token = json.loads(data)["token"]
    except (ValueError, KeyError, TypeError):
        return None
    return token if isinstance(token, str) else None
