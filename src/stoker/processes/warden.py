"""Hold a group together without cgroups: run a command, and end the whole group when its owner dies.

    python -m stoker.processes.warden MARK OWNER SESSIONS COMMAND…

Standard input is a pipe whose other end the owner holds. The warden is the process between the owner and the command,
and both are subreapers, so every daemonised descendant becomes the warden's child. When the pipe ends, the owner is
dead: the warden kills all descendants and exits. When the warden dies first, the owner inherits its descendants. An
escape requires that both are killed at the same moment, and that a process has cleared its environment and left its
session within the last RECORD_EVERY_S.
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

# Interval of recording new sessions, for a search after the deaths of owner and warden.
RECORD_EVERY_S = 1.0
_KILL_S = 5.0


class GuardedCommand:
    """The owner's view of a command below a warden. `pid` is the warden's; its exit status is the command's."""

    def __init__(self, child: subprocess.Popen[bytes], pipe: int) -> None:
        self.pid = child.pid
        self._pipe = pipe
        # The owner itself waits for all its children.
        child.returncode = 0

    def close(self) -> None:
        """Close the pipe. A warden that still lives ends its group."""
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
    lock: int,
) -> GuardedCommand:
    """Start a command below a warden. `names` are the group's mark and owner.

    `lock` is a file lock that the warden holds until the group has no members. Raises OSError.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        child = group.spawn(
            [sys.executable, "-m", "stoker.processes.warden", *names, os.fspath(sessions), *argv],
            cwd=cwd,
            stdin=reader,
            stdout=output,
            stderr=output,
            pass_fds=(lock,),
        )
    except BaseException:  # an open writer would keep a warden alive that was started; raised again
        os.close(writer)
        raise
    finally:
        os.close(reader)
    return GuardedCommand(child, writer)


def main(argv: Sequence[str]) -> int:
    """Run the command, and return its exit status, or 1 if the owner died."""
    mark, owner, sessions, *command = argv
    wakeup_reader, wakeup_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
    # Handlers instead of SIG_IGN: the command would inherit ignored signals.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(number, _nothing)
    group = MarkedGroup(mark, owner, since=Process.me().started, owned=True, sessions=sessions)
    try:
        child = group.spawn(command, dies_with_parent=True)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error}\n".encode())
        return 126
    while True:
        ready, _, _ = select.select([0, wakeup_reader], [], [], RECORD_EVERY_S)
        if wakeup_reader in ready:
            _drain(wakeup_reader)
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


def _drain(wakeup_reader: int) -> None:
    try:
        while os.read(wakeup_reader, 512):
            pass
    except BlockingIOError:
        pass


def _nothing(_number: int, _frame: Any) -> None:
    """Do nothing: the wake-up is enough."""


if __name__ == "__main__":
    # Without Python's cleanup: the lock must be free as soon as the group is empty.
    os._exit(main(sys.argv[1:]))
