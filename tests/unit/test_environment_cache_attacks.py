"""Environments kept in the store: killed writers, damaged and forged copies, links that lead out, and races."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cached_environments
import pytest
from cached_environments import HERE, keep, parts, picture, restore, store, truncate

from stoker.agent.environment import archive, store_cache
from stoker.agent.environment.archive import FolderListing, list_folder
from stoker.agent.environment.store_cache import DamagedCopy, EnvironmentManifest, StoreCache
from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreDenied
from stoker.store.base import open_store
from stoker.testing.memory_store import Fault, MemoryStore

made = cached_environments.made


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a hundred bytes: files lie in several of them, and several lie in one."""
    monkeypatch.setattr(store_cache, "PART_BYTES", 100)


PACKER = """\
import os, sys, signal
from pathlib import Path
from stoker.agent.environment import store_cache as cache
from stoker.agent.environment.archive import list_folder
from stoker.store.base import open_store
cache.PART_BYTES = 100
kept_in = open_store(sys.argv[1])
put, left = kept_in.put, [5]
def dying(key, data):
    put(key, data)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
kept_in.put = dying
folder = Path(sys.argv[2])
cache.StoreCache(kept_in, "job-abcd").upload("k", sys.argv[3], folder, list_folder(folder))
"""


def test_killed_while_packing(made: Path, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    died = subprocess.run([sys.executable, "-c", PACKER, url, str(made), HERE], check=False)
    assert died.returncode == -signal.SIGKILL
    kept_in = open_store(url)
    # Several are sent at once: another may have arrived by then.
    assert len(list(kept_in.list(keys.ENVIRONMENTS))) >= 5
    cached = StoreCache(kept_in, "job-abcd")
    assert cached.find("k") is None
    assert cached.upload("k", HERE, made, list_folder(made))
    found = cached.find("k")
    assert found is not None
    cached.restore(found, "k", HERE, tmp_path / "restored")
    assert picture(tmp_path / "restored") == picture(made)


def scramble(kept_in: MemoryStore, key: str) -> None:
    found = kept_in.get(key)
    assert found is not None
    kept_in.put(key, bytes(byte ^ 1 for byte in found.data))


@pytest.mark.parametrize(
    ("attack", "told"),
    [
        (truncate, "a part of it does not match its digest"),
        (scramble, "a part of it does not match its digest"),
        (lambda kept_in, key: kept_in.delete([key]), "a part of it is missing"),
    ],
    ids=["truncated", "scrambled", "missing"],
)
@pytest.mark.parametrize("which", [0, -1])
def test_a_damaged_part_is_noticed_and_replaced(
    made: Path, tmp_path: Path, attack: Callable[[MemoryStore, str], None], told: str, which: int
) -> None:
    kept_in = store()
    keep(kept_in, made)
    attack(kept_in, parts(kept_in)[which])
    with pytest.raises(DamagedCopy, match=told) as damaged:
        restore(kept_in, tmp_path / "restored")
    cached = StoreCache(kept_in, "job-abcd")
    cached.discard(damaged.value)
    assert cached.find("k") is None
    assert keep(kept_in, made), "what is damaged stands in the way of what is whole"
    assert restore(kept_in, tmp_path / "restored")
    assert picture(tmp_path / "restored") == picture(made)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"key": "k"}'])
def test_a_manifest_that_cannot_be_read_is_replaced(made: Path, text: bytes) -> None:
    kept_in = store()
    keep(kept_in, made)
    kept_in.put(keys.environment_manifest(keys.ENVIRONMENTS, "k"), text)
    with pytest.raises(DamagedCopy, match="its manifest cannot be read") as damaged:
        restore(kept_in, made)
    StoreCache(kept_in, "job-abcd").discard(damaged.value)
    assert keep(kept_in, made)


