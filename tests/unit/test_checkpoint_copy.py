"""`checkpoints.copy_to`: what is at the URL after each copy, what is never touched, and how half a copy is marked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import copy_target
import pytest
from checkpoint_world import JOB, World, checkpoints
from copy_target import NOON, commit, contents, copier, read, thread
from plain_store import wait_for

from stoker.agent.checkpoints.plain_copy import CopyTaken
from stoker.agent.checkpoints.resume_from import FromFolder, FromUrl, import_checkpoint
from stoker.model import codec
from stoker.model.errors import StoreError, StoreUnavailable, UserError
from stoker.store import checkpoint_copy
from stoker.store.base import RECORD_BYTES, open_store
from stoker.store.checkpoint_copy import RECORD, CopiedFile, CopyRecord, claim, list_files, read_record, write_record
from stoker.store.checkpoints import list_checkpoints
from stoker.testing.memory_store import Fault, MemoryStore

memory = copy_target.memory
target = copy_target.target
world = copy_target.world


# ── Files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_newest_checkpoint_is_there_as_plain_files(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    copy = copier(tmp_path, memory, target)
    copy.copy(commit(world, {"a": "1", "b": "2"}))
    assert contents(target) == {"save/.stoker-checkpoint.json": read(target, "save/.stoker-checkpoint.json")} | {
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


def test_what_a_killed_copy_wrote_is_known_by_its_bytes(
    tmp_path: Path, memory: MemoryStore, target: MemoryStore, world: World
) -> None:
    copier(tmp_path, memory, target).copy(commit(world, {"a": "1"}))

    def faults(method: str, key: str) -> Fault | None:
        if (method, key) == ("put_file", "save/b"):
            wait_for(lambda: target.holds("save/d") and target.holds("save/e"))
            return Fault()
        # Neither does the record of what has arrived.
        return Fault() if (method, key) == ("put", RECORD) and target.holds("save/e") else None

    with pytest.raises(StoreUnavailable):
        copier(tmp_path, memory, target.client(faults)).copy(commit(world, {"b": "2", "d": "2", "e": "2"}))
    assert recorded(target).files["save/d"].etag == ""
    target.put("save/e", b"mine")
    copier(tmp_path, memory, target).copy(commit(world, {"b": "3"}))
    left = contents(target)
    assert "save/d" not in left, "Stoker wrote it, though no record says when"
    assert (left["save/b"], left["save/e"]) == ("3", "mine")
    assert not list(tmp_path.glob("tmp*")), "no file stays on the node's disk"


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
