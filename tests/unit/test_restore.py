"""Reading checkpoints: listing, choosing, restoring with fallback, pulling."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
import saved_checkpoints
from checkpoint_world import (
    JOB,
    World,
    checkpoints,
    content,
    manifest_keys,
    restored_content,
    write,
)
from saved_checkpoints import blob_of, saved

from stoker.agent.checkpoints.restore import proposals, restore
from stoker.agent.checkpoints.save_protocol import numbered_saves
from stoker.core.poisoned_checkpoints import PoisonedCheckpoints
from stoker.model import keys
from stoker.model.errors import StoreUnavailable
from stoker.model.node_facts import BlobRef, Manifest
from stoker.store.base import Store
from stoker.store.checkpoint_manifests import TRUST_ALL, encode, safe_path
from stoker.store.checkpoints import (
    RestoreError,
    choose,
    fetch_checkpoint,
    list_checkpoints,
    parse_key,
)
from stoker.store.link_targets import safe_link
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.newest_checkpoint import restore_newest

memory = saved_checkpoints.memory
store = saved_checkpoints.store


def manifest(**changes: object) -> Manifest:
    plain = Manifest(
        name="evil",
        job=JOB,
        claim=1,
        rank=0,
        ordinal=1,
        committed_at=datetime.now(timezone.utc),
        files=(BlobRef("model", "0" * 64, 1),),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def blob(path: str) -> BlobRef:
    return BlobRef(path, "0" * 64, 1)


# ── Listing and choosing ──────────────────────────────────────────────────────────────────────────────────────────────


def test_checkpoints_are_listed_oldest_first(tmp_path: Path, store: Store) -> None:
    saved(tmp_path, store, claim=10, steps=1)
    saved(tmp_path, store, claim=2, steps=2)
    assert manifest_keys(store) == ["00000002/000001-step-0", "00000002/000002-step-1", "00000010/000001-step-0"]
    newest = checkpoints(store)[-1]
    assert (newest.name, newest.step, newest.complete) == ("step-0", 0, True)
    assert newest.size == sum(blob.size for blob in newest.manifests[0].files)


def test_an_unanswered_list_is_not_an_empty_one(memory: MemoryStore) -> None:
    memory.outage(True)
    with pytest.raises(StoreUnavailable):
        list_checkpoints(memory, JOB)


def test_the_newest_is_chosen_that_is_not_poisoned_and_old_enough(tmp_path: Path, store: Store) -> None:
    saved(tmp_path, store)
    found = checkpoints(store)
    zero, one, two = manifest_keys(store)

    def chosen(poisoned: set[str], before: str | None = None) -> str | None:
        answer = choose(found, PoisonedCheckpoints(frozenset(poisoned)), before)
        return answer.key if answer else None

    assert chosen(set()) == two
    assert chosen({two}) == one
    assert chosen({one}, before=two) == zero
    assert chosen(set(), before=zero) is None
    assert chosen(set(), before="00000009/000009-gone") == two


@pytest.mark.parametrize(
    "key",
    [
        "",
        "1/2-x",
        "00000001/000001-",
        "00000001/000001-../x",
        "00000001/000001-a@0",
        "x/000001-a",
        "00000001/000001-.a",
    ],
)
def test_what_is_no_key(key: str) -> None:
    assert parse_key(key) is None


def test_keys_are_read_as_they_are_written() -> None:
    for rank in (0, 3):
        key = keys.checkpoint_key(7, 12, "step-900", rank)
        place = parse_key(key)
        assert place is not None and place.key == key and place.rank == rank


@pytest.mark.parametrize(
    "bad",
    [
        manifest(files=(blob("../x"),)),
        manifest(files=(blob("/etc/passwd"),)),
        manifest(files=(blob("a/../../x"),)),
        manifest(files=(blob("a//b"),)),
        manifest(files=(blob("./a"),)),
        manifest(files=(blob(""),)),
        manifest(files=(blob("a\0b"),)),
        manifest(files=(blob("a" * 5000),)),
        manifest(files=(blob("b" * 256),)),
        manifest(files=(blob("a"), blob("a"))),
        manifest(files=(blob("a"), blob("a/b"))),
        manifest(files=(BlobRef("a", "../../../jobs/x", 1),)),
        manifest(files=(BlobRef("a", "0" * 64, -1),)),
        manifest(job="another"),
        manifest(name="other"),
        manifest(claim=2),
        manifest(rank=1),
        manifest(ordinal=5),
        manifest(ranks=(1,)),
        manifest(ranks=()),
        manifest(version=99),
    ],
)
def test_a_manifest_that_cannot_be_trusted_is_left_out(
    memory: MemoryStore, bad: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    memory.create(keys.manifest(JOB, "00000001/000001-evil"), encode(bad))
    assert list_checkpoints(memory, JOB) == []
    assert "left out" in caplog.text


@pytest.mark.parametrize("data", [b"", b"[]", b'{"name": 1}', b"\xff\xfe", b"[" * 100_000])
def test_junk_is_left_out(memory: MemoryStore, data: bytes) -> None:
    memory.create(keys.manifest(JOB, "00000001/000001-evil"), data)
    memory.put(keys.checkpoints(JOB) + "00000001/readme.txt", b"what is this")
    assert list_checkpoints(memory, JOB) == []


def test_a_manifest_that_is_too_large_is_not_read(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    good = encode(manifest())
    memory.create(keys.manifest(JOB, "00000001/000001-evil"), good)
    assert len(list_checkpoints(memory, JOB)) == 1
    monkeypatch.setattr("stoker.store.checkpoint_manifests.MANIFEST_BYTES", len(good) - 1)
    gets = memory.counts["get"]
    assert list_checkpoints(memory, JOB, trust=TRUST_ALL) == []
    assert memory.counts["get"] == gets


@pytest.mark.parametrize("path", ["a", "a/b", ".hidden/x", "a b", "é", "...", "a..b"])
def test_paths_that_stay_inside(path: str) -> None:
    assert safe_path(path)


@pytest.mark.parametrize(
    ("path", "target", "safe"),
    [
        ("latest", "step-1", True),
        ("a/latest", "../step-1/x", True),
        ("a/up", "..", True),
        ("latest", "..", False),
        ("latest", "../x", False),
        ("a/b", "../../x", False),
        ("latest", "/etc", False),
        ("latest", "", False),
        # `root` may itself be a link to the folder: then `root/..` is outside.
        ("latest", "root/../x", False),
        ("latest", ".", False),
    ],
)
def test_links_that_stay_inside(path: str, target: str, safe: bool) -> None:
    assert safe_link(path, target) is safe


# ── Restoring ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_restore_makes_the_folder_what_it_was(tmp_path: Path, store: Store) -> None:
    saved(tmp_path, store)
    folder = tmp_path / "new" / "checkpoints"
    restored = restore(store, JOB, 0, manifest_keys(store)[1], folder)
    assert content(folder) == {"step-1/model": b"model 1", "step-1/sub/optimizer": b"optimizer 1"}
    assert restored.key == manifest_keys(store)[1]
    assert [name for _, name in numbered_saves(folder)] == ["step-1"]
    assert [path.name for path in folder.parent.iterdir()] == ["checkpoints"]
    again = restore(store, JOB, 0, manifest_keys(store)[2], folder)
    assert again.key == manifest_keys(store)[2]
    assert set(content(folder)) == {"step-2/model", "step-2/sub/optimizer"}


def test_what_was_in_the_folder_is_set_aside_not_lost(tmp_path: Path, store: Store) -> None:
    saved(tmp_path, store)
    folder = tmp_path / "new" / "checkpoints"
    write(folder / "mine", "precious")
    restore(store, JOB, 0, manifest_keys(store)[0], folder)
    assert "mine" not in content(folder)
    assert (folder.parent / ".checkpoints.replaced" / "mine").read_text() == "precious"


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path, store: Store) -> None:
    saved(tmp_path, store)
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    restore(store, JOB, 0, manifest_keys(store)[0], tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path / "disk")


def test_a_mount_point_is_filled(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be renamed into it, or out of it."""
    saved(tmp_path, store)
    folder = tmp_path / "mount"
    write(folder / "mine", "precious")

    def inside(path: Path) -> bool:
        return Path(path).is_relative_to(folder)

    real = os.rename

    def rename(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        folders = [Path(f"/proc/self/fd/{handle}").readlink() for handle in (src_dir_fd, dst_dir_fd)]
        if inside(folders[0]) != inside(folders[1]):
            raise OSError(errno.EXDEV, "another disk")
        real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr("stoker.store.safe_extraction.os.rename", rename)
    restore(store, JOB, 0, manifest_keys(store)[0], folder)
    assert (folder / "step-0" / "model").read_text() == "model 0"
    assert (folder / ".tmp-replaced" / "mine").read_text() == "precious"
    assert not (folder / "mine").exists()


@pytest.mark.parametrize("damage", ["missing", "flipped", "truncated", "longer"])
def test_a_damaged_checkpoint_is_passed_over_and_the_folder_stays(tmp_path: Path, store: Store, damage: str) -> None:
    saved(tmp_path, store)
    where = blob_of(store, 2, "optimizer")
    found = store.get(where)
    assert found is not None
    data = {"flipped": b"x" + found.data[1:], "truncated": found.data[:-1], "longer": found.data + b"x"}
    if damage == "missing":
        store.delete([where])
    else:
        store.put(where, data[damage])
    folder = tmp_path / "folder"
    write(folder / "before", "as it was")
    with pytest.raises(RestoreError, match="optimizer"):
        restore(store, JOB, 0, manifest_keys(store)[2], folder)
    assert content(folder) == {"before": b"as it was"}
    assert [path.name for path in tmp_path.iterdir() if "restoring" in path.name] == []
    failed: list[str] = []
    restored = restore_newest(store, JOB, folder, on_failure=lambda key, _: failed.append(key))
    assert restored is not None and restored.key == manifest_keys(store)[1]
    assert failed == [manifest_keys(store)[2]]
    assert content(folder)["step-1/model"] == b"model 1"


def test_an_outage_is_no_reason_to_fall_back(tmp_path: Path, memory: MemoryStore) -> None:
    saved(tmp_path, memory)
    client = memory.client(lambda method, _: Fault() if method == "get_file" else None)
    write(tmp_path / "folder" / "before", "as it was")
    with pytest.raises(StoreUnavailable):
        restore_newest(client, JOB, tmp_path / "folder")
    assert content(tmp_path / "folder") == {"before": b"as it was"}


def test_a_bit_that_flipped_on_the_way_is_no_damage(tmp_path: Path, memory: MemoryStore) -> None:
    saved(tmp_path, memory)

    class Noisy:
        noise = iter(["0" * 64])

        def get_file(self, key: str, target: Path) -> str | None:
            digest = memory.get_file(key, target)
            return next(self.noise, digest)

        def __getattr__(self, name: str) -> object:
            return getattr(memory, name)

    restored = restore(Noisy(), JOB, 0, manifest_keys(memory)[-1], tmp_path / "folder")  # type: ignore[arg-type]
    assert restored.key == manifest_keys(memory)[-1]


def test_proposals_go_from_new_to_old(tmp_path: Path, store: Store) -> None:
    saved(tmp_path, store)
    zero, one, two = manifest_keys(store)
    assert list(proposals(store, JOB)) == [two, one, zero]
    assert list(proposals(store, JOB, PoisonedCheckpoints(frozenset({two})))) == [one, zero]
    offered = proposals(store, JOB)
    assert next(offered) == two
    store.delete([keys.manifest(JOB, one)])
    assert list(offered) == [zero]


def test_nothing_to_restore(tmp_path: Path, store: Store) -> None:
    assert restore_newest(store, JOB, tmp_path / "folder") is None
    with pytest.raises(RestoreError, match="any more"):
        restore(store, JOB, 0, "00000001/000001-gone", tmp_path / "folder")
    with pytest.raises(RestoreError):
        restore(store, JOB, 0, "nonsense", tmp_path / "folder")


def test_parts_of_different_saves_never_make_one_checkpoint(tmp_path: Path, store: Store) -> None:
    ranks = [World(tmp_path, store, rank=rank, nodes=2, keep=100).begin() for rank in range(2)]
    for number in range(3):
        for world in ranks:
            world.save("last", {f"shard-{world.rank}": f"{number}"}, sharded=True)
            # Rank 1 is killed before it commits the second one, and rank 0 before the third.
            if (world.rank, number) not in ((1, 1), (0, 2)):
                world.tick()
    assert [one.complete for one in list_checkpoints(store, JOB)] == [True, False]
    assert restored_content(store, tmp_path / "back") == {"last/shard-0": b"0", "last/shard-1": b"0"}
    incomplete = list_checkpoints(store, JOB)[-1].key
    with pytest.raises(RestoreError, match="rank 1"):
        restore(store, JOB, 0, incomplete, tmp_path / "folder")


def test_a_link_that_leads_out_is_refused(tmp_path: Path, memory: MemoryStore) -> None:
    world = World(tmp_path, memory).begin()
    write(tmp_path / "text", "../../outside")
    sent = memory.put_file(tmp_path / "text", lambda digest: keys.blob(JOB, 0, digest))
    evil = manifest(files=(BlobRef("link", sent.digest, sent.size, stat.S_IFLNK | 0o777),))
    memory.create(keys.manifest(JOB, "00000001/000001-evil"), encode(evil))
    with pytest.raises(RestoreError, match="leaves the folder"):
        restore(memory, JOB, 0, manifest_keys(memory)[0], world.folder)
    assert list(world.folder.iterdir()) == []


@pytest.mark.parametrize(("text", "points_at"), [(b"step-\xff", "step-\ufffd"), (b"n" * 255, "n" * 255)])
def test_a_link_is_restored_as_far_as_its_text_can_be_read(
    tmp_path: Path, memory: MemoryStore, text: bytes, points_at: str
) -> None:
    (tmp_path / "text").write_bytes(text)
    sent = memory.put_file(tmp_path / "text", lambda digest: keys.blob(JOB, 0, digest))
    strange = manifest(files=(BlobRef("link", sent.digest, sent.size, stat.S_IFLNK | 0o777),))
    memory.create(keys.manifest(JOB, "00000001/000001-evil"), encode(strange))
    restore(memory, JOB, 0, manifest_keys(memory)[0], tmp_path / "folder")
    assert os.fspath((tmp_path / "folder/link").readlink()) == points_at


def test_no_file_is_restored_with_more_rights_than_a_plain_one(tmp_path: Path, memory: MemoryStore) -> None:
    write(tmp_path / "text", "x")
    sent = memory.put_file(tmp_path / "text", lambda digest: keys.blob(JOB, 0, digest))
    evil = manifest(files=(BlobRef("root", sent.digest, sent.size, 0o106755), BlobRef("none", sent.digest, 1, 0)))
    memory.create(keys.manifest(JOB, "00000001/000001-evil"), encode(evil))
    restore(memory, JOB, 0, manifest_keys(memory)[0], tmp_path / "folder")
    assert (tmp_path / "folder" / "root").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "folder" / "none").read_text() == "x"


