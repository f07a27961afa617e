"""Settings of this process that only prctl(2) can change."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make every future orphan among this process's descendants its child, however it was daemonised."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_parent_death_signal(number: int = signal.SIGKILL, *, parent: int | None = None) -> None:
    """Make the kernel send `number` to this process when its parent ends.

    With `parent`, the expected parent's pid, a parent that ended before this call counts too: the signal is then sent
    at once. The kernel watches the parent's *thread* that forked: fork from one that lives long enough.
    """
    _prctl(_PR_SET_PDEATHSIG, int(number))
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))
