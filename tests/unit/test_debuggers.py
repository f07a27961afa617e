"""Which processes a person has stopped, or looks into: by what the kernel shows, and of real processes."""

from __future__ import annotations

import ctypes
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.agent.health import activity_probe
from stoker.agent.health.activity_probe import ActivityProbe, is_debugged

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


@pytest.mark.parametrize(("state", "told"), [("S", False), ("T", True), ("t", True), ("Z", False)])
def test_a_process_whose_first_thread_has_ended_is_in_the_state_of_another(
    state: str, told: bool, tmp_path: Path
) -> None:
    add(tmp_path, 10, "Z")
    task = tmp_path / "10/task"
    task.mkdir()
    add(task, 10, "Z")
    add(task, 11, state)
    assert is_debugged({10}, tmp_path, AGENT) is told


def test_a_process_whose_status_cannot_be_read_is_not_debugged(tmp_path: Path) -> None:
    add(tmp_path, 10)
    (tmp_path / "10" / "status").unlink()
    assert is_debugged({10}, tmp_path, AGENT) is False


def test_a_name_that_is_no_text_hides_no_debugger(tmp_path: Path) -> None:
    add(tmp_path, 90)
    add(tmp_path, 10)
    (tmp_path / "10" / "stat").write_bytes(b"10 (\xff) S 1 0 0\n")
    (tmp_path / "10" / "status").write_bytes(b"Name:\t\xff\nTracerPid:\t90\n")
    assert is_debugged({10}, tmp_path, AGENT) is True


def test_a_tracer_with_very_many_parents_is_not_the_agents(tmp_path: Path) -> None:
    add(tmp_path, 10, tracer=100)
    for pid in range(100, 160):
        add(tmp_path, pid, parent=pid + 1)
    assert is_debugged({10}, tmp_path, AGENT) is True


@pytest.mark.parametrize("text", ["", "10", "10 (a", "10 (a) t", "TracerPid:\tx\n"])
def test_what_cannot_be_read_is_not_debugged(text: str, tmp_path: Path) -> None:
    assert not is_debugged({10}, tmp_path, AGENT), "it is gone"
    (tmp_path / "10").mkdir()
    assert not is_debugged({10}, tmp_path, AGENT)
    (tmp_path / "10" / "status").write_text(text)
    assert not is_debugged({10}, tmp_path, AGENT)


def ask(proc: Path, pid: int, call: str, stdin: str = "/dev/pts/3", program: str = "/usr/bin/python3.11") -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir()
    (folder / "fd" / "0").symlink_to(stdin)
    (folder / "exe").symlink_to(program)
    (folder / "syscall").write_text(call)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls differ")
@pytest.mark.parametrize(
    ("call", "stdin", "program", "told"),
    [
        ("0 0x0 0x7f 0x400 0x0 0x0 0x0 0x7ffd 0x7f12", "/dev/pts/3", "/usr/bin/python3.11", True),
        ("270 0x1 0x7ffd 0x0 0x0 0x0 0x0 0x7ffd 0x7f12", "/dev/pts/3", "/usr/bin/python3.11", True),  # By readline.
        ("0 0x5 0x7f 0x400 0x0 0x0 0x0 0x7ffd 0x7f12", "/dev/pts/3", "/usr/bin/python3.11", False),
        ("270 0x9 0x7ffd 0x0 0x0 0x0 0x0 0x7ffd 0x7f12", "/dev/pts/3", "/usr/bin/python3.11", False),
        ("0 0x0 0x7f 0x400 0x0 0x0 0x0 0x7ffd 0x7f12", "/dev/null", "/usr/bin/python3.11", False),
        ("0 0x0 0x7f 0x400 0x0 0x0 0x0 0x7ffd 0x7f12", "pipe:[123]", "/usr/bin/python3.11", False),
        ("0 0x0 0x7f 0x400 0x0 0x0 0x0 0x7ffd 0x7f12", "/dev/pts/3", "/usr/bin/bash", False),  # A shell in tmux.
        ("running", "/dev/pts/3", "/usr/bin/python3.11", False),
    ],
)
def test_a_python_that_asks_a_person_at_a_terminal(
    call: str, stdin: str, program: str, told: bool, tmp_path: Path
) -> None:
    add(tmp_path, 10, parent=AGENT)
    ask(tmp_path, 10, call, stdin, program)
    assert is_debugged({10}, tmp_path, AGENT) is told


@pytest.mark.parametrize(
    ("machine", "call", "told"),
    [
        ("x86_64", "0 0x0", True),
        ("x86_64", "0 0x1", False),
        ("x86_64", "23 0x1", True),
        ("x86_64", "270 0x1", True),
        ("x86_64", "270 0x0", False),
        ("x86_64", "63 0x0", False),
        ("x86_64", "72 0x1", False),
        ("aarch64", "63 0x0", True),
        ("aarch64", "63 0x1", False),
        ("aarch64", "72 0x1", True),
        ("aarch64", "0 0x0", False),
        ("riscv64", "63 0x0", False),
    ],
)
def test_waiting_for_a_line_is_known_by_the_call_of_each_kind_of_machine(
    machine: str, call: str, told: bool, tmp_path: Path
) -> None:
    add(tmp_path, 10, parent=AGENT)
    ask(tmp_path, 10, f"{call} 0x0", "/dev/tty1")
    assert activity_probe._asks(tmp_path, 10, machine) is told


@pytest.mark.parametrize("breaks", ["breakpoint()", "input()"])
def test_a_real_prompt_at_a_terminal(breaks: str) -> None:
    if os.uname().machine not in ("x86_64", "aarch64"):
        pytest.skip("numbers of system calls differ")
    leader, follower = pty.openpty()
    asked = subprocess.Popen([sys.executable, "-c", breaks], stdin=follower, stdout=follower, stderr=follower)
    try:
        if not os.access(f"/proc/{asked.pid}/syscall", os.R_OK):
            pytest.skip("this machine lets nobody look")
        sight = ActivityProbe(lambda: (), lambda: {asked.pid}, shared=True)
        wait_for(lambda: sight().debugged)
    finally:
        asked.kill()
        asked.wait()
        os.close(leader)
        os.close(follower)


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
    sight = ActivityProbe(lambda: (), lambda: {child.pid}, shared=True)
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
