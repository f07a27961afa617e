"""Start a program in a new session, inside a cgroup before its first instruction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import IO, NamedTuple

# A file object, a descriptor, or one of subprocess's PIPE, STDOUT and DEVNULL.
Stream = IO[bytes] | int | None

# A program that runs between fork and the real one: code in a fork of a threaded process can deadlock, and a shell
# would drop environment variables with unusual names, such as exported bash functions. It
#   - joins the cgroup by writing 0, which means the writer, so that no pid can be mistaken;
#   - enters a private view of the machine if there is one (`mounting`);
#   - asks the kernel to kill it with its parent, a setting that survives exec;
#   - restores the signals that Python ignores, and the locale variable that Python may have set;
#   - drops the agent's protection from the kernel's out-of-memory killer, which should choose the training instead.
# The pipe closes when the program runs, or carries the error.
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
            code["enter"](view["mounts"], view["cwd"], view["hostname"])
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
    """This machine does not allow its user a private view of it. The text says what was refused."""


class LaunchSpec(NamedTuple):
    """A program to start. `mounts` are pairs of source and target, with a third part `ro` for read-only ones.

    `hostname` is what the machine is called for the program; empty for its own name.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | os.PathLike[str] | None = None
    stdin: Stream = subprocess.DEVNULL
    stdout: Stream = None
    stderr: Stream = None
    pass_fds: Collection[int] = ()
    dies_with_parent: bool = False
    mounts: Sequence[tuple[str, ...]] = ()
    hostname: str = ""

    @property
    def has_view(self) -> bool:
        """True if the program sees another machine than all others do."""
        return bool(self.mounts or self.hostname)


def start(launch: LaunchSpec, *, cgroup: str | None = None) -> subprocess.Popen[bytes]:
    """Start a program as the leader of a new session.

    On return the program itself runs and is in its group: killing the group from now on includes it. Raises NotMounted,
    and OSError if the program or `cwd` is missing.
    """
    if cgroup is None and not launch.dies_with_parent and not launch.has_view:
        return _open(launch, launch.argv, launch.pass_fds)
    parent = str(os.getpid()) if launch.dies_with_parent else ""
    locale = "keep" if "LC_CTYPE" in launch.env else ""
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


def _view(launch: LaunchSpec) -> str:
    if not launch.has_view:
        return ""
    code = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mounting.py")  # noqa: PTH100, PTH118, PTH120
    cwd = os.fspath(launch.cwd) if launch.cwd is not None else os.getcwd()  # noqa: PTH109
    return json.dumps({"code": code, "mounts": list(launch.mounts), "cwd": cwd, "hostname": launch.hostname})


def _open(launch: LaunchSpec, argv: Sequence[str], pass_fds: Collection[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        env=dict(launch.env),
        # With mounts the folder may not exist yet.
        cwd=None if launch.has_view else launch.cwd,
        stdin=launch.stdin,
        stdout=launch.stdout,
        stderr=launch.stderr,
        pass_fds=pass_fds,
        start_new_session=True,
    )
