"""Commands that people run beside a training on this computer (`stoker exec`): they end with the node.

The caller stays in the terminal session of its user, so it cannot be a marked member of the node's group: everything
else in that session would become a member, too. It joins the node's cgroup if it may, and carries a mark of its own.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator

from stoker.processes.identity import Process, boot_id, environ_of, process_table

# Names the node in the environment of the command.
EXEC = "STOKER_EXEC"
_PAUSE_S = 0.01


def join(owner: str, cgroup: str | None) -> None:
    """Make this process, and all that it will start, end with the node.

    Raises ProcessLookupError if the node is off.
    """
    os.environ[EXEC] = owner
    if cgroup is None:
        return
    try:
        with open(f"{cgroup}/cgroup.procs", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write("0")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            raise ProcessLookupError(errno.ESRCH, "the node is off") from error
        # This user may not move processes between cgroups; the mark remains.


def kill_joined(owner: str, timeout_s: float = 5.0) -> bool:
    """Kill all commands that joined this node, and what they started. False: some still lived at the timeout."""
    until_s = time.monotonic() + timeout_s
    refused: set[Process] = set()
    while found := set(_joined(owner)) - refused:
        for process in found:
            try:
                process.signal(signal.SIGKILL)
            except PermissionError:
                refused.add(process)  # A person became another user, with sudo.
        if time.monotonic() >= until_s:
            return False
        time.sleep(_PAUSE_S)
    return True


def _joined(owner: str) -> Iterator[Process]:
    mark = f"{EXEC}={owner}".encode()
    for stat in process_table().values():
        if not stat.alive or stat.pid == os.getpid():
            continue
        try:
            marked = mark in environ_of(stat).split(b"\0")
        except OSError:
            continue  # Ended meanwhile, or owned by another user.
        if marked:
            yield Process(stat.pid, stat.started, boot_id())
