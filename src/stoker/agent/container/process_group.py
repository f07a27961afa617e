"""The processes in a container: found by the cgroup that its engine created, else by its pid namespace.

Membership is read from the kernel, for both versions of cgroups: a call of the engine costs a process each time, and
members are listed many times a second. Signals go to processes directly; the engine is used only where this user may
not signal them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stoker.processes import Process, process_table, stat_of

# cgroup version 1 has a hierarchy for each controller: these are used for the members and for the memory counters.
_MEMBERS_CONTROLLER, _MEMORY_CONTROLLER = "freezer", "memory"
_QUIET_CHECKS = 2
# Time for the engine's client to report the end of a command that is dead according to the kernel.
_CLIENT_S = 15.0


@dataclass(frozen=True)
class RunningContainer:
    """A running container. `idle_pids` are the processes that only wait there for the agent to end."""

    id: str
    init: int
    idle_pids: frozenset[int]
    # The cgroup that lists its members, and the one that counts its memory; None if the container has none of its own.
    members_cgroup: Path | None
    memory_cgroup: Path | None

    @classmethod
    def of(cls, container_id: str, init: int) -> RunningContainer:
        """Read the container as it is now. Raises ProcessLookupError if it has ended."""
        members_cgroup, memory_cgroup = _cgroups(container_id, init)
        container = cls(container_id, init, frozenset(), members_cgroup, memory_cgroup)
        if stat_of(init) is None:
            raise ProcessLookupError(f"the container {container_id[:12]} has ended")
        return cls(container_id, init, frozenset(container.members()), members_cgroup, memory_cgroup)

    def members(self) -> set[int]:
        """Return the pids of all other processes in the container. Empty once it is gone."""
        found = (
            _cgroup_members(self.members_cgroup) if self.members_cgroup is not None else _namespace_members(self.init)
        )
        return found - self.idle_pids

    def without_exec_sessions(self, commands: set[int]) -> set[int]:
        """Return the members that come from these commands, without those of `stoker exec`.

        A process that `exec` starts has a parent outside the container. Its orphans get the container's init as a
        parent or, if the container shares the machine's pid namespace, a parent outside: then sessions of `stoker exec`
        cannot be distinguished.
        """
        found = self.members()
        if _namespace(self.init) == _namespace(os.getpid()):
            return found
        parents = {pid: stat.parent for pid in found if (stat := stat_of(pid)) is not None}
        inside = found | self.idle_pids
        exec_sessions = {pid for pid, parent in parents.items() if parent not in inside and pid not in commands}
        while more := {pid for pid, parent in parents.items() if parent in exec_sessions and pid not in exec_sessions}:
            exec_sessions |= more
        return found - exec_sessions

    def find_pid(self, number: int) -> int:
        """Return the pid on this machine of the process that has this pid in the container; 0 if it is gone."""
        depth = len(_namespace_pids(self.init))
        for pid in self.members():
            numbers = _namespace_pids(pid)
            if len(numbers) == depth and numbers[-1] == number:
                return pid
        return 0


class ContainerGroup:
    """All processes in the container, once it exists.

    `end` makes the engine end the container if signals are not permitted.
    """

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self._commands: set[int] = set()
        self.container: RunningContainer | None = None

    def add(self, command: int) -> None:
        """Register a command of the agent: its children belong to it. Commands of `stoker exec` are not registered."""
        self._commands.add(command)

    @property
    def folder(self) -> str | None:
        return (
            str(self.container.memory_cgroup)
            if self.container is not None and self.container.memory_cgroup is not None
            else None
        )

    def members(self) -> set[int]:
        if self.container is None:
            return set()
        found = self.container.without_exec_sessions(self._commands)
        return {pid for pid in found if (stat := stat_of(pid)) is not None and stat.alive}

    def freeze(self, timeout_s: float = 5.0) -> bool:
        # By signals, not by the cgroup's freezer: processes that version 1 froze cannot be killed, and a container
        # whose agent dies meanwhile would stay for ever.
        return self._signal_until_none(signal.SIGSTOP, timeout_s)

    def kill(self, timeout_s: float = 10.0) -> bool:
        # Stopped first: the killing would never catch up with a program that forks faster.
        self.freeze(timeout_s / 4)
        return self._signal_until_none(signal.SIGKILL, timeout_s)

    def _signal_until_none(self, number: int, timeout_s: float) -> bool:
        """Signal all processes that need it, until two checks in a row find none."""
        deadline, pause_s, quiet_checks = time.monotonic() + timeout_s, 0.001, 0
        while quiet_checks < _QUIET_CHECKS:
            found = [pid for pid in self.members() if number == signal.SIGKILL or not _halted(pid)]
            if not found:
                quiet_checks += 1
                continue
            quiet_checks = 0
            refused = [pid for pid in found if not self._signal(pid, number)]
            if refused and number == signal.SIGKILL:
                self._end()
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.02)
        return True

    def _signal(self, pid: int, number: int) -> bool:
        """Signal one process. False: this user may not."""
        process = Process.of(pid)
        # Membership is checked after the process was identified: a pid that was reused in between is another process.
        if process is None or self.container is None or pid not in self.container.members():
            return True
        try:
            process.signal(number)
        except PermissionError:
            return False
        return True


class ContainerRun:
    """A command in a container, with the engine's client process that waits for its end.

    `why_gone` is called with the exit code when the client ends, and returns what happened to the container.
    """

    def __init__(self, client: subprocess.Popen[bytes], pid: int, why_gone: Callable[[int], str | None]) -> None:
        self._client = client
        self._why_gone = why_gone
        self._code: int | None = None
        self.pid = pid
        self._process = Process.of(pid) if pid else None

    def poll(self) -> int | None:
        if self._code is None and self._client.poll() is not None:
            if self._process is not None and self._process.alive and self._why_gone(1) is None:
                return None  # Only the client was killed: the command still runs, and its end is watched here.
            self._code = self._client.returncode if self._client.returncode >= 0 else 137
            self._why_gone(self._code)
        return self._code

    def wait(self) -> int:
        dead_s: float | None = None
        while (code := self.poll()) is None:
            if self._process is None or not self._process.alive:
                dead_s = dead_s or time.monotonic()
                if time.monotonic() - dead_s > _CLIENT_S:
                    self._client.kill()
            time.sleep(0.005)
        return code


def _halted(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is None or stat.halted or not stat.alive


def _cgroups(container_id: str, init: int) -> tuple[Path | None, Path | None]:
    """Return the container's own cgroups.

    A cgroup without its id in the path holds other processes too, and is not used.
    """
    try:
        memberships = Path(f"/proc/{init}/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None, None
    cgroups = find_cgroups(container_id, memberships, mounts)
    unified = cgroups.get("")
    members_cgroup = unified or cgroups.get(_MEMBERS_CONTROLLER) or next(iter(cgroups.values()), None)
    # If both versions are mounted, version 1 counts the memory.
    return members_cgroup, cgroups.get(_MEMORY_CONTROLLER) or unified


def find_cgroups(container_id: str, memberships: str, mounts: str) -> dict[str, Path]:
    """Return folders by controller, from the texts of /proc/<pid>/cgroup and /proc/self/mountinfo.

    Version 2 has the empty name.
    """
    points = _mount_points(mounts)
    found: dict[str, Path] = {}
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        own = _own_part(path, container_id)
        if own is None:
            continue
        for controller in controllers.split(","):
            name = controller.removeprefix("name=")
            if name in points:
                root, point = points[name]
                below = own if root == "/" else own.removeprefix(root)
                found[name] = Path(point + below)
    return {name: folder for name, folder in found.items() if folder.is_dir()}


def _own_part(path: str, container_id: str) -> str | None:
    """Return the cgroup that the engine created. Some engines start the processes in a nested one."""
    parts = path.split("/")
    for depth, part in enumerate(parts, 1):
        if container_id in part:
            return "/".join(parts[:depth])
    return None


def _mount_points(mounts: str) -> dict[str, tuple[str, str]]:
    """Return for each controller the mounted part of the hierarchy and its mount point."""
    found: dict[str, tuple[str, str]] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if kind[0] == "cgroup2":
            found.setdefault("", (fields[3], fields[4]))
        elif kind[0] == "cgroup":
            for option in kind[2].split(","):
                found.setdefault(option.removeprefix("name="), (fields[3], fields[4]))
    return found


def _cgroup_members(folder: Path) -> set[int]:
    found: set[int] = set()
    for below, _, _ in os.walk(folder):
        try:
            found.update(map(int, Path(below, "cgroup.procs").read_text().split()))
        except OSError:
            continue  # Removed meanwhile, so it was empty.
    return found - {0}  # 0 stands for a process outside this pid namespace.


def _namespace_members(init: int) -> set[int]:
    """Return all processes of the same pid namespace and their descendants, including those in nested namespaces."""
    space = _namespace(init)
    if not space or space == _namespace(os.getpid()):
        return set()  # The container is gone, or shares the machine's namespace (`pid: host`).
    table = process_table()
    below: dict[int, list[int]] = {}
    for stat in table.values():
        below.setdefault(stat.parent, []).append(stat.pid)
    found = {pid for pid in table if _namespace(pid) == space}
    todo = list(found)
    while todo:
        children = [child for child in below.get(todo.pop(), ()) if child not in found]
        found.update(children)
        todo += children
    return found


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115
    except OSError:
        return ""


def _namespace_pids(pid: int) -> tuple[int, ...]:
    """Return the pids of a process in each of its namespaces, this process's namespace first."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return tuple(map(int, line.split()[1:]))
    except OSError:
        pass
    return (pid,)
