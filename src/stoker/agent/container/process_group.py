"""Who runs in a container: by the cgroup that its engine made for it, else by its namespace of processes.

Membership is read from the kernel, for cgroups of both versions: asking the engine costs a process each time, and
this is asked many times a second. Signals go to processes; the engine is asked only where this user may not send any.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stoker.processes import Process, process_table, stat_of

# Where version 1 has a hierarchy for each controller, these are looked at: who is in it, and what was counted.
_LISTING, _COUNTING = "freezer", "memory"
_QUIET_LOOKS = 2


@dataclass(frozen=True)
class Cell:
    """A container that runs. `first` are the processes that only wait there for the agent to end."""

    id: str
    init: int
    first: frozenset[int]
    # The cgroup that lists its members, and the one that counts its memory; None where it has none of its own.
    listing: Path | None
    counting: Path | None

    @classmethod
    def of(cls, container: str, init: int) -> Cell:
        """As it is now. Raises ProcessLookupError when it has ended."""
        listing, counting = _cgroups(container, init)
        cell = cls(container, init, frozenset(), listing, counting)
        if stat_of(init) is None:
            raise ProcessLookupError(f"the container {container[:12]} has ended")
        return cls(container, init, frozenset(cell.members()), listing, counting)

    def members(self) -> set[int]:
        """The pids of everybody else in it. Empty once it is gone."""
        found = _listed(self.listing) if self.listing is not None else _in_namespace(self.init)
        return found - self.first

    def without_visitors(self, commands: set[int]) -> set[int]:
        """Those members that come from these commands.

        Whoever is brought in has a parent outside. What such a one leaves behind has the container's init for a parent,
        or, where everybody shares the machine's numbers, one outside, too: then nobody can be told from a visitor.
        """
        found = self.members()
        if _namespace(self.init) == _namespace(os.getpid()):
            return found
        parents = {pid: stat.parent for pid in found if (stat := stat_of(pid)) is not None}
        inside = found | self.first
        visitors = {pid for pid, parent in parents.items() if parent not in inside and pid not in commands}
        while more := {pid for pid, parent in parents.items() if parent in visitors and pid not in visitors}:
            visitors |= more
        return found - visitors

    def find(self, number: int) -> int:
        """The pid here of the process that has this number inside; 0 when it is gone."""
        depth = len(_numbers(self.init))
        for pid in self.members():
            numbers = _numbers(pid)
            if len(numbers) == depth and numbers[-1] == number:
                return pid
        return 0


class ContainerGroup:
    """Everybody in the container, once there is one. `end` has the engine end it all, where signals are not allowed."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self._commands: set[int] = set()
        self.cell: Cell | None = None

    def add(self, command: int) -> None:
        """A command that was brought in: what it forks belongs to it. A person's (`stoker exec`) is nobody's."""
        self._commands.add(command)

    @property
    def folder(self) -> str | None:
        return str(self.cell.counting) if self.cell is not None and self.cell.counting is not None else None

    def members(self) -> set[int]:
        if self.cell is None:
            return set()
        found = self.cell.without_visitors(self._commands)
        return {pid for pid in found if (stat := stat_of(pid)) is not None and stat.alive}

    def freeze(self, timeout_s: float = 5.0) -> bool:
        # By signals, not by the cgroup's freezer: what version 1 froze cannot be killed, and a container whose agent
        # dies meanwhile would stay for ever.
        return self._signal_until_nobody(signal.SIGSTOP, timeout_s)

    def kill(self, timeout_s: float = 10.0) -> bool:
        # Stopped first: a program that forks faster than it is killed would never be caught up with.
        self.freeze(timeout_s / 4)
        return self._signal_until_nobody(signal.SIGKILL, timeout_s)

    def _signal_until_nobody(self, number: int, timeout_s: float) -> bool:
        """Signal everybody whom it concerns, until two looks in a row find nobody."""
        deadline, pause_s, quiet = time.monotonic() + timeout_s, 0.001, 0
        while quiet < _QUIET_LOOKS:
            found = [pid for pid in self.members() if number == signal.SIGKILL or not _halted(pid)]
            if not found:
                quiet += 1
                continue
            quiet = 0
            refused = [pid for pid in found if not self._signal(pid, number)]
            if refused and number == signal.SIGKILL:
                self._end()
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.02)
        return True

    def _signal(self, pid: int, number: int) -> bool:
        """False: this user may not."""
        process = Process.of(pid)
        # Looked up after it was identified: a pid that changed hands in between is not the same process.
        if process is None or self.cell is None or pid not in self.cell.members():
            return True
        try:
            process.signal(number)
        except PermissionError:
            return False
        return True


def _halted(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is None or stat.halted or not stat.alive


def _cgroups(container: str, init: int) -> tuple[Path | None, Path | None]:
    """The container's own cgroups. One that does not carry its name holds others as well, and is not to be used."""
    try:
        memberships = Path(f"/proc/{init}/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None, None
    places = find_cgroups(container, memberships, mounts)
    unified = places.get("")
    listing = unified or places.get(_LISTING) or next(iter(places.values()), None)
    # Where both versions are mounted, memory is counted by the first.
    return listing, places.get(_COUNTING) or unified


def find_cgroups(container: str, memberships: str, mounts: str) -> dict[str, Path]:
    """By controller (version 2 is the empty name), from the texts of /proc/<pid>/cgroup and /proc/self/mountinfo."""
    points = _mount_points(mounts)
    found: dict[str, Path] = {}
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        own = _own_part(path, container)
        if own is None:
            continue
        for controller in controllers.split(","):
            name = controller.removeprefix("name=")
            if name in points:
                root, point = points[name]
                below = own if root == "/" else own.removeprefix(root)
                found[name] = Path(point + below)
    return {name: folder for name, folder in found.items() if folder.is_dir()}


def _own_part(path: str, container: str) -> str | None:
    """The cgroup that the engine made. Inside of it some make another one, for what runs at first."""
    parts = path.split("/")
    for depth, part in enumerate(parts, 1):
        if container in part:
            return "/".join(parts[:depth])
    return None


def _mount_points(mounts: str) -> dict[str, tuple[str, str]]:
    """By controller, which part of a hierarchy is mounted, and where."""
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


def _listed(folder: Path) -> set[int]:
    found: set[int] = set()
    for below, _, _ in os.walk(folder):
        try:
            found.update(map(int, Path(below, "cgroup.procs").read_text().split()))
        except OSError:
            continue  # Removed meanwhile, so it was empty.
    return found - {0}  # 0 is a process that another namespace hides from us.


def _in_namespace(init: int) -> set[int]:
    """Everybody in the same namespace of processes, with all that they made, further namespaces too."""
    space = _namespace(init)
    if not space or space == _namespace(os.getpid()):
        return set()  # It is gone; or everybody on this machine is in it (`pid: host`).
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


def _numbers(pid: int) -> tuple[int, ...]:
    """What a process is called in each namespace that it is in, ours first."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return tuple(map(int, line.split()[1:]))
    except OSError:
        pass
    return (pid,)
