"""When a governor writes a job's index record anew, and what it tells then."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted_cloud import ScriptedWorld

from stoker.governor import index_writer
from stoker.governor.index_writer import REFRESH_FAR_S, REFRESH_NEAR_S, IndexWriter
from stoker.governor.observe import Memory
from stoker.model import codec, keys
from stoker.model.errors import StoreDenied
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, Record, StopAsked
from stoker.model.node_facts import Exit, NodeFacts
from stoker.store import job_log
from stoker.store.job_index import IndexRecord, read_index, read_submission
from tests.support.sim_data import SPOT_A, at, make_beat, make_exit, make_facts, make_snapshot, make_spec, nodes

A = "a-aaaa"
RUNNING: tuple[Event, ...] = (Claimed(SPOT_A, 1), Launched(2, nodes(2)))


class Desk:
    """An indexer with one job, and what of it was written."""

    def __init__(self, *events: Event, is_local: bool = True) -> None:
        self.world = ScriptedWorld(is_local=is_local)
        self.world.cloud.now_s = 1000.0  # The governor's clock does not begin with it.
        self.state = self.world.submit(A, *(events or RUNNING))
        self.memory = Memory(states={A: self.state})
        self.memory.submissions[A] = read_submission(self.world.store, self.state)
        self.indexer = IndexWriter(self.world.store, self.memory, lambda: self.world.cloud.now_s)

    def update(self, *facts: NodeFacts, waiting: str = "", after_s: float = 0.0) -> bool:
        """Whether a record was written, after so many seconds."""
        self.world.cloud.now_s += after_s
        for meta in list(self.world.store.list(keys.INDEX)):
            self.world.store.delete([meta.key])
        job = make_snapshot(self.state, *facts, spec=make_spec())
        self.indexer.update(job, waiting, at(self.world.cloud.now_s))
        return bool(list(self.world.store.list(keys.INDEX)))

    def record(self) -> IndexRecord:
        found = read_index(self.world.store, A)
        assert found is not None
        return found


def beat(etag: str, phase: str = "training") -> NodeFacts:
    return make_facts(2, beat=make_beat(0, phase, etag=etag))


def test_the_first_look_is_written_and_the_same_again_is_not() -> None:
    desk = Desk()
    assert desk.update(beat("a"))
    assert not desk.update(beat("a")) and not desk.update(beat("a"), after_s=1e6)


def test_what_a_node_does_is_written_at_once() -> None:
    desk = Desk(is_local=False)
    assert desk.update(beat("a", "setup"))
    assert desk.update(beat("b", "training"))


def test_an_entry_of_the_log_is_written_at_once() -> None:
    desk = Desk(is_local=False)
    assert desk.update(beat("a"))
    assert job_log.append(desk.world.store, A, 4, Record(job_log.new_token(), "jane", "enough", StopAsked("jane")))
    desk.memory.states[A] = desk.world.state(A)
    assert desk.update(beat("a")), "what the memory knows is newer than what was observed"
    assert desk.record().state.seq == 4


@pytest.mark.parametrize(("is_local", "refresh_s"), [(True, REFRESH_NEAR_S), (False, REFRESH_FAR_S)])
def test_a_new_heartbeat_is_written_when_the_record_is_old(is_local: bool, refresh_s: float) -> None:
    desk = Desk(is_local=is_local)
    assert desk.update(beat("a"))
    assert not desk.update(beat("b"), after_s=refresh_s - 1)
    assert desk.update(beat("b"), after_s=1)
    assert not desk.update(beat("b"), after_s=1e6), "nothing was heard since"


@pytest.mark.parametrize(("is_local", "after_s"), [(True, 2.0), (False, 15.0)])
def test_passes_that_find_only_new_heartbeats_do_not_write_each_time(is_local: bool, after_s: float) -> None:
    desk = Desk(is_local=is_local)
    assert desk.update(beat("a"))
    assert not desk.update(beat("b"), after_s=after_s)


def test_of_many_jobs_on_a_bucket_each_is_written_more_rarely() -> None:
    desk = Desk(is_local=False)
    desk.memory.states |= {f"x-{number}": desk.state for number in range(99)}
    assert desk.update(beat("a"))
    assert not desk.update(beat("b"), after_s=499)
    assert desk.update(beat("b"), after_s=1)


@pytest.mark.parametrize(
    ("is_local", "after_s", "written"), [(True, 0.0, True), (False, 59.0, False), (False, 60.0, True)]
)
def test_why_a_job_waits_is_written_at_once_where_that_costs_nothing(
    is_local: bool, after_s: float, written: bool
) -> None:
    desk = Desk(is_local=is_local)
    assert desk.update(waiting="no capacity")
    assert not desk.update(waiting="no capacity", after_s=0)
    assert desk.update(waiting="no quota", after_s=after_s) is written


def test_a_job_that_has_ended_is_not_refreshed() -> None:
    desk = Desk(*RUNNING, Ended("failed", "user-error", 2, closing=Closed(2, "failed", "user-error", exit_code=1)))
    assert desk.update(beat("a"))
    assert not desk.update(beat("b"), after_s=1e6)


def test_an_exit_that_was_heard_is_written_when_the_record_is_old() -> None:
    desk = Desk()
    assert desk.update(make_facts(2, beat=make_beat(0)))
    left = make_facts(2, beat=make_beat(0), left=make_exit("succeeded"))
    assert desk.update(left, after_s=REFRESH_NEAR_S)


def test_facts_of_attempts_that_are_closed_are_read_and_those_at_hand_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = Closed(2, "reclaimed", "notice", restart=True)
    desk = Desk(*RUNNING, closed, Claimed(SPOT_A, 1), Launched(5, nodes(5)))
    node = keys.node(A, 2, 0, keys.boot("i-2-0", 0))
    desk.world.store.put(keys.heartbeat(node), codec.dumps(make_beat(0).value))
    left = Exit(outcome="interrupted", why="notice", at=at(5), trained_s=33.0)
    desk.world.store.put(keys.exit_(node), codec.dumps(left))
    read: list[int] = []
    real = index_writer.node_facts.read_claim

    def reading(store: object, job: str, claim: object) -> object:
        read.append(claim.number)  # type: ignore[attr-defined]
        return real(store, job, claim)  # type: ignore[arg-type]

    monkeypatch.setattr(index_writer.node_facts, "read_claim", reading)
    assert desk.update(make_facts(5, beat=make_beat(0, etag="e9")))
    assert read == [2]
    assert [attempt.claim for attempt in desk.record().summary.attempts] == [2, 5]
    assert desk.record().summary.attempts[0].nodes[0].phase != desk.record().summary.attempts[1].nodes[0].phase


def test_a_log_that_moved_on_while_its_record_was_written_is_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()
    write, turns = index_writer.write_index, list[int]()

    def rival(store: object, record: IndexRecord, **named: object) -> None:
        turns.append(record.state.seq)
        if len(turns) == 1:
            assert job_log.append(desk.world.store, A, 4, Record(job_log.new_token(), "b", "enough", StopAsked("jane")))
        write(store, record, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(index_writer, "write_index", rival)
    desk.update()
    assert turns == [3, 4] and desk.record().state.seq == 4


def test_a_single_pass_writes_nothing_that_the_record_before_told() -> None:
    desk = Desk()
    assert desk.update(beat("a"))
    record = desk.record()
    again = IndexWriter(desk.world.store, desk.memory, lambda: desk.world.cloud.now_s)
    desk.memory.indexed[A] = replace(record, summary=replace(record.summary, heard_at=at(1000)))
    desk.indexer = again
    waiting = record.summary.reason
    assert not desk.update(beat("b"), waiting=waiting, after_s=REFRESH_NEAR_S - 1)
    desk.indexer = IndexWriter(desk.world.store, desk.memory, lambda: desk.world.cloud.now_s)
    assert desk.update(beat("b"), waiting=waiting, after_s=1), "the record is as old as what it heard"
    desk.indexer = IndexWriter(desk.world.store, desk.memory, lambda: desk.world.cloud.now_s)
    assert desk.update(beat("b", "saving"), waiting=waiting), "a node does something else"


def test_a_record_whose_age_is_not_known_is_new() -> None:
    desk = Desk()
    desk.update(beat("a"))
    record = desk.record()
    desk.memory.indexed[A] = replace(record, summary=replace(record.summary, heard_at=None))
    desk.indexer = IndexWriter(desk.world.store, desk.memory, lambda: desk.world.cloud.now_s)
    assert not desk.update(beat("b"), waiting=record.summary.reason)
    assert desk.update(beat("b"), waiting=record.summary.reason, after_s=REFRESH_NEAR_S), "it grows old all the same"
    future = replace(record, summary=replace(record.summary, heard_at=at(1e6)))
    desk.memory.indexed[A] = future
    desk.indexer = IndexWriter(desk.world.store, desk.memory, lambda: desk.world.cloud.now_s)
    assert not desk.update(beat("b"), waiting=record.summary.reason), "a clock that is ahead makes no record old"


def test_jobs_that_are_over_are_dropped_and_a_store_that_refuses_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()
    job = make_snapshot(desk.state, beat("a"), spec=make_spec())
    desk.indexer.update_all([job], {A: "no capacity"}, at(0))
    assert desk.record().summary.reason == "no capacity" and desk.indexer._numbers == {A: 3}
    desk.memory.states.clear()
    desk.indexer.update_all([], {}, at(0))
    assert desk.indexer._numbers == {} and desk.indexer._written == {}

    def refuse(*_: object, **__: object) -> None:
        raise StoreDenied("may not write there")

    monkeypatch.setattr(index_writer, "write_index", refuse)
    desk.indexer.update_all([job], {}, at(0))
    with pytest.raises(StoreDenied):
        desk.indexer.update(job, "", at(0))


def test_the_end_of_a_job_that_was_forgotten_in_this_pass_is_written() -> None:
    desk = Desk()
    desk.memory.forget([A])
    assert desk.update(beat("a"))
