"""A submission on a computer where something is missing, unreadable or full: one line that says what to do."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from stoker.model import codec, keys
from stoker.model.errors import StoreUnavailable, UserError
from stoker.model.log_entries import Ended, Event, Record, Submitted
from stoker.model.resources import Resources
from stoker.model.spec import Input, Spec
from stoker.model.submission import Code, Submission
from stoker.store import job_log
from stoker.store.base import Store, open_store
from stoker.submit import agent_bundle, check_inputs, pip_download, uploads
from stoker.submit.ignore_rules import is_ignored, rules_above
from stoker.submit.resume import prepare_resume
from stoker.submit.submitted_state import read_state
from stoker.testing.memory_store import MemoryStore

JOB = "gpt-abcd"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as failure:
        call()
    assert "\n" not in str(failure.value)
    return str(failure.value)


def no_reading(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """These cannot be read: root, who runs many tests, can read everything."""
    real_open, real_scan = Path.open, os.scandir

    def opened(self: Path, *args: Any, **more: Any) -> Any:
        if self in paths:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real_open(self, *args, **more)

    def scanned(path: Any = ".") -> Any:
        if Path(path) in paths:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_scan(path)

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(os, "scandir", scanned)


# ── The code ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_rules_of_a_repository_that_ignores_the_folder_itself_do_not_count(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("out/\n*.bin\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "src").mkdir()
    assert rules_above(tmp_path / "out") == ()
    assert is_ignored(tmp_path / "src/a.bin", False, rules_above(tmp_path / "src"))


# ── Inputs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def reading(wanted: str, **more: Any) -> Spec:
    return Spec("j", "true", resources=Resources(provider="ec2"), inputs={"data": Input(wanted, **more)})


def test_an_input_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a").touch()
    no_reading(monkeypatch, folder)
    said = f"inputs.data: {folder} cannot be read: Permission denied"
    assert refused(lambda: uploads.measure_upload("data", folder)) == said
    assert refused(lambda: check_inputs._check_files("data", folder, 1)) == said


def test_a_file_that_goes_away_or_changes_while_it_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"one")
    store = MemoryStore(lambda: datetime.now(timezone.utc))
    upload = uploads.measure_upload("data", file)
    file.write_bytes(b"two")
    said = f"inputs.data: {file} was changed meanwhile; submit again when it rests"
    assert refused(lambda: uploads.send(store, upload, lambda _: None)) == said
    file.unlink()
    said = f"inputs.data: {file} cannot be read: No such file or directory"
    assert refused(lambda: uploads.send(store, upload, lambda _: None)) == said
    assert not list(store.list(keys.input_files(upload.digest)))


def test_a_store_that_reports_no_progress_gets_the_file_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"twelve bytes")
    store, sent = MemoryStore(lambda: datetime.now(timezone.utc)), []
    upload = uploads.measure_upload("data", file)
    stored = uploads.send(store, upload, sent.append)
    found = store.get(f"{keys.input_files(stored)}data")
    assert found is not None and found.data == b"twelve bytes" and sum(sent) == 12


# ── Programs for machines ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pip_that_cannot_be_started_or_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(result: object) -> str:
        def run(*_: Any, **__: Any) -> object:
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(subprocess, "run", run)
        return pip_download.download_wheel("a==1", "x86_64", ("manylinux_2_28",), tmp_path)

    done = subprocess.CompletedProcess[str]
    assert answer(OSError(errno.ENOENT, "No such file")) == "[Errno 2] No such file"
    assert "timed out after 3" in answer(subprocess.TimeoutExpired("pip", 3))
    assert answer(done([], 0, "", "a warning")) == ""
    assert answer(done([], 1, "", "a warning\nERROR: first\nERROR: no a\nmore")) == "no a"
    assert answer(done([], 1, "", "first\nno ERROR line")) == "no ERROR line"
    assert answer(done([], 1, "", "")) == ""


def test_a_home_that_cannot_be_written(home: Path) -> None:
    home.mkdir()
    (home / "tools").touch()
    said = refused(lambda: pip_download.write_cached(home / "tools/uv.gz", b"x"))
    assert said.startswith(f"{home}/tools cannot be written: ")
    assert said.endswith("; set STOKER_HOME to a folder of yours")


def test_what_is_written_to_the_home_is_whole(home: Path) -> None:
    pip_download.write_cached(home / "tools/uv.gz", b"x")
    assert {path.name: path.read_bytes() for path in (home / "tools").iterdir()} == {"uv.gz": b"x"}


def test_an_agent_that_nobody_used_for_long_leaves_the_cache(home: Path) -> None:
    (home / "agents").mkdir(parents=True)
    for name in ("cp311-old.tar.gz", "cp311-young.tar.gz", "notes.txt"):
        (home / "agents" / name).touch()
    for name in ("cp311-old.tar.gz", "notes.txt"):
        long_ago = time.time() - agent_bundle.CACHE_FOR_S - 60
        os.utime(home / "agents" / name, (long_ago, long_ago))
    agent_bundle._cache(home / "agents/cp311-new.tar.gz", b"x")
    assert sorted(path.name for path in (home / "agents").iterdir()) == [
        "cp311-new.tar.gz",
        "cp311-young.tar.gz",
        "notes.txt",
    ]


# ── Jobs that are resumed ─────────────────────────────────────────────────────────────────────────────────────────────


def put(store: Store, submission: Submission, *events: Event) -> None:
    data = codec.dumps(submission)
    store.put(keys.spec(JOB), data)
    code = submission.code.digest if submission.code is not None else None
    for seq, event in enumerate((Submitted(codec.digest(data), "jane", code), *events), 1):
        job_log.append(store, JOB, seq, Record("t", "jane", "why", event))


def test_a_job_whose_code_is_gone_cannot_be_resumed(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    digest = "a" * 64
    code = Code(digest, 1, 1)
    put(store, Submission(JOB, Spec("gpt", "true"), "jane", code=code), Ended("stopped", "user-stop"))
    said = f"{JOB}: its code is not in the store any more; submit it again from the folder"
    assert refused(lambda: prepare_resume(JOB, store)) == said
    store.put(keys.code(digest), b"x")
    prepare_resume(JOB, store)


def test_a_job_that_cannot_be_read_can_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path / "store"))
    store.create(keys.log_entry(JOB, 1), b"garbage")
    said = refused(lambda: read_state(store, JOB))
    assert said.startswith(f"{JOB} cannot be read: ")
    assert said.endswith(f"`stoker rm {JOB}` removes it, once it has no machines")

    def unavailable(*_: object) -> None:
        raise StoreUnavailable("later")

    monkeypatch.setattr(job_log, "read", unavailable)
    with pytest.raises(StoreUnavailable, match=r"^later$"):
        read_state(store, JOB)
