"""Governors that share a store and nothing else, commands that die half way, and folders that a training wrote over."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

import pytest

from stoker import client
from stoker.core.snapshot import Plan, Unmark
from stoker.governor.loop import Governor
from stoker.governor.observe import active_jobs
from stoker.governor.pass_record import governor_name
from stoker.jobfile import Job
from stoker.model import keys
from stoker.model.errors import StoreUnavailable, Transient
from stoker.model.log_entries import Claimed, Ended, Event, Launched, NodeRef, Record
from stoker.processes.identity import process_table, stat_of
from stoker.providers.local.folder import NodeFolder
from stoker.providers.local.provider import LocalProvider
from stoker.providers.registry import Context
from stoker.store import job_log
from stoker.store.base import Store, open_store
from tests.support.sim_data import SPOT_A

pytestmark = pytest.mark.slow

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("STOKER_STORE", raising=False)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path / "code")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def submit(store: Store, **fields: Any) -> str:
    return client.submit(Job(run="python train.py", **fields), store=store)


def append(store: Store, job: str, event: Event) -> None:
    state = job_log.read(store, job)
    assert state is not None
    record = Record(token=job_log.new_token(), by="test", reason="for the test", event=event)
    assert job_log.append(store, job, state.seq + 1, record)


def kinds(store: Store, job: str) -> list[str]:
    return [entry.event.kind for entry in job_log.entries(store, job)]


# ── A store that two places share ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Be another computer, or another home on this one, which is the same to a provider of processes."""
    with monkeypatch.context() as patch:
        patch.setenv("STOKER_HOME", str(tmp_path / "other-home"))
        yield patch


def local(store: Store) -> LocalProvider:
    return LocalProvider(Context(store=store.url))


def test_machines_of_another_place_are_unknown_not_gone(store: Store, elsewhere: pytest.MonkeyPatch) -> None:
    there = local(store)
    elsewhere.setenv("STOKER_HOME", "/somewhere/else")
    here = local(store)
    assert there.place != here.place
    foreign = f"job-x7kd-2-0-{there.place}-01234567"
    assert there.state([foreign]) == {foreign: "gone"}
    for ask in (lambda: here.state([foreign]), lambda: here.terminate(foreign), lambda: here.interrupt(foreign, 1.0)):
        with pytest.raises(Transient):
            ask()


def test_a_governor_elsewhere_leaves_an_attempt_alone(store: Store, tmp_path: Path) -> None:
    # Counterexample without it: the governor elsewhere finds no such folder, calls the machine gone, closes the claim
    # and starts the next attempt, while the first one trains until it reads that it was closed.
    job = submit(store)
    place = local(store).place
    append(store, job, Claimed(offering=local(store).offerings(_resources())[0], nodes=1))
    append(store, job, Launched(claim=2, nodes=(NodeRef(0, f"{job}-2-0-{place}-01234567"),)))
    before = kinds(store, job)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_HOME", str(tmp_path / "other-home"))
        done = Governor(store).run_pass()
    assert kinds(store, job) == before and not done.actions
    # At home the machine is known to be gone.
    Governor(store).run_pass(only={job})
    assert "closed" in kinds(store, job)[len(before) :]


