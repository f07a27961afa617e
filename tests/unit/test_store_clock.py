"""The store's time, taken from an object that is written for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.model import codec, keys
from stoker.model.errors import StoreError, StoreUnavailable
from stoker.model.submission import Submission
from stoker.store.job_index import read_submission
from stoker.store.store_clock import read_clock, read_time
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sim_data import JOB, at, make_spec, make_state


def test_the_time_goes_on_from_the_write_that_it_was_taken_from() -> None:
    store, now = MemoryStore(lambda: at(100)), [50.0]
    clock = read_clock(store, "me", lambda: now[0])
    assert clock.now() == at(100)
    now[0] += 7.5
    assert clock.now() == at(107.5)
    assert read_time(store) == at(100)
    assert list(store.list("")) == []


def test_two_that_ask_at_once_do_not_share_an_object() -> None:
    written: list[str] = []

    def note(call: str, key: str) -> Fault | None:
        if call == "put":
            written.append(key)
        return None

    store = MemoryStore(lambda: at(0), faults=note)
    for name in ("me", "me", ""):
        read_clock(store, name)
    assert len(set(written)) == 3
    assert all(
        key.startswith(f"{keys.PROBES}{name}-") for key, name in zip(written, ("me", "me", "clock"), strict=True)
    )


def test_an_object_that_is_gone_at_once_is_an_outage() -> None:
    store = MemoryStore(lambda: at(0))

    def remove(call: str, key: str) -> Fault | None:
        if call == "head":
            store.delete([key])
        return None

    with pytest.raises(StoreUnavailable, match="written, and then not there"):
        read_clock(store.client(remove))


def test_a_failure_leaves_no_object() -> None:
    store = MemoryStore(lambda: at(0))
    with pytest.raises(StoreUnavailable):
        read_clock(store.client(lambda call, _key: Fault() if call == "head" else None))
    assert list(store.list("")) == []


# ── What was submitted ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_spec_that_is_not_what_was_submitted_governs_nothing() -> None:
    store = MemoryStore(lambda: at(0))
    good, strange = codec.dumps(Submission(JOB, make_spec(), "jane")), b'{"spec":{}}'
    state = make_state()
    for data, submitted, why in (
        (None, good, "missing; the job cannot be governed without its spec"),
        (strange, good, r"is not what was submitted \(its digest differs from the log's\)"),
        (strange, strange, "; the job was submitted by another version of Stoker, or by something else$"),
    ):
        if data is not None:
            store.put(keys.spec(JOB), data)
        state = replace(state, spec_digest=codec.digest(submitted))
        with pytest.raises(StoreError, match=why):
            read_submission(store, state)
    store.put(keys.spec(JOB), good)
    assert read_submission(store, replace(state, spec_digest=codec.digest(good))).spec == make_spec()
