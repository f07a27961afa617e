"""Manifests are written once and in order, whatever becomes of the replies."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import checkpoint_world
import pytest
from checkpoint_world import JOB

from stoker.agent.checkpoints import manifest_writer
from stoker.agent.checkpoints.manifest_writer import ManifestDraft, ManifestWriter
from stoker.agent.checkpoints.restore import RestoredCheckpoint
from stoker.agent.checkpoints.sync_options import SyncOptions
from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.model.node_facts import BlobRef, Manifest
from stoker.store.base import Store
from stoker.store.checkpoint_manifests import encode
from stoker.store.checkpoints import CheckpointFile, list_checkpoints
from stoker.testing.memory_store import Fault, MemoryStore

memory = checkpoint_world.memory

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
BLOB = BlobRef("a.pt", "d" * 64, 10)


def publisher(store: Store, **more: Any) -> ManifestWriter:
    changes = {"now": lambda: NOW, "monotonic": lambda: 50.0} | more
    unused = Path("/nowhere")
    return ManifestWriter(SyncOptions(store, JOB, 3, 0, 1, unused, unused, unused, **changes))


def manifest(ordinal: int, name: str = "step", **more: Any) -> Manifest:
    return Manifest(name, JOB, 3, 0, ordinal, NOW, (BLOB,), **more)


def key(ordinal: int, name: str = "step") -> str:
    return keys.manifest(JOB, keys.checkpoint_key(3, ordinal, name))


def another(ordinal: int, name: str = "step", *, size: int = 0) -> bytes:
    """A manifest that somebody else wrote in the same place."""
    return encode(replace(manifest(ordinal, name), step=1000)) + b" " * size


def names(store: MemoryStore) -> list[str]:
    return [meta.key for meta in store.list(keys.checkpoints(JOB))]


def test_a_manifest_is_written_and_told(memory: MemoryStore) -> None:
    found = publisher(memory)
    done: list[str] = []
    made = found.manifest("step", 4, (BLOB,), ranks=(0, 1), step=7, generation=2)
    assert made == Manifest("step", JOB, 3, 0, 4, NOW, (BLOB,), (0, 1), 7, 2)
    found.publish(ManifestDraft(made, done.append, 45.0))
    assert done == [keys.checkpoint_key(3, 4, "step")] and names(memory) == [key(4)]
    assert not found.in_doubt and found.commits == 1
    assert found.last is not None and found.last[1] == 45.0, "when its save was begun"
    ref = found.last[0]
    assert (ref.key, ref.name, ref.step, ref.committed_at, ref.is_save) == (done[0], "step", 7, NOW, True)


def test_ordinals_go_on_from_what_the_store_has_of_this_rank(memory: MemoryStore) -> None:
    assert publisher(memory).next_ordinal() == 1
    for ordinal, rank in ((4, 0), (9, 1)):
        other = replace(manifest(ordinal), rank=rank)
        memory.put(keys.manifest(JOB, keys.checkpoint_key(3, ordinal, "step", rank)), encode(other))
    found = publisher(memory)
    assert found.next_ordinal() == 5
    found.publish(ManifestDraft(manifest(5), lambda _: None, 5.0))
    assert found.next_ordinal() == 6
    # What the agent before was sending when it died may still land.
    assert publisher(memory, recovering=True).next_ordinal() == 7


def test_requests_keep_their_order_whenever_they_are_committed(memory: MemoryStore) -> None:
    memory.put(key(4), encode(manifest(4)))
    found = publisher(memory)
    assert [found.ordinal_of(sequence) for sequence in (2, 3, 7)] == [5, 6, 10]
    ahead = publisher(memory)
    assert [ahead.ordinal_of(sequence) for sequence in (9, 10)] == [9, 10]


def test_a_place_that_is_taken_moves_the_draft_and_all_that_follow(memory: MemoryStore) -> None:
    found = publisher(memory)
    assert found.ordinal_of(1) == 1
    memory.put(key(1), another(1))
    done: list[str] = []
    found.publish(ManifestDraft(manifest(1), done.append, 5.0))
    assert done == [keys.checkpoint_key(3, 2, "step")] and found.ordinal_of(2) == 3
    assert memory.holds(key(2)) and memory.get(key(1)) is not None


def test_a_larger_one_in_the_same_place_is_somebody_elses(memory: MemoryStore) -> None:
    memory.put(key(1), another(1, size=1000))
    found = publisher(memory)
    found.publish(ManifestDraft(manifest(1), lambda _: None, 5.0))
    assert memory.holds(key(2)) and found.commits == 1


def test_the_number_of_a_folder_moves_with_its_ordinal() -> None:
    folder = ManifestDraft(manifest(4, generation=-4), lambda _: None, 5.0).with_next_ordinal().manifest
    assert (folder.ordinal, folder.generation) == (5, -5)
    sharded = ManifestDraft(manifest(4, generation=4), lambda _: None, 5.0).with_next_ordinal().manifest
    assert (sharded.ordinal, sharded.generation) == (5, 4)


def test_a_reply_that_was_lost_is_no_second_commit(memory: MemoryStore) -> None:
    lost: list[str] = []

    def faults(method: str, where: str) -> Fault | None:
        if method == "create" and not lost:
            lost.append(where)
            return Fault(after=True)
        return None

    found = publisher(memory.client(faults))
    done: list[str] = []
    with pytest.raises(StoreUnavailable):
        found.publish(ManifestDraft(manifest(1), done.append, 5.0))
    assert found.in_doubt and done == []
    found.publish(ManifestDraft(manifest(2), done.append, 5.0))
    assert names(memory) == [key(1), key(2)] and len(done) == 2, "what was in doubt goes first"
    found.resume()
    assert found.commits == 2


def test_a_place_that_neither_is_taken_nor_can_be_is_an_outage(memory: MemoryStore) -> None:
    class Odd:
        """Says that it exists, then that it does not."""

        is_local = True
        asked = 0

        def create(self, _key: str, _data: bytes) -> bool:
            self.asked += 1
            return False

        def get(self, _key: str, *, limit: int | None = None) -> None:
            return None

    odd = Odd()
    found = publisher(odd)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable, match="is neither stored nor can be created"):
        found.publish(ManifestDraft(manifest(1), lambda _: None, 5.0))
    assert odd.asked == manifest_writer._MAX_ABSENT and found.in_doubt


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreDenied("no")])
def test_a_store_that_does_not_say_what_is_there_leaves_it_in_doubt(memory: MemoryStore, error: StoreError) -> None:
    memory.put(key(1), another(1))
    found = publisher(memory.client(lambda method, _key: Fault(error=error) if method == "get" else None))
    with pytest.raises(type(error)):
        found.publish(ManifestDraft(manifest(1), lambda _: None, 5.0))
    assert found.in_doubt and names(memory) == [key(1)]


def test_a_part_of_an_older_save_is_not_the_newest(memory: MemoryStore) -> None:
    found = publisher(memory)
    for ordinal in (5, 2):
        found.publish(ManifestDraft(manifest(ordinal), lambda _: None, 5.0))
    assert found.last is not None and found.last[0].key == keys.checkpoint_key(3, 5, "step")
    assert found.commits == 2 and found.next_ordinal() == 6
    assert [one.name for one in list_checkpoints(memory, JOB)] == ["step", "step"]


@pytest.mark.parametrize(
    ("added", "is_save"),
    [(0, False), (manifest_writer._ADDED_BYTES - 1, False), (manifest_writer._ADDED_BYTES, True)],
)
def test_a_folder_with_little_more_than_what_was_restored_holds_no_save(
    memory: MemoryStore, added: int, is_save: bool
) -> None:
    restored = BlobRef("weights.pt", "r" * 64, 100 * manifest_writer._ADDED_BYTES * 2)
    found = publisher(memory, restored=RestoredCheckpoint("any", (CheckpointFile(0, restored),)))
    more = BlobRef("log.txt", "l" * 64, added)
    found.publish(ManifestDraft(replace(manifest(1, generation=-1), files=(restored, more)), lambda _: None, 5.0))
    assert found.last is not None and found.last[0].is_save is is_save


def test_of_a_small_checkpoint_a_hundredth_is_a_save(memory: MemoryStore) -> None:
    restored = BlobRef("weights.pt", "r" * 64, 1000)
    for ordinal, (added, is_save) in enumerate(((9, False), (10, True)), start=1):
        found = publisher(memory, restored=RestoredCheckpoint("any", (CheckpointFile(0, restored),)))
        more = BlobRef("log.txt", "l" * 64, added)
        draft = replace(manifest(ordinal, generation=-ordinal), files=(restored, more))
        found.publish(ManifestDraft(draft, lambda _: None, 5.0))
        assert found.last is not None and found.last[0].is_save is is_save
    # What the script asked for is one however small it is.
    found = publisher(memory, restored=RestoredCheckpoint("any", (CheckpointFile(0, restored),)))
    found.publish(ManifestDraft(replace(manifest(9, generation=1), files=(restored,)), lambda _: None, 5.0))
    assert found.last is not None and found.last[0].is_save
