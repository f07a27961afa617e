"""Create-if-absent under races and lost replies: logs, families, policies, outboxes and index records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from stoker.core.place_capacity import place_in_queue
from stoker.core.summary import summarize
from stoker.external_jobs import chain_log
from stoker.external_jobs.clone_chain import ChainRecord, JobSeen, StopCancelled
from stoker.model import codec, keys
from stoker.model.errors import SpecError, StoreDenied, StoreError, StoreUnavailable
from stoker.model.log_entries import Ended, Record, ResumeAsked, StopAsked, Submitted
from stoker.model.submission import Submission
from stoker.notifications import outbox_store
from stoker.notifications.outbox import Outbox
from stoker.notifications.outbox_store import OutboxStore, has_unsent_events
from stoker.policy import versions
from stoker.store import job_index, job_log
from stoker.store.base import Meta
from stoker.store.job_index import IndexRecord, read_index, read_summary, write_index
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sim_data import JOB, at, make_spec, make_state

OPENED = Submitted(spec_digest="d", submitter="jane")


def make_store(faults: Callable[[str, str], Fault | None] | None = None) -> MemoryStore:
    return MemoryStore(lambda: at(0), faults=faults)


def lost(operation: str, *faults: Fault | None) -> Callable[[str, str], Fault | None]:
    """These faults at the first calls of an operation."""
    left = iter(faults)
    return lambda name, _key: next(left, None) if name == operation else None


class Denying(MemoryStore):
    """Says `exists` for good though nothing is there."""

    def create(self, key: str, data: bytes) -> bool:
        return False


# ── Logs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_first_entry_that_opens_no_job_is_told_and_not_looped_on() -> None:
    store = make_store()
    # Written by something that is no submitter: whoever reads the log finds no job.
    store.put(keys.log_entry(JOB, 1), codec.dumps(Record("t", "x", "odd", StopAsked("jane"))))
    asked: list[object] = []

    def decide(state: object) -> tuple[Submitted, str]:
        asked.append(state)
        assert len(asked) < 3, "it asks again for ever"
        return OPENED, "asked for"

    with pytest.raises(StoreError, match="does not open a job"):
        job_log.append_next(store, JOB, None, decide, "me")


def test_a_first_entry_that_was_lost_to_a_rival_is_read() -> None:
    store = make_store()
    turns: list[int | None] = []

    def decide(state: Any) -> Any:
        turns.append(state.seq if state else None)
        if len(turns) == 1:
            assert job_log.append(store, JOB, 1, Record("rival", "rival", "first", OPENED))
        return None if len(turns) == 3 else (OPENED if state is None else StopAsked("me"), "because")

    before: list[int] = []
    found = job_log.append_next(store, JOB, None, decide, "me", before.append, policy="p")
    assert found is not None and found.seq == 2 and turns == [None, 1] and before == [1, 2]
    entry = list(job_log.entries(store, JOB))[1]
    assert (entry.by, entry.reason, entry.policy) == ("me", "because", "p")


def test_a_store_that_contradicts_itself_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="keeps answering"):
        job_log.append(Denying(lambda: at(0)), JOB, 1, Record("t", "me", "x", OPENED))


def test_an_entry_that_no_reader_would_take_is_not_written() -> None:
    store = make_store()
    with pytest.raises(StoreError, match="too large to be written"):
        job_log.append(store, JOB, 1, Record("t", "x" * job_log.MAX_ENTRY_BYTES, "x", OPENED))
    assert job_log.append(store, JOB, 1, Record("t", "me", "x" * 10_000, OPENED))
    assert len(next(iter(job_log.entries(store, JOB))).reason) == job_log.MAX_REASON_CHARS


def test_a_removed_job_is_read_only_by_those_who_carry_on() -> None:
    store = make_store()
    job_log.append(store, JOB, 1, Record("t", "me", "x", OPENED))
    state = job_log.read(store, JOB)
    assert state is not None
    store.create(keys.removed(JOB), b"")
    assert job_log.read(store, JOB) is None and job_log.read(store, JOB, state) == state
    assert job_log.is_removed(store, JOB) and job_log.removed_jobs(store) == {JOB}


def test_a_job_that_was_resumed_is_as_young_as_its_resumption() -> None:
    first = make_state(job="old")
    resumed = make_state(Ended("stopped", "asked", None), (ResumeAsked("jane"), 500.0), job="resumed")
    assert place_in_queue(first) == (at(0), "old") and place_in_queue(resumed) == (at(500), "resumed")
    assert place_in_queue(replace(first, opened_at=None)) == (at(0), "old")


# ── Families of external jobs ─────────────────────────────────────────────────────────────────────────────────────────

MINE = ChainRecord("mine", "me", "because", JobSeen("bert", True))


def append(store: MemoryStore, record: ChainRecord = MINE, seq: int = 1) -> bool:
    return chain_log.append(store, "r", "bert", seq, record)


def test_one_of_two_governors_writes_an_entry_and_repeating_is_harmless() -> None:
    store = make_store()
    assert append(store) and append(store)
    assert not append(store, replace(MINE, token="rival"))
    assert append(store, replace(MINE, token="next", event=StopCancelled("bert")), 2)
    assert [entry.seq for entry in chain_log.entries(store, "r", "bert")] == [1, 2]
    assert chain_log.read(store, "r", "bert").seq == 2


def test_a_lost_reply_is_recognised_by_its_token() -> None:
    assert append(make_store(lost("create", Fault(after=True))))
    with pytest.raises(StoreUnavailable):
        append(make_store(lost("create", Fault())))
    store = make_store()
    append(store, replace(MINE, token="rival"))
    assert not append(store.client(lost("create", Fault())))


def test_a_store_that_contradicts_itself_about_a_family_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="keeps answering"):
        append(Denying(lambda: at(0)))


@pytest.mark.parametrize("data", [b"[]", b"no json", b'{"token": 5}', b"{}"])
def test_what_is_no_entry_is_not_mine_and_ends_the_reading(data: bytes) -> None:
    store = make_store()
    store.put(keys.clone_chain_entry("r", "bert", 1), data)
    assert not append(store)
    with pytest.raises(StoreError, match="update this one"):
        chain_log.read(store, "r", "bert")


def test_a_long_reason_is_cut_and_families_are_found_by_name() -> None:
    store = make_store()
    append(store, replace(MINE, reason="x" * 5000))
    assert len(next(chain_log.entries(store, "r", "bert")).record.reason) == 2000
    assert chain_log.find(store, "bert") == [("r", "bert")] and chain_log.find(store, "other") == []


# ── Policies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_policy_that_cannot_be_written_is_told_after_some_tries() -> None:
    store = make_store(lambda operation, _key: Fault() if operation == "create" else None)
    with pytest.raises(StoreUnavailable, match="could not be written"):
        versions.write(store, "rules: []", "jane")


def test_the_same_text_is_no_new_version_and_a_mistake_is_none() -> None:
    store = make_store()
    kept = versions.write(store, "rules: []", "jane", "first")
    assert (kept.version, kept.written.author, kept.written.note) == (1, "jane", "first")
    with pytest.raises(versions.Unchanged, match="as version 1, by jane"):
        versions.write(store, "rules: []", "joe")
    with pytest.raises(SpecError):
        versions.write(store, "rules: [{none_such: 1}]", "joe")
    assert versions.newest(store) == 1 and versions.current(store) == kept
    assert versions.write(store, "rules: [{max_nodes: 4}]", "joe").version == 2
    assert [each.version for each in versions.history(store)] == [1, 2]


def test_a_version_that_cannot_be_read_is_followed_by_another() -> None:
    store = make_store()
    store.put(keys.rules(1), b"{}")
    with pytest.raises(StoreError):
        versions.current(store)
    assert versions.write(store, "rules: []", "jane").version == 2


def test_keys_that_are_no_versions_do_not_count() -> None:
    store = make_store()
    store.put(f"{keys.RULES}odd.json", b"{}")
    assert versions.newest(store) == 0 and versions.current(store) is None


# ── Outboxes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def box(problem: str = "") -> Outbox:
    return Outbox(name="chat", to="json://chat", problem=problem)


def test_a_change_is_asked_for_again_after_a_lost_race() -> None:
    store = make_store()
    mine, rival = OutboxStore(store), OutboxStore(store)
    rival.change("c", lambda _: box("rival's"), at(0))
    seen: list[Outbox | None] = []

    def change(known: Outbox | None) -> Outbox:
        seen.append(known)
        return box("mine")

    assert mine.change("c", change, at(0)) == box("mine")
    assert seen == [None, box("rival's")], "the second time it knows what the rival wrote"
    rival.refresh()
    assert rival.get("c") == box("mine") and rival.all() == {"c": box("mine")}


def test_nothing_to_change_writes_nothing() -> None:
    store = make_store()
    mine = OutboxStore(store)
    assert mine.change("c", lambda _: None, at(0)) is None
    mine.change("c", lambda _: box(), at(0))
    assert mine.change("c", lambda known: known, at(0)) == box()
    assert len(list(store.list(keys.OUTBOX))) == 1


def test_a_lost_reply_is_looked_into_and_asked_again() -> None:
    store = make_store()
    mine = OutboxStore(store.client(lost("create", Fault(after=True))))
    assert mine.change("c", lambda known: box("a") if known is None else known, at(0)) == box("a")
    away = OutboxStore(store.client(lost("create", Fault())))
    with pytest.raises(StoreUnavailable):
        away.change("d", lambda _: box(), at(0))


def test_others_that_write_all_the_time_are_told() -> None:
    with pytest.raises(StoreUnavailable, match="others write all the time"):
        OutboxStore(Denying(lambda: at(0))).change("c", lambda _: box("x"), at(0))


def test_a_channel_of_a_newer_stoker_is_left_to_it() -> None:
    store = make_store()
    store.put(keys.outbox("c", 3), b'{"strange": 1}')
    mine = OutboxStore(store)
    mine.refresh()
    assert mine.get("c") is None and not mine.readable("c") and mine.all() == {}
    assert mine.readable("other")
    assert mine.change("c", lambda _: pytest.fail("it cannot be read"), at(0)) is None
    store.delete([keys.outbox("c", 3)])
    mine.refresh()
    assert mine.readable("c"), "it is gone, and may be begun anew"


def test_something_waits_where_a_channel_has_something_to_send() -> None:
    store = make_store()
    assert not has_unsent_events(store)
    OutboxStore(store).change("c", lambda _: box(), at(0))
    assert not has_unsent_events(store)
    OutboxStore(store).change("d", lambda _: replace(box(), more={"failed": 2}), at(0))
    assert has_unsent_events(store)


def kept_after(ages_s: list[float], monkeypatch: pytest.MonkeyPatch, many: int = 50) -> int:
    """How many states are left of those that were so old when a new one was written."""
    now = [0.0]
    store = MemoryStore(lambda: at(now[0]))
    monkeypatch.setattr(outbox_store, "_MANY", many)
    for number, age_s in enumerate(ages_s, start=1):
        now[0] = 10_000 - age_s
        store.put(keys.outbox("c", number), codec.dumps(box(str(number))))
    now[0] = 10_000.0
    mine = OutboxStore(store)
    mine.refresh()
    mine.change("c", lambda _: box("new"), at(now[0]))
    return len(list(store.list(keys.OUTBOX))) - 1


def test_old_states_are_removed_and_of_many_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept_after([601, 600, 5], monkeypatch) == 2
    assert kept_after([181, 180, 179], monkeypatch, many=1) == 2, "of two too many, those over three minutes"
    assert kept_after([181, 181, 181], monkeypatch, many=1) == 1


def test_channels_that_nobody_names_are_forgotten() -> None:
    store = make_store()
    mine = OutboxStore(store)
    for channel, own in (("job", True), ("policy", False), ("named", False)):
        mine.change(channel, lambda _, own=own: replace(box(), named_by_jobs=own), at(0))  # type: ignore[misc]
    day, week = timedelta(days=1), timedelta(days=7)

    def channels(after: timedelta) -> set[str]:
        mine.refresh()
        mine.forget({"named"}, at(0) + after)
        return set(store.folders(keys.OUTBOX))

    assert channels(day) == {"job", "policy", "named"}
    assert channels(day + timedelta(seconds=1)) == {"policy", "named"}
    assert channels(week) == {"policy", "named"}
    assert channels(week + timedelta(seconds=1)) == {"named"}


def test_a_role_that_may_delete_nothing_tells_all_the_same() -> None:
    store = make_store()
    OutboxStore(store).change("c", lambda _: box(), at(0))
    refusing = store.client(lambda operation, _key: Fault(error=StoreDenied("no")) if operation == "delete" else None)
    mine = OutboxStore(refusing)
    mine.refresh()
    mine.forget(set(), at(1e9))
    assert mine.all() == {}


# ── Index records ─────────────────────────────────────────────────────────────────────────────────────────────────────


def record(seq: int = 1) -> IndexRecord:
    state = replace(make_state(), seq=seq)
    return IndexRecord(state, summarize(state, Submission(JOB, make_spec(), "jane"), {}, at(0)))


def test_the_record_with_the_highest_number_counts_and_lower_ones_go() -> None:
    store = make_store()
    write_index(store, record(2))
    write_index(store, record(10))
    store.put(keys.index(JOB, 3), codec.dumps(record(3)))
    found = read_index(store, JOB)
    assert found is not None and found.state.seq == 10
    assert read_summary(store, JOB) == found.summary
    write_index(store, record(10))
    assert [meta.key for meta in store.list(keys.INDEX)] == [keys.index(JOB, 10)]
    write_index(store, record(4))
    assert [meta.key for meta in store.list(keys.INDEX)] == [keys.index(JOB, 10)], "a rival's is higher"


def test_none_is_looked_for_where_the_number_has_not_changed() -> None:
    lists: list[str] = []
    store = make_store(lambda operation, key: lists.append(key) if operation == "list" else None)  # type: ignore[func-returns-value]
    write_index(store, record(2), written=2)
    assert lists == []
    write_index(store, record(3), written=2)
    assert len(lists) == 1


def test_records_of_removed_jobs_and_of_other_jobs_do_not_count() -> None:
    store = make_store()
    assert read_index(store, JOB) is None and read_summary(store, JOB) is None
    store.put(keys.index("another", 1), codec.dumps(record()))
    assert read_index(store, "another") is None, "it is of a job with another id"
    write_index(store, record())
    assert [job_index.job_of(meta) for meta in job_index.list_index(store)] == ["another", JOB]
    store.create(keys.removed(JOB), b"")
    assert read_index(store, JOB) is None and read_summary(store, JOB) is None
    assert [job_index.job_of(meta) for meta in job_index.list_index(store)] == ["another"]
    assert job_index.delete_index(store, JOB) == 1 and job_index.delete_index(store, JOB) == 0


@pytest.mark.parametrize("data", [b"no json", b"[]", b"{}", b'{"summary": 5}'])
def test_a_record_that_makes_no_sense_is_none(data: bytes) -> None:
    store = make_store()
    store.put(keys.index(JOB, 1), data)
    assert read_index(store, JOB) is None and read_summary(store, JOB) is None


def test_a_record_that_was_replaced_since_it_was_listed_is_looked_for_again() -> None:
    store = make_store()
    write_index(store, record(1))
    (listed,) = job_index.list_index(store)
    assert read_index(store, JOB, listed) is not None
    write_index(store, record(2))
    found = read_index(store, JOB, listed)
    assert found is not None and found.state.seq == 2


def test_a_record_that_is_replaced_all_the_time_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store()
    write_index(store, record(1))
    gets: list[str] = []

    def vanish(key: str, **_: object) -> None:
        gets.append(key)

    monkeypatch.setattr(store, "get", vanish)
    assert read_index(store, JOB) is None and len(gets) == job_index._TRIES


def test_keys_that_are_no_numbers_are_below_all() -> None:
    def meta(name: str) -> Meta:
        return Meta(f"{keys.INDEX}{JOB}/{name}", 1, at(0), "")

    assert job_index._number(meta("00000012.json")) == 12
    for odd in ("12.json", "0000001x.json", "odd", "00000\u0661\u0662\u0663.json"):
        assert job_index._number(meta(odd)) == -1
