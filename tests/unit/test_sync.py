"""Commits: what of a folder gets to the store, when, and what is kept of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import (
    JOB,
    World,
    age,
    assert_sound,
    blobs,
    checkpoints,
    content,
    memory_store,
    needed,
    restored_content,
    write,
)

from stoker.agent.checkpoints import commit_chooser
from stoker.agent.checkpoints.blobs import BlobSender, OutgoingFile
from stoker.agent.checkpoints.folder_commits import SCAN_S
from stoker.agent.checkpoints.folder_snapshot import File, Signature, copy_stable, scan, without_units
from stoker.agent.checkpoints.write_history import STREAM_S
from stoker.model import keys
from stoker.model.node_facts import BlobRef
from stoker.store.base import Store, StoredFile
from stoker.testing.memory_store import MemoryStore

LIMIT_S = 60.0

# Fixtures that all tests of checkpoints share.
store, memory, world = checkpoint_world.store, checkpoint_world.memory, checkpoint_world.world


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
    monkeypatch.setattr("stoker.agent.checkpoints.folder_commits.SCAN_S", 10.0)
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
    far = memory_store(is_local=False)
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
    world.sync._rounds.sender._wall_ns = lambda: time.time_ns() + 10_000_000_000
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
    monkeypatch.setattr("stoker.agent.checkpoints.folder_commits.time.thread_time", lambda: float(next(spent)))
    looks = 0
    real = world.sync._rounds.watch.scan

    def look() -> None:
        nonlocal looks
        looks += 1
        real()

    monkeypatch.setattr(world.sync._rounds.watch, "scan", look)
    world.tick(rounds=int(600 / SCAN_S), every_s=SCAN_S)
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


def test_what_names_a_save_that_is_still_written_waits_for_it(world: World, tmp_path: Path) -> None:
    """A file at the top that was written after the newest folder was begun may refer to it."""
    write(world.folder / "checkpoint-10" / "model", "10")
    world.write(latest="checkpoint-10")
    world.settle()
    write(world.folder / "checkpoint-20" / "model", "20, not whole")
    world.open = {"checkpoint-20/model"}
    world.write(latest="checkpoint-20")
    for number in range(50):
        write(world.folder / "metrics" / "loss", f"{number}")
        world.tick(rounds=2)
    found = restored_content(world.store, tmp_path / "back")
    assert "metrics/loss" in found and found["latest.pt"] == b"checkpoint-10"


def test_a_moment_of_calm_is_waited_for_but_not_for_ever(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this computer is, each file counts as written a moment ago.
    monkeypatch.setattr(commit_chooser, "TICK_NS", 10**15)
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

    monkeypatch.setattr("stoker.agent.checkpoints.folder_commits.copy_stable", copy)
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
    monkeypatch.setattr("stoker.agent.checkpoints.write_history.STREAM_BYTES", 1000)
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

    def put_file(self, source: Path, key: Callable[[str], str]) -> StoredFile:
        # A file is held open while it is sent, and named by its handle.
        named = source.readlink() if source.is_relative_to("/proc/self/fd") else source
        sent = self._store.put_file(source, key)
        self._meddle(named)
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
    world.tick(rounds=5)
    assert checkpoints(store) == []
    # Written again without `other.pt`, it looks like half of a save: that is waited for each time.
    for _ in range(3):
        world.settle()
    assert_sound(store)
    # From the folder, where it is written once more while it is read, or from a copy of what it became first.
    newest = (world.folder / "model.pt").read_bytes()
    assert newest in (b"2", b"3")
    assert restored_content(store, tmp_path / "back") == {"model.pt": newest, "other.pt": b"x"}
    # What was sent in vain is gone.
    assert blobs(store) == needed(store)


def test_a_file_that_vanishes_while_it_is_sent_is_committed_as_it_was_chosen(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, Meddling(store, lambda source: (world.folder / "b.pt").unlink(missing_ok=True)))  # type: ignore[arg-type]
    world.begin()
    world.write(a="1", b="1", c="1")
    world.settle()
    assert restored_content(store, tmp_path / "back") == {"a.pt": b"1", "b.pt": b"1", "c.pt": b"1"}
    assert world.sync.status().error is None


# ── What of a folder may be committed ─────────────────────────────────────────────────────────────────────────────────


def files(*paths: str) -> dict[str, File]:
    return {path: File(path, Signature(1, 1, 1, 1, 1), 0o644) for path in paths}


def kept(*paths: str) -> dict[str, BlobRef]:
    return {path: BlobRef(path, "0" * 64, 1) for path in paths}


def test_a_unit_in_the_making_is_left_out_or_stays_as_it_was() -> None:
    taken, carried = without_units(
        files("a/1", "a/2", "b/1", "c.pt", "d.pt"), {"a/2", "d.pt"}, kept("a/1", "b/1", "b/2", "c.pt")
    )
    # a/ was committed before, without a/2; d.pt is new, and c.pt is one unit with it.
    assert set(taken) == {"b/1"}
    assert set(carried) == {"a/1", "c.pt"}


def test_plain_files_are_one_unit_if_one_of_them_is_rewritten() -> None:
    taken, carried = without_units(
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
    hashed = []
    put_file = memory.put_file
    memory.put_file = lambda source, key: hashed.append(source) or put_file(source, key)  # type: ignore[method-assign, func-returns-value]
    first, again = (sender.send([OutgoingFile(file, tmp_path / "f" / "a")]) for _ in range(2))
    assert len(hashed) == reads
    assert first == again and memory.counts["put_file"] == 1, "what is known to be there is not sent again"


def test_a_blob_that_was_found_damaged_is_sent_again(tmp_path: Path, store: Store) -> None:
    world = World(tmp_path, store).begin()
    world.write(model="weights")
    world.settle()
    (blob,) = checkpoints(store)[0].manifests[0].files
    store.put(keys.blob(JOB, 0, blob.name), b"flipped")
    again = World(tmp_path, store, claim=2).restore_newest()
    assert again.restored is None
    # Trained again from the start, to the same bytes.
    again.begin()
    again.write(model="weights")
    again.settle()
    assert restored_content(store, tmp_path / "back") == {"model.pt": b"weights"}


def test_a_folder_with_small_additions_to_what_was_restored_is_no_save(tmp_path: Path) -> None:
    store = memory_store()
    first = World(tmp_path, store, claim=1).begin()
    first.write(model=b"w" * 300_000)
    first.settle()
    second = World(tmp_path, store, claim=2).restore_newest().begin()
    second.write(settings=b"lr: 1")
    second.settle()
    last = second.sync.status().last
    assert last is not None and not last.is_save
    second.write(model=b"v" * 300_000)
    second.settle()
    last = second.sync.status().last
    assert last is not None and last.is_save
    asked = World(tmp_path, store, claim=3).restore_newest().begin()
    asked.save("small", {"x": "1"}, step=1)
    asked.settle()
    last = asked.sync.status().last
    assert last is not None and last.is_save, "the script asked for it"


def test_restored_files_are_not_sent_again(tmp_path: Path, store: Store) -> None:
    first = World(tmp_path, store).begin()
    first.write(weights="large", config="1")
    first.settle()
    before = blobs(store)
    second = World(tmp_path, store, claim=2).restore_newest().begin()
    second.write(config="2")
    second.settle()
    assert restored_content(store, tmp_path / "back") == {"weights.pt": b"large", "config.pt": b"2"}
    assert len(blobs(store) - before) == 1