def forge(kept_in: MemoryStore, listing: bytes, *contents: bytes, **changes: object) -> str:
    """A copy whose names are right and whose contents are these. Answers the key of its manifest."""
    digests = []
    for data in (listing, *contents):
        digests.append(store_cache.StoredPart(hashlib.sha256(data).hexdigest(), len(data)))
        kept_in.put(keys.environment_part(keys.ENVIRONMENTS, "k", digests[-1].digest), data)
    kept = replace(EnvironmentManifest("k", HERE, digests[0], tuple(digests[1:]), 100, 4), **changes)  # type: ignore[arg-type]
    manifest = keys.environment_manifest(keys.ENVIRONMENTS, "k")
    kept_in.put(manifest, codec.dumps(kept))
    return manifest


FILE = b'[["file", "a", 4, 0, 0]]'


@pytest.mark.parametrize(
    ("listing", "contents", "changes", "told"),
    [
        (b"{", (), {}, "its listing cannot be read (listing: cannot be read: "),
        (b'[["file", 7, 4, 0, 0]]', (), {}, "its listing cannot be read (listing: cannot be read: 7 is no path"),
        (FILE, (), {}, "its manifest and its listing do not agree"),
        (FILE, (b"four", b"more"), {}, "its manifest and its listing do not agree"),
        (FILE, (b"four",), {"part_bytes": 0}, "its manifest and its listing do not agree"),
        (FILE, (b"five5",), {}, "a part has the wrong length"),
        (b'[["folder", "a"], ["file", "a", 4, 0, 0]]', (b"four",), {}, "its listing is inconsistent ("),
        (b'[["file", "a", 4, 0, 0], ["link", "a", "b"]]', (b"four",), {}, "its listing is inconsistent ("),
        (FILE, (b"four",), {"compressed": True}, "a part of it cannot be decompressed (Error"),
    ],
)
def test_a_copy_that_makes_no_sense_is_told_and_replaced(
    made: Path, tmp_path: Path, listing: bytes, contents: tuple[bytes, ...], changes: dict[str, object], told: str
) -> None:
    kept_in = store()
    manifest = forge(kept_in, listing, *contents, **changes)
    with pytest.raises(DamagedCopy, match=f"^{re.escape(told)}") as damaged:
        restore(kept_in, tmp_path / "restored")
    assert damaged.value.keys[0] == manifest
    StoreCache(kept_in, "job-abcd").discard(damaged.value)
    assert keep(kept_in, made), "what makes no sense stands in the way of what is whole"
    assert restore(kept_in, tmp_path / "restored")
    assert picture(tmp_path / "restored") == picture(made)


def test_a_copy_without_any_bytes_is_restored(tmp_path: Path) -> None:
    kept_in = store()
    forge(kept_in, b'[["folder", "bin"], ["file", "bin/x", 0, 1, 5]]', part_bytes=0)
    assert restore(kept_in, tmp_path / "restored")
    found = (tmp_path / "restored/bin/x").stat()
    assert (found.st_size, found.st_mode & 0o777, found.st_mtime_ns) == (0, 0o755, 5)


def test_a_copy_that_says_nothing_of_its_form_is_as_it_is(tmp_path: Path) -> None:
    kept_in = store()
    manifest = forge(kept_in, FILE, b"four")
    found = kept_in.get(manifest)
    assert found is not None
    tree = json.loads(found.data)
    kept_in.put(manifest, json.dumps({name: tree[name] for name in tree if name != "compressed"}).encode())
    assert restore(kept_in, tmp_path / "restored")
    assert (tmp_path / "restored/a").read_bytes() == b"four"


def test_parts_are_written_whole_and_nothing_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = FolderListing.load(b'[["file", "empty", 0, 0, 7], ["file", "a", 10, 1, 5], ["file", "b", 4, 0, 6]]')
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: whole(handle, data[:3], offset))
    before = len(list(Path("/proc/self/fd").iterdir()))
    archive.create_folders(tmp_path / "made", listing)
    # In any order, and a file in two of them.
    archive.write_part(tmp_path / "made", listing, 8, b"89bbbb")
    archive.write_part(tmp_path / "made", listing, 0, b"01234567")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    found = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "made").iterdir()}
    assert found == {"empty": (b"", 7), "a": (b"0123456789", 5), "b": (b"bbbb", 6)}


