"""Identity of processes, and which of them survive a signal. A pid is reused; with start time and boot it is unique."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache

# NamedTuple, not dataclass: importing `dataclasses` would be a third of the node supervisor's start-up.
from typing import NamedTuple

# Limit of repeated listings on a machine where new processes never stop.
_MOST_LISTINGS = 20


class Stat(NamedTuple):
    """The relevant part of /proc/<pid>/stat. `started` is in clock ticks since boot."""

    pid: int
    state: str
    parent: int
    session: int
    threads: int
    started: int

    @property
    def alive(self) -> bool:
        """False for a zombie. A leader that ended before its other threads looks like one, but is alive."""
        return self.state not in "ZX" or self.threads > 1

    @property
    def leaderless(self) -> bool:
        """The first thread has ended, other threads run: files of /proc/<pid> that belong to a thread are empty."""
        return self.state in "ZX" and self.threads > 1

    @property
    def halted(self) -> bool:
        """Every thread is stopped by a signal or by a debugger: the process runs nothing and forks nothing."""
        if self.threads <= 1 or self.state not in "TtZX":
            return self.state in "Tt"
        return all(state in "TtZX" for _, state in _threads(self.pid))


def stat_of(pid: int) -> Stat | None:
    """Return the process with this pid, zombie or not; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - hot path
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name is in parentheses and may contain anything, parentheses included.
    fields = text[text.rindex(b")") + 2 :].split()
    return Stat(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        threads=int(fields[17]),
        started=int(fields[19]),
    )


def _threads(pid: int) -> Iterator[tuple[str, str]]:
    """Yield the folder in /proc and the state of each thread."""
    try:
        folders = [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 - hot path
    except OSError:
        return
    for folder in folders:
        try:
            with open(f"{folder}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - hot path
                text = file.read()
        except OSError:
            continue  # It has ended meanwhile.
        yield folder, text[text.rindex(b")") + 2 :].split(None, 1)[0].decode()


def proc_folder(stat: Stat) -> str:
    """Return the folder in /proc that shows what the process has open, has mapped and has as environment.

    /proc/<pid> shows what its first thread has: nothing, once that thread has ended. Then it is the folder of another
    thread.
    """
    if stat.leaderless:
        for folder, state in _threads(stat.pid):
            if state not in "ZX":
                return folder
    return f"/proc/{stat.pid}"


def environ_of(stat: Stat) -> bytes:
    """Return the environment with which the process was started. Raises OSError if it may not be read."""
    with open(f"{proc_folder(stat)}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - hot path
        return file.read()


def process_table() -> dict[int, Stat]:
    """Return all processes. Not a snapshot: processes come and go while it is read.

    The listing is repeated until it has no new process: otherwise the child of a process that ended after the listing
    would be missed.
    """
    table: dict[int, Stat] = {}
    seen: set[str] = set()
    for _ in range(_MOST_LISTINGS):
        new = [name for name in os.listdir("/proc") if name not in seen and name.isdigit()]  # noqa: PTH208 - hot path
        if not new:
            break
        seen.update(new)
        for name in new:
            stat = stat_of(int(name))
            if stat is not None:
                table[stat.pid] = stat
    return table


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Return the id of this boot of the kernel: start times of different boots cannot be compared."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123 - no pathlib at start-up
        return file.read().strip()


class Process(NamedTuple):
    """One process, uniquely: no other will ever have the same pid, start and boot."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the process that has this pid now; None if there is none, or only a zombie."""
        stat = stat_of(pid)
        return cls(pid, stat.started, boot_id()) if stat is not None and stat.alive else None

    @classmethod
    def me(cls) -> Process:
        """Return the calling process."""
        stat = stat_of(os.getpid())
        assert stat is not None
        return cls(stat.pid, stat.started, boot_id())

    @property
    def alive(self) -> bool:
        """True while exactly this process runs. A zombie does not."""
        return self.boot == boot_id() and Process.of(self.pid) == self

    def signal(self, number: int) -> bool:
        """Send a signal to this process and no other. False: it is gone.

        Raises PermissionError if it belongs to another user.
        """
        if self.boot != boot_id():
            return False
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
                raise
            return self._signal_by_number(number)
        try:
            # Verified after the handle was opened: from here on the handle cannot refer to another process.
            if not self.alive:
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def _signal_by_number(self, number: int) -> bool:
        """Signal by pid, for kernels and sandboxes without pidfd: the pid may be reused in the moment in between."""
        if not self.alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def expecting(members: Iterable[int], number: int) -> frozenset[int]:
    """Return the processes that catch or ignore the signal: they survive it."""
    return frozenset(pid for pid in members if _expects(pid, number))


def has_survivor(members: Iterable[int], expect: Collection[int]) -> bool:
    """Tell if any of these processes survives a signal that those in `expect` catch or ignore.

    An ancestor of a process that dies of it does not count: launchers (torchrun) catch a signal for themselves and pass
    it on to their workers.
    """
    parents = {pid: stat.parent for pid in members if (stat := stat_of(pid)) is not None}
    survivors = parents.keys() & set(expect)
    for victim in parents.keys() - set(expect):
        above = parents[victim]
        while above in parents:
            survivors.discard(above)
            above = parents[above]
    return bool(survivors)


def _expects(pid: int, number: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - hot path
            masks = [int(line.split()[1], 16) for line in file if line.startswith(("SigCgt:", "SigIgn:"))]
    except (OSError, ValueError):
        return False
    return any(mask & (1 << (number - 1)) for mask in masks)
