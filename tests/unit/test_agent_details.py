"""Small decisions of the agent, each asked directly: predicates answer True or False, and texts say what is so."""

from __future__ import annotations

import os
import struct
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.agent.checkpoints import format_check
from stoker.agent.checkpoints.format_check import UNKNOWN, check_format
from stoker.agent.checkpoints.save_copies import SaveCopies
from stoker.agent.container.process_group import ContainerGroup
from stoker.agent.environment.local_cache import LocalCache
from stoker.agent.environment.store_cache import BackgroundUpload
from stoker.agent.environment.venv import Venv
from stoker.agent.health import activity_probe
from stoker.agent.health.usage_sampler import GpuReader
from stoker.agent.logs.cloud_copy import _LineCutter
from stoker.processes import OpenFile

# ── Environments ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_commands_of_the_base_are_added_where_they_are_safe_and_not_there(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "own").write_text("mine")
    scripts = {
        "torchrun": "torch.distributed.run:main",
        "own": "other:main",
        "extra": "pkg.cli : run [color]",
        "odd": "not an entry point",
        "../up": "evil:main",
        "-dash": "evil:main",
        "python3": "evil:main",
        "pip3": "evil:main",
    }
    venv: Any = SimpleNamespace(
        folder=tmp_path, python=tmp_path / "bin" / "python", base=SimpleNamespace(scripts=scripts)
    )
    Venv._add_scripts(venv)
    assert sorted(path.name for path in (tmp_path / "bin").iterdir()) == ["extra", "own", "torchrun"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin"]
    torchrun = tmp_path / "bin" / "torchrun"
    call = "import sys\nfrom torch.distributed.run import main\nsys.exit(main())\n"
    assert torchrun.read_text() == f"#!{tmp_path}/bin/python\n{call}" and os.access(torchrun, os.X_OK)
    assert "from pkg.cli import run\n" in (tmp_path / "bin" / "extra").read_text()
    assert (tmp_path / "bin" / "own").read_text() == "mine"


class FakeCache:
    """Keeps an environment when the test says so."""

    def __init__(self, kept: bool, error: OSError | None = None) -> None:
        self.kept, self.error = kept, error
        self.release = threading.Event()

    def upload(self, *_: object) -> bool:
        self.release.wait(60.0)
        if self.error is not None:
            raise self.error
        return self.kept


def keeping(cache: FakeCache, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[BackgroundUpload, list[str]]:
    said: list[str] = []
    monkeypatch.setattr("stoker.agent.environment.store_cache.with_compiled", lambda listing, _folder: listing)
    listing: Any = SimpleNamespace(size=3_000_000)
    return BackgroundUpload(cache, "key", "platform", folder, listing, said.append), said  # type: ignore[arg-type]


def test_an_environment_that_is_kept_tells_its_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FakeCache(kept=True)
    kept, said = keeping(cache, tmp_path, monkeypatch)
    threading.Timer(0.3, cache.release.set).start()
    kept.wait(lambda: time.monotonic() + 60.0)
    [text] = [line for line in said if "is stored for" in line]
    assert text.startswith("the environment (3 MB) is stored for the next time; that took ")
    assert 0.2 <= float(text.rpartition("took ")[2].removesuffix(" s")) < 30.0


def test_an_environment_that_is_not_kept_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FakeCache(kept=False)
    cache.release.set()
    kept, said = keeping(cache, tmp_path, monkeypatch)
    kept.wait(lambda: time.monotonic() + 60.0)
    assert said == []
    cache = FakeCache(kept=False, error=OSError("disk"))
    cache.release.set()
    kept, said = keeping(cache, tmp_path, monkeypatch)
    kept.wait(lambda: time.monotonic() + 60.0)
    assert said == ["the environment is not stored for the next time: disk"]


def test_a_machine_that_is_taken_away_waits_for_no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FakeCache(kept=True)
    kept, said = keeping(cache, tmp_path, monkeypatch)
    began_s = time.monotonic()
    kept.wait(lambda: 0.0)
    assert time.monotonic() - began_s < 30.0 and said == [] and kept._wanted is False
    cache.release.set()
    kept._thread.join(60.0)  # While `with_compiled` is still replaced.


def test_an_environment_that_is_not_there_is_not_whole(tmp_path: Path) -> None:
    shelf = LocalCache(tmp_path)
    assert shelf._is_intact("key") is False
    shelf.folder("key").mkdir(parents=True)
    shelf.mark_complete("key")
    assert shelf._is_intact("key") is True
    (shelf.folder("key") / "more").touch()
    assert shelf._is_intact("key") is False
    lock = os.open(tmp_path / "a file", os.O_RDWR | os.O_CREAT)
    try:
        assert shelf._flock("none", lock, 2) is False, "a lock that was removed locks nothing"
    finally:
        os.close(lock)


# ── Checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_copy_is_taken_while_a_file_is_being_written() -> None:
    writing = SimpleNamespace(files={"a.pt": OpenFile(frozenset({1}), False)}, members=frozenset({1}))
    copies: Any = SimpleNamespace(_logs=set, _view=SimpleNamespace(open_files=lambda: writing))
    assert SaveCopies._take(copies, None) is False  # type: ignore[arg-type]
    assert SaveCopies._note(copies, []) is False


def npy(path: Path, header: str, data: bytes, version: int = 1) -> Path:
    raw = header.encode("latin1")
    length = struct.pack("<H" if version == 1 else "<I", len(raw))
    path.write_bytes(b"\x93NUMPY" + bytes((version, 0)) + length + raw + data)
    return path


@pytest.mark.parametrize("version", [1, 2])
def test_an_array_has_as_many_bytes_as_its_header_says(tmp_path: Path, version: int) -> None:
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}"
    path = tmp_path / "a.npy"
    assert check_format(npy(path, header, b"x" * 24, version)).state == "whole"
    assert check_format(npy(path, header, b"x" * 23, version)).state == "broken"
    assert check_format(npy(path, header, b"x" * 25, version)) == UNKNOWN, "several arrays in one file"
    text = "{'descr': '<U2', 'fortran_order': False, 'shape': (3,)}"
    assert check_format(npy(path, text, b"x" * 24, version)).state == "whole"
    records = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}"
    assert check_format(npy(path, records, b"", version)) == UNKNOWN, "how wide a record is, is not looked at"
    assert format_check._parses(b"{") is False and format_check._parses(b"{}") is True


