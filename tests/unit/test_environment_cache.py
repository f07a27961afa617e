"""Environments in the store: whole or not at all, whoever dies, races, damages or forbids."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from stoker.agent.environment import archive, store_cache
from stoker.agent.environment.archive import FolderChanged, FolderListing, fingerprint, list_folder, with_compiled
from stoker.agent.environment.store_cache import BackgroundUpload, DamagedCopy, EnvironmentManifest, StoreCache
from stoker.maintenance.delete import UNUSED_FOR, collect_environments
from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreDenied, StoreUnavailable
from stoker.store.base import open_store
from stoker.testing.memory_store import Fault, MemoryStore

HERE = "linux-x86_64 glibc-2.36 cpython-311"
NOW = datetime.now(timezone.utc)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a hundred bytes: files lie in several of them, and several lie in one."""
    monkeypatch.setattr(store_cache, "PART_BYTES", 100)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder such as an environment is."""
    folder = tmp_path / "made"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to("/usr/bin/python3")
    (folder / "bin/tool").write_text("#!/bin/sh\n")
    (folder / "bin/tool").chmod(0o755)
    (folder / "lib/site").mkdir(parents=True)
    (folder / "lib/empty").mkdir()
    (folder / "lib64").symlink_to("lib")
    (folder / "lib/site/__init__.py").touch()
    for number in range(20):
        (folder / f"lib/site/m{number}.py").write_bytes(bytes([number]) * (7 * number))
    (folder / "lib/site/large.so").write_bytes(os.urandom(1234))
    for place, path in enumerate(sorted(folder.rglob("*.*"))):
        os.utime(path, (1000 + place, 1000 + place))
    return folder


def store(faults: Callable[[str, str], Fault | None] | None = None) -> MemoryStore:
    return MemoryStore(lambda: NOW, faults=faults)


def keep(kept_in: MemoryStore, folder: Path, key: str = "k", job: str = "job-abcd") -> bool:
    return StoreCache(kept_in, job).upload(key, HERE, folder, list_folder(folder))


def restore(kept_in: MemoryStore, folder: Path, key: str = "k", job: str = "job-abcd") -> bool:
    """False: nothing is kept."""
    found = StoreCache(kept_in, job).find(key)
    if found is not None:
        StoreCache(kept_in, job).restore(found, key, HERE, folder)
    return found is not None


def picture(folder: Path) -> dict[str, object]:
    """All that there is, with modes and times."""
    return {
        str(path.relative_to(folder)): (
            path.readlink()
            if path.is_symlink()
            else None
            if path.is_dir()
            else (path.read_bytes(), path.stat().st_mode & 0o777, path.stat().st_mtime_ns // 10**9)
        )
        for path in folder.rglob("*")
    }


def parts(kept_in: MemoryStore, place: str = keys.ENVIRONMENTS) -> list[str]:
    return [meta.key for meta in kept_in.list(place) if len(meta.key.rpartition("/")[2]) == 64]


@pytest.mark.parametrize("is_local", [True, False], ids=["as it is", "compressed"])
def test_what_was_kept_is_restored(made: Path, tmp_path: Path, is_local: bool) -> None:
    kept_in = MemoryStore(lambda: NOW, is_local=is_local)
    assert not restore(kept_in, tmp_path / "restored")
    assert keep(kept_in, made)
    # What is there of an attempt before this one is no hindrance.
    (tmp_path / "restored/lib").mkdir(parents=True)
    (tmp_path / "restored/left").touch()
    assert restore(kept_in, tmp_path / "restored")
    assert picture(tmp_path / "restored") == picture(made)
    found = StoreCache(kept_in, "job-abcd").find("k")
    assert found is not None and found.manifest.compressed is not is_local and len(found.manifest.parts) > 3


def test_what_the_training_compiled_is_kept_and_nothing_else_that_is_new(made: Path) -> None:
    before = list_folder(made)
    compiled = made / "lib/site/__pycache__"
    compiled.mkdir()
    (compiled / "m3.cpython-311.pyc").write_bytes(b"compiled")
    (compiled / "m4.cpython-311.pyc.140021").write_bytes(b"half")
    (compiled / "new.cpython-311.pyc").write_bytes(b"of a package that the set-up added")
    (made / "lib/site/new.py").write_text("")
    added = {item.path for item in with_compiled(before, made).items} - {item.path for item in before.items}
    assert added == {"lib/site/__pycache__", "lib/site/__pycache__/m3.cpython-311.pyc"}


@pytest.mark.parametrize("change", ["written", "removed"])
def test_an_environment_that_changed_meanwhile_is_not_kept(made: Path, change: str) -> None:
    listing = list_folder(made)
    if change == "written":
        (made / "lib/site/m9.py").write_bytes(b"x" * 63)
        os.utime(made / "lib/site/m9.py", ns=(1, 1))
    else:
        (made / "lib/site/m9.py").unlink()
    kept_in = store()
    with pytest.raises(FolderChanged, match=r"m9.py was (changed|removed)"):
        StoreCache(kept_in, "job-abcd").upload("k", HERE, made, listing)
    assert StoreCache(kept_in, "job-abcd").find("k") is None


def test_a_file_that_is_cut_off_while_it_is_read_is_not_kept(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing, whole = list_folder(made), (made / "lib/site/m9.py").stat()

    class Stat:
        """The file is cut off right after its status was read."""

        path = os.path

        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        @staticmethod
        def fstat(number: int) -> os.stat_result:
            status = os.fstat(number)
            if status.st_ino != whole.st_ino:
                return status
            os.truncate(made / "lib/site/m9.py", 1)
            return whole

    monkeypatch.setattr(archive, "os", Stat())
    with pytest.raises(FolderChanged, match=r"m9.py was changed"):
        archive.read_part(made, listing, 0, listing.size)


# ── Attacks ───────────────────────────────────────────────────────────────────────────────────────────────────────────

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


def truncate(kept_in: MemoryStore, key: str) -> None:
    found = kept_in.get(key)
    assert found is not None
    kept_in.put(key, found.data[:-1])


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


def test_two_race_to_fill_it(made: Path, tmp_path: Path) -> None:
    """Both have sent everything when they come to the manifest. One of them wins, and nothing of the other is left."""
    meet = threading.Barrier(2)

    def wait(call: str, key: str) -> None:
        if call == "create":
            meet.wait(30)

    kept_in = store()
    other = tmp_path / "other"
    assert subprocess.run(["cp", "-a", str(made), str(other)], check=False).returncode == 0
    (other / "lib/site/m7.py").write_bytes(b"made by another, with other bytes")
    won: dict[str, bool] = {}
    threads = [
        threading.Thread(target=lambda f=folder: won.update({f.name: keep(kept_in.client(wait), f)}))
        for folder in (made, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won.values()) == [False, True]
    assert restore(kept_in, tmp_path / "restored")
    winner = made if won["made"] else other
    assert picture(tmp_path / "restored") == picture(winner)
    found = StoreCache(kept_in, "job-abcd").find("k")
    assert found is not None
    assert set(parts(kept_in)) == set(StoreCache(kept_in, "job-abcd").keys_of(found)[1:])


def test_a_machine_that_may_write_only_what_is_its_own_job_keeps_it_there(made: Path, tmp_path: Path) -> None:
    def denies(_call: str, key: str) -> Fault | None:
        return None if key.startswith("work/job-abcd/") else Fault(error=StoreDenied("not yours"))

    kept_in = store(denies)
    assert keep(kept_in, made)
    assert restore(kept_in, tmp_path / "restored")
    assert picture(tmp_path / "restored") == picture(made)
    # Another job does not see it.
    assert StoreCache(kept_in, "other-abcd").find("k") is None


def test_a_machine_that_may_write_nothing_goes_on_without(made: Path) -> None:
    said: list[str] = []
    kept_in = store(lambda call, _key: None if call in ("get", "head") else Fault(error=StoreDenied("not yours")))
    keeping = BackgroundUpload(StoreCache(kept_in, "job-abcd"), "k", HERE, made, list_folder(made), said.append)
    keeping.wait(lambda: time.monotonic() + 30)
    assert said == ["the environment is not stored for the next time: not yours"]


def test_what_is_there_is_not_sent_again(made: Path) -> None:
    puts: list[str] = []

    def note(call: str, key: str) -> None:
        if call in ("put", "create"):
            puts.append(key)

    kept_in = store(note)
    assert keep(kept_in, made)
    whole = list(puts)
    puts.clear()
    assert not keep(kept_in, made), "another copy is there"
    assert puts == []
    # As when a packer was killed: of what it left, one part is not whole.
    kept_in.delete([keys.environment_manifest(keys.ENVIRONMENTS, "k")])
    torn = parts(kept_in)[0]
    truncate(kept_in, torn)
    puts.clear()
    assert keep(kept_in, made)
    assert puts == [torn, keys.environment_manifest(keys.ENVIRONMENTS, "k")]
    assert len(set(whole)) == len(whole)


def test_what_is_not_wanted_any_more_is_not_sent(made: Path) -> None:
    kept_in = store()
    assert not StoreCache(kept_in, "job-abcd").upload("k", HERE, made, list_folder(made), lambda: False)
    assert not list(kept_in.list(keys.ENVIRONMENTS))


def test_each_use_is_recorded_whatever_this_machines_clock_says(made: Path, tmp_path: Path) -> None:
    puts: list[str] = []

    def note(call: str, key: str) -> Fault | None:
        if call == "put" and key == used:
            puts.append(key)
            return Fault(error=StoreDenied("not yours")) if denied else None
        return None

    used, denied = keys.environment_used(keys.ENVIRONMENTS, "k"), False
    # By the clock of this machine, which is a month slow, the last record is of the future.
    now = [datetime.now(timezone.utc) + timedelta(days=30)]
    kept_in = MemoryStore(lambda: now[0], faults=note)
    keep(kept_in, made)
    restore(kept_in, tmp_path / "restored")
    now[0] += timedelta(days=2)
    restore(kept_in, tmp_path / "restored")
    found = kept_in.head(used)
    assert found is not None and found.modified == now[0]
    denied = True
    count = len(puts)
    restore(kept_in, tmp_path / "restored")
    assert len(puts) == count + 1 and picture(tmp_path / "restored") == picture(made)


def test_it_is_kept_when_the_training_has_imported_what_it_needs(made: Path, tmp_path: Path) -> None:
    nice: list[int] = []
    kept_in = store(lambda *_: nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
    said: list[str] = []
    keeping = BackgroundUpload(StoreCache(kept_in, "job-abcd"), "k", HERE, made, list_folder(made), said.append)
    (made / "lib/site/__pycache__").mkdir()
    (made / "lib/site/__pycache__/m3.cpython-311.pyc").write_bytes(b"compiled")
    assert not nice, "the store is left alone while the training starts"
    keeping.wait(lambda: float("inf"))
    assert set(nice) == {19}, "the training comes first"
    # On a busy computer it also says that it waits.
    (line,) = [each for each in said if "still being stored" not in each]
    assert re.fullmatch(r"the environment \(0 MB\) is stored for the next time; that took [\d.]+ s", line)
    assert restore(kept_in, tmp_path / "restored")
    assert (tmp_path / "restored/lib/site/__pycache__/m3.cpython-311.pyc").read_bytes() == b"compiled"


def test_waiting_for_it_is_told_and_what_is_late_is_left(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_cache, "_LOG_WAIT_AFTER_S", 0.0)
    begun, go_on = threading.Event(), threading.Event()
    calls: list[str] = []

    def hangs(call: str, _key: str) -> None:
        calls.append(call)
        if call == "put":
            begun.set()
            go_on.wait(60)

    said: list[str] = []
    keeping = BackgroundUpload(StoreCache(store(hangs), "job-abcd"), "k", HERE, made, list_folder(made), said.append)
    keeping.wait(lambda: 0.0 if begun.is_set() else time.monotonic() + 100)
    assert [line for line in said if "still being stored" in line] in (
        [],  # It had begun by then.
        ["the environment is still being stored for the next time; waiting up to 100 s more"],
    )
    go_on.set()
    keeping._thread.join(60)
    assert not keeping._thread.is_alive()
    assert "create" not in calls, "it is not waited for any more"
    assert not any("is stored for the next time" in line for line in said)


def test_the_exit_waits_for_so_long_and_no_longer(made: Path) -> None:
    """A store that hangs keeps nobody's machine."""
    begun, never = threading.Event(), threading.Event()

    def hangs(call: str, _key: str) -> None:
        if call == "put":
            begun.set()
            never.wait(60)

    said: list[str] = []
    keeping = BackgroundUpload(StoreCache(store(hangs), "job-abcd"), "k", HERE, made, list_folder(made), said.append)
    keeping.wait(lambda: 0.0 if begun.is_set() else time.monotonic() + 30)
    assert begun.is_set()
    never.set()


