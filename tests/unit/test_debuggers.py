"""Which processes a person has stopped, or looks into: by what the kernel shows, and of real processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.agent.activity import Sight
from stoker.agent.health.debuggers import is_debugged

AGENT = 5
SEIZE, DETACH = 0x4206, 17


def add(proc: Path, pid: int, state: str = "S", *, tracer: int = 0, parent: int = 1) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} (a) t 7 (b) {state} {parent} 0 0\n")
    (folder / "status").write_text(f"Name:\ta\nState:\t{state}\nTracerPid:\t{tracer}\n")


@pytest.mark.parametrize(
    ("state", "tracer", "told"),
    [
        ("S", 0, False),
        ("R", 0, False),
        ("D", 0, False),
        ("Z", 0, False),
        ("T", 0, True),
        ("t", 0, True),  # Its tracer is in another namespace of processes.
        ("t", 90, True),
        ("S", 90, True),  # gdb, attached, and the process goes on.
        ("t", 11, True),  # A debugger that the job itself started, at a breakpoint.
        ("S", 11, False),  # strace, as part of its command.
        ("t", 91, False),  # The agent's own py-spy.
        ("S", 91, False),
        ("T", 91, True),
    ],
)
def test_stopped_or_traced_from_outside(state: str, tracer: int, told: bool, tmp_path: Path) -> None:
    add(tmp_path, AGENT)
    add(tmp_path, 10, state, tracer=tracer, parent=AGENT)
    add(tmp_path, 11, parent=10)
    add(tmp_path, 90)
    add(tmp_path, 91, parent=92)
    add(tmp_path, 92, parent=AGENT)
    assert is_debugged({10, 11}, tmp_path, AGENT) is told


@pytest.mark.parametrize("text", ["", "10", "10 (a", "10 (a) t", "TracerPid:\tx\n"])
def test_what_cannot_be_read_is_not_debugged(text: str, tmp_path: Path) -> None:
    assert not is_debugged({10}, tmp_path, AGENT), "it is gone"
    (tmp_path / "10").mkdir()
    assert not is_debugged({10}, tmp_path, AGENT)
    (tmp_path / "10" / "status").write_text(text)
    assert not is_debugged({10}, tmp_path, AGENT)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    # Not below this process, which stands for the agent here: a debugger that it starts would be its own.
    made = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield made
    made.kill()
    made.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_a_real_process_that_was_stopped_by_hand(child: subprocess.Popen[bytes]) -> None:
    sight = Sight(lambda: (), lambda: {child.pid}, shared=True)
    wait_for(lambda: not sight().debugged)
    os.kill(child.pid, signal.SIGSTOP)
    wait_for(lambda: sight().debugged)
    os.kill(child.pid, signal.SIGCONT)
    wait_for(lambda: not sight().debugged)


def test_a_real_process_that_is_traced(child: subprocess.Popen[bytes]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(SEIZE, child.pid, None, None) != 0:
        pytest.skip("this machine lets nobody trace")
    # This process is the tracer: to itself as agent it is its own tool, to any other agent a person's.
    assert is_debugged({child.pid}, agent=1 << 30)
    assert not is_debugged({child.pid}, agent=os.getpid())
    os.kill(child.pid, signal.SIGUSR1)
    wait_for(lambda: os.waitpid(child.pid, os.WNOHANG) != (0, 0))
    assert is_debugged({child.pid}, agent=1 << 30)
    libc.ptrace(DETACH, child.pid, None, None)
    assert not is_debugged({child.pid}, agent=1 << 30)
