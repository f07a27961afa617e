"""Which checkpoints are kept, and what is removed with the others."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import checkpoint_world
import pytest
from checkpoint_world import (
    JOB,
    World,
    assert_sound,
    blobs,
    checkpoints,
    manifest_keys,
    needed,
    restored_content,
)

from stoker.agent.checkpoints import prune
from stoker.agent.checkpoints.prune import removable
from stoker.model import keys
from stoker.model.errors import StoreDenied
from stoker.model.node_facts import Manifest
from stoker.store.base import Meta, Store
from stoker.store.checkpoint_manifests import ManifestKey, StoredManifest
from stoker.store.checkpoints import list_checkpoints
from stoker.testing.memory_store import Fault, MemoryStore

# Fixtures that all tests of checkpoints share.
store, memory = checkpoint_world.store, checkpoint_world.memory


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
    oldest = manifest_keys(store)[0]
    second = World(tmp_path, store, keep=1, claim=2).restore(oldest).begin()
    for number in range(3):
        second.save(f"again-{number}", {"model": f"again {number}"})
        second.tick()
    assert manifest_keys(store) == [oldest, manifest_keys(store)[-1]]
    assert restored_content(store, tmp_path / "back", oldest) == {"step-0/model": b"0"}


def test_nothing_is_pruned_once_a_newer_claim_has_committed(tmp_path: Path, store: Store) -> None:
    old = World(tmp_path, store, keep=1).begin()
    old.save("step-0", {"model": "0"})
    old.tick()
    new = World(tmp_path, store, keep=5, claim=2).begin()
    new.save("new-0", {"model": "new"})
    new.tick()
    before = manifest_keys(store)
    old.save("step-1", {"model": "1"})
    old.tick()
    assert set(before) < set(manifest_keys(store))
    assert checkpoints(store)[-1].name == "new-0"


def test_blobs_of_a_pruning_that_crashed_are_found_when_they_are_old(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, store, keep=1).begin()
    world.save("step-0", {"model": "0"})
    world.tick()
    # The manifest went, then the machine did.
    store.delete([keys.manifest(JOB, manifest_keys(store)[0])])
    again = World(tmp_path, store, keep=1, claim=2).begin()
    again.save("step-1", {"model": "1"})
    again.tick()
    # The manifest may have been on its way, and still land.
    assert needed(store) < blobs(store)
    monkeypatch.setattr(prune, "ORPHANED_FOR", timedelta(seconds=-1))
    again.save("step-2", {"model": "2"})
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


def test_a_manifest_that_cannot_be_read_keeps_the_blobs(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune, "ORPHANED_FOR", timedelta(seconds=-1))
    world = World(tmp_path, store, keep=2).begin()
    strange = keys.manifest(JOB, "00000001/000009-strange")
    store.create(strange, b"not a manifest")
    store.put(keys.blob(JOB, 0, "0" * 64), b"perhaps its own")
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


def test_what_was_removed_is_not_removed_again(
    tmp_path: Path, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, memory, keep=1).begin()
    monkeypatch.setattr(prune, "ORPHANED_FOR", timedelta(seconds=-1))
    deleted: list[str] = []

    def faults(method: str, key: str) -> Fault | None:
        if method == "delete" and "/blobs/" in key:
            deleted.append(key)
        return None

    memory.faults = faults
    for number in range(6):
        world.save(f"step-{number}", {"model": f"{number}"})
        world.tick()
    assert len(deleted) == len(set(deleted)) >= 5


def test_parts_of_saves_that_a_slow_rank_has_yet_to_join_are_bounded() -> None:
    """Rank 1 is eleven saves behind: rank 0 keeps the newest nine parts besides the one complete save."""
    saved_at = datetime(2026, 11, 17, tzinfo=timezone.utc)

    def part(ordinal: int, rank: int) -> StoredManifest:
        place = ManifestKey(2, ordinal, f"step-{ordinal}", rank)
        manifest = Manifest(place.name, JOB, 2, rank, ordinal, saved_at, (), ranks=(0, 1), generation=ordinal)
        return StoredManifest(place, Meta(place.key, 1, saved_at, str(ordinal)), manifest)

    stored = [part(1, 0), part(1, 1), *(part(ordinal, 0) for ordinal in range(2, 13))]
    assert {place.ordinal for place in removable(stored, 2, 0, 1, None)} == {2, 3}
    assert removable(stored, 2, 1, 1, None) == set()
