"""Hold a group together where there are no cgroups: run a command, and end the whole group when its owner dies.

    python -m stoker.processes.warden MARK OWNER SESSIONS COMMAND…

Standard input is a pipe whose other end the owner holds. The warden stands between the owner and the command and is a
subreaper as the owner is, so whatever daemonises below becomes the warden's child. When the pipe ends, the owner is
dead: the warden kills every descendant and ends. When the warden dies first, the owner inherits its descendants. An
escape needs both killed at the same moment, and a process that has cleared its environment and left its session within
the last LOOK_S.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from stoker.processes.group import Group
from stoker.processes.identity import Process
from stoker.processes.spawn import Stream
from stoker.processes.tree import MarkedGroup

# How often new sessions are written down, for a look after the deaths of owner and warden.
LOOK_S = 1.0
_KILL_S = 5.0


class Guarded:
    """A command below a warden, as its owner has it. `pid` is the warden's; its exit status is the command's."""

    def __init__(self, child: subprocess.Popen[bytes], pipe: int) -> None:
        self.pid = child.pid
        self._pipe = pipe
        # The owner waits for all its children itself.
        child.returncode = 0

    def close(self) -> None:
        """Give up the pipe. A warden that still lives ends its group."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def spawn_guarded(
    group: Group,
    names: tuple[str, str],
    argv: Sequence[str],
    *,
    sessions: str | os.PathLike[str],
    cwd: str | os.PathLike[str],
    output: Stream,
    held: int,
) -> Guarded:
    """Start a command below a warden. `names` are the group's mark and owner.

    `held` is a lock that the warden keeps until nobody is left of the group. Raises OSError.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        child = group.spawn(
            [sys.executable, "-m", "stoker.processes.warden", *names, os.fspath(sessions), *argv],
            cwd=cwd,
            stdin=reader,
            stdout=output,
            stderr=output,
            pass_fds=(held,),
        )
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    return Guarded(child, writer)


def main(argv: Sequence[str]) -> int:
    """Run the command; answers its exit status, or 1 when the owner died."""
    mark, owner, sessions, *command = argv
    bell, ring = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    # Handlers instead of SIG_IGN: what is ignored would stay ignored in the command.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(number, _nothing)
    group = MarkedGroup(mark, owner, since=Process.me().started, owned=True, sessions=sessions)
    try:
        child = group.spawn(command, dies_with_parent=True)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error}\n".encode())
        return 126
    while True:
        ready, _, _ = select.select([0, bell], [], [], LOOK_S)
        if bell in ready:
            _drain(bell)
        if 0 in ready and not os.read(0, 512):
            while not group.kill(_KILL_S):
                pass
            return 1
        code = child.poll()
        if code is not None:
            return code if code >= 0 else 128 - code
        group.reap()
        if not ready:
            group.members()


def _drain(bell: int) -> None:
    try:
        while os.read(bell, 512):
            pass
    except BlockingIOError:
        pass


def _nothing(_number: int, _frame: Any) -> None:
    """The wake-up is enough."""


if __name__ == "__main__":
    # At once, without Python's tidying up: the lock is free when nothing of the group is left.
    os._exit(main(sys.argv[1:]))
