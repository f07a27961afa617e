"""Who is in a container, by cgroups of both versions and without any; and who of them is asked to save."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.agent.container.process_group import ContainerGroup, RunningContainer, _cgroups, find_cgroups
from stoker.agent.runtime import Command
from stoker.agent.supervise import EndRequest, Training
from stoker.processes import stat_of

ID = "0f66a0602ed9e58409b476f44cca0dcf6a5154576ffc1f6fdd9c9f94f6a51d1d"


@pytest.mark.parametrize(
    ("membership", "own"),
    [
        # Docker and podman, each with cgroups of its own making and with systemd's; podman with one more inside.
        (f"0::/docker/{ID}", f"docker/{ID}"),
        (f"0::/system.slice/docker-{ID}.scope", f"system.slice/docker-{ID}.scope"),
        (f"0::/libpod_parent/libpod-{ID}", f"libpod_parent/libpod-{ID}"),
        (f"0::/machine.slice/libpod-{ID}.scope/container", f"machine.slice/libpod-{ID}.scope"),
        (
            f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
            f"user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope",
        ),
        # Without root and without systemd the container is where its maker is: with everybody else.
        ("0::/user.slice/user-1000.slice/session-3.scope", None),
        ("0::/", None),
    ],
)
def test_version_2(tmp_path: Path, membership: str, own: str | None) -> None:
    mounts = f"30 23 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n"
    if own is not None:
        (tmp_path / own).mkdir(parents=True)
    assert find_cgroups(ID, membership + "\n", mounts) == ({"": tmp_path / own} if own else {})


def test_version_1_has_one_for_each_controller(tmp_path: Path) -> None:
    lines = [f"31 23 0:27 / {tmp_path}/memory rw shared:1 - cgroup cgroup rw,memory"]
    lines += [f"32 23 0:28 / {tmp_path}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"]
    lines += [f"33 23 0:29 /above {tmp_path}/freezer rw - cgroup cgroup rw,freezer"]
    for name in ("memory", "cpu,cpuacct", "freezer"):
        (tmp_path / name / "docker" / ID).mkdir(parents=True)
    membership = (
        f"5:pids:/\n4:memory:/docker/{ID}\n3:cpu,cpuacct:/docker/{ID}\n2:freezer:/above/docker/{ID}\n"
        "1:name=systemd:/\n0::/\n"
    )
    found = find_cgroups(ID, membership, "\n".join(lines))
    assert found == {
        "memory": tmp_path / "memory" / "docker" / ID,
        "cpu": tmp_path / "cpu,cpuacct" / "docker" / ID,
        "cpuacct": tmp_path / "cpu,cpuacct" / "docker" / ID,
        "freezer": tmp_path / "freezer" / "docker" / ID,
    }


@contextmanager
def namespace(script: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A namespace of processes with a shell as its first one, as podman without root and cgroups has it."""
    argv = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", script]
    child = subprocess.Popen(argv, start_new_session=True)
    try:
        deadline = time.monotonic() + 10
        while not (inside := _children(child.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield inside[0], child
    finally:
        child.kill()
        child.wait()


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _until(condition: object, what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of processes needs root")
def test_without_a_cgroup_of_its_own_it_is_known_by_its_namespace() -> None:
    with namespace("sleep 1001 & wait; exec sleep 1004") as (init, _):
        _until(lambda: _children(init), "its child is there")
        cell = RunningContainer(ID, init, frozenset({init}), None, None)
        (sleeper,) = cell.members()
        assert b"1001" in Path(f"/proc/{sleeper}/cmdline").read_bytes()
        assert cell.find_pid(int(Path(f"/proc/{sleeper}/status").read_text().split("NSpid:")[1].split()[1])) == sleeper
        assert cell.find_pid(12345) == 0
        group = ContainerGroup(lambda: pytest.fail("signals are enough"))
        group.container = cell
        assert group.members() == {sleeper}
        # Halted, and killed though halted; its init goes on.
        assert group.freeze(60.0)
        assert (stat := stat_of(sleeper)) is not None and stat.halted
        assert group.kill(60.0)
        assert not group.members() and stat_of(init) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of processes needs root")
def test_what_does_nothing_but_fork_is_caught() -> None:
    forking = "while :; do sleep 0.01 & done"
    with namespace(f"sh -c '{forking}' & sh -c '{forking}' & wait") as (init, _):
        group = ContainerGroup(lambda: pytest.fail("signals are enough"))
        _until(lambda: len(RunningContainer(ID, init, frozenset({init}), None, None).members()) > 5, "it forks")
        group.container = RunningContainer(ID, init, frozenset({init}), None, None)
        assert group.kill(timeout_s=20)
        assert not group.members()


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of processes needs root")
def test_whoever_is_brought_in_from_outside_is_a_visitor_unless_it_was_a_command() -> None:
    with namespace("sleep 1002 & wait") as (init, _):
        _until(lambda: _children(init), "its child is there")
        first = frozenset(RunningContainer(ID, init, frozenset(), None, None).members())
        enter = ["nsenter", "--pid", f"--target={init}", "sh", "-c", "sleep 1003 & wait"]
        visitor = subprocess.Popen(enter, start_new_session=True)
        try:
            cell = RunningContainer(ID, init, first, None, None)
            _until(lambda: len(cell.members()) == 2, "the visitor and its child are there")
            group = ContainerGroup(lambda: pytest.fail("signals are enough"))
            group.container = cell
            assert group.members() == set()
            (brought,) = [pid for pid in cell.members() if stat_of(pid).parent not in cell.members()]  # type: ignore[union-attr]
            group.add(brought)
            assert group.members() == cell.members()
        finally:
            visitor.kill()
            visitor.wait()


INIT = """
import os, signal, subprocess, sys, ctypes
ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)
child = subprocess.Popen([sys.executable, "-c", sys.argv[2]])
signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGTERM))
print("ready", flush=True)
child.wait()
"""
COUNTS = """
import signal, sys, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
print("hears", flush=True)
deadline = time.monotonic() + 10
while not heard and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(0.3)
print(len(heard), flush=True)
"""


@pytest.mark.parametrize("name", ["tini", "docker-init", "dumb-init"])
def test_an_init_is_asked_through_and_nobody_is_asked_twice(name: str, tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", INIT, name, COUNTS], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert {child.stdout.readline(), child.stdout.readline()} == {"ready\n", "hears\n"}

    class Everybody:
        folder = None

        def members(self) -> set[int]:
            return {child.pid, *_children(child.pid)}

        def freeze(self, timeout_s: float = 5.0) -> bool:
            raise NotImplementedError

        def kill(self, timeout_s: float = 10.0) -> bool:
            raise NotImplementedError

    enclosure: Any = SimpleNamespace(group=Everybody(), spawn=lambda *_: child)
    training = Training(enclosure, threading.Event())
    training.start(Command(("x",), {}, tmp_path), tmp_path / "log")
    training.notify(EndRequest("stop", "asked", 1.0), tmp_path / "notice")
    assert child.stdout.readline() == "1\n"
    child.send_signal(signal.SIGKILL)
    child.wait()


class OneProcess:
    """A container with one process in it, whose cgroups are these."""

    def __init__(self, process: subprocess.Popen[bytes], counting: Path | None = None) -> None:
        self.process, self.memory_cgroup = process, counting

    def members(self) -> set[int]:
        return {self.process.pid} if self.process.poll() is None else set()

    def without_exec_sessions(self, _commands: set[int]) -> set[int]:
        return self.members()


class Forbidden:
    """A process of another user."""

    def signal(self, _number: int) -> None:
        raise PermissionError


def test_where_signals_are_not_allowed_the_engine_ends_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        ended: list[None] = []

        def end() -> None:
            ended.append(None)
            sleeper.kill()
            sleeper.wait()

        made = ContainerGroup(end)
        assert made.members() == set() and made.folder is None and made.kill(), "there is no container yet"
        made.container = OneProcess(sleeper)  # type: ignore[assignment]
        monkeypatch.setattr("stoker.agent.container.process_group.Process.of", lambda _pid: Forbidden())
        assert not made.freeze(0.0) and not ended, "to halt it is no reason to end it"
        assert made.kill(2.0) and ended == [None]


def test_what_cannot_be_ended_in_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        made = ContainerGroup(lambda: None)
        made.container = OneProcess(sleeper, Path("/sys/fs/cgroup/x"))  # type: ignore[assignment]
        monkeypatch.setattr("stoker.agent.container.process_group.Process.of", lambda _pid: Forbidden())
        assert made.folder == "/sys/fs/cgroup/x"
        assert not made.kill(0.01)
        sleeper.kill()


def test_a_pid_that_changed_hands_gets_no_signal() -> None:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        made = ContainerGroup(lambda: None)
        # It was listed, and is no member any more when it is looked up again.
        made.container = OneProcess(sleeper)  # type: ignore[assignment]
        made.container.members = lambda: set()  # type: ignore[union-attr, method-assign, misc]
        assert made._signal(sleeper.pid, signal.SIGKILL)
        assert sleeper.poll() is None
        sleeper.kill()


def test_a_container_that_has_ended_is_told() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    with pytest.raises(ProcessLookupError, match=f"the container {ID[:12]} has ended"):
        RunningContainer.of(ID, ended.pid)


def test_the_members_of_a_cgroup_are_those_of_all_below(tmp_path: Path) -> None:
    (tmp_path / "init/more").mkdir(parents=True)
    for folder, text in ((".", "11\n12\n0\n"), ("init/more", "13\n")):
        (tmp_path / folder / "cgroup.procs").write_text(text)
    cell = RunningContainer(ID, 11, frozenset({11}), tmp_path, tmp_path)
    assert cell.members() == {12, 13}, "without those that only wait there, and those that cannot be seen"
    assert RunningContainer(ID, 2**22 + 1, frozenset(), None, None).members() == set(), "it is gone"
    # Where all processes share the machine's numbers, its namespace says nothing.
    assert RunningContainer(ID, os.getpid(), frozenset(), None, None).members() == set()


@pytest.mark.parametrize(
    ("controllers", "listing", "counting"),
    [
        (("", "memory", "freezer"), "", "memory"),
        (("memory", "freezer", "cpu"), "freezer", "memory"),
        (("",), "", ""),
        (("cpu",), "cpu", None),
        ((), None, None),
    ],
)
def test_which_cgroup_lists_and_which_counts(
    monkeypatch: pytest.MonkeyPatch, controllers: tuple[str, ...], listing: str | None, counting: str | None
) -> None:
    places = {name: Path(f"/cgroup/{name or 'unified'}") for name in controllers}
    monkeypatch.setattr("stoker.agent.container.process_group.find_cgroups", lambda *_: places)
    found = _cgroups(ID, os.getpid())
    assert found == tuple(None if name is None else places[name] for name in (listing, counting))
    assert _cgroups(ID, 2**22 + 1) == (None, None), "it is gone"


def test_where_the_machines_numbers_are_shared_every_member_counts(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as brought:
        (tmp_path / "cgroup.procs").write_text(f"{brought.pid}\n")
        cell = RunningContainer(ID, os.getpid(), frozenset(), tmp_path, None)
        try:
            assert cell.without_exec_sessions(set()) == {brought.pid}, "nothing tells it from an orphan of a command"
            assert cell.find_pid(brought.pid) == brought.pid
        finally:
            brought.kill()
    assert RunningContainer(ID, brought.pid, frozenset(), tmp_path, None).find_pid(12345) == 0, "all are gone"
