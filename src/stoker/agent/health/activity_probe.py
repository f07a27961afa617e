"""Sample what the processes of a training, or of its set-up, do at this moment, and if a person debugs one of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

# Accelerators that NVML does not know: TPUs (by either driver), Gaudi (by either driver), Inferentia and Trainium.
_UNREADABLE = ("accel[0-9]*", "vfio/[0-9]*", "accel/accel[0-9]*", "hl[0-9]*", "neuron[0-9]*")


def count_unreadable_accelerators(dev: Path = Path("/dev")) -> int:
    """Count the accelerators of this machine whose utilization cannot be read."""
    return sum(1 for pattern in _UNREADABLE for _ in dev.glob(pattern))


class ActivitySample(NamedTuple):
    """Activity at one moment. None is a value that cannot be read."""

    # Utilization of each accelerator, from 0 to 1.
    gpus: tuple[float | None, ...]
    # Seconds of processor time and bytes moved by the processes, both since their start.
    cpu_s: float | None
    moved: float | None
    # Bytes that the agent itself moved, and whether it is sending a save: a training may wait for that.
    carried: float | None = 0.0
    sending: bool = False
    # A person has stopped one of the processes, or attached a debugger to it.
    debugged: bool = False


class ActivityProbe:
    """Takes samples of a group of processes. Call it to take one."""

    def __init__(
        self,
        gpus: Callable[[], Sequence[float | None]],
        # None: a process that may not be looked at is at work.
        members: Callable[[], set[int] | None],
        *,
        # The computer has other users: its network traffic says nothing about the training.
        shared: bool,
        sending: Callable[[], bool] = lambda: False,
        # The pid of the agent, if the agent itself is at work.
        agent: int | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        self._gpus = gpus
        self._members = members
        self._shared = shared
        self._sending = sending
        self._agent = agent
        self._proc = proc

    def __call__(self) -> ActivitySample:
        shares = tuple(None if share is None else share / 100 for share in self._gpus())
        members, carried = self._members(), 0.0 if self._agent is None else self._agent_bytes(self._agent)
        if members is None:
            return ActivitySample(shares, None, None, carried)
        debugged = is_debugged(members, self._proc)
        return ActivitySample(shares, self._cpu_s(members), self._bytes(members), carried, self._sending(), debugged)

    def _cpu_s(self, members: set[int]) -> float | None:
        """Processor time of all members, and of their children that have ended."""
        ticks = [found for pid in members if (found := self._ticks(pid)) is not None]
        if not ticks and self._agent is not None:
            return 0.0  # The agent works alone.
        return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None

    def _ticks(self, pid: int) -> int | None:
        try:
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            return sum(int(fields[number]) for number in (11, 12, 13, 14))
        except (OSError, ValueError, IndexError):
            return None

    def _bytes(self, members: set[int]) -> float | None:
        """Bytes read and written, and received if the machine belongs to the training.

        None if a process may not be looked at: it may do anything.
        """
        found = [self._process_bytes(pid) for pid in members if self._exists(pid)]
        # The agent sees the network of the whole machine, and so what daemons download for it.
        viewers = sorted(members) if self._agent is None else [self._agent]
        if not self._shared and viewers:
            received = (self._received_bytes(pid) for pid in viewers)
            found.append(next((each for each in received if each is not None), None))
        known = [each for each in found if each is not None]
        if not found and self._agent is not None:
            return 0.0
        return sum(known) if known and len(known) == len(found) else None

    def _exists(self, pid: int) -> bool:
        return (self._proc / str(pid)).exists()

    def _process_bytes(self, pid: int) -> float | None:
        """Bytes of system calls and of disks: reads of memory-mapped files are no system calls."""
        found = self._io_counters(pid, "rchar", "wchar", "read_bytes", "write_bytes")
        # A process that ended at this moment did nothing more.
        return found if found is not None or self._exists(pid) else 0.0

    def _agent_bytes(self, agent: int) -> float | None:
        """Bytes without `rchar`: the agent reads /proc all the time."""
        return self._io_counters(agent, "wchar", "read_bytes", "write_bytes")

    def _io_counters(self, pid: int, *names: str) -> float | None:
        try:
            lines = (self._proc / str(pid) / "io").read_text().splitlines()
            parts = dict(line.split(": ") for line in lines)
            return float(sum(int(parts[name]) for name in names))
        except (OSError, ValueError, KeyError):
            return None

    def _received_bytes(self, pid: int) -> float | None:
        """Bytes received by all interfaces that the process sees: a container may have its own."""
        try:
            lines = (self._proc / str(pid) / "net" / "dev").read_text().splitlines()[2:]
            return float(sum(int(line.partition(":")[2].split()[0]) for line in lines))
        except (OSError, ValueError, IndexError):
            return None


# States of /proc/PID/stat: stopped by its tracer, and stopped by a signal (Ctrl-Z, SIGSTOP).
_TRACED, _STOPPED = "t", "T"
_ENDED = ("Z", "X")
# System calls by which a process waits for its standard input alone, by the kind of machine: the number of `read`, and
# those of `select` with its variants, as readline calls them.
_CALLS = {"x86_64": (0, (23, 270)), "aarch64": (63, (72,))}
# The agent is never further up than this.
_MOST_PARENTS = 32


def is_debugged(members: Collection[int], proc: Path = Path("/proc"), agent: int | None = None) -> bool:
    """Return whether a process of the training is stopped, traced from outside of the training, or asks a person.

    A Python that waits for a line from a terminal is at the prompt of `pdb` or of `input()`.

    A tracer that belongs to the training itself (`strace python train.py`, a sampling profiler) counts only while it
    keeps a process stopped. Stacks that the agent collects (a py-spy that it started) never count. A process that
    cannot be read counts as not debugged.
    """
    own = os.getpid() if agent is None else agent
    return any(_is_debugged(pid, members, proc, own) for pid in members)


def _is_debugged(pid: int, members: Collection[int], proc: Path, agent: int) -> bool:
    state = _state(proc, pid)
    if state is None:
        return False
    if state == _STOPPED:
        return True
    tracer = _tracer(proc, pid)
    if tracer and _is_below(proc, tracer, agent) and tracer not in members:
        return False
    return state == _TRACED or bool(tracer and tracer not in members) or _asks(proc, pid)


def _asks(proc: Path, pid: int, machine: str | None = None) -> bool:
    folder = proc / str(pid)
    try:
        if not os.readlink(folder / "fd" / "0").startswith(("/dev/pts/", "/dev/tty")):  # noqa: PTH115
            return False
        if "python" not in os.path.basename(os.readlink(folder / "exe")):  # noqa: PTH115, PTH119
            return False
        call, first, *_ = (folder / "syscall").read_text().split()
        read, selects = _CALLS[machine or os.uname().machine]
        return (int(call) == read and int(first, 16) == 0) or (int(call) in selects and int(first, 16) == 1)
    except (OSError, ValueError, KeyError):
        return False


def _state(proc: Path, pid: int) -> str | None:
    """Return the state of the process: that of another thread once its first thread has ended."""
    found = _fields(proc, pid)
    if not found or found[0] not in _ENDED:
        return found[0] if found else None
    try:
        threads = sorted((proc / str(pid) / "task").iterdir())
    except OSError:
        return found[0]
    states = (_fields(thread.parent, int(thread.name)) for thread in threads)
    return next((each[0] for each in states if each and each[0] not in _ENDED), found[0])


def _is_below(proc: Path, pid: int, ancestor: int) -> bool:
    for _ in range(_MOST_PARENTS):
        if pid == ancestor:
            return True
        found = _fields(proc, pid)
        if len(found) < 2 or not found[1].isdigit() or int(found[1]) <= 1:
            return False
        pid = int(found[1])
    return False


def _fields(proc: Path, pid: int) -> list[str]:
    """Return the fields from the state on, then the parent; the name before them may contain anything."""
    try:
        return (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _tracer(proc: Path, pid: int) -> int:
    try:
        lines: Iterable[str] = (proc / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    tracer = next((line.partition(":")[2].strip() for line in lines if line.startswith("TracerPid:")), "0")
    return int(tracer) if tracer.isdigit() else 0
