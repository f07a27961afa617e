"""What only prctl(2) can ask of the kernel."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """From now on every orphan among this process's descendants becomes its child, however it was daemonised."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_parent_death_signal(number: int = signal.SIGKILL, *, parent: int | None = None) -> None:
    """Have the kernel send `number` to this process when its parent ends.

    With `parent`, the pid that should be the parent, a parent that ended before this call counts too: the signal is
    then sent at once. The kernel means the parent's *thread* that forked: fork from one that lives as long.
    """
    _prctl(_PR_SET_PDEATHSIG, int(number))
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))
