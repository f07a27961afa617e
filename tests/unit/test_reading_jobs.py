"""Readers of a store, step by step: lists with heartbeats, accounts, logs from Python, nodes that never booted."""

from __future__ import annotations

import importlib
import re
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from scripted_cloud import ScriptedWorld

from stoker.core.summary import Summary, summarize
from stoker.model import codec, keys
from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.model.log_entries import Claimed, Ended, Event, Launched
from stoker.model.node_facts import BlobRef, Heartbeat
from stoker.model.submission import Submission
from stoker.read import api, cost_records, job_list, node_chunks
from stoker.read.job_list import Filter, list_jobs
from stoker.read.log_cursor import NodeCursor
from stoker.read.logs import NodeLog
from stoker.store import job_index
from stoker.store.base import Meta
from stoker.store.find_job import ID_ALPHABET
from stoker.store.job_index import IndexRecord, write_index
from stoker.store.log_chunks import MAX_READ_BYTES, Segment, encode_segment
from stoker.testing.memory_store import MemoryStore
from tests.support.sim_data import SPOT_A, at, make_spec
from tests.support.sim_data import nodes as nodes_of

A, B = "a-aaaa", "b-bbbb"
RUNNING: tuple[Event, ...] = (Claimed(SPOT_A, 1), Launched(2, nodes_of(2)))


def indexed(world: ScriptedWorld, job: str, *events: Event, **changes: Any) -> Summary:
    """A job with a record in the index."""
    state = world.submit(job, *events)
    summary = replace(summarize(state, Submission(job, make_spec(), "jane"), {}, at(0)), **changes)
    write_index(world.store, IndexRecord(state, summary))
    return summary


