"""Who a process is. A pid alone is a number the kernel will use again; with its start time and boot it is a name."""

from __future__ import annotations

import errno
import os
import signal
from functools import lru_cache

# NamedTuple, not dataclass: importing `dataclasses` would be a third of the node supervisor's start-up.
from typing import NamedTuple

# On a machine where processes never stop coming, a table must end all the same.
_MOST_LISTINGS = 20


class Stat(NamedTuple):
    """What /proc/<pid>/stat says, as far as it matters here. `started` is in clock ticks since boot."""

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
    def halted(self) -> bool:
        """Stopped by a signal, or by a debugger: it runs nothing and forks nothing."""
        return self.state in "Tt"


def stat_of(pid: int) -> Stat | None:
    """The process with this pid now, zombie or not; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - hot path
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name stands in parentheses and may hold anything, parentheses included.
    fields = text[text.rindex(b")") + 2 :].split()
    return Stat(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        threads=int(fields[17]),
        started=int(fields[19]),
    )


def process_table() -> dict[int, Stat]:
    """Every process there is. Not a snapshot: processes come and go while it is read.

    Listed again until nobody new is there: else the child of one that ended after the listing would be missed.
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
    """This boot of this kernel: start times of different boots cannot be compared."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123 - no pathlib at start-up
        return file.read().strip()


class Process(NamedTuple):
    """One process, for good: no other will ever have the same pid, start and boot."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this pid now; None when there is none, or only its zombie."""
        stat = stat_of(pid)
        return cls(pid, stat.started, boot_id()) if stat is not None and stat.alive else None

    @classmethod
    def me(cls) -> Process:
        """The calling process."""
        stat = stat_of(os.getpid())
        assert stat is not None
        return cls(stat.pid, stat.started, boot_id())

    @property
    def alive(self) -> bool:
        """Whether this very process runs. A zombie does not."""
        return self.boot == boot_id() and Process.of(self.pid) == self

    def signal(self, number: int) -> bool:
        """Send a signal to this process and no other. False: it is gone.

        Raises PermissionError when it belongs to somebody else.
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
            # Verified after the handle was taken: from here on the handle cannot mean anybody else.
            if not self.alive:
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def _signal_by_number(self, number: int) -> bool:
        """For kernels and sandboxes without pidfd: a moment remains in which the pid may change hands."""
        if not self.alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True
