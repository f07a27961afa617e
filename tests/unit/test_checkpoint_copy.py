"""`checkpoints.copy_to`: what is at the URL after each copy, what is never touched, and how half a copy is marked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from checkpoint_world import JOB, World, checkpoints, memory_store

from stoker.agent.checkpoints.copy_thread import CheckpointCopies, CopySource
from stoker.agent.checkpoints.plain_copy import CopyTaken, PlainCopy
from stoker.agent.checkpoints.resume_from import FromFolder, FromUrl, import_checkpoint
from stoker.model import codec, keys
from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.model.node_facts import CheckpointRef
from stoker.store import checkpoint_copy
from stoker.store.base import RECORD_BYTES, open_store
from stoker.store.checkpoint_copy import RECORD, CopiedFile, CopyRecord, claim, list_files, read_record, write_record
from stoker.store.checkpoint_manifests import TRUST_ALL
from stoker.store.checkpoints import Checkpoint, list_checkpoints
from stoker.testing.memory_store import Fault, MemoryStore

NOON = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)


@pytest.fixture
def memory() -> MemoryStore:
    return memory_store()


@pytest.fixture
def target() -> MemoryStore:
    return MemoryStore(lambda: datetime.now(timezone.utc), url="memory://copies")


@pytest.fixture
def world(tmp_path: Path, memory: MemoryStore) -> World:
    return World(tmp_path, memory, keep=100).begin()


def commit(world: World, files: dict[str, str]) -> Checkpoint:
    """Commit these files as one save of this name."""
    world.save("save", files)
    world.tick()
    return checkpoints(world.store)[-1]


def copier(tmp_path: Path, memory: MemoryStore, target: MemoryStore, job: str = JOB, hours: int = 0) -> PlainCopy:
    own = CopyRecord(job, memory.url, NOON + timedelta(hours=hours))
    return PlainCopy(memory, target, own, tmp_path)


def contents(target: MemoryStore) -> dict[str, str]:
    return {path: _read(target, path) for path in list_files(target)}


def _read(target: MemoryStore, path: str) -> str:
    found = target.get(path)
    assert found is not None
    return found.data.decode()


# ── Files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_newest_checkpoint_is_there_as_plain_files(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    copy = copier(tmp_path, memory, target)
    copy.copy(commit(world, {"a": "1", "b": "2"}))
    assert contents(target) == {"save/.stoker-checkpoint.json": _read(target, "save/.stoker-checkpoint.json")} | {
        "save/a": "1",
        "save/b": "2",
    }
    newest = commit(world, {"b": "3", "c": "4"})
    copy.copy(newest)
    assert {path: text for path, text in contents(target).items() if len(path) == 6} == {"save/b": "3", "save/c": "4"}
    record = read_record(target)
    assert record is not None
    assert record.complete
    assert record.checkpoint == f"{JOB}/{newest.key}"
    assert record.matches(list_files(target))


def test_files_of_others_are_never_deleted(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    target.put("notes.txt", b"mine")
    target.put("save/a", b"of another program")
    copy = copier(tmp_path, memory, target)
    copy.copy(commit(world, {"a": "1", "b": "2"}))
    assert contents(target)["save/a"] == "1", "the checkpoint has a file of this name"
    target.put("save/b", b"changed by a person")
    copy.copy(commit(world, {"c": "3"}))
    left = contents(target)
    assert (left["notes.txt"], left["save/a"], left["save/b"]) == ("mine", "1", "changed by a person")
    copy.copy(commit(world, {"c": "3", "a": "4"}))
    copy.copy(commit(world, {"c": "3"}))
    assert contents(target)["save/a"] == "4", "a file that was there first stays for good"


def test_what_is_there_already_is_not_sent_again(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    copier(tmp_path, memory, target).copy(commit(world, {"a": "1", "b": "2"}))
    sent: list[str] = []

    def faults(method: str, key: str) -> Fault | None:
        sent.extend([key] if method == "put_file" else [])
        return None

    newest = commit(world, {"a": "1", "b": "3"})
    copier(tmp_path, memory, target.client(faults)).copy(newest)
    assert [path for path in sent if "stoker" not in path] == ["save/b"]
    sent.clear()
    copier(tmp_path, memory, target.client(faults)).copy(newest)
    assert sent == []


def test_the_files_of_all_ranks_are_there(tmp_path: Path, memory: MemoryStore, target: MemoryStore) -> None:
    """As on SageMaker, where every node writes to the one prefix. Rank 0's file wins over another's of that name."""
    first = World(tmp_path, memory, nodes=2).begin()
    second = World(tmp_path, memory, rank=1, nodes=2).begin()
    first.save("save", {"shard-0": "a", "same": "of rank 0"}, sharded=True)
    first.tick()
    assert checkpoints(memory) == [], "half of it is no checkpoint"
    second.save("save", {"shard-1": "b", "same": "of rank 1"}, sharded=True)
    second.tick()
    copier(tmp_path, memory, target).copy(checkpoints(memory)[-1])
    left = contents(target)
    assert (left["save/shard-0"], left["save/shard-1"], left["save/same"]) == ("a", "b", "of rank 0")


def test_a_link_to_a_file_is_that_file_and_other_links_are_named(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore
) -> None:
    folder = tmp_path / "base"
    (folder / "step-1").mkdir(parents=True)
    (folder / "step-1" / "model").write_text("1")
    (folder / "latest.pt").symlink_to("step-1/model")
    (folder / "latest").symlink_to("step-1")
    import_checkpoint(memory, "linked", FromFolder(folder))
    (found,) = list_checkpoints(memory, "linked")
    left_out = copier(tmp_path, memory, target, "linked").copy(found)
    assert contents(target) == {"latest.pt": "1", "step-1/model": "1"}
    assert left_out == ["latest"]


# ── Files that something else writes during a copy ────────────────────────────────────────────────────────────────────


def after_the_upload(target: MemoryStore, act: Callable[[], None]) -> MemoryStore:
    """A client of the target, to which something else does this when the files are sent."""
    sent: list[str] = []
    acted: list[bool] = []

    def faults(method: str, key: str) -> Fault | None:
        if method == "put_file":
            sent.append(key)
        elif sent and not acted and (method, key) == ("list", ""):
            acted.append(True)
            act()
        return None

    return target.client(faults)


def recorded(target: MemoryStore) -> CopyRecord:
    record = read_record(target)
    assert record is not None
    return record


def test_a_file_that_is_rewritten_during_the_upload_is_not_deleted(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    def faults(method: str, key: str) -> Fault | None:
        if (method, key) == ("put_file", "save/a"):
            target.put("save/b", b"mine")
        return None

    copier(tmp_path, memory, target).copy(commit(world, {"a": "1", "b": "1", "d": "1"}))
    copier(tmp_path, memory, target.client(faults)).copy(commit(world, {"a": "2"}))
    left = contents(target)
    assert (left["save/a"], left["save/b"]) == ("2", "mine")
    assert "save/d" not in left, "Stoker's, and as Stoker wrote it"
    assert recorded(target).complete, "the file is not the checkpoint's"
    assert not recorded(target).files["save/b"].digest
    copier(tmp_path, memory, target).copy(commit(world, {"a": "3"}))
    assert contents(target)["save/b"] == "mine"


@pytest.mark.parametrize("text", ["1", "2"], ids=["not sent again", "sent"])
def test_a_file_of_the_checkpoint_that_is_rewritten_during_the_upload_is_not_whole_and_not_stokers(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World, text: str
) -> None:
    copier(tmp_path, memory, target).copy(commit(world, {"a": "1", "b": "1"}))
    newest = commit(world, {"a": text, "b": "2"})
    watched = after_the_upload(target, lambda: target.put("save/a", b"mine"))
    with pytest.raises(StoreUnavailable, match=r"^something else changed memory://copies/save/a during the copy$"):
        copier(tmp_path, memory, watched).copy(newest)
    record = recorded(target)
    assert not record.complete
    assert (record.files["save/a"].digest, record.files["save/b"].etag) == ("", list_files(target)["save/b"].etag)
    assert contents(target)["save/a"] == "mine"
    copier(tmp_path, memory, target).copy(newest)
    assert contents(target)["save/a"] == text, "the next try completes the copy"
    assert recorded(target).complete
    copier(tmp_path, memory, target).copy(commit(world, {"b": "2"}))
    assert "save/a" in contents(target), "Stoker may overwrite it, and never deletes it"


def test_a_file_of_the_checkpoint_that_is_removed_during_the_upload_is_sent_again(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    newest = commit(world, {"a": "1", "b": "1"})
    watched = after_the_upload(target, lambda: target.delete(["save/a"]))
    with pytest.raises(StoreUnavailable):
        copier(tmp_path, memory, watched).copy(newest)
    assert not recorded(target).complete
    copier(tmp_path, memory, target).copy(newest)
    assert contents(target)["save/a"] == "1"
    assert recorded(target).complete


def test_a_file_that_appears_during_the_upload_is_overwritten_and_never_deleted(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    def appear() -> None:
        if not target.holds("save/a"):
            target.put("save/a", b"mine")

    def faults(method: str, key: str) -> Fault | None:
        # The check of the owner, before the file is sent.
        if (method, key) == ("get", RECORD) and target.holds(RECORD) and recorded(target).checkpoint:
            appear()
        return None

    copier(tmp_path, memory, target.client(faults)).copy(commit(world, {"a": "1"}))
    assert contents(target)["save/a"] == "1"
    copier(tmp_path, memory, target).copy(commit(world, {"b": "1"}))
    assert "save/a" in contents(target)


def test_a_file_that_was_rewritten_between_two_copies_is_never_deleted(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    copier(tmp_path, memory, target).copy(commit(world, {"a": "1"}))
    target.put("save/a", b"mine")
    copier(tmp_path, memory, target).copy(commit(world, {"a": "2"}))
    copier(tmp_path, memory, target).copy(commit(world, {"b": "2"}))
    assert contents(target)["save/a"] == "2"


# ── Copies that are cut off ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_copy_that_is_cut_off_is_called_incomplete_and_completed_by_the_next(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    copier(tmp_path, memory, target).copy(commit(world, {"a": "1", "b": "1"}))

    def faults(method: str, key: str) -> Fault | None:
        return Fault() if (method, key) == ("put_file", "save/b") else None

    second = commit(world, {"a": "2", "b": "2", "d": "2"})
    with pytest.raises(StoreUnavailable):
        copier(tmp_path, memory, target.client(faults)).copy(second)
    record = read_record(target)
    assert record is not None
    assert not record.complete, "some files are of the first checkpoint, and some of the second"
    third = commit(world, {"b": "3"})
    copier(tmp_path, memory, target).copy(third)
    left = contents(target)
    assert left["save/b"] == "3"
    assert "save/d" not in left, "Stoker wrote it, though no record says when"
    record = read_record(target)
    assert record is not None
    assert record.complete


def test_half_copied_files_are_no_checkpoint_to_resume_from(tmp_path: Path, memory: MemoryStore) -> None:
    folder = tmp_path / "copies"
    target = open_store(str(folder))
    target.put("a", b"1")
    target.put(RECORD, json.dumps({"job": "j-1", "store": "s3://b", "submitted_at": "2026-05-01T12:00:00Z"}).encode())
    import_checkpoint(memory, "next", FromFolder(folder))
    record = read_record(target)
    assert record is not None
    write_record(target, replace(record, complete=False, checkpoint="j-1/00000001/000002-save"))
    for source in (FromFolder(folder), FromUrl(folder.as_uri())):
        with pytest.raises(UserError, match=r"are of two checkpoints: j-1 has not copied all of j-1/00000001/000002-"):
            import_checkpoint(memory, "other", source)


def test_the_record_is_no_file_of_the_checkpoint(tmp_path: Path, memory: MemoryStore) -> None:
    folder = tmp_path / "copies"
    target = open_store(str(folder))
    target.put("a", b"1")
    write_record(target, CopyRecord("j-1", "s3://b", NOON))
    for job, source in (("one", FromFolder(folder)), ("two", FromUrl(folder.as_uri()))):
        import_checkpoint(memory, job, source)
        (found,) = list_checkpoints(memory, job)
        assert [blob.path for blob in found.manifests[0].files] == ["a"]


# ── Too many files ────────────────────────────────────────────────────────────────────────────────────────────────────

TOO_MANY = r"^memory://copies has too many files for copies: give checkpoints\.copy_to a prefix of its own$"


def test_a_url_with_too_many_files_is_refused_before_anything_is_written(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_copy, "RECORD_BYTES", 4000)
    for number in range(60):
        target.put(f"{number:032}", b"")
    before = target.changes
    said: list[str] = []
    commit(world, {"a": "1"})
    copies = thread(memory, copier(tmp_path, memory, target), said)
    copies.start()
    copies.final(lambda: float("inf"))
    assert target.changes == before
    (line,) = said
    assert line.startswith(
        "checkpoints.copy_to: checkpoints are not copied: memory://copies has too many files for copies"
    )
    assert line.endswith(": give checkpoints.copy_to a prefix of its own; they are safe in the store")


def test_the_etags_of_a_copy_count_before_it_begins(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = commit(world, {f"{number}": f"{number}" for number in range(20)})
    copy = copier(tmp_path, memory, target)
    files = {f"save/{number}": CopiedFile("", "0" * 64) for number in range(20)}
    size = len(codec.dumps(replace(copy.own, files=files)))
    monkeypatch.setattr(checkpoint_copy, "RECORD_BYTES", size + 10 * 48)
    with pytest.raises(StoreError, match=TOO_MANY):
        copy.copy(newest)
    assert list_files(target) == {}, "it would have failed when all files were sent"


def test_a_record_that_is_too_large_to_read_is_not_taken_for_none(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    target.put("save/a", b"of a later job")
    target.put(RECORD, b" " * (RECORD_BYTES + 1))
    before = target.changes
    why = (
        r"^memory://copies: \.stoker-copy\.json has 16777217 bytes, more than .*; take another URL, or remove \.stoker-"
    )
    with pytest.raises(StoreError, match=why):
        copier(tmp_path, memory, target).copy(commit(world, {"a": "1"}))
    assert target.changes == before


def test_files_with_a_record_that_is_too_large_are_not_taken_for_a_whole_checkpoint(
    tmp_path: Path, memory: MemoryStore
) -> None:
    folder = tmp_path / "copies"
    target = open_store(str(folder))
    target.put("a", b"1")
    target.put(RECORD, b" " * (RECORD_BYTES + 1))
    for source in (FromFolder(folder), FromUrl(folder.as_uri())):
        with pytest.raises(StoreError, match=r"remove \.stoker-copy\.json there to take the files as they are$"):
            import_checkpoint(memory, "next", source)


# ── Two jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_of_two_jobs_the_one_that_was_submitted_last_copies(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    first, second = copier(tmp_path, memory, target), copier(tmp_path, memory, target, "later-1", hours=1)
    first.copy(commit(world, {"a": "1"}))
    second.claim()
    before = contents(target)
    with pytest.raises(
        CopyTaken, match=r"^later-1, which was submitted later, copies its checkpoints to memory://copies"
    ):
        first.copy(commit(world, {"a": "2"}))
    assert contents(target) == before
    record = read_record(target)
    assert record is not None
    assert (record.job, record.files["save/a"].found) == ("later-1", False), "it may replace what the first one wrote"
    assert claim(target, first.own) is None


def test_an_older_job_stops_between_two_files(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    later = copier(tmp_path, memory, target, "later-1", hours=1)

    def faults(method: str, _key: str) -> Fault | None:
        if method == "put_file" and not list_files(target):
            later.claim()
        return None

    with pytest.raises(CopyTaken):
        copier(tmp_path, memory, target.client(faults)).copy(commit(world, {f"{number}": "x" for number in range(50)}))
    assert len(list_files(target)) < 50
    record = read_record(target)
    assert record is not None
    assert record.job == "later-1"
    assert not record.complete


# ── The thread ────────────────────────────────────────────────────────────────────────────────────────────────────────


def thread(memory: MemoryStore, copy: PlainCopy, said: list[str]) -> CheckpointCopies:
    def last() -> CheckpointRef | None:
        newest = checkpoints(memory)[-1:]
        return CheckpointRef(newest[0].key, newest[0].name) if newest else None

    source = CopySource(memory, JOB, last, TRUST_ALL, 1)
    return CheckpointCopies(source, lambda check: replace(copy, check=check), said.append)


def test_the_thread_copies_what_an_earlier_attempt_committed(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    commit(world, {"a": "1"})
    said: list[str] = []
    copies = thread(memory, copier(tmp_path, memory, target), said)
    copies.start()
    copies.final(lambda: float("inf"))
    assert contents(target)["save/a"] == "1"
    assert said == []
    assert copies.warning is None


def test_a_url_that_cannot_be_written_is_a_warning_and_no_failure(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    def faults(method: str, _key: str) -> Fault | None:
        return Fault(error=StoreDenied("AccessDenied")) if method in ("put", "put_file") else None

    commit(world, {"a": "1"})
    said: list[str] = []
    copies = thread(memory, copier(tmp_path, memory, target.client(faults)), said)
    copies.start()
    copies.final(lambda: float("inf"))
    assert len(said) == 1
    assert said[0].startswith(
        "checkpoints.copy_to: checkpoints are not copied: AccessDenied; the machine needs to list, "
    )
    assert copies.warning is not None


def test_a_later_job_ends_the_copies_of_an_older_one_with_one_line(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    commit(world, {"a": "1"})
    copier(tmp_path, memory, target, "later-1", hours=1).claim()
    said: list[str] = []
    copies = thread(memory, copier(tmp_path, memory, target), said)
    copies.start()
    copies.final(lambda: float("inf"))
    (line,) = said
    assert line.endswith("; this job's stay in the store")
    assert contents(target) == {}


def test_a_damaged_checkpoint_is_told_once_and_passed_over(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    damaged = commit(world, {"a": "1", "b": "lost"})
    blob = next(one for one in damaged.manifests[0].files if one.path == "save/b")
    memory.delete([keys.blob(JOB, 0, blob.name)])
    said: list[str] = []
    sent: list[str] = []
    told, idle = threading.Event(), threading.Event()

    def say(line: str) -> None:
        said.append(line)
        told.set()

    def last() -> CheckpointRef | None:
        if told.is_set():
            rounds.append(len(sent))
            if len(rounds) >= 10:
                idle.set()
        return CheckpointRef(checkpoints(memory)[-1].key, "save")

    def faults(method: str, key: str) -> Fault | None:
        sent.extend([key] if method in ("put", "put_file") else [])
        return None

    rounds: list[int] = []
    copy = copier(tmp_path, memory, target.client(faults))
    source = CopySource(memory, JOB, last, TRUST_ALL, 1)
    copies = CheckpointCopies(source, lambda check: replace(copy, check=check), say)
    copies.start()
    assert idle.wait(60)
    line = "checkpoints.copy_to: checkpoint save is not copied: save/b: its bytes are missing from the store; "
    assert said == [line + "the next one will be"]
    assert len(set(rounds)) == 1, "no try sends anything again"
    commit(world, {"a": "1", "b": "2"})
    copies.final(lambda: float("inf"))
    assert contents(target)["save/b"] == "2"
    assert sent.count("save/a") <= 1, "what the failed copy sent stays"
    assert (len(said), copies.warning) == (1, None)


def test_a_damaged_checkpoint_does_not_delay_the_end(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    for blob in commit(world, {"a": "1"}).manifests[0].files:
        memory.put(keys.blob(JOB, 0, blob.name), b"other bytes")
    said: list[str] = []
    copies = thread(memory, copier(tmp_path, memory, target), said)
    copies.start()
    copies.final(lambda: float("inf"))
    (line,) = said
    assert "its bytes in the store are not what was saved" in line
    assert copies.warning is not None
    assert f"checkpoints.copy_to: {copies.warning}" == line


def test_a_checkpoint_that_was_removed_for_a_newer_one_is_no_warning(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    older = commit(world, {"a": "1"})

    def faults(method: str, key: str) -> Fault | None:
        if (method, key) == ("list", "") and memory.holds(keys.manifest(JOB, older.key)):
            commit(world, {"a": "2"})
            memory.delete(
                [keys.manifest(JOB, older.key), *(keys.blob(JOB, 0, one.name) for one in older.manifests[0].files)]
            )
        return None

    said: list[str] = []
    copies = thread(memory, copier(tmp_path, memory, target.client(faults)), said)
    copies.start()
    copies.final(lambda: float("inf"))
    assert contents(target)["save/a"] == "2"
    assert said == []


def test_the_last_copy_is_made_whenever_the_thread_looks(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    class Watched(CheckpointCopies):
        """Its thread runs at the very moment at which it can see the end."""

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "_final_since" and value is not None:
                self._run()

    commit(world, {"a": "1"})
    copy = copier(tmp_path, memory, target)
    copies = Watched(CopySource(memory, JOB, lambda: None, TRUST_ALL, 1), lambda _check: copy, lambda _line: None)
    copies.pause()
    copies.final(lambda: float("inf"))
    assert contents(target)["save/a"] == "1"


def test_a_last_checkpoint_whose_other_parts_never_come_is_told(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore
) -> None:
    first = World(tmp_path, memory, nodes=2).begin()
    second = World(tmp_path, memory, rank=1, nodes=2).begin()
    for node in (first, second):
        node.save("one", {f"shard-{node.rank}": "1"}, sharded=True)
        node.tick()
    first.save("two", {"shard-0": "2"}, sharded=True)
    first.tick()
    last = first.sync.status().last
    assert last is not None
    assert last.name == "two"
    clock = iter(range(0, 10**9, 50))
    said: list[str] = []
    copy = copier(tmp_path, memory, target)
    copies = CheckpointCopies(
        CopySource(memory, JOB, lambda: last, TRUST_ALL, 2),
        lambda _check: copy,
        said.append,
        monotonic=lambda: float(next(clock)),
    )
    copies.start()
    copies.final(lambda: float("inf"))
    assert contents(target)["one/shard-1"] == "1"
    why = "the newest checkpoint is not copied: other nodes' parts are missing; no attempt resumes from it"
    assert said == [f"checkpoints.copy_to: {why}"]
    assert copies.warning == why


def test_a_copy_that_takes_too_long_is_left_and_told(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def faults(method: str, _key: str) -> Fault | None:
        if method == "put_file":
            reached.set()
            go_on.wait(60)
        return None

    commit(world, {"a": "1"})
    said: list[str] = []
    copies = thread(memory, copier(tmp_path, memory, target.client(faults)), said)
    copies.start()
    assert reached.wait(60)
    copies.final(lambda: 0.0)
    go_on.set()
    assert said == [
        "checkpoints.copy_to: the newest checkpoint is not copied: there was no time left; it is safe in the store"
    ]


def test_a_url_that_does_not_answer_delays_the_end_by_a_minute_at_most(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    clock = iter(range(0, 10**9, 50))
    commit(world, {"a": "1"})
    said: list[str] = []
    silent = target.client(lambda *_: Fault())
    source = CopySource(memory, JOB, lambda: None, TRUST_ALL, 1)
    copy = copier(tmp_path, memory, silent)
    copies = CheckpointCopies(source, lambda _check: copy, said.append, monotonic=lambda: float(next(clock)))
    copies.start()
    copies.final(lambda: float("inf"))
    assert len(said) == 1
    assert "injected fault" in said[0]
