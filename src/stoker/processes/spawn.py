"""Start a program in a session of its own, inside a cgroup before its first instruction."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import IO, NamedTuple

# A file object, a descriptor, or one of subprocess's PIPE, STDOUT and DEVNULL.
Stream = IO[bytes] | int | None

# Runs between fork and the program, as a program: code run inside a fork of a process with threads can deadlock, and
# a shell would drop environment variables whose names it does not like (exported bash functions, for one).
#   - joins the cgroup by writing 0, "the writer", so no pid can be mistaken;
#   - asks to die with its parent, which survives exec;
#   - gives back the signals that Python ignores, and the locale variable that Python may have set;
#   - gives back the agent's protection from the kernel's out-of-memory killer, which is to take the training instead.
# The pipe closes when the program is running, or carries the error.
_STEP = """
import os, sys
import _signal
pipe, folder, parent, locale, *command = sys.argv[1:]
os.set_inheritable(int(pipe), False)
try:
    if folder:
        handle = os.open(folder + "/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        os.write(handle, b"0")
        os.close(handle)
    if parent:
        import ctypes
        ctypes.CDLL(None).prctl(1, ctypes.c_ulong(9), 0, 0, 0)
        if os.getppid() != int(parent):
            os._exit(125)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
    if not locale:
        os.environ.pop("LC_CTYPE", None)
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            if int(file.read()) < 0:
                file.seek(0)
                file.write("0")
    except OSError:
        pass
    os.execvp(command[0], command)
except OSError as error:
    os.write(int(pipe), str(error.errno).encode())
    os._exit(126)
"""


class Launch(NamedTuple):
    """A program to start, and how."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | os.PathLike[str] | None = None
    stdin: Stream = subprocess.DEVNULL
    stdout: Stream = None
    stderr: Stream = None
    pass_fds: Collection[int] = ()
    dies_with_parent: bool = False


def start(launch: Launch, *, cgroup: str | None = None) -> subprocess.Popen[bytes]:
    """Start it, as the leader of a new session. Raises OSError when the program or `cwd` is not there.

    On return the program itself runs, and is where it belongs: whoever kills the group now does not miss it.
    """
    if cgroup is None and not launch.dies_with_parent:
        return _open(launch, launch.argv, launch.pass_fds)
    parent = str(os.getpid()) if launch.dies_with_parent else ""
    locale = "kept" if "LC_CTYPE" in launch.env else ""
    reader, writer = os.pipe()
    try:
        step = [sys.executable, "-I", "-S", "-c", _STEP, str(writer), cgroup or "", parent, locale]
        try:
            child = _open(launch, [*step, *launch.argv], (*launch.pass_fds, writer))
        finally:
            os.close(writer)
        problem = os.read(reader, 16)
    finally:
        os.close(reader)
    if problem:
        child.wait()
        raise OSError(int(problem), os.strerror(int(problem)), launch.argv[0])
    return child


def _open(launch: Launch, argv: Sequence[str], pass_fds: Collection[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        env=dict(launch.env),
        cwd=launch.cwd,
        stdin=launch.stdin,
        stdout=launch.stdout,
        stderr=launch.stderr,
        pass_fds=pass_fds,
        start_new_session=True,
    )
