"""A governor in the background counts as running when it says so, and never before."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from plain_store import wait_for
from test_background import open_job

import stoker
from stoker.governor import background, background_report
from stoker.governor.background import GovernorChoice, check_governed, ensure_governed, ensure_governor
from stoker.governor.background_report import OK, read_report, write_report
from stoker.model import keys
from stoker.model.errors import NotGoverned, StokerError, StoreUnavailable, UserError
from stoker.store.base import Store, open_store

SOURCES = Path(stoker.__file__).parent.parent


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    return open_store((tmp_path / "store").as_uri())


def is_locked(store: Store) -> bool:
    handle = os.open(background.files_for(store.url)[0], os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Run this instead of Python in the background."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setattr(background.sys, "executable", str(path))


def test_a_governor_that_dies_at_its_start_is_none(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, log = background.files_for(store.url)
    log.write_text("2026-01-01T00:00:00Z the last line of another one\n")
    program(tmp_path, monkeypatch, "echo '2026-01-02T00:00:00Z there is no file key.json'; exit 1")
    with pytest.raises(StokerError) as error:
        ensure_governor(store.url)
    text = str(error.value)
    assert text.startswith("no governor runs") and "has ended: there is no file key.json; keep `stoker govern" in text
    program(tmp_path, monkeypatch, "exit 7")
    with pytest.raises(StokerError, match="exit code 7"):
        ensure_governor(store.url)
    assert not is_locked(store)


@pytest.mark.parametrize("size", [None, 0, background._LOG_BYTES])
def test_the_reason_is_found_in_a_log_that_is_begun_anew(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int | None
) -> None:
    if size is not None:
        background.files_for(store.url)[1].write_bytes(b"x" * size)
    program(tmp_path, monkeypatch, "echo oh; exit 1")
    with pytest.raises(StokerError, match="has ended: oh;"):
        ensure_governor(store.url)


def test_a_log_that_is_gone_or_no_text_has_a_last_line_all_the_same(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert background_report.last_line_since(log, 0)() == ""
    log.write_bytes(b"2026-01-01T00:00:00Z caf\xe9 is closed\n\n")
    assert background_report.last_line_since(log, 0)() == "caf\ufffd is closed"


def test_a_governor_that_says_nothing_is_not_known_to_run(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "REPORTS_WITHIN_S", 0.2)
    program(tmp_path, monkeypatch, "exec sleep 5")
    background.files_for(store.url)[0].write_text("ok\n")  # By one that was killed.
    for _ in range(2):
        # The second caller finds the lock taken.
        with pytest.raises(StokerError, match="no governor is known to run"):
            ensure_governor(store.url)


def test_a_governor_that_had_nothing_to_do_was_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, "exit 0")
    assert ensure_governor(store.url) is None


def test_one_that_runs_and_cannot_work_is_told_with_its_error(store: Store) -> None:
    lock, log = background.files_for(store.url)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    write_report(handle, "the bucket\nrefuses")
    found = ensure_governor(store.url)
    assert found is not None and "last pass failed: the bucket refuses" in found and str(log) in found
    write_report(handle, OK)
    assert ensure_governor(store.url) is None
    write_report(handle, "x" * 5000)
    assert len(read_report(handle)) < 1000
    os.close(handle)


def test_where_another_one_dies_at_its_start_the_next_caller_starts_its_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, _ = background.files_for(store.url)
    dying = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(dying, fcntl.LOCK_EX)
    threading.Timer(0.2, os.close, (dying,)).start()
    open_job(store, "a-aaaa")
    started: list[int] = []

    class Running:
        def poll(self) -> None: ...

    def spawn(_url: str, _lock: Path, handle: int, _log: Path) -> Running:
        started.append(handle)
        write_report(handle, OK)
        return Running()

    monkeypatch.setattr(background, "_spawn", spawn)
    assert ensure_governor(store.url) is None and len(started) == 1


def test_passes_are_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, _ = background.files_for(store.url)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    seen: list[str] = []

    class Watching:
        def __init__(self, _store: Store) -> None: ...

        def watch(self, until, on_pass, on_error) -> None:  # type: ignore[no-untyped-def]
            from stoker.governor.loop import Pass

            on_error(StoreUnavailable("did not answer"))
            seen.append(read_report(handle))
            on_pass(Pass(active=1, at=None))  # type: ignore[arg-type]
            seen.append(read_report(handle))

    monkeypatch.setattr(background, "Governor", Watching)
    background.run(store, lock, handle)
    assert seen == ["did not answer", OK] and read_report(handle) == ""
    os.close(handle)


def test_no_governor_is_a_result_and_not_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_url: str) -> None:
        raise StokerError("no governor runs: oh")

    monkeypatch.setattr(background, "ensure_governor", fail)
    found = ensure_governed(store, [])
    assert found == GovernorChoice(problem="no governor runs: oh", is_governed=False)
    with pytest.raises(NotGoverned, match="a-aaaa was submitted and must not be submitted again, but no governor runs"):
        check_governed("a-aaaa", found)
    check_governed("a-aaaa", GovernorChoice())


def test_a_guard_whose_store_cannot_be_opened_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_url: str) -> Store:
        raise UserError("there is no file key.json")

    monkeypatch.setattr(background, "open_store", fail)
    background.take_over(store.url, ["a-aaaa"])
    assert "could not hand over: there is no file key.json" in capsys.readouterr().out


_CALLER = """
import sys
from stoker.governor.background import ensure_governor, files_for
from stoker.store.base import open_store
print(ensure_governor(open_store(sys.argv[1]).url))
"""


def test_a_real_governor_runs_where_its_caller_used_relative_paths(tmp_path: Path) -> None:
    """As the caller works in a folder of its own, with the code, the home and the credentials relative to it."""
    (tmp_path / "code").symlink_to(SOURCES)
    (tmp_path / "home").mkdir()
    store = open_store(str(tmp_path / "store"))
    open_job(store, "a-aaaa")
    environ = {**os.environ, "PYTHONPATH": "code", "STOKER_HOME": "home"}
    done = subprocess.run(
        [sys.executable, "-c", _CALLER, store.url],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "None\n", done.stderr
    (lock,) = (tmp_path / "home" / "governors").glob("*.lock")
    (log,) = lock.parent.glob("*.log")
    assert lock.read_text() == "ok\n" and "governs" in log.read_text()
    assert not (tmp_path / "home/governors/home").exists(), "another home"
    # Nothing is left to govern: it ends.
    store.delete([keys.active("a-aaaa", 1)])
    handle = os.open(lock, os.O_RDWR)

    def has_ended() -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    wait_for(has_ended)
    os.close(handle)


def test_a_real_governor_whose_store_cannot_be_opened_is_none(tmp_path: Path, store: Store) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StokerError, match=r"has ended: cannot govern .*is a file; keep `stoker govern --watch`"):
        ensure_governor(store.url)
    assert background_report.OK not in background.files_for(store.url)[0].read_text()
