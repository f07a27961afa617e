"""Start a program in a session of its own, inside a cgroup before its first instruction."""

from __future__ import annotations

import json
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
#   - enters its own view of the file system, where it has one (`mounting`);
#   - asks to die with its parent, which survives exec;
#   - gives back the signals that Python ignores, and the locale variable that Python may have set;
#   - gives back the agent's protection from the kernel's out-of-memory killer, which is to take the training instead.
# The pipe closes when the program is running, or carries the error.
_STEP = """
import os, sys
import _signal
pipe, folder, parent, locale, view, *command = sys.argv[1:]
os.set_inheritable(int(pipe), False)
try:
    if folder:
        handle = os.open(folder + "/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        os.write(handle, b"0")
        os.close(handle)
    if view:
        import json
        view = json.loads(view)
        with open(view["code"], encoding="utf-8") as file:
            code = {"__name__": "mounting"}
            exec(compile(file.read(), view["code"], "exec"), code)
        try:
            code["enter"](view["mounts"], view["cwd"])
        except OSError as error:
            os.write(int(pipe), f"{error.errno} {error.strerror}".encode())
            os._exit(126)
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


class NotMounted(OSError):
    """This machine does not let its user have a private view of the file system. Its text says what was refused."""


class Launch(NamedTuple):
    """A program to start, and how. `mounts` are sources and the targets at which it sees them, too, and `ro`
    where it must not write there."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | os.PathLike[str] | None = None
    stdin: Stream = subprocess.DEVNULL
    stdout: Stream = None
    stderr: Stream = None
    pass_fds: Collection[int] = ()
    dies_with_parent: bool = False
    mounts: Sequence[tuple[str, ...]] = ()


def start(launch: Launch, *, cgroup: str | None = None) -> subprocess.Popen[bytes]:
    """Start it, as the leader of a new session. Raises OSError when the program or `cwd` is not there, NotMounted.

    On return the program itself runs, and is where it belongs: whoever kills the group now does not miss it.
    """
    if cgroup is None and not launch.dies_with_parent and not launch.mounts:
        return _open(launch, launch.argv, launch.pass_fds)
    parent = str(os.getpid()) if launch.dies_with_parent else ""
    locale = "kept" if "LC_CTYPE" in launch.env else ""
    reader, writer = os.pipe()
    try:
        step = [sys.executable, "-I", "-S", "-c", _STEP, str(writer), cgroup or "", parent, locale, _view(launch)]
        try:
            child = _open(launch, [*step, *launch.argv], (*launch.pass_fds, writer))
        finally:
            os.close(writer)
        number, _, refused = os.read(reader, 1024).decode(errors="replace").partition(" ")
    finally:
        os.close(reader)
    if number:
        child.wait()
        if refused:
            raise NotMounted(int(number), refused)
        raise OSError(int(number), os.strerror(int(number)), launch.argv[0])
    return child


def _view(launch: Launch) -> str:
    if not launch.mounts:
        return ""
    code = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mounting.py")  # noqa: PTH100, PTH118, PTH120
    cwd = os.fspath(launch.cwd) if launch.cwd is not None else os.getcwd()  # noqa: PTH109
    return json.dumps({"code": code, "mounts": list(launch.mounts), "cwd": cwd})


def _open(launch: Launch, argv: Sequence[str], pass_fds: Collection[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        env=dict(launch.env),
        # In a view of its own the folder may not be there yet.
        cwd=None if launch.mounts else launch.cwd,
        stdin=launch.stdin,
        stdout=launch.stdout,
        stderr=launch.stderr,
        pass_fds=pass_fds,
        start_new_session=True,
    )