def test_what_is_neither_file_folder_nor_link_is_left_out(made: Path) -> None:
    before = list_folder(made).dump()
    os.mkfifo(made / "lib/pipe")
    assert list_folder(made).dump() == before


def test_a_copy_that_may_not_be_discarded_does_not_stop_the_machine(made: Path) -> None:
    kept_in = store(lambda call, _key: Fault(error=StoreDenied("not yours")) if call == "delete" else None)
    keep(kept_in, made)
    StoreCache(kept_in, "job-abcd").discard(DamagedCopy("", keys.environment_manifest(keys.ENVIRONMENTS, "k")))
    assert StoreCache(kept_in, "job-abcd").find("k") is not None


@pytest.mark.parametrize("field", ["platform", "key"])
def test_what_was_made_for_another_machine_is_not_used(made: Path, tmp_path: Path, field: str) -> None:
    kept_in = store()
    keep(kept_in, made)
    name = keys.environment_manifest(keys.ENVIRONMENTS, "k")
    found = kept_in.get(name)
    assert found is not None
    kept = codec.loads(EnvironmentManifest, found.data)
    other = {"platform": "linux-aarch64 glibc-2.36 cpython-311"} if field == "platform" else {"key": "other"}
    kept_in.put(name, codec.dumps(EnvironmentManifest(**{**kept.__dict__, **other})))
    with pytest.raises(DamagedCopy, match="it was built for"):
        restore(kept_in, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize(
    "text",
    [
        b'[["file", "../up", 1, 0, 0]]',
        b'[["link", "/etc/passwd", "x"]]',
        b'[["file", "a", -1, 0, 0]]',
        b'[["pipe", "a"]]',
        b'{"a": 1}',
        b"\xff",
    ],
)
def test_a_listing_that_leads_out_is_refused(text: bytes) -> None:
    with pytest.raises(CodecError):
        FolderListing.load(text)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    listing = FolderListing.load(f'[["link", "in", "{outside}"], ["file", "in/file", 4, 0, 0]]'.encode())
    archive.create_folders(tmp_path / "restored", listing)
    archive.write_part(tmp_path / "restored", listing, 0, b"evil")
    with pytest.raises(CodecError):
        archive.create_links(tmp_path / "restored", listing)
    assert not list(outside.iterdir())


def test_no_link_is_made_behind_another(tmp_path: Path) -> None:
    """A listing with a link out of its folder, and a second one behind it, wrote names into any folder."""
    outside = tmp_path / "outside"
    outside.mkdir()
    rows = [["link", "in", str(outside)], ["link", "in/authorized_keys", "/etc/passwd"]]
    for number, listing in enumerate((rows, rows[::-1])):
        restored = tmp_path / f"restored-{number}"
        loaded = FolderListing.load(json.dumps(listing).encode())
        archive.create_folders(restored, loaded)
        with pytest.raises(CodecError):
            archive.create_links(restored, loaded)
        assert not list(outside.iterdir())


def test_a_folder_swapped_for_a_link_meanwhile_is_not_passed(tmp_path: Path) -> None:
    outside, restored = tmp_path / "outside", tmp_path / "restored"
    outside.mkdir()
    listing = FolderListing.load(b'[["folder", "bin"], ["file", "bin/x", 4, 0, 0]]')
    archive.create_folders(restored, listing)
    (restored / "bin").rmdir()
    (restored / "bin").symlink_to(outside)
    archive.write_part(restored, listing, 0, b"evil")
    assert not list(outside.iterdir())
    assert (restored / "bin/x").read_bytes() == b"evil"