def test_a_governor_elsewhere_does_not_start_the_job(store: Store, tmp_path: Path) -> None:
    job = submit(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_HOME", str(tmp_path / "other-home"))
        done = Governor(store).run_pass()
    assert kinds(store, job) == ["submitted"]
    assert "submitted" in done.waiting[job]


def test_a_governor_elsewhere_does_not_finish_the_launch(store: Store, tmp_path: Path) -> None:
    job = submit(store)
    append(store, job, Claimed(offering=local(store).offerings(_resources())[0], nodes=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_HOME", str(tmp_path / "other-home"))
        Governor(store).run_pass()
    assert kinds(store, job) == ["submitted", "claimed"]
    assert not (tmp_path / "other-home" / "nodes").exists()


def _resources() -> Any:
    from stoker.model.resources import Resources

    return Resources()


# ── Markers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def ended(store: Store) -> str:
    job = submit(store)
    append(store, job, Ended(outcome="failed", rule="test"))
    store.delete([keys.active(job, 1)])
    return job


class DiesBeforeTheEntry:
    """A store that loses its client before the log is written."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, key: str, data: bytes) -> bool:
        raise StoreUnavailable("and then nothing more")


def age(store: Store, tmp_path: Path, key: str, by: timedelta) -> None:
    moment = (datetime.now(timezone.utc) - by).timestamp()
    os.utime(tmp_path / "store" / key, (moment, moment))


def test_the_marker_of_a_resume_that_died_goes_away(store: Store, tmp_path: Path) -> None:
    job = ended(store)
    with pytest.raises(StoreUnavailable):
        client.resume(job, DiesBeforeTheEntry(store))
    assert active_jobs(store) == {job: (3,)}
    # It may be on its way still.
    Governor(store).run_pass()
    assert active_jobs(store) == {job: (3,)}
    (announcement,) = [meta.key for meta in store.list(f"{keys.ACTIVE}{job}/")]
    age(store, tmp_path, announcement, timedelta(hours=2))
    done = Governor(store).run_pass()
    assert any(isinstance(action, Unmark) for action in done.actions)
    assert active_jobs(store) == {}
    client.remove(job, store)


def test_a_resume_that_was_slow_puts_its_marker_back(store: Store) -> None:
    job = ended(store)

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def create(self, key: str, data: bytes) -> bool:
            late.extend(meta.key for meta in store.list(keys.ACTIVE))
            store.delete(late)
            return store.create(key, data)

    late: list[str] = []
    client.resume(job, Slow())
    assert active_jobs(store) == {job: (3,)}
    assert late
    # The delete lands once more.
    store.delete(late)
    assert active_jobs(store) == {job: (3,)}


def test_a_submission_that_was_slow_is_marked_whatever_lands_late(store: Store) -> None:
    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def create(self, key: str, data: bytes) -> bool:
            late.extend(meta.key for meta in store.list(keys.ACTIVE))
            store.delete(late)
            return store.create(key, data)

    late: list[str] = []
    job = submit(Slow())  # type: ignore[arg-type]
    assert late
    store.delete(late)
    assert active_jobs(store) == {job: (1,)}


def test_a_governor_that_stood_still_does_not_unmark_a_job_that_was_resumed(store: Store, tmp_path: Path) -> None:
    """It decided on an announcement that opened nothing; meanwhile another resume came, of the same number."""
    job = ended(store)
    with pytest.raises(StoreUnavailable):
        client.resume(job, DiesBeforeTheEntry(store))
    governor = Governor(store)
    state = job_log.read(store, job)
    assert state is not None
    governor.memory.states[job] = state
    client.resume(job, store)
    governor.applier.apply(Plan((Unmark(job, (3,), "test"),)))
    assert active_jobs(store) == {job: (3,)}


# ── Memory ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_governor_forgets_jobs_that_others_retired(store: Store) -> None:
    governor = Governor(store, name=governor_name())
    job = submit(store, resources={"cpus": 1})
    append(store, job, Ended(outcome="failed", rule="test"))
    governor.memory.states[job] = client.read_record(job, store).state
    store.delete([keys.active(job, 1)])
    governor.run_pass()
    assert governor.memory.states == {} and governor.memory.submissions == {}


# ── Local nodes whose folders were written over ───────────────────────────────────────────────────────────────────────

GARBAGE = [b"", b"{", b"[]", b"{}", b'{"job":5,"claim":"x"}', b'{"created_at":"soon"}', b"[" * 100_000]
STATE = {"phase": "running", "pid": 1, "started": 1, "boot": "b", "computer": "c", "at": 1.0, "reason": ""}


@pytest.fixture
def node(store: Store, tmp_path: Path) -> Iterator[tuple[LocalProvider, str, Path]]:
    """A machine whose agent does nothing, for as long as the test."""
    agent = tmp_path / "agent.py"
    agent.write_text("import time\ntime.sleep(600)\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_AGENT_COMMAND", f"{sys.executable} {agent}")
        provider = local(store)
        job = submit(store)
        (instance,) = provider.launch(provider.build(_order(store, job)))
    until(lambda: provider.state([instance.id])[instance.id] == "running")
    try:
        yield provider, instance.id, provider.root / instance.id
    finally:
        if (provider.root / instance.id).is_dir():
            (provider.root / instance.id / "terminate").touch()
        for child in provider._started:
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()


def _order(store: Store, job: str) -> Any:
    from stoker.providers.base import LaunchOrder
    from stoker.store.job_index import read_submission

    state = job_log.read(store, job)
    assert state is not None
    spec = read_submission(store, state).spec
    offering = local(store).offerings(spec.resources)[0]
    return LaunchOrder(
        job=job, name="n", claim=2, nodes=1, attempt=1, store=store.url, spec=spec, submitter="x", offering=offering
    )


@pytest.mark.parametrize("name", ["node.json", "machine.json", "state.json"])
def test_a_machine_that_wrote_over_its_folder_stops_nobody_else(
    node: tuple[LocalProvider, str, Path], store: Store, name: str
) -> None:
    provider, instance, folder = node
    good = (folder / name).read_bytes() if (folder / name).exists() else None
    bad_states = [json.dumps({**STATE, key: []}).encode() for key in STATE] if name == "state.json" else []
    for garbage in [*GARBAGE, *bad_states]:
        (folder / name).write_bytes(garbage)
        provider.list_instances()
        assert provider.state([instance])[instance] in ("pending", "running", "stopping")
        # Others are launched all the same, also when old folders are looked through.
        (provider.root / "collected").unlink(missing_ok=True)
        provider.launch(())
    if good is not None:
        (folder / name).write_bytes(good)


@pytest.mark.parametrize("name", ["node.json", "machine.json", "state.json", "interrupt.json"])
def test_a_pipe_in_a_files_place_blocks_nobody(node: tuple[LocalProvider, str, Path], name: str) -> None:
    provider, instance, folder = node
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)

    def look() -> None:
        provider.list_instances()
        provider.state([instance])
        provider.terminate(instance)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(30)
    assert not looking.is_alive()
    # Nor the machine itself: it goes off when it is told to.
    until(lambda: provider.state([instance])[instance] == "gone")


def test_a_machine_whose_folder_was_removed_is_gone_when_its_processes_are(
    node: tuple[LocalProvider, str, Path],
) -> None:
    provider, instance, folder = node
    agents = until(lambda: _marked(folder))
    shutil.rmtree(folder)
    until(lambda: provider.state([instance])[instance] == "gone")
    assert not [pid for pid in agents if (stat := stat_of(pid)) is not None and stat.alive]


def test_a_machine_whose_lock_was_removed_is_not_gone(node: tuple[LocalProvider, str, Path]) -> None:
    provider, instance, folder = node
    (folder / "alive").unlink()
    assert provider.state([instance])[instance] == "running"


def _marked(folder: Path) -> list[int]:
    """The processes of a node, by the mark that they carry."""
    mark = f"STOKER_NODE={NodeFolder(folder).owner}".encode()
    found = []
    for pid in process_table():
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


def until(condition: Callable[[], T]) -> T:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_provider_that_stumbles_stops_no_other_job(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, sound = submit(store), submit(store)
    append(store, broken, Claimed(offering=SPOT_A, nodes=1))

    def stumble(*_: Any) -> Any:
        raise TypeError("a bug")

    monkeypatch.setattr(LocalProvider, "list_instances", stumble)
    append(store, sound, Ended(outcome="failed", rule="test"))
    done = Governor(store).run_pass()
    assert done.active == 2
