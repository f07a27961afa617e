"""Environments in the store: whole or not at all, whoever dies, races, damages or forbids."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import cached_environments
import pytest
from cached_environments import HERE, NOW, keep, parts, picture, restore, store, truncate

from stoker.agent.environment import archive, store_cache
from stoker.agent.environment.archive import FolderChanged, fingerprint, list_folder, with_compiled
from stoker.agent.environment.store_cache import BackgroundUpload, StoreCache
from stoker.maintenance.delete import UNUSED_FOR, collect_environments
from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreUnavailable
from stoker.testing.memory_store import Fault, MemoryStore

made = cached_environments.made


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a hundred bytes: files lie in several of them, and several lie in one."""
    monkeypatch.setattr(store_cache, "PART_BYTES", 100)


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