class Later(datetime):
    """The computer's clock, an hour after the beginning."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return at(3600)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ScriptedWorld:
    monkeypatch.setattr(job_list, "datetime", Later)
    return ScriptedWorld(is_local=False)


def beat(world: ScriptedWorld, job: str, at_s: float, **fields: Any) -> None:
    world.cloud.now_s = at_s
    told = Heartbeat(beat=1, phase="training", at=at(at_s), interval_s=10.0, **fields)
    world.store.put(keys.heartbeat(keys.node(job, 2, 0, keys.boot("i-2-0", 0))), codec.dumps(told))


# ── Lists ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_old_record_of_a_running_job_is_made_new_from_its_heartbeat(world: ScriptedWorld) -> None:
    indexed(world, A, *RUNNING, heard_at=at(100), trained_s=50.0, step=7, metrics={"loss": 2.0, "lr": 0.1})
    beat(world, A, 3000, trained_s=80.0, step=9, metrics={"loss": 1.0})
    (found,) = list_jobs(world.store).summaries
    assert (found.heard_at, found.step, found.trained_s) == (at(3000), 9, 130.0)
    assert found.metrics == {"loss": 1.0, "lr": 0.1}


def test_of_several_nodes_the_one_that_got_furthest_counts(world: ScriptedWorld) -> None:
    two = (Claimed(SPOT_A, 2), Launched(2, nodes_of(2, 2)))
    indexed(world, A, *two, heard_at=at(100), trained_s=50.0)
    for rank, (trained_s, step) in enumerate([(30.0, 5), (70.0, 8)]):
        world.cloud.now_s = 3000.0 + rank
        told = Heartbeat(beat=1, phase="training", at=at(1), interval_s=10.0, trained_s=trained_s, step=step)
        node = keys.node(A, 2, rank, keys.boot(f"i-2-{rank}", 0))
        world.store.put(keys.heartbeat(node), codec.dumps(told))
    (found,) = list_jobs(world.store).summaries
    assert (found.heard_at, found.step, found.trained_s) == (at(3001), 8, 120.0)


def test_an_older_heartbeat_or_none_changes_nothing(world: ScriptedWorld) -> None:
    before = indexed(world, A, *RUNNING, heard_at=at(100), step=7)
    assert list_jobs(world.store).summaries == (before,)
    beat(world, A, 100, step=9)
    assert list_jobs(world.store).summaries == (before,), "it is what the record knows"


def test_the_step_is_the_newest_and_training_never_shrinks(world: ScriptedWorld) -> None:
    """A script that resumed is behind the attempt before, and its metrics are those of its own step."""
    indexed(world, A, *RUNNING, heard_at=at(100), trained_s=50.0, step=7)
    beat(world, A, 3000, trained_s=0.0, step=3)
    (found,) = list_jobs(world.store).summaries
    assert (found.step, found.trained_s) == (3, 50.0)
    beat(world, A, 3001)
    assert list_jobs(world.store).summaries[0].step == 7, "nothing newer is known"


@pytest.mark.parametrize(
    ("changes", "is_local"),
    [
        ({"heard_at": at(3541)}, False),
        ({"heard_at": None}, False),
        ({"heard_at": at(100), "ended_at": at(200)}, False),
        ({"heard_at": at(100), "attempts": ()}, False),
        ({"heard_at": at(100)}, True),
    ],
)
def test_heartbeats_are_read_only_where_a_record_is_old_and_the_store_far(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], is_local: bool
) -> None:
    if is_local:
        world.store = MemoryStore(lambda: at(world.cloud.now_s), is_local=True)
    before = indexed(world, A, *RUNNING, **changes)
    beat(world, A, 3550, step=9)
    monkeypatch.setattr(job_list.node_facts, "read_node", lambda *_: pytest.fail("it is fresh enough"))
    assert list_jobs(world.store).summaries == (before,)


def test_of_many_running_jobs_no_heartbeats_are_read(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_list, "_MOST_HEARD", 1)
    for job in (A, B):
        indexed(world, job, *RUNNING, heard_at=at(100))
    monkeypatch.setattr(job_list.node_facts, "read_node", lambda *_: pytest.fail("there are too many"))
    assert len(list_jobs(world.store).summaries) == 2


@pytest.mark.parametrize(
    ("recent", "wanted", "found", "reads"),
    [
        (3, Filter(), [9, 8, 7], 3),
        (3, Filter(tags=("even",)), [8, 6, 4], 6),
        (2, Filter(tags=("even",)), [8, 6], 4),
        (9, Filter(tags=("even",)), [8, 6, 4, 2, 0], 10),
        (None, Filter(tags=("even",)), [8, 6, 4, 2, 0], 10),
        (0, Filter(), [], 0),
        (None, Filter(names=("j1-*",)), [1], 1),
    ],
)
def test_of_ended_jobs_as_many_are_read_as_are_wanted(
    world: ScriptedWorld,
    monkeypatch: pytest.MonkeyPatch,
    recent: int | None,
    wanted: Filter,
    found: list[int],
    reads: int,
) -> None:
    monkeypatch.setattr(job_list, "_PORTION", 2)
    for n in range(10):
        world.cloud.now_s = float(n)
        tags = {"even": "1"} if n % 2 == 0 else {}
        indexed(world, f"j{n}-aaaa", Ended("failed", "x", None), tags=tags, submitted_at=at(n))
        world.store.delete([keys.active(f"j{n}-aaaa", 1)])
    read: list[str] = []
    whole = job_index.read_summary
    monkeypatch.setattr(job_index, "read_summary", lambda store, job, meta: read.append(job) or whole(store, job, meta))
    listed = list_jobs(world.store, recent, wanted)
    assert [each.id for each in listed.summaries] == [f"j{n}-aaaa" for n in found]
    assert len(read) == reads


def test_a_job_that_is_not_indexed_yet_is_read_from_its_log(world: ScriptedWorld) -> None:
    world.submit(A)
    world.store.put(keys.active(B, 1), b"")
    found = list_jobs(world.store)
    assert [each.id for each in found.summaries] == [A] and found.unreadable == {} and found.active == {A, B}


def test_a_job_that_makes_no_sense_is_told_and_hides_no_other(world: ScriptedWorld) -> None:
    world.submit(A)
    world.submit(B)
    world.store.put(keys.spec(A), b"{}")
    found = list_jobs(world.store)
    assert [each.id for each in found.summaries] == [B] and found.unreadable.keys() == {A}


@pytest.mark.parametrize("error", [StoreUnavailable("did not answer"), StoreDenied("not yours")])
def test_a_store_that_does_not_answer_is_no_list(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    def fail(*_: object) -> None:
        raise error

    world.submit(A)
    monkeypatch.setattr(job_list.job_log, "read", fail)
    with pytest.raises(type(error)):
        list_jobs(world.store)


def summary(**changes: Any) -> Summary:
    world = ScriptedWorld()
    return replace(indexed(world, A), **changes)


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (Filter(), True),
        (Filter(phases=("queued",)), True),
        (Filter(phases=("failed",)), False),
        (Filter(names=("sim",)), True),
        (Filter(names=("a-*",)), True),
        (Filter(names=("other", "s?m")), True),
        (Filter(names=("other",)), False),
        (Filter(tags=("team",)), True),
        (Filter(tags=("team=n*",)), True),
        (Filter(tags=("team=n*", "owner")), False),
        (Filter(tags=("team=",)), False),
        (Filter(tags=("owner",)), False),
        (Filter(phases=("queued",), names=("other",)), False),
    ],
)
def test_a_job_fits_where_every_part_does(wanted: Filter, fits: bool) -> None:
    assert wanted.fits(summary(tags={"team": "nlp"})) is fits


def test_a_part_that_no_job_can_fit_is_refused() -> None:
    Filter(phases=("queued", "failed"), tags=("team=nlp", "team")).check()
    with pytest.raises(UserError, match=r"^phase faild: there is no such phase; did you mean failed\?"):
        Filter(phases=("faild",)).check()
    with pytest.raises(UserError, match="there is no such phase; choose one of"):
        Filter(phases=("xyzzy",)).check()
    with pytest.raises(UserError, match=r"^tag =nlp"):
        Filter(tags=("=nlp",)).check()


def test_tags_are_told_once_each() -> None:
    told = [summary(tags={"team": "nlp"}), summary(tags={"team": "nlp", "a": "b"})]
    assert job_list.tags_of(told) == ["a=b", "team=nlp"]


# ── Accounts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_accounts_are_of_jobs_that_may_have_cost_something_since(world: ScriptedWorld) -> None:
    ended = Ended("failed", "user-error", None)
    indexed(world, "old-aaaa", ended)
    indexed(world, "on-aaaa")
    world.cloud.now_s = 1000.0
    indexed(world, "new-aaaa", ended)
    world.submit("raw-aaaa")
    for job in ("old-aaaa", "new-aaaa"):
        world.store.delete([keys.active(job, 1)])

    def found(since: datetime | None) -> list[str]:
        return [record.state.job for record in cost_records.read_accounts(world.store, at(2000), since).records]

    assert found(None) == ["new-aaaa", "old-aaaa", "on-aaaa", "raw-aaaa"]
    assert found(at(1000)) == ["new-aaaa", "on-aaaa", "raw-aaaa"]
    assert found(at(1001)) == ["on-aaaa", "raw-aaaa"]


def test_accounts_name_what_makes_no_sense_and_leave_out_what_is_not_there(world: ScriptedWorld) -> None:
    world.submit(A)
    world.store.put(keys.spec(A), b"{}")
    world.store.put(keys.active(B, 1), b"")
    found = cost_records.read_accounts(world.store, at(0))
    assert (found.records, found.unreadable) == ((), (A,))


def test_accounts_of_a_store_that_does_not_answer_are_none(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("did not answer")

    world.submit(A)
    monkeypatch.setattr(job_index, "read_index", away)
    with pytest.raises(StoreUnavailable):
        cost_records.read_accounts(world.store, at(0))


@pytest.mark.parametrize(
    ("first", "last", "months"),
    [
        ("2026-01-31", "2026-03-01", 3),
        ("2026-12-31", "2027-01-01", 2),
        ("2026-05-01", "2026-05-01", 1),
        ("2026-05-02", "2026-05-01", 1),
        ("2026-06-01", "2026-05-01", 0),
    ],
)
def test_every_month_is_read_once(first: str, last: str, months: int) -> None:
    days = [datetime.fromisoformat(day).date() for day in (first, last)]
    found = cost_records._months(*days)
    assert len(found) == len(set(found)) == months


# ── Logs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

NODE = NodeLog(attempt=1, claim=2, rank=0, instance="i-2-0")
FOLDER = keys.node(A, 2, 0, keys.boot("i-2-0", 0))


def say(world: ScriptedWorld, text: bytes, chunk: int = 0) -> None:
    data = encode_segment(Segment(1000, 0, text))
    world.store.put(f"{FOLDER}/log/{chunk:08d}/{len(data):010d}", data)


def test_following_from_python_ends_with_the_job(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    state = world.submit(A, *RUNNING)
    watch = api._watching(world.store, A, None, None)
    assert watch() == (api.node_logs(state, None, None), False)
    assert len(watch()[0]) == 1
    world.store.delete([meta.key for meta in world.store.list(keys.log_prefix(A))])
    monkeypatch.setattr(api.job_log, "read", lambda *_: None)
    assert watch() == ([], True), "it was removed meanwhile"


def test_a_job_that_has_ended_is_not_watched_any_longer(world: ScriptedWorld) -> None:
    world.submit(A, *RUNNING, Ended("stopped", "asked", None))
    assert api._watching(world.store, A, None, None)()[1] is True
    assert api._watching(world.store, A, 3, None)()[0] == [], "of one node alone"


def test_logs_follow_only_where_that_is_asked_for(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.submit(A, *RUNNING)
    called: list[tuple[str, Any]] = []
    monkeypatch.setattr(api, "follow", lambda *_, tail: called.append(("follow", tail)) or iter(()))
    monkeypatch.setattr(api, "read_tail", lambda *given: called.append(("tail", given[3])) or [])
    monkeypatch.setattr(api, "read_lines", lambda *_: called.append(("all", None)) or iter(()))
    api.logs(A, store=world.store)
    api.logs(A, tail=5, store=world.store)
    api.logs(A, tail=0, store=world.store)
    api.logs(A, tail=5, following=True, store=world.store)
    assert called == [("all", None), ("tail", 5), ("tail", 0), ("follow", 5)]


def test_a_job_without_a_log_is_told_how_to_be_cleared(world: ScriptedWorld) -> None:
    with pytest.raises(UserError, match="`stoker rm never-aaaa` removes the rest"):
        api._state(world.store, "never-aaaa")


def test_a_single_text_is_one_and_not_its_letters() -> None:
    assert api._words("abc") == ("abc",) and api._words(["a", "b"]) == ("a", "b")


class Counting:
    """A store that counts its calls."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        self.heads: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def head(self, key: str) -> Meta | None:
        self.heads.append(key)
        return self._inner.head(key)


