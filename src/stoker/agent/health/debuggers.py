"""Find processes that a person has stopped, or attached a debugger to."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

# States of /proc/PID/stat: stopped by its tracer, and stopped by a signal (Ctrl-Z, SIGSTOP).
_TRACED, _STOPPED = "t", "T"
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
    found = _fields(proc, pid)
    return found[0] if found else None


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
