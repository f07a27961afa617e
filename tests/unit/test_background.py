"""The background governor: one at a time, and no job is missed when it ends."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from stoker.governor import background
from stoker.governor.background_report import OK, read_report, write_report
from stoker.governor.loop import Pass
from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.store.base import Store, open_store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Instead of a process: a copy of the lock's descriptor, as the process would hold it, which reports at once."""
    found: list[int] = []

    def spawn(_url: str, _lock: Path, handle: int, _log: Path) -> SimpleNamespace:
        found.append(os.dup(handle))
        write_report(found[-1], OK)
        return SimpleNamespace(poll=lambda: None)

    monkeypatch.setattr(background, "_spawn", spawn)
    return found


def open_job(store: Store, job: str) -> None:
    store.put(keys.active(job, 1), b"")
    store.put(keys.log_entry(job, 1), b"{}")


def test_one_governor_is_started_while_one_holds_the_lock(store: Store, spawned: list[int]) -> None:
    for _ in range(2):
        assert background.ensure_governor(store.url) is None
        assert len(spawned) == 1
    assert background.ensure_governor(store.url + "-other") is None
    assert len(spawned) == 2, "each store has its own"
    os.close(spawned[0])
    assert background.ensure_governor(store.url) is None
    assert len(spawned) == 3
    for handle in spawned[1:]:
        os.close(handle)
    assert stat.S_IMODE(background.files_for(store.url)[0].stat().st_mode) == 0o600, "no other user can hold it"


class Governed:
    """A governor that governs nothing: `watch` ends when a pass may end it."""

    rounds = 0

    def __init__(self, store: Store) -> None:
        self.store = store

    def watch(self, until, on_pass, on_error) -> None:  # type: ignore[no-untyped-def]
        type(self).rounds += 1
        for job in self.store.folders(keys.ACTIVE):
            self.store.delete([keys.active(job, 1)])
        done = Pass(active=0, at=None)  # type: ignore[arg-type]
        on_pass(done)
        assert until(done)


def held_lock(store: Store) -> tuple[Path, int]:
    lock, _ = background.files_for(store.url)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return lock, handle


def test_a_job_submitted_while_the_lock_was_still_held_is_governed(
    store: Store, spawned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[str] = []

    class Reporting(Governed):
        def watch(self, until, on_pass, on_error) -> None:  # type: ignore[no-untyped-def]
            reports.append(read_report(handle))
            super().watch(until, on_pass, on_error)

    monkeypatch.setattr(background, "Governor", Reporting)
    lock, handle = held_lock(store)
    release = fcntl.flock

    def submit_first(descriptor: int, what: int) -> None:
        """Between the governor's last pass and the moment it lets go, somebody submits."""
        if what == fcntl.LOCK_UN and Reporting.rounds == 1:
            open_job(store, "late-bbbb")
            write_report(descriptor, OK)
            assert background.ensure_governor(store.url) is None
            write_report(descriptor, "")
        release(descriptor, what)

    monkeypatch.setattr(background.fcntl, "flock", submit_first)
    background.run(store, lock, handle)
    assert Reporting.rounds == 2 and spawned == []
    assert reports == ["", OK], "it governs already when it begins once more"
    os.close(handle)


def test_it_ends_when_another_took_the_lock_meanwhile(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "Governor", Governed)
    monkeypatch.setattr(Governed, "rounds", 0)
    lock, handle = held_lock(store)
    release = fcntl.flock
    others: list[int] = []

    def take_over(descriptor: int, what: int) -> None:
        release(descriptor, what)
        if what == fcntl.LOCK_UN:
            open_job(store, "late-bbbb")
            others.append(os.open(lock, os.O_RDWR))
            release(others[0], fcntl.LOCK_EX)

    monkeypatch.setattr(background.fcntl, "flock", take_over)
    background.run(store, lock, handle)
    assert Governed.rounds == 1, "the other one governs the late job"
    for descriptor in (handle, *others):
        os.close(descriptor)


def test_a_marker_without_a_log_keeps_no_governor_alive(store: Store) -> None:
    store.put(keys.active("never-bbbb", 1), b"")
    assert background._idle(store)
    open_job(store, "real-bbbb")
    assert not background._idle(store)


def test_it_gives_up_when_its_home_was_removed(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    lock, handle = held_lock(store)
    lock.unlink()
    open_job(store, "lost-bbbb")
    background.run(store, lock, handle)
    assert "gives up" in capsys.readouterr().out
    os.close(handle)


@pytest.mark.parametrize(
    ("error", "given_up"),
    [(StoreDenied("the bucket does not exist"), True), (StoreUnavailable("did not answer"), False)],
)
def test_it_gives_up_a_bucket_that_refuses_for_hours_and_waits_for_one_that_is_away(
    error: StoreError,
    given_up: bool,
    store: Store,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(background.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(type(store), "is_local", False)

    class Refused(Governed):
        def watch(self, until, on_pass, on_error) -> None:  # type: ignore[no-untyped-def]
            for _ in range(8):
                on_error(error)
                now_s[0] += 3600
            super().watch(until, on_pass, on_error)

    monkeypatch.setattr(background, "Governor", Refused)
    lock, handle = held_lock(store)
    background.run(store, lock, handle)
    assert ("gives up" in capsys.readouterr().out) == given_up
    os.close(handle)