def test_what_a_machine_said_that_never_had_an_agent_is_told_once(world: ScriptedWorld) -> None:
    world.store.put(keys.boot_output(FOLDER), b"no space left\n\nshutting down  \n")
    cursor = NodeCursor(world.store, A, NODE)  # type: ignore[arg-type]
    told = [line.text for line in cursor.lines()]
    assert [text.removeprefix(node_chunks.BOOT) for text in told] == ["no space left", "shutting down"]
    assert list(cursor.lines()) == []


def test_a_machine_with_an_agent_is_asked_for_its_boot_once(world: ScriptedWorld) -> None:
    beat(world, A, 5)
    store = Counting(world.store)
    cursor = NodeCursor(store, A, NODE)  # type: ignore[arg-type]
    for _ in range(3):
        assert list(cursor.lines()) == []
    assert [key for key in store.heads if key == keys.heartbeat(FOLDER)] == [keys.heartbeat(FOLDER)]
    world.store.put(keys.boot_output(FOLDER), b"late\n")
    assert list(cursor.lines()) == [], "an agent's log is the machine's word"


def test_only_the_end_of_what_a_boot_said_is_read(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_chunks, "_MOST_BOOT_BYTES", 6)
    assert node_chunks.boot_lines(world.store, FOLDER) is None
    world.cloud.now_s = 7.0
    world.store.put(keys.boot_output(FOLDER), b"first\nlast\n")
    found = node_chunks.boot_lines(world.store, FOLDER)
    assert found == (at(7).timestamp(), [f"{node_chunks.BOOT}last"])