# ── Processes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_process_is_below_another_or_not(tmp_path: Path) -> None:
    for pid, parent in ((10, 5), (11, 10), (12, 11), (13, 1), (20, 21), (21, 20)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a b) S {parent} 1 1")
    assert activity_probe._is_below(tmp_path, 12, 10) is True and activity_probe._is_below(tmp_path, 10, 10) is True
    assert activity_probe._is_below(tmp_path, 10, 12) is False and activity_probe._is_below(tmp_path, 13, 10) is False
    assert activity_probe._is_below(tmp_path, 99, 10) is False
    assert activity_probe._is_below(tmp_path, 20, 10) is False, "a circle has an end"


def test_a_process_that_may_not_be_signalled_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []
    group = ContainerGroup(lambda: ended.append(True))
    group.container = SimpleNamespace(  # type: ignore[assignment]
        members=lambda: {7}, without_exec_sessions=lambda _commands: {7}
    )
    refused: list[bool] = [True]

    class FakeProcess:
        def signal(self, _number: int) -> None:
            if refused[0]:
                raise PermissionError

    monkeypatch.setattr("stoker.agent.container.process_group.Process.of", lambda _pid: FakeProcess())
    assert group._signal(7, 9) is False and group._signal(8, 9) is True
    refused[0] = False
    assert group._signal(7, 9) is True
    refused[0] = True
    monkeypatch.setattr(
        "stoker.agent.container.process_group.stat_of", lambda _pid: SimpleNamespace(alive=True, halted=False, parent=1)
    )
    assert group.kill(0.05) is False and ended, "the engine is asked where this user may not"
    assert ContainerGroup(lambda: None).kill(0.05) is True


def test_who_uses_an_accelerator_is_told() -> None:
    gpus = GpuReader()
    gpus._tried = True
    gpus._devices = [("device", "H100"), ("broken", "H100")]

    class Nvml:
        def nvmlDeviceGetComputeRunningProcesses(self, device: str) -> list[Any]:
            if device == "broken":
                raise RuntimeError
            used = SimpleNamespace(pid=7, usedGpuMemory=2_500_000_000)
            return [used, SimpleNamespace(pid=8, usedGpuMemory=None)]

    gpus._nvml = Nvml()
    assert gpus.processes() == ["0 H100: 7 has 2,500 MB", "0 H100: 8 has ?"]


# ── The cloud's copy of the log ───────────────────────────────────────────────────────────────────────────────────────


def test_after_a_gap_the_end_of_a_line_is_not_taken_for_a_line() -> None:
    cutter = _LineCutter(1000)
    assert cutter.feed(1, b"one\ntw") == [(1, "one")] and cutter.waiting
    assert cutter.break_off() == 2 and not cutter.waiting
    assert cutter.feed(2, b"the rest") == [] and not cutter.waiting
    assert cutter.feed(3, b" of a line\nthree\n") == [(3, "three")]
