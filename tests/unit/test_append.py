"""Appending to a log: create-if-absent, tokens, lost replies, conflicts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stoker.model import keys
from stoker.model.errors import StoreError, StoreUnavailable
from stoker.model.job_state import JobState
from stoker.model.log_entries import Event, Opaque, Record, StopAsked, Submitted, Warned
from stoker.store import job_log
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sim_data import EPOCH, JOB

SUBMITTED = Submitted(spec_digest="d", submitter="jane")


def make_store(faults: Callable[[str, str], Fault | None] | None = None) -> MemoryStore:
    return MemoryStore(lambda: EPOCH, faults=faults)


def make_record(token: str, event: Event = SUBMITTED) -> Record:
    return Record(token=token, by="me", reason="because", event=event)


def test_one_of_two_writers_wins() -> None:
    store = make_store()
    assert job_log.append(store, JOB, 1, make_record("mine"))
    assert not job_log.append(store, JOB, 1, make_record("rival"))
    assert job_log.append(store, JOB, 1, make_record("mine")), "repeating the same record is harmless"
    assert [entry.seq for entry in job_log.entries(store, JOB)] == [1]


def test_a_write_whose_reply_was_lost_is_recognised_by_its_token() -> None:
    lost = iter([Fault(after=True)])
    store = make_store(lambda operation, key: next(lost, None) if operation == "create" else None)
    assert job_log.append(store, JOB, 1, make_record("mine"))


def test_a_write_that_did_not_happen_raises() -> None:
    store = make_store(lambda operation, key: Fault() if operation == "create" else None)
    with pytest.raises(StoreUnavailable):
        job_log.append(store, JOB, 1, make_record("mine"))


def test_a_write_that_failed_while_a_rival_won_is_the_rivals() -> None:
    store = make_store()
    job_log.append(store, JOB, 1, make_record("rival"))
    failing = store.client(lambda operation, key: Fault() if operation == "create" else None)
    assert not job_log.append(failing, JOB, 1, make_record("mine"))


class Conflicting(MemoryStore):
    """Says `exists` though nothing is there, as S3 does (409) while two writes conflict."""

    conflicts = 2

    def create(self, key: str, data: bytes) -> bool:
        if self.conflicts:
            self.conflicts -= 1
            return False
        return super().create(key, data)


def test_exists_and_yet_absent_is_put_again() -> None:
    store = Conflicting(lambda: EPOCH)
    assert job_log.append(store, JOB, 1, make_record("mine"))
    store = Conflicting(lambda: EPOCH)
    store.conflicts = 1000
    with pytest.raises(StoreUnavailable, match="keeps answering"):
        job_log.append(store, JOB, 1, make_record("mine"))


def test_after_a_lost_race_the_newest_state_decides_again() -> None:
    store = make_store()
    job_log.append(store, JOB, 1, make_record("first"))
    seen: list[int] = []

    def decide(state: JobState | None) -> tuple[Event, str] | None:
        assert state is not None
        seen.append(state.seq)
        if len(seen) == 1:
            job_log.append(store, JOB, 2, make_record("rival", Warned("w")))
        return (StopAsked("me"), "enough") if state.stop is None else None

    marked: list[int] = []
    state = job_log.append_next(store, JOB, None, decide, "me", marked.append)
    assert state is not None and state.stop is not None and state.seq == 3
    assert seen == [1, 2]
    assert marked == [2, 3], "what must be written first is written before each try"


def test_nothing_to_add_adds_nothing() -> None:
    store = make_store()
    job_log.append(store, JOB, 1, make_record("first"))
    state = job_log.append_next(store, JOB, None, lambda state: None, "me")
    assert state is not None and state.seq == 1


def test_only_the_contiguous_prefix_counts() -> None:
    store = make_store()
    job_log.append(store, JOB, 1, make_record("a"))
    job_log.append(store, JOB, 3, make_record("c", Warned("w")))
    state = job_log.read(store, JOB)
    assert state is not None and state.seq == 1
    assert job_log.read(store, "other") is None


def test_what_a_newer_stoker_wrote_is_shown_and_not_decided_on() -> None:
    store = make_store()
    job_log.append(store, JOB, 1, make_record("a"))
    store.put(keys.log_entry(JOB, 2), b'{"min_version":9,"event":{"kind":"sung"}}')
    (_, entry) = job_log.entries(store, JOB)
    assert entry.event == Opaque("sung") and entry.min_version == 9
    state = job_log.read(store, JOB)
    assert state is not None and state.min_version == 9


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"min_version":1,"event":{"kind":"sung"}}', b"\xff"])
def test_what_is_no_entry_is_an_error_of_that_job(data: bytes) -> None:
    store = make_store()
    store.put(keys.log_entry(JOB, 1), data)
    with pytest.raises(StoreError):
        job_log.read(store, JOB)