@pytest.mark.parametrize("is_local", [True, False])
def test_chunks_come_in_order_and_those_that_are_gone_are_left_out(is_local: bool) -> None:
    world = ScriptedWorld(is_local=is_local)
    rows = []
    for number in range(12):
        key = f"p/log/{number:08d}/{number + 1:010d}"
        world.store.put(key, b"x" * (number + 1))
        meta = world.store.head(key)
        assert meta is not None
        rows.append((number, meta))
    world.store.delete([rows[5][1].key])
    huge = replace(rows[7][1], size=MAX_READ_BYTES + 1)
    rows[7] = (7, huge)
    found = list(node_chunks.fetch_chunks(world.store, rows))
    assert [chunk.n for chunk in found] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert next(chunk for chunk in found if chunk.n == 7).data is None, "too large to be read"
    assert [len(chunk.data) for chunk in found if chunk.data is not None] == [1, 2, 3, 4, 5, 7, 9, 10, 11, 12]


def test_chunks_of_a_near_store_are_read_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()

    def fetch(*_: object) -> None:
        threads.add(threading.get_ident())

    monkeypatch.setattr(node_chunks, "_fetch", fetch)
    for is_local, count, own in ((True, 5, True), (False, 2, True), (False, 3, False)):
        threads.clear()
        store = ScriptedWorld(is_local=is_local).store
        assert list(node_chunks.fetch_chunks(store, [(number, None) for number in range(count)])) == []  # type: ignore[misc]
        assert (threads == {threading.get_ident()}) is own


