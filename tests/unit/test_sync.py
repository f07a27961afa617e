"""Commits: what of a folder gets to the store, when, and what is kept of it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checkpoint_world import (
    JOB,
    World,
    age,
    assert_sound,
    blobs,
    checkpoints,
    content,
    keys,
    memory_store,
    needed,
    restored_content,
    write,
)

from stoker import layout
from stoker.agent.blobs import BlobSender, Outgoing
from stoker.agent.commits import CommitRequest
from stoker.agent.committing import LOOK_S, pick
from stoker.agent.snapshot import IGNORED, STREAM_S, File, Signature, copy_stable, leave_out, scan
from stoker.checkpoints import list_checkpoints
from stoker.errors import StoreDenied, StoreUnavailable
from stoker.model import BlobRef
from stoker.store import Sent, Store, open_store
from stoker.testing.memory import Fault, MemoryStore

LIMIT_S = 60.0


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return memory_store() if request.param == "memory" else open_store(str(tmp_path / "store"))


@pytest.fixture
def memory() -> MemoryStore:
    return memory_store()


@pytest.fixture
def world(tmp_path: Path, store: Store) -> World:
    return World(tmp_path, store).begin()


# ── A folder that settles ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_that_settled_is_committed_and_comes_back_the_same(world: World, tmp_path: Path) -> None:
    world.write(model="weights", sub__optimizer=b"\x00" * 1000, empty="")
    (world.folder / "model.pt").chmod(0o600)
    world.settle()
    (checkpoint,) = checkpoints(world.store)
    assert checkpoint.complete
    assert restored_content(world.store, tmp_path / "back") == content(world.folder)
    assert (tmp_path / "back" / "model.pt").stat().st_mode & 0o777 == 0o600
    status = world.sync.status()
    assert status.last is not None and status.last.key == checkpoint.key
    assert (status.commits, status.unsynced_bytes, status.files, status.error) == (1, 0, 3, None)


def test_nothing_is_committed_while_something_is_written(world: World) -> None:
    for number in range(20):
        world.write(model=f"{number}")
        world.tick()
        assert world.sync.status().unsynced_bytes > 0
    assert checkpoints(world.store) == []
    world.settle()
    assert len(checkpoints(world.store)) == 1


def test_rest_is_what_was_seen_not_what_was_not_looked_at(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scans far apart, as in a large folder: the second part of a save comes between two of them."""
    monkeypatch.setattr("stoker.agent.committing.LOOK_S", 10.0)
    world = World(tmp_path, memory).begin()
    world.write(step_1__model="1")
    world.tick(every_s=10.0)
    for number in range(12):
        world.write(step_1__optimizer=f"{number}")
        world.tick(every_s=1.0)
    for one in checkpoints(memory):
        assert "step_1/optimizer.pt" in restored_content(memory, tmp_path / "back", one.key)


def test_nothing_is_committed_while_a_file_is_open(world: World) -> None:
    world.write(model="half")
    world.open = {"model.pt"}
    world.settle()
    assert checkpoints(world.store) == []
    world.open = set()
    world.tick(10)
    assert len(checkpoints(world.store)) == 1


def test_a_store_far_away_is_served_as_well(tmp_path: Path) -> None:
    far = memory_store(near=False)
    world = World(tmp_path, far, settle_s=None).begin()
    world.write(**{f"model_{number}": f"{number}" for number in range(20)})
    world.tick(rounds=8)
    assert checkpoints(far) == []
    world.settle()
    assert restored_content(far, tmp_path / "back") == content(world.folder)


def test_nothing_new_means_no_commit(world: World) -> None:
    world.write(model="1", other="1")
    world.settle()
    (world.folder / "model.pt").touch()
    world.settle()
    (world.folder / "other.pt").unlink()
    world.settle()
    assert len(checkpoints(world.store)) == 1
    world.write(model="2")
    world.settle()
    assert [blob.path for blob in checkpoints(world.store)[-1].manifests[0].files] == ["model.pt"]


def test_an_empty_folder_is_no_checkpoint(world: World) -> None:
    world.settle()
    assert checkpoints(world.store) == []


@pytest.mark.parametrize("name", ["a.tmp", ".tmp-x/file", "sub/b.partial", ".stoker-lock"])
def test_unfinished_files_are_left_out(world: World, name: str) -> None:
    write(world.folder / name, "x")
    world.write(model="1")
    world.settle()
    assert [blob.path for blob in checkpoints(world.store)[-1].manifests[0].files] == ["model.pt"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("step-100.pt", "step-100"),
        ("checkpoint-5.1/model.bin", "checkpoint-5.1"),
        ("épo que.pt", "-po-que"),
        (".hidden", "hidden"),
        ("a" * 200 + ".pt", "a" * 100),
    ],
)
def test_a_commit_is_called_after_the_newest_thing(world: World, path: str, name: str) -> None:
    write(world.folder / "zzz.pt", "old")
    age(world.folder)
    write(world.folder / path, "x")
    world.settle()
    assert checkpoints(world.store)[-1].name == name


def test_files_that_did_not_change_are_not_sent_again(world: World) -> None:
    for number in range(100):
        write(world.folder / f"shard-{number}.pt", bytes([number]) * 1000)
    age(world.folder)
    world.settle()
    before = world.sync.status().bytes_moved
    assert before == 100_000
    write(world.folder / "shard-7.pt", b"x" * 1000)
    world.settle()
    assert world.sync.status().bytes_moved - before == 1000
    assert len(checkpoints(world.store)[-1].manifests[0].files) == 100


