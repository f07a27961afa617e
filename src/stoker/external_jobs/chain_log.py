"""The logs of clone chains in the store: append-only with create-if-absent, like the logs of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stoker.external_jobs.clone_chain import ChainEntry, ChainRecord, CloneChain, fold
from stoker.external_jobs.clone_request import base_name
from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreError
from stoker.store.base import Store
from stoker.store.job_log import MAX_ENTRY_BYTES, create_entry

# A reason may quote a script's output.
_MAX_REASON = 2000


def read(store: Store, region: str, origin: str, state: CloneChain | None = None) -> CloneChain:
    """The newest state, continued from `state` where given. Raises StoreError for an entry that only a newer Stoker can
    read: nothing is decided on half a log."""
    return fold(origin, entries(store, region, origin, state.seq + 1 if state else 1), state)


def entries(store: Store, region: str, origin: str, start: int = 1) -> Iterator[ChainEntry]:
    """The entries from number `start` on."""
    seq = start
    while True:
        key = keys.clone_chain_entry(region, origin, seq)
        found = store.get(key, limit=MAX_ENTRY_BYTES)
        if found is None:
            return
        try:
            yield ChainEntry(seq, found.meta.modified, codec.loads(ChainRecord, found.data, where=key))
        except CodecError as error:
            raise StoreError(f"{error}; a newer Stoker may have written it: update this one") from error
        seq += 1


def append(store: Store, region: str, origin: str, seq: int, record: ChainRecord) -> bool:
    """Write entry `seq`. Returns whether the entry is this record, and not another governor's. Safe to repeat with the
    same record.

    Raises StoreUnavailable when that cannot be known.
    """
    key = keys.clone_chain_entry(region, origin, seq)
    data = codec.dumps(replace(record, reason=record.reason[:_MAX_REASON]))
    return create_entry(store, key, data, record.token)


def find(store: Store, name: str) -> list[tuple[str, str]]:
    """The regions and origins of the clone chains with a training job of this name."""
    found = []
    for region in store.folders(keys.CLONE_CHAINS):
        origins = store.folders(f"{keys.CLONE_CHAINS}{region}/")
        # A clone's name begins with its origin's name, cut to the maximum length.
        likely = [origin for origin in origins if origin == name or name.startswith(base_name(origin)[:40])]
        found += [(region, origin) for origin in likely if read(store, region, origin).holds(name)]
    return found