def test_a_chunk_that_grew_since_it_was_listed_is_read_under_its_new_name(world: ScriptedWorld) -> None:
    say(world, b"one\n")
    (old,) = list(world.store.list(f"{FOLDER}/log/"))
    world.store.delete([old.key])
    say(world, b"one and two\n")
    (chunk,) = node_chunks.fetch_chunks(world.store, [(0, old)])
    (new,) = list(world.store.list(f"{FOLDER}/log/"))
    assert chunk.data == world.store.get_from(new.key, 0) and b"one and two" in chunk.data


def test_pulled_files_are_in_a_folder_of_the_jobs_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.read.pull_folder import pull_folder

    monkeypatch.chdir(tmp_path)
    with pull_folder(A, None) as target:
        assert target.name == A
    with pull_folder(A, tmp_path / "there") as target:
        assert target == tmp_path / "there"


def test_a_folder_that_cannot_be_pulled_into_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.read.pull_folder import pull_folder

    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    Path(A).symlink_to(tmp_path)
    for named, why in (("file", "^file: is a file; "), ("", "an empty name"), (None, f"^{A}: is a link; ")):
        with pytest.raises(UserError, match=why), pull_folder(A, named):
            pytest.fail("nothing is pulled")
    with pull_folder(A, A):
        pass  # A link that is named is meant.
    full = r"^there: cannot be written: No space left on device; name another folder$"
    with pytest.raises(UserError, match=full), pull_folder(A, "there"):
        raise OSError(28, "No space left on device")
    # Who no longer reads the messages is no fault of the folder.
    with pytest.raises(BrokenPipeError), pull_folder(A, "there"):
        raise BrokenPipeError(32, "Broken pipe")


def test_how_much_of_a_checkpoint_was_fetched_is_told_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package has a function of that name.
    checkpoints = importlib.import_module("stoker.store.checkpoints")
    blobs = [BlobRef(path=name, digest="0" * 64, size=size) for name, size in (("a", 10), ("b", 30))]
    monkeypatch.setattr(checkpoints, "_fetch_verified_blob", lambda *_: None)
    monkeypatch.setattr(checkpoints, "_place_all", lambda *_: None)
    monkeypatch.setattr(checkpoints, "_read_links", lambda *_: {})
    monkeypatch.setattr(checkpoints, "run_all", lambda calls, _workers: [call() for call in calls])
    told: list[tuple[int, int]] = []
    parts = [checkpoints.CheckpointFile(0, blob) for blob in blobs]
    checkpoints.fetch_files(ScriptedWorld().store, A, parts, tmp_path, lambda *given: told.append(given))
    assert told == [(10, 40), (40, 40)]


def test_ids_are_typed_easily() -> None:
    """Without capitals, vowels that make words, and characters that look alike."""
    assert re.fullmatch("[b-df-hj-km-np-tv-z2-9]{28}", ID_ALPHABET)