def test_files_that_did_not_change_are_not_even_read_again(tmp_path: Path, memory: MemoryStore) -> None:
    world = World(tmp_path, memory).begin()
    for number in range(100):
        write(world.folder / f"shard-{number}.pt", bytes([number]))
    # Their time of change cannot be set back, so the clock that dates the hashing is set forward.
    world.sync._sender._wall_ns = lambda: time.time_ns() + 10_000_000_000
    world.settle()
    before = memory.counts["put_file"]
    write(world.folder / "shard-7.pt", b"x")
    world.settle()
    assert memory.counts["put_file"] - before == 1


def test_files_keep_their_order_of_age(world: World, tmp_path: Path) -> None:
    for number, name in enumerate(["b", "c", "a"]):
        write(world.folder / f"{name}.pt", name)
        os.utime(world.folder / f"{name}.pt", (1000 + number, 1000 + number))
    world.settle()
    restored_content(world.store, tmp_path / "back")
    found = sorted((tmp_path / "back").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert [path.stem for path in found] == ["b", "c", "a"]


def test_links_inside_stay_links_and_links_outside_become_files(world: World, tmp_path: Path) -> None:
    write(tmp_path / "base" / "model.bin", "base")
    world.write(step_1__model="1")
    (world.folder / "latest").symlink_to("step_1")
    (world.folder / "absolute").symlink_to(world.folder / "step_1")
    (world.folder / "base.bin").symlink_to(tmp_path / "base" / "model.bin")
    (world.folder / "outside").symlink_to(tmp_path / "base")
    world.settle()
    restored_content(world.store, tmp_path / "back")
    back = tmp_path / "back"
    assert (back / "latest").readlink() == (back / "absolute").readlink() == Path("step_1")
    assert not (back / "base.bin").is_symlink() and (back / "base.bin").read_text() == "base"
    assert not (back / "outside").exists()


def test_a_scan_is_rare_when_it_is_expensive(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, memory).begin()
    spent = iter(range(0, 100_000, 1))
    # Each look takes a second of CPU.
    monkeypatch.setattr("stoker.agent.committing.time.thread_time", lambda: float(next(spent)))
    looks = 0
    real = world.sync._watch.look

    def look() -> None:
        nonlocal looks
        looks += 1
        real()

    monkeypatch.setattr(world.sync._watch, "look", look)
    world.tick(rounds=int(600 / LOOK_S), every_s=LOOK_S)
    assert looks <= 11


# ── A folder that never settles ───────────────────────────────────────────────────────────────────────────────────────


def test_a_file_rewritten_all_the_time_is_committed_from_a_copy(world: World, tmp_path: Path) -> None:
    for number in range(200):
        world.write(latest=f"{number:05d}")
        world.tick(rounds=2, every_s=0.3)
        if checkpoints(world.store):
            break
    assert len(checkpoints(world.store)) == 1
    assert restored_content(world.store, tmp_path / "back") == {"latest.pt": f"{number:05d}".encode()}
    assert not (world.scratch / "copies").exists()


def test_a_moment_of_calm_is_waited_for_but_not_for_ever(tmp_path: Path, memory: MemoryStore) -> None:
    world = World(tmp_path, memory).begin()
    for number in range(110):
        world.write(latest=f"{number:05d}")
        world.tick()
    assert checkpoints(memory) == []
    for number in range(30):
        world.write(latest=f"{number:05d}")
        world.tick()
    assert len(checkpoints(memory)) == 1


def test_a_file_opened_while_it_was_copied_puts_the_commit_off(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, memory).begin()

    def copy(source: Path, file: File, target: Path) -> bool:
        copied = copy_stable(source, file, target)
        world.open = {"latest.pt"}
        return copied

    monkeypatch.setattr("stoker.agent.committing.copy_stable", copy)
    for number in range(200):
        world.write(latest=f"{number:05d}")
        world.tick(rounds=2, every_s=0.3)
        world.open = set()
    assert checkpoints(memory) == []


def test_a_busy_folder_is_not_committed_all_the_time(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store, keep=1000, spacing_s=100.0).begin()
    for number in range(500):
        world.write(latest=f"{number:05d}")
        world.tick(rounds=2, every_s=0.3)
    assert 2 <= len(checkpoints(world.store)) <= 4


def test_what_is_being_written_stays_as_it_was(world: World, tmp_path: Path) -> None:
    world.write(last__model="old", last__optimizer="old", step_1__model="1")
    world.settle()
    world.write(last__model="new", step_2__model="2", step_3__model="half")
    world.open = {"last/optimizer.pt", "step_3/model.pt"}
    for number in range(100):
        write(world.folder / "last/optimizer.pt", f"half {number}")
        write(world.folder / "step_3/model.pt", f"half {number}")
        world.tick()
    assert restored_content(world.store, tmp_path / "back") == {
        "last/model.pt": b"old",
        "last/optimizer.pt": b"old",
        "step_1/model.pt": b"1",
        "step_2/model.pt": b"2",
    }


def test_a_log_that_is_held_open_holds_nothing_up(world: World, tmp_path: Path) -> None:
    world.open = {"logs/events"}
    write(world.folder / "logs/events", "begin")
    world.tick(rounds=int(STREAM_S / 0.5) + 10)
    with (world.folder / "logs/events").open("a") as log:
        for number in range(10):
            log.write(f" {number}")
            log.flush()
            world.tick()
        assert checkpoints(world.store) == []
        world.write(model="1")
        for number in range(30):
            world.tick()
            # Now and then, so that some moments are calm.
            if number % 5 == 0:
                log.write(f" {number}")
                log.flush()
    (checkpoint,) = checkpoints(world.store)
    assert checkpoint.name == "model"
    back = restored_content(world.store, tmp_path / "back")
    assert back["model.pt"] == b"1"
    assert (world.folder / "logs/events").read_bytes().startswith(back["logs/events"])
    assert back["logs/events"].startswith(b"begin")


def test_a_large_file_in_the_making_is_no_log(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.agent.snapshot.STREAM_BYTES", 1000)
    world = World(tmp_path, memory).begin()
    world.open = {"model.pt"}
    world.write(sub__other="whole")
    for number in range(400):
        write(world.folder / "model.pt", b"x" * number * 100)
        world.tick()
    assert restored_content(memory, tmp_path / "back") == {"sub/other.pt": b"whole"}


class Meddling:
    """A store during whose uploads something happens."""

    def __init__(self, store: Store, meddle: Callable[[Path], None]) -> None:
        self._store = store
        self._meddle = meddle

    def put_file(self, source: Path, key: Callable[[str], str]) -> Sent:
        sent = self._store.put_file(source, key)
        self._meddle(source)
        return sent

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_a_file_rewritten_while_it_is_read_is_not_committed(tmp_path: Path, store: Store) -> None:
    contents = iter(["2", "3"])

    def meddle(source: Path) -> None:
        if source.name == "model.pt":
            write(source, next(contents, "3"))

    world = World(tmp_path, Meddling(store, meddle))  # type: ignore[arg-type]
    world.begin()
    world.write(model="1", other="x")
    world.tick(rounds=8)
    assert checkpoints(store) == []
    world.settle()
    assert_sound(store)
    assert restored_content(store, tmp_path / "back") == {"model.pt": b"3", "other.pt": b"x"}
    # What was sent in vain is gone.
    assert blobs(store) == needed(store)


def test_a_file_that_vanishes_while_it_is_read_only_puts_the_commit_off(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, Meddling(store, lambda source: (world.folder / "b.pt").unlink(missing_ok=True)))  # type: ignore[arg-type]
    world.begin()
    world.write(a="1", b="1", c="1")
    world.settle()
    assert restored_content(store, tmp_path / "back") == {"a.pt": b"1", "c.pt": b"1"}
    assert world.sync.status().error is None


# ── What of a folder may be committed ─────────────────────────────────────────────────────────────────────────────────


def files(*paths: str) -> dict[str, File]:
    return {path: File(path, Signature(1, 1, 1, 1, 1), 0o644) for path in paths}


def kept(*paths: str) -> dict[str, BlobRef]:
    return {path: BlobRef(path, "0" * 64, 1) for path in paths}


def test_a_unit_in_the_making_is_left_out_or_stays_as_it_was() -> None:
    taken, carried = leave_out(
        files("a/1", "a/2", "b/1", "c.pt", "d.pt"), {"a/2", "d.pt"}, kept("a/1", "b/1", "b/2", "c.pt")
    )
    # d.pt is new and stands alone; a/ was committed before, without a/2.
    assert set(taken) == {"b/1", "c.pt"}
    assert set(carried) == {"a/1"}


def test_plain_files_are_one_unit_if_one_of_them_is_rewritten() -> None:
    taken, carried = leave_out(
        files("model.pt", "optimizer.pt", "b/1"), {"optimizer.pt"}, kept("model.pt", "optimizer.pt")
    )
    assert set(taken) == {"b/1"}
    assert set(carried) == {"model.pt", "optimizer.pt"}


# ── Digests ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("later_s", "reads"), [(0.0, 2), (1.9, 2), (2.1, 1)])
def test_a_digest_is_trusted_only_of_a_file_that_had_rested(
    tmp_path: Path, memory: MemoryStore, later_s: float, reads: int
) -> None:
    write(tmp_path / "f" / "a", "1")
    (file,) = scan(tmp_path / "f").values()
    hashed_ns = file.signature.newest_ns + int(later_s * 1e9)
    sender = BlobSender(memory, JOB, 0, scratch=tmp_path, workers=1, wall_ns=lambda: hashed_ns)
    for _ in range(2):
        sender.send([Outgoing(file, tmp_path / "f" / "a")])
    assert memory.counts["put_file"] == reads


def test_a_blob_that_was_found_damaged_is_sent_again(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    world.write(model="weights")
    world.settle()
    (blob,) = checkpoints(store)[0].manifests[0].files
    store.put(layout.blob(JOB, 0, blob.digest), b"flipped")
    again = World(tmp_path, store, claim=2).restore_newest()
    assert again.restored is None
    # Trained again from the start, to the same bytes.
    again.options["damaged"] = {layout.blob(JOB, 0, blob.digest)}
    again.begin()
    again.write(model="weights")
    again.settle()
    assert_sound(store)
    assert restored_content(store, tmp_path / "back") == {"model.pt": b"weights"}


# ── Commits that the script asks for ──────────────────────────────────────────────────────────────────────────────────


def answers(world: World) -> dict[int, dict[str, object]]:
    found = [json.loads(path.read_text()) for path in (world.channel / "commits.done").glob("*.json")]
    return {answer["sequence"]: answer for answer in found}


def test_a_save_is_committed_at_once_and_answered(world: World, tmp_path: Path) -> None:
    world.save("step-1", {"model": "1", "left.tmp": "also"}, step=1)
    world.write(loose="not part of it")
    world.tick()
    (checkpoint,) = checkpoints(world.store)
    assert (checkpoint.name, checkpoint.step) == ("step-1", 1)
    assert answers(world)[1]["key"] == checkpoint.key
    assert restored_content(world.store, tmp_path / "back") == {
        "step-1/model": b"1",
        "step-1/left.tmp": b"also",
    }
    world.settle()
    assert len(checkpoints(world.store)) == 1


def test_saves_are_committed_in_order(world: World) -> None:
    for number in range(3):
        world.save(f"step-{number}", {"model": f"{number}"})
        world.tick()
    assert [one.name for one in checkpoints(world.store)] == ["step-0", "step-1", "step-2"]


def test_if_the_store_is_slow_the_newest_goes_first_and_older_ones_are_passed_over(world: World) -> None:
    for number in range(5):
        world.save(f"step-{number}", {"model": f"{number}"})
    world.tick()
    assert [one.name for one in checkpoints(world.store)] == ["step-4"]
    status = world.sync.status()
    assert (status.waiting, status.skipped) == (0, 4)
    assert set(answers(world)) == {1, 2, 3, 4, 5}
    assert [number for number, answer in answers(world).items() if answer["key"]] == [5]


def test_a_save_replaced_by_one_of_the_same_name_never_lends_it_its_bytes(world: World, tmp_path: Path) -> None:
    world.save("last", {"model": "1"}, step=1, sharded=True)
    world.save("last", {"model": "2"}, step=2, sharded=True)
    world.tick(rounds=4)
    (checkpoint,) = checkpoints(world.store)
    assert (checkpoint.step, checkpoint.manifests[0].generation) == (2, 2)
    assert restored_content(world.store, tmp_path / "back") == {"last/model": b"2"}


def test_a_save_replaced_while_it_is_sent_is_not_committed_half(tmp_path: Path, store: Store) -> None:
    replaced = False

    def meddle(source: Path) -> None:
        nonlocal replaced
        if not replaced:
            replaced = True
            world.save("last", {"a": "2", "b": "2"}, step=2)

    world = World(tmp_path, Meddling(store, meddle))  # type: ignore[arg-type]
    world.begin()
    world.save("last", {"a": "1", "b": "1"}, step=1)
    world.tick(rounds=4)
    (checkpoint,) = checkpoints(store)
    assert checkpoint.step == 2
    assert restored_content(store, tmp_path / "back") == {"last/a": b"2", "last/b": b"2"}


def test_a_save_that_was_removed_is_answered(world: World) -> None:
    world.save("gone", {"model": "1"})
    for path in sorted((world.folder / "gone").rglob("*"), reverse=True):
        path.unlink()
    (world.folder / "gone").rmdir()
    world.tick()
    assert answers(world)[1]["key"] is None
    assert checkpoints(world.store) == []


@pytest.mark.parametrize("junk", ["", "[]", '{"sequence": 7, "name": "../x", "number": 1}', '{"sequence": "a"}'])
def test_what_is_no_request_is_removed(world: World, junk: str) -> None:
    write(world.channel / "commits" / "00000007.json", junk)
    world.save("real", {"model": "1"})
    world.tick(rounds=2)
    assert [one.name for one in checkpoints(world.store)] == ["real"]
    assert not (world.channel / "commits" / "00000007.json").exists()


def test_old_saves_are_removed_from_the_folder_but_nothing_else_is(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store, keep=2).begin()
    write(world.folder / "mine" / "notes", "keep this")
    for number in range(4):
        world.save(f"step-{number}", {"model": f"{number}"})
        world.tick()
    names = {path.name for path in world.folder.iterdir()}
    assert names == {"mine", "step-2", "step-3"}


def test_sharded_saves_are_passed_over_alike_on_ranks_of_different_speed(tmp_path: Path, memory: MemoryStore) -> None:
    ranks = [World(tmp_path, memory, rank=rank, nodes=3, keep=100).begin() for rank in range(3)]
    # Rank r commits once in 3 + r saves.
    for number in range(1, 34):
        for rank in ranks:
            rank.save(f"step-{number}", {f"shard-{rank.rank}": f"{number}"}, sharded=True)
            if number % (3 + rank.rank) == 0:
                rank.tick()
    assert len(checkpoints(memory)) >= 3


def test_the_roundest_goes_first_and_the_last_at_the_end() -> None:
    waiting = [CommitRequest(n, f"s{n}", n, generation=n) for n in range(5, 12)]
    assert pick(waiting, final=False).sequence == 8
    assert pick(waiting, final=True).sequence == 11
    assert pick(waiting[:1], final=False).sequence == 5
    plain = [CommitRequest(n, f"s{n}", n) for n in range(5, 12)]
    assert pick(plain, final=False).sequence == 11


def test_only_rank_0_commits_what_is_not_sharded(tmp_path: Path, store: Store) -> None:
    ranks = [World(tmp_path, store, rank=rank, nodes=2).begin() for rank in range(2)]
    for rank in ranks:
        rank.save("step-1", {"model": "1"})
        rank.tick(rounds=3)
    (checkpoint,) = checkpoints(store)
    assert set(checkpoint.manifests) == {0}
    assert answers(ranks[1])[1]["key"] is None
    assert blobs(store, rank=1) == set()


# ── Several nodes whose scripts know nothing ──────────────────────────────────────────────────────────────────────────


def gang(tmp_path: Path, store: Store, nodes: int = 2, claim: int = 1, begin: bool = True) -> list[World]:
    ranks: list[World] = []
    for rank in range(nodes):
        world = World(tmp_path, store, rank=rank, nodes=nodes, claim=claim)
        world.options["peers"] = lambda: tuple(one.rank for one in ranks if one.sync.status().files)
        ranks.append(world)
    if begin:
        for world in ranks:
            world.begin()
    return ranks


def settle_all(ranks: list[World]) -> None:
    for _ in range(80):
        for world in ranks:
            world.tick()


def test_a_rank_without_files_takes_no_part(tmp_path: Path, store: Store) -> None:
    ranks = gang(tmp_path, store)
    ranks[0].write(model="1")
    settle_all(ranks)
    (checkpoint,) = checkpoints(store)
    assert set(checkpoint.manifests) == {0}


def test_ranks_with_files_commit_theirs_under_the_name_of_rank_0(tmp_path: Path, store: Store) -> None:
    ranks = gang(tmp_path, store, nodes=3)
    for step in (1, 2):
        ranks[0].write(**{f"step_{step}__shard_0": f"{step}"})
        ranks[2].write(**{f"other_{step}__shard_2": f"{step}"})
        settle_all(ranks)
    first, second = checkpoints(store)
    assert set(first.manifests) == set(second.manifests) == {0, 2}
    assert [world.sync.status().commits for world in ranks] == [2, 0, 2]
    assert second.name == "step_2"
    assert restored_content(store, tmp_path / "back", rank=1) == {
        "step_1/shard_0.pt": b"1",
        "other_1/shard_2.pt": b"1",
        "step_2/shard_0.pt": b"2",
        "other_2/shard_2.pt": b"2",
    }


def test_until_every_rank_has_committed_the_save_does_not_count(tmp_path: Path, store: Store) -> None:
    ranks = gang(tmp_path, store)
    for world in ranks:
        world.write(shard="1")
        world.tick()
    for _ in range(60):
        ranks[0].tick()
    assert len(list_checkpoints(store, JOB)) == 1
    assert checkpoints(store) == []
    settle_all(ranks)
    assert len(checkpoints(store)) == 1


def test_a_rank_that_has_nothing_new_still_joins(tmp_path: Path, store: Store) -> None:
    ranks = gang(tmp_path, store)
    ranks[1].write(rank_1_config="once")
    ranks[0].write(model="1")
    settle_all(ranks)
    ranks[0].write(model="2")
    settle_all(ranks)
    assert len(checkpoints(store)) == 2


def test_what_was_restored_from_others_is_not_ones_own(tmp_path: Path, store: Store) -> None:
    first = gang(tmp_path, store)
    first[0].write(model="1")
    settle_all(first)
    second = gang(tmp_path, store, claim=2, begin=False)
    for world in second:
        world.restore(keys(store)[-1]).begin()
    assert content(second[1].folder) == {"model.pt": b"1"}
    settle_all(second)
    assert [world.sync.status().files for world in second] == [1, 0]
    second[0].write(model="2")
    settle_all(second)
    newest = checkpoints(store)[-1]
    assert newest.place.claim == 2 and set(newest.manifests) == {0}


def test_shards_are_restored_to_all_and_committed_by_their_owner(tmp_path: Path, store: Store) -> None:
    first = gang(tmp_path, store)
    for world in first:
        world.write(**{f"shard_{world.rank}": "1", "same": f"from {world.rank}"})
    settle_all(first)
    second = gang(tmp_path, store, claim=2, begin=False)
    for world in second:
        world.restore(keys(store)[-1]).begin()
        assert content(world.folder) == {
            "shard_0.pt": b"1",
            "shard_1.pt": b"1",
            "same.pt": f"from {world.rank}".encode(),
        }
    second[0].write(shard_0="2")
    settle_all(second)
    newest = checkpoints(store)[-1]
    assert newest.place.claim == 2
    assert {rank: {blob.path for blob in newest.manifests[rank].files} for rank in (0, 1)} == {
        0: {"same.pt", "shard_0.pt"},
        1: {"same.pt", "shard_1.pt"},
    }


# ── Outages and lost replies ──────────────────────────────────────────────────────────────────────────────────────────


def test_an_outage_is_waited_out(tmp_path: Path, memory: MemoryStore) -> None:
    world = World(tmp_path, memory.client()).begin()
    assert isinstance(world.store, MemoryStore)
    world.store.outage(True)
    world.write(model="1")
    world.settle()
    status = world.sync.status()
    assert status.error is not None and "StoreUnavailable" in status.error
    assert status.unsynced_bytes == 1 and status.lag_s > 30
    world.write(model="2")
    world.store.outage(False)
    world.settle()
    assert restored_content(memory, tmp_path / "back") == {"model.pt": b"2"}
    assert world.sync.status().error is None
    assert world.sync.status().unsynced_bytes == 0


def test_a_store_that_is_down_is_not_hammered(tmp_path: Path, memory: MemoryStore) -> None:
    world = World(tmp_path, memory.client()).begin()
    assert isinstance(world.store, MemoryStore)
    world.store.outage(True)
    world.save("step-1", {"model": "1"})
    world.tick(rounds=7200, every_s=0.5)
    # Two files at a time, every 30 seconds, and a little more often at the beginning.
    assert sum(world.store.counts.values()) < 2 * 3600 / 30 + 20


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("mode", ["folder", "save"])
def test_whichever_call_fails_no_manifest_lacks_a_blob_and_none_is_doubled(
    tmp_path: Path, after: bool, mode: str
) -> None:
    """Fail each call in turn, before or after its effect."""
    for failing in range(60):
        memory = memory_store()
        calls = iter(range(10**9))

        def faults(method: str, key: str, calls: Iterator[int] = calls, failing: int = failing) -> Fault | None:
            return Fault(after=after) if next(calls) == failing else None

        client = memory.client(faults)
        world = World(tmp_path / f"{failing}", client, keep=1).begin()
        for number in range(3):
            if mode == "folder":
                world.write(**{"model": f"{number}", f"extra_{number}": "x"})
            else:
                world.save(f"step-{number}", {"model": f"{number}", "same": "x"})
            world.tick(rounds=10, every_s=4.0)
            assert_sound(memory)
        newest = restored_content(memory, tmp_path / f"back-{failing}")
        assert newest["model.pt" if mode == "folder" else "step-2/model"] == b"2"
        # Another round removes what a failed pruning left.
        client.faults = None
        world.sync._pruner._rounds = 0
        world.sync._pruner.prune()
        assert len(keys(memory)) == 1
        assert blobs(memory) == needed(memory)
        if next(calls) <= failing:
            return
    raise AssertionError("there are more calls than were failed")


def test_a_commit_whose_reply_was_lost_is_one_commit(tmp_path: Path, memory: MemoryStore) -> None:
    lost = iter([Fault(after=True)])
    client = memory.client(lambda method, _key: next(lost, None) if method == "create" else None)
    world = World(tmp_path, client).begin()
    world.write(model="1")
    world.settle()
    assert keys(memory) == ["00000001/000001-model"]
    assert world.sync.status().commits == 1


def test_an_ordinal_that_is_taken_is_passed_by(world: World) -> None:
    world.store.create(layout.manifest(JOB, "00000001/000001-step-0"), b"somebody's")
    for number in range(2):
        world.save(f"step-{number}", {"model": "1"})
        world.tick(rounds=2)
    assert keys(world.store) == ["00000001/000002-step-0", "00000001/000003-step-1"]


def test_ordinals_go_on_where_the_store_is(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    world.write(a="1")
    world.settle()
    world.begin()
    world.write(b="1")
    world.settle()
    assert [one.place.ordinal for one in checkpoints(store)] == [1, 2]


# ── Pruning ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_newest_are_kept_and_what_they_do_not_need_goes(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store, keep=2).begin()
    for number in range(5):
        world.save(f"step-{number}", {"model": f"{number}", "same": "same"})
        world.tick()
    assert [one.name for one in checkpoints(store)] == ["step-3", "step-4"]
    assert blobs(store) == needed(store)
    assert_sound(store)


def test_what_was_restored_last_is_kept(tmp_path: Path, store: Store) -> None:
    first = World(tmp_path, store, keep=3).begin()
    for number in range(3):
        first.save(f"step-{number}", {"model": f"{number}"})
        first.tick()
    oldest = keys(store)[0]
    second = World(tmp_path, store, keep=1, claim=2).restore(oldest).begin()
    for number in range(3):
        second.save(f"again-{number}", {"model": f"again {number}"})
        second.tick()
    assert keys(store) == [oldest, keys(store)[-1]]
    assert restored_content(store, tmp_path / "back", oldest) == {"step-0/model": b"0"}


def test_nothing_is_pruned_unless_this_attempt_trains(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store, keep=1, allowed=lambda: False).begin()
    for number in range(3):
        world.save(f"step-{number}", {"model": f"{number}"})
        world.tick()
    assert len(checkpoints(store)) == 3


def test_nothing_is_pruned_once_a_newer_claim_has_committed(tmp_path: Path, store: Store) -> None:
    old = World(tmp_path, store, keep=1).begin()
    old.save("step-0", {"model": "0"})
    old.tick()
    new = World(tmp_path, store, keep=5, claim=2).begin()
    new.save("new-0", {"model": "new"})
    new.tick()
    before = keys(store)
    old.save("step-1", {"model": "1"})
    old.tick()
    assert set(before) < set(keys(store))
    assert checkpoints(store)[-1].name == "new-0"


def test_blobs_of_a_pruning_that_crashed_are_found_later(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store, keep=1).begin()
    world.save("step-0", {"model": "0"})
    world.tick()
    # The manifest went, then the machine did.
    store.delete([layout.manifest(JOB, keys(store)[0])])
    again = World(tmp_path, store, keep=1, claim=2).begin()
    again.save("step-1", {"model": "1"})
    again.tick()
    assert blobs(store) == needed(store)


def test_a_blob_that_was_pruned_is_sent_again_when_it_is_needed_again(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store, keep=1).begin()
    for number, text in enumerate(["a", "b", "a"]):
        world.save(f"step-{number}", {"model": text})
        world.tick()
        assert_sound(store)
    assert restored_content(store, tmp_path / "back") == {"step-2/model": b"a"}


@pytest.mark.parametrize("reply_lost", [False, True])
def test_a_link_whose_blob_was_pruned_is_sent_again(tmp_path: Path, memory: MemoryStore, reply_lost: bool) -> None:
    """What a link says is known without reading; whether the store still has it is not."""

    def faults(method: str, key: str) -> Fault | None:
        return Fault(after=True) if reply_lost and method == "delete" and "/blobs/" in key else None

    world = World(tmp_path, memory.client(faults), keep=1).begin()
    for number, target in enumerate(["a", "b", "a"]):
        world.write(**{f"file_{number}": f"{number}"})
        (world.folder / "link").unlink(missing_ok=True)
        (world.folder / "link").symlink_to(target)
        world.settle()
        assert_sound(memory)
    assert len(checkpoints(memory)) == 1


def test_a_manifest_that_cannot_be_read_keeps_the_blobs(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store, keep=2).begin()
    strange = layout.manifest(JOB, "00000001/000009-strange")
    store.create(strange, b"not a manifest")
    store.put(layout.blob(JOB, 0, "0" * 64), b"perhaps its own")
    world.save("step-0", {"model": "0"})
    world.tick()
    assert "0" * 64 in blobs(store)
    # When it would be too old anyway, it goes, and so does what nobody needs.
    world.save("step-1", {"model": "1"})
    world.tick()
    assert store.head(strange) is None
    assert blobs(store) == needed(store)


def test_a_store_that_lets_nothing_be_removed_holds_up_no_commit(tmp_path: Path, memory: MemoryStore) -> None:
    denied = Fault(error=StoreDenied("no"))
    world = World(tmp_path, memory.client(lambda method, _: denied if method == "delete" else None), keep=1).begin()
    for number in range(4):
        world.save(f"step-{number}", {"model": f"{number}"})
        world.tick()
    assert len(checkpoints(memory)) == 4
    assert "StoreDenied" in (world.sync.status().error or "")


def test_shards_of_which_parts_are_missing_do_not_pile_up(tmp_path: Path, store: Store) -> None:
    rank_0 = World(tmp_path, store, nodes=2, keep=2).begin()
    for number in range(30):
        rank_0.save(f"step-{number}", {"shard-0": f"{number}"}, sharded=True)
        rank_0.tick()
    assert len(list_checkpoints(store, JOB)) <= 12
    assert checkpoints(store) == []


def test_each_rank_prunes_its_own_shards(tmp_path: Path, store: Store) -> None:
    ranks = [World(tmp_path, store, rank=rank, nodes=2, keep=2).begin() for rank in range(2)]
    for number in range(6):
        for world in ranks:
            world.save(f"step-{number}", {"shard": f"{world.rank} {number}"}, sharded=True)
            world.tick()
    assert [one.name for one in checkpoints(store)][-2:] == ["step-4", "step-5"]
    for rank in range(2):
        assert blobs(store, rank) == needed(store, rank)
        assert len(blobs(store, rank)) <= 8
    assert_sound(store)


# ── The end ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def final_world(tmp_path: Path, store: Store, **options: object) -> World:
    """With real time: `final` waits."""
    return World(tmp_path, store, **{"monotonic": time.monotonic, "settle_s": 1000.0} | options)  # type: ignore[arg-type]


def test_the_last_commit_takes_what_is_there(tmp_path: Path, store: Store) -> None:
    world = final_world(tmp_path, store).begin()
    world.write(model="1")
    last = world.sync.final(LIMIT_S)
    assert last is not None and last.key == keys(store)[-1]
    assert restored_content(store, tmp_path / "back") == {"model.pt": b"1"}
    assert world.sync.status().unsynced_bytes == 0


def test_the_last_commit_of_nothing_is_none(tmp_path: Path, store: Store) -> None:
    world = final_world(tmp_path, store).begin()
    assert world.sync.final(LIMIT_S) is None


def test_the_last_commit_leaves_out_what_is_half_written(tmp_path: Path, store: Store) -> None:
    world = final_world(tmp_path, store).begin()
    world.write(step_1__model="1", step_2__model="2", step_2__optimizer="half", flat="half")
    world.open = {"step_2/optimizer.pt", "flat.pt"}
    world.sync.final(LIMIT_S, frozen=True)
    assert restored_content(store, tmp_path / "back") == {"step_1/model.pt": b"1"}


def test_a_file_overwritten_in_place_and_half_done_stays_as_it_was(tmp_path: Path, store: Store) -> None:
    first = World(tmp_path, store).begin()
    first.write(model="1", optimizer="1")
    first.settle()
    world = final_world(tmp_path, store, claim=2).restore_newest().begin()
    world.write(model="2", optimizer="half", sub__new="n")
    world.open = {"optimizer.pt"}
    world.sync.final(LIMIT_S, frozen=True)
    assert restored_content(store, tmp_path / "back") == {
        "model.pt": b"1",
        "optimizer.pt": b"1",
        "sub/new.pt": b"n",
    }
    assert_sound(store)


def test_the_last_save_is_committed_at_the_end(tmp_path: Path, store: Store) -> None:
    world = final_world(tmp_path, store).begin()
    for number in range(4):
        world.save(f"step-{number}", {"model": f"{number}"})
    last = world.sync.final(LIMIT_S)
    assert last is not None and last.name == "step-3"
    assert [one.name for one in checkpoints(store)] == ["step-3"]
    assert set(answers(world)) == {1, 2, 3, 4}


def test_at_the_end_older_shards_follow_since_other_ranks_may_have_no_newer(tmp_path: Path, store: Store) -> None:
    ranks = [final_world(tmp_path, store, rank=rank, nodes=2).begin() for rank in range(2)]
    for number in range(3):
        ranks[0].save(f"step-{number}", {"shard-0": f"{number}"}, sharded=True)
        if number < 2:
            ranks[1].save(f"step-{number}", {"shard-1": f"{number}"}, sharded=True)
    for world in ranks:
        world.sync.final(LIMIT_S)
    assert [one.name for one in checkpoints(store)] == ["step-0", "step-1"]
    last = ranks[0].sync.status().last
    assert last is not None and last.name == "step-2"


def test_the_last_commit_waits_out_a_short_outage(tmp_path: Path, memory: MemoryStore) -> None:
    client = memory.client()
    world = final_world(tmp_path, client).begin()
    world.write(model="1")
    client.outage(True)
    threading.Timer(0.3, client.outage, [False]).start()
    assert world.sync.final(LIMIT_S) is not None


def test_the_last_commit_gives_up_at_the_deadline(tmp_path: Path, memory: MemoryStore) -> None:
    client = memory.client()
    world = final_world(tmp_path, client).begin()
    world.write(model="1")
    client.outage(True)
    assert world.sync.final(0.2) is None
    assert world.sync.status().unsynced_bytes == 1


def test_a_store_that_hangs_does_not_hold_up_the_end(tmp_path: Path, memory: MemoryStore) -> None:
    release = threading.Event()
    world = final_world(tmp_path, Meddling(memory, lambda _: release.wait(LIMIT_S) and None)).begin()  # type: ignore[arg-type]
    world.write(model="1")
    assert world.sync.final(0.2) is None
    release.set()


def test_at_the_end_all_ranks_commit_the_same_save(tmp_path: Path, store: Store) -> None:
    ranks: list[World] = []
    finished = threading.Event()
    for rank in range(2):
        options = {"peers": lambda: (0, 1), "lead_finished": finished.is_set}
        world = final_world(tmp_path, store, rank=rank, nodes=2, **options)
        ranks.append(world.begin())
        world.write(**{f"shard_{rank}": "1"})
    following = threading.Thread(target=ranks[1].sync.final, args=(LIMIT_S,))
    following.start()
    ranks[0].sync.final(LIMIT_S)
    finished.set()
    following.join(LIMIT_S)
    (checkpoint,) = checkpoints(store)
    assert set(checkpoint.manifests) == {0, 1}


def test_a_rank_does_not_wait_for_a_lead_that_has_finished(tmp_path: Path, store: Store) -> None:
    world = final_world(tmp_path, store, rank=1, nodes=2, lead_finished=lambda: True).begin()
    world.write(shard="1")
    began = threading.Event()
    thread = threading.Thread(target=lambda: (began.set(), world.sync.final(3600.0)))
    thread.daemon = True
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_it_runs_by_itself(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store, monotonic=time.monotonic, settle_s=0.05)
    world.sync.start()
    world.write(model="1")
    limit = time.monotonic() + LIMIT_S
    while not checkpoints(store):
        assert time.monotonic() < limit
        time.sleep(0.01)
    world.save("step-1", {"model": "2"})
    last = world.sync.final(LIMIT_S)
    assert last is not None and last.name == "step-1"


def test_an_error_nobody_foresaw_does_not_end_the_saving(tmp_path: Path, memory: MemoryStore) -> None:
    failures = iter([RuntimeError("what?")])

    def faults(method: str, key: str) -> Fault | None:
        failure = next(failures, None)
        if failure is not None:
            raise failure
        return None

    world = World(tmp_path, memory.client(faults), monotonic=time.monotonic, settle_s=0.05)
    world.sync.start()
    world.write(model="1")
    limit = time.monotonic() + LIMIT_S
    while not checkpoints(memory):
        assert time.monotonic() < limit
        time.sleep(0.01)
    world.sync.close()


# ── A restarted agent ─────────────────────────────────────────────────────────────────────────────────────────────────


def recovering(world: World) -> World:
    world.options |= {"monotonic": time.monotonic, "recovering": True, "settle_s": 2.0}
    world.restored = None
    world.sync = world.make()
    return world


def test_a_restarted_agent_commits_what_is_there(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    world.write(old="1")
    world.settle()
    world.write(new="2")
    age(world.folder, seconds=60)
    last = recovering(world).sync.final(LIMIT_S)
    assert last is not None and last.key == keys(store)[-1]
    assert restored_content(store, tmp_path / "back") == {"old.pt": b"1", "new.pt": b"2"}


def test_a_restarted_agent_leaves_out_what_was_written_when_all_died(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    world.write(step_1__model="1", step_2__model="torn?")
    age(world.folder / "step_1", seconds=60)
    recovering(world).sync.final(LIMIT_S)
    assert restored_content(store, tmp_path / "back") == {"step_1/model.pt": b"1"}


def test_a_restarted_agent_commits_nothing_twice(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    world.write(model="1")
    world.settle()
    age(world.folder, seconds=60)
    recovering(world).sync.final(LIMIT_S)
    assert len(checkpoints(store)) == 1


def test_a_restarted_agent_commits_the_saves_that_wait_and_prunes_nothing(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store, keep=1).begin()
    world.save("step-0", {"model": "0"})
    world.tick()
    world.save("step-1", {"model": "1"})
    recovering(world).sync.final(LIMIT_S)
    assert [one.name for one in checkpoints(store)] == ["step-0", "step-1"]


def test_a_restarted_agent_where_no_training_began_commits_nothing(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store)
    world.write(half="restored")
    age(world.folder)
    assert recovering(world).sync.final(LIMIT_S) is None
    assert world.sync.status().error is None
    assert checkpoints(store) == []


def test_patterns_are_what_the_docs_say() -> None:
    assert set(IGNORED) == {"*.tmp", ".tmp-*", "*.partial", ".stoker-lock"}


def test_the_outage_error_is_what_the_store_raises() -> None:
    assert issubclass(type(Fault().error), StoreUnavailable)