def test_an_outage_is_no_damage(made: Path, tmp_path: Path) -> None:
    kept_in = store()
    keep(kept_in, made)
    kept_in.faults = lambda call, key: Fault() if call == "get" and len(key) > 60 else None
    with pytest.raises(StoreUnavailable):
        restore(kept_in, tmp_path / "restored")
    kept_in.faults = None
    assert restore(kept_in, tmp_path / "restored")
    assert fingerprint(tmp_path / "restored") == fingerprint(made)


# ── Pruning ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_no_machine_used_for_long_is_collected(made: Path, tmp_path: Path) -> None:
    now = [NOW - UNUSED_FOR - timedelta(days=2)]
    kept_in = MemoryStore(lambda: now[0])
    for key in ("old", "used"):
        keep(kept_in, made, key)
    now[0] = NOW - timedelta(days=2)
    restore(kept_in, tmp_path / "restored", "used")
    keep(kept_in, made, "new")
    now[0] = NOW
    assert collect_environments(kept_in) == 1
    left = {meta.key.split("/")[2] for meta in kept_in.list(keys.ENVIRONMENTS)}
    assert left == {"used", "new"}
    assert restore(kept_in, tmp_path / "restored", "used")
    assert restore(kept_in, tmp_path / "restored", "new")


def test_what_a_killed_packer_left_is_collected(made: Path, tmp_path: Path) -> None:
    now = [NOW - timedelta(days=2)]
    kept_in = MemoryStore(lambda: now[0])
    keep(kept_in, made)
    kept_in.put(keys.environment_part(keys.ENVIRONMENTS, "k", "f" * 64), b"left")
    kept_in.put(keys.environment_part(keys.ENVIRONMENTS, "half", "e" * 64), b"left")
    now[0] = NOW
    young = keys.environment_part(keys.ENVIRONMENTS, "half", "d" * 64)
    kept_in.put(young, b"somebody is at work")
    assert collect_environments(kept_in) == 0
    assert not kept_in.holds(keys.environment_part(keys.ENVIRONMENTS, "k", "f" * 64))
    assert not kept_in.holds(keys.environment_part(keys.ENVIRONMENTS, "half", "e" * 64))
    assert kept_in.holds(young)
    assert restore(kept_in, tmp_path / "restored")
