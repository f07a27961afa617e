"""What a training that stands still was doing: collected from real processes, without secrets, whatever is missing."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

import pytest
from noticing_machine import Here

from stoker.agent.health import stack_dump
from stoker.agent.health.stack_dump import StackDumpRequests, find_py_spy
from stoker.agent.heartbeat import HeartbeatThread
from stoker.agent.node import AgentNode
from stoker.model import keys
from stoker.model.job_state import JobState
from stoker.model.log_entries import Warned
from stoker.model.node_config import NodeConfig, NodePaths
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sim_data import make_state

SECRET = "hunter2-hunter2"
CHILD = """
import sys
def stands_still_here():
    print("ready", flush=True)
    sys.stdin.read()
stands_still_here()
"""


@pytest.fixture
def child() -> Iterator[int]:
    """A Python process that waits in a function with a known name. A word of its command is a secret."""
    command = [sys.executable, "-c", CHILD, f"--token={SECRET}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 60
        while _state(process.pid) != "S":  # On a busy machine it may not have come to wait yet.
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process.pid
        process.kill()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def told(
    *members: int,
    log: Path = Path("/nowhere/train.log"),
    secrets: Mapping[str, str] | None = None,
    spy: Path | None = None,
    gpu_processes: Callable[[], list[str]] = list,
    proc: Path = Path("/proc"),
) -> str:
    return stack_dump.collect_stack_dump(
        members, log, secrets or {}, spy=spy, gpu_processes=gpu_processes, proc=proc
    ).decode()


def part_of(text: str, title: str) -> str:
    (found,) = [each for each in text.split("── ") if each.startswith(f"{title}\n")]
    return found.partition("\n")[2]


def test_it_names_the_function_that_a_process_waits_in(child: int, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"step {n}\n" for n in range(100)))
    spy = find_py_spy()
    assert spy is not None, "it is installed with Stoker"
    text = told(child, log=log, spy=spy, gpu_processes=lambda: ["0 H200: 5 has 10 MB"])
    assert "stands_still_here" in part_of(text, f"stack of {child}")
    processes = part_of(text, "processes")
    assert processes.startswith(f"{child} of ") and ", S, 1 thread," in processes and "stands_still_here" in processes
    assert part_of(text, "processes on accelerators") == "0 H200: 5 has 10 MB\n\n"
    lines = part_of(text, "the last 50 lines of the log").split("\n")
    assert (lines[0], lines[49]) == ("step 50", "step 99")


def test_secrets_are_in_no_part_of_it(child: int, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"token is {SECRET}\n")
    assert told(child, log=log, spy=find_py_spy(), gpu_processes=lambda: [SECRET]).count(SECRET) >= 3
    text = told(
        child,
        log=log,
        spy=find_py_spy(),
        gpu_processes=lambda: [SECRET],
        secrets={"TOKEN": SECRET, "EMPTY": "", "X": "a"},
    )
    assert SECRET not in text
    assert "stands_still_here" in text and "token is " in text, "and all else is"


def test_without_py_spy_the_rest_is_told(child: int, tmp_path: Path) -> None:
    assert "there is no py-spy on this machine" in part_of(told(child), f"stack of {child}")
    text = told(child, spy=tmp_path / "py-spy")
    assert "No such file" in part_of(text, f"stack of {child}")
    assert part_of(text, "processes").startswith(f"{child} of ")


@pytest.mark.parametrize(
    ("script", "says"),
    [("echo 'Permission denied' >&2; exit 1", "Permission denied"), ("exec sleep 600", "timed out")],
)
def test_a_py_spy_that_fails_or_hangs_keeps_nobody(
    script: str, says: str, child: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_dump, "_STACK_LIMIT_S", 0.5)
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\n{script}\n")
    spy.chmod(0o755)
    assert says in part_of(told(child, spy=spy), f"stack of {child}")


def test_all_stacks_together_have_one_span(child: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_dump, "_STACKS_LIMIT_S", 0.0)
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    spy.chmod(0o755)
    assert "no time left" in part_of(told(child, spy=spy), f"stack of {child}")
    assert not (tmp_path / "asked").exists()


def test_frames_of_native_code_are_left_out_where_they_cannot_be_had(child: int, tmp_path: Path) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text('#!/bin/sh\n[ "$2" != --native ] || exit 1\necho "plain $*"\n')
    spy.chmod(0o755)
    assert part_of(told(child, spy=spy), f"stack of {child}").strip() == f"plain dump --pid {child}"


def test_a_driver_that_hangs_or_fails_loses_nothing_else(
    child: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_dump, "_GPUS_LIMIT_S", 0.1)
    log, hangs = tmp_path / "train.log", threading.Event()
    log.write_text("step 1\n")

    def hang() -> list[str]:
        hangs.wait()
        return []

    def fail() -> list[str]:
        raise RuntimeError("GPU is lost")

    for ask, says in ((hang, "(the driver does not answer)"), (fail, "(RuntimeError('GPU is lost'))")):
        text = told(child, log=log, spy=find_py_spy(), gpu_processes=ask)
        assert part_of(text, "processes on accelerators").strip() == says
        assert "stands_still_here" in part_of(text, f"stack of {child}") and "step 1" in text
    hangs.set()


def test_processes_that_are_gone_are_said_to_be(child: int) -> None:
    with subprocess.Popen(["true"]) as over:
        pass
    text = told(child, over.pid, spy=find_py_spy())
    assert f"{over.pid} is gone" in part_of(text, "processes").split("\n")
    assert f"stack of {over.pid}" not in text and "stands_still_here" in text


def test_a_process_that_has_ended_and_waits_for_its_parent_is_told() -> None:
    with subprocess.Popen(["true"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.read() == b""
        while " Z " not in Path(f"/proc/{process.pid}/stat").read_text():
            pass
        assert f"{process.pid} of " in (text := told(process.pid, spy=find_py_spy())) and ", Z, " in text
        assert "[true]" in text


def test_nobody_is_left() -> None:
    text = told()
    for title in ("processes", "processes on accelerators", "the last 50 lines of the log"):
        assert part_of(text, title).strip() == "(none)"


@pytest.mark.parametrize("stat", ["", "7 (python) S 1", "\udcff\udcfe) S"])
def test_what_the_kernel_says_may_make_no_sense(stat: str, tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_bytes(stat.encode(errors="surrogateescape"))
    (tmp_path / "7" / "cmdline").write_bytes(b"\xff\0\xfe")
    assert "7 is gone" in told(7, proc=tmp_path)


def test_it_is_bounded(tmp_path: Path) -> None:
    for pid in range(1, 201):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (x) S 1 " + "0 " * 40)
        (tmp_path / str(pid) / "cmdline").write_bytes(b"word\0" * 10_000)
    text = told(*range(1, 201), proc=tmp_path)
    assert "64 of 1" in text and "65 of 1" not in text
    assert len(text) < 64 * 500 + 1000
    huge = stack_dump.collect_stack_dump([], Path("/nowhere"), {}, spy=None, gpu_processes=lambda: ["x" * 10_000_000])
    assert len(huge) == 4 * 1024 * 1024


def test_a_process_is_told_with_what_it_waits_for_and_its_threads(tmp_path: Path) -> None:
    for pid, threads, waits in ((7, 1, "futex_wait"), (8, 3, "0")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) S 1 " + "0 " * 15 + f"{threads} 0")
        (tmp_path / str(pid) / "cmdline").write_bytes(b"python\0train.py\0" if pid == 7 else b"")
        (tmp_path / str(pid) / "wchan").write_text(waits)
    lines = part_of(told(8, 7, proc=tmp_path), "processes").split("\n")
    assert lines[:2] == ["7 of 1, S, 1 thread, in futex_wait: python train.py", "8 of 1, S, 3 threads: [a) b]"]


def test_without_py_spy_the_stack_of_the_kernel_is_told(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "exe").symlink_to("/usr/bin/python3.11")
    assert part_of(told(7, proc=tmp_path), "stack of 7") == "(there is no py-spy on this machine)\n\n\n"
    (tmp_path / "7" / "stack").write_text("[<0>] do_wait")
    assert "[<0>] do_wait" in part_of(told(7, proc=tmp_path), "stack of 7")
    assert "[<0>] do_wait" in part_of(told(7, proc=tmp_path, spy=tmp_path / "no-spy"), "stack of 7")


def test_before_the_training_the_agents_own_threads_are_part_of_it(tmp_path: Path) -> None:
    asked, release = threading.Event(), threading.Event()

    def waits_for_the_test() -> None:
        asked.set()
        release.wait(60)

    thread = threading.Thread(target=waits_for_the_test, name="one-of-the-agent", daemon=True)
    thread.start()
    assert asked.wait(60)
    found = stack_dump.collect_stack_dump([], tmp_path / "log", {}, spy=None, gpu_processes=list, agent=True).decode()
    release.set()
    own = part_of(found, "the agent")
    assert "one-of-the-agent:\n" in own and "waits_for_the_test" in own
    assert "── the agent\n" not in told()


def test_what_no_text_can_say_is_replaced() -> None:
    assert part_of(told(gpu_processes=lambda: ["0 H200\udcff"]), "processes on accelerators") == "0 H200?\n\n"


def test_py_spy_is_found_beside_this_python_or_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside, path = tmp_path / "beside", tmp_path / "path"
    for folder in (beside, path):
        folder.mkdir()
        (folder / "py-spy").write_text("#!/bin/sh\n")
        (folder / "py-spy").chmod(0o755)
    monkeypatch.setattr(stack_dump.sysconfig, "get_path", lambda _name: str(beside))
    monkeypatch.setenv("PATH", str(path))
    assert find_py_spy() == beside / "py-spy"
    (beside / "py-spy").chmod(0o644)
    assert find_py_spy() == path / "py-spy"
    (path / "py-spy").unlink()
    assert find_py_spy() is None


# ── The witness ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Scene:
    """A node of claim 2 whose witness collects what the test says."""

    def __init__(self, root: Path, collect: Callable[[], bytes]) -> None:
        self.refuses = False
        self.store = MemoryStore(
            lambda: datetime.now(timezone.utc), faults=lambda call, key: Fault() if self.refuses else None
        )
        self.key = keys.node("job", 2, 0, "i-1.0")
        config = NodeConfig("memory://", "sim", "job", 2, 0, 1, "i-1")
        node = AgentNode(config, NodePaths(root), self.store, Here(), self.key)
        self.beat = HeartbeatThread(self.store, self.key, lambda beat: beat)
        self.log = node.paths.train_log
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.witness = StackDumpRequests(node, self.beat, collect)

    def look(self, *codes: str) -> None:
        self.witness.start_requested(asked(*codes))
        for thread in threading.enumerate():
            if thread.name == "stack-dump":
                thread.join(60)

    def kept(self) -> list[bytes]:
        found = (self.store.get(keys.evidence(self.key, n)) for n in range(1, 9))
        return [each.data for each in found if each is not None]


def asked(*codes: str) -> JobState:
    return make_state(*(Warned(code=code, evidence=True) for code in codes))


def test_it_is_collected_once_and_said(tmp_path: Path) -> None:
    texts = iter([b"first", b"second"])
    scene = Scene(tmp_path, lambda: next(texts))
    scene.witness.start_requested(None)
    for _ in range(3):
        scene.look("policy:stall:2")
    assert scene.kept() == [b"first"]
    assert scene.beat.now.evidence == ("policy:stall:2",)
    assert "a stack dump of its processes is stored" in scene.log.read_text()
    scene.look("policy:stall:2", "stall:2")
    assert scene.kept() == [b"first", b"second"]
    assert set(scene.beat.now.evidence) == {"policy:stall:2", "stall:2"}


def test_what_is_asked_of_another_claim_is_not_for_this_one(tmp_path: Path) -> None:
    scene = Scene(tmp_path, lambda: b"nobody asked")
    scene.look("stall:12", "stall:22", "stall:3", "policy:2:1")
    scene.witness.start_requested(make_state(Warned(code="stall:2")))
    assert scene.beat.now.evidence == () and scene.kept() == []


def test_nobody_waits_for_what_the_store_refuses(tmp_path: Path) -> None:
    scene = Scene(tmp_path, lambda: b"text")
    scene.refuses = True
    scene.look("stall:2")
    scene.refuses = False
    assert scene.kept() == []
    assert scene.beat.now.evidence == ("stall:2",)
    assert not scene.log.exists() or "is kept" not in scene.log.read_text()


@pytest.mark.parametrize("error", [OSError("no"), RuntimeError("the driver is gone"), IndexError("17")])
def test_nobody_waits_for_what_cannot_be_collected(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def collect() -> bytes:
        raise error

    scene = Scene(tmp_path, collect)
    scene.look("stall:2")
    assert scene.beat.now.evidence == ("stall:2",) and f"no stack dump could be stored: {error}" in caplog.text


def test_two_that_are_asked_at_once_come_one_after_another(tmp_path: Path) -> None:
    at_once, most = 0, 0

    def collect() -> bytes:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        both_asked.wait(60)
        at_once -= 1
        return b"text"

    both_asked = threading.Event()
    scene = Scene(tmp_path, collect)
    scene.witness.start_requested(asked("a:2", "b:2", "c:2"))
    both_asked.set()
    scene.look()
    assert most == 1
    assert set(scene.beat.now.evidence) == {"a:2", "b:2", "c:2"}
