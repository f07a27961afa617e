"""Start a program in a session of its own, inside a cgroup before its first instruction."""

from __future__ import annotations

import errno
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
#   - gives back the signals that Python ignores, and the locale variable that Python may have set.
_STEP = """
import os, sys
import _signal
folder, parent, locale, *command = sys.argv[1:]
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
    os.execvp(command[0], command)
except OSError as error:
    os.write(2, ("stoker: cannot start %s: %s\\n" % (command[0], error)).encode("utf-8", "surrogateescape"))
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


def start(launch: Launch, *, cgroup: str | os.PathLike[str] | None = None) -> subprocess.Popen[bytes]:
    """Start it, as the leader of a new session. Raises OSError when the program or `cwd` is not there."""
    argv = list(launch.argv)
    _require_program(argv, launch.env, launch.cwd)
    if cgroup is not None or launch.dies_with_parent:
        parent = str(os.getpid()) if launch.dies_with_parent else ""
        locale = "kept" if "LC_CTYPE" in launch.env else ""
        argv = [sys.executable, "-I", "-S", "-c", _STEP, os.fspath(cgroup or ""), parent, locale, *argv]
    return subprocess.Popen(
        argv,
        env=dict(launch.env),
        cwd=launch.cwd,
        stdin=launch.stdin,
        stdout=launch.stdout,
        stderr=launch.stderr,
        pass_fds=launch.pass_fds,
        start_new_session=True,
    )


def _require_program(argv: list[str], env: Mapping[str, str], cwd: str | os.PathLike[str] | None) -> None:
    """Missing programs are told by an exception, however the program is then started."""
    program = argv[0]
    where = os.fspath(cwd) if cwd is not None else "."
    if "/" in program:
        candidates = [os.path.join(where, program)]  # noqa: PTH118 - no pathlib at start-up
    else:
        folders = env.get("PATH", os.defpath).split(os.pathsep)
        candidates = [os.path.join(where, folder or ".", program) for folder in folders]  # noqa: PTH118
    found = [path for path in candidates if os.path.isfile(path)]  # noqa: PTH113
    if any(os.access(path, os.X_OK) for path in found):
        return
    problem = errno.EACCES if found else errno.ENOENT
    raise OSError(problem, os.strerror(problem), program)