# ── Pulling ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pull_adds_to_the_folder_and_tells_how_far_it_is(tmp_path: Path, store: Store) -> None:
    saved(tmp_path, store)
    target = tmp_path / "pulled"
    write(target / "mine", "stays")
    write(target / "step-2" / "model", "old")
    told: list[tuple[int, int]] = []
    fetch_checkpoint(store, JOB, checkpoints(store)[-1], target, lambda done, total: told.append((done, total)))
    assert content(target) == {
        "mine": b"stays",
        "step-2/model": b"model 2",
        "step-2/sub/optimizer": b"optimizer 2",
    }
    assert told[-1] == (checkpoints(store)[-1].size,) * 2
    assert [path.name for path in target.iterdir() if path.name.startswith(".tmp")] == []


def test_a_pull_of_something_damaged_changes_nothing(tmp_path: Path, store: Store) -> None:
    saved(tmp_path, store)
    store.put(blob_of(store, 2, "optimizer"), b"flipped")
    write(tmp_path / "pulled" / "step-2" / "model", "old")
    with pytest.raises(RestoreError):
        fetch_checkpoint(store, JOB, checkpoints(store)[-1], tmp_path / "pulled")
    assert content(tmp_path / "pulled") == {"step-2/model": b"old"}


def test_where_one_rank_has_a_folder_and_another_a_file_ones_own_wins(tmp_path: Path, store: Store) -> None:
    ranks = [World(tmp_path, store, rank=rank, nodes=2).begin() for rank in range(2)]
    ranks[0].save("s", {"thing/inside": "0", "other": "0"}, sharded=True)
    ranks[1].save("s", {"thing": "1", "other/inside": "1"}, sharded=True)
    for world in ranks:
        world.tick()
    assert restored_content(store, tmp_path / "zero", rank=0) == {"s/thing/inside": b"0", "s/other": b"0"}
    assert restored_content(store, tmp_path / "one", rank=1) == {"s/thing": b"1", "s/other/inside": b"1"}
