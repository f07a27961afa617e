"""Who is in a container, by cgroups of both versions and without any; and who of them is asked to save."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.agent.container.group import Cell, ContainerGroup, find_cgroups
from stoker.agent.supervise import ask
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
        f"4:memory:/docker/{ID}\n3:cpu,cpuacct:/docker/{ID}\n2:freezer:/above/docker/{ID}\n1:name=systemd:/\n0::/\n"
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
        cell = Cell(ID, init, frozenset({init}), None, None)
        (sleeper,) = cell.members()
        assert b"1001" in Path(f"/proc/{sleeper}/cmdline").read_bytes()
        assert cell.find(int(Path(f"/proc/{sleeper}/status").read_text().split("NSpid:")[1].split()[1])) == sleeper
        assert cell.find(12345) == 0
        group = ContainerGroup(lambda: pytest.fail("signals are enough"))
        group.cell = cell
        assert group.members() == {sleeper}
        # Halted, and killed though halted; its init goes on.
        assert group.freeze()
        assert (stat := stat_of(sleeper)) is not None and stat.halted
        assert group.kill()
        assert not group.members() and stat_of(init) is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of processes needs root")
def test_what_does_nothing_but_fork_is_caught() -> None:
    forking = "while :; do sleep 0.01 & done"
    with namespace(f"sh -c '{forking}' & sh -c '{forking}' & wait") as (init, _):
        group = ContainerGroup(lambda: pytest.fail("signals are enough"))
        _until(lambda: len(Cell(ID, init, frozenset({init}), None, None).members()) > 5, "it forks")
        group.cell = Cell(ID, init, frozenset({init}), None, None)
        assert group.kill(timeout_s=20)
        assert not group.members()


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of processes needs root")
def test_whoever_is_brought_in_from_outside_is_a_visitor_unless_it_was_a_command() -> None:
    with namespace("sleep 1002 & wait") as (init, _):
        _until(lambda: _children(init), "its child is there")
        first = frozenset(Cell(ID, init, frozenset(), None, None).members())
        enter = ["nsenter", "--pid", f"--target={init}", "sh", "-c", "sleep 1003 & wait"]
        visitor = subprocess.Popen(enter, start_new_session=True)
        try:
            cell = Cell(ID, init, first, None, None)
            _until(lambda: len(cell.members()) == 2, "the visitor and its child are there")
            group = ContainerGroup(lambda: pytest.fail("signals are enough"))
            group.cell = cell
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
def test_an_init_is_asked_through_and_nobody_is_asked_twice(name: str) -> None:
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

    ask(child.pid, Everybody())
    assert child.stdout.readline() == "1\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
