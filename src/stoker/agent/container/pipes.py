"""Named pipes in a folder that both the agent and the container see.

    alive       held open by the agent alone; the container's first program reads from it, and exits at its end
    begun       the first program reports its start, and the container's host name
    *.exports   the variables of a command, secrets among them, as shell code, and how to start it with them
    *.reply     the pid of the command, in the container's numbering
    *.out       the output of the command, if it must be masked

Nothing that passes through them is ever on a disk.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import select
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from stoker.processes.container_sweep import container_name

# Path of the folder in the container. It differs from the path outside, because the container's user may not have
# access to the parent folders.
INSIDE = "/run/stoker"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_POLL_S = 0.005
# Time for the engine to start a command of `stoker exec`.
_EXEC_TIMEOUT_S = 30.0

# Starts a command: reads its variables from a pipe, redirects its output to a file or a pipe, and reports its pid. The
# other arguments are its argv. `command -v` distinguishes a missing program from one that exits with 127.
START_COMMAND = """. "$1" && exec >>"$2" 2>&1 || exit 125
reply=$3; shift 3
command -v "$1" >/dev/null || { echo missing >"$reply"; exit 127; }
echo $$ >"$reply"
begin "$@"
"""


# The same for `stoker exec`, whose output goes to the user's terminal.
_EXEC_SCRIPT = """. "$1"; shift
command -v "$1" >/dev/null || { echo "stoker: there is no program '$1' in the container" >&2; exit 127; }
begin "$@"
"""


class ContainerPipes:
    """The pipes of one container."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._alive = self._begun = -1

    @property
    def alive(self) -> Path:
        return self.folder / "alive"

    @property
    def begun(self) -> Path:
        return self.folder / "begun"

    def open(self) -> None:
        """Create the pipes anew. From now on a reader of `alive` sees that this process lives."""
        self.close()
        # The container's user is unknown until it runs, so every user may pass through the folder; but none can list
        # it, and the pipes that carry secrets have names that cannot be guessed.
        self.folder.mkdir()
        self.folder.chmod(0o711)
        for pipe in (self.alive, self.begun):
            _make_pipe(pipe)
        # Opened for reading too, so that it need not wait for a reader. Children do not inherit the handle (PEP 446).
        self._alive = os.open(self.alive, os.O_RDWR)
        self._begun = os.open(self.begun, os.O_RDONLY | os.O_NONBLOCK)

    def wait_started(self, gone: Callable[[], bool]) -> str | None:
        """Wait for the start of the container's first program, and return the host name that it has; None: it is
        `gone`."""
        line = _read_line(self._begun, gone)
        return None if line is None else line.partition(" ")[2]

    def close(self) -> None:
        """Let the container end. Repeating is harmless."""
        if self._alive >= 0:
            os.close(self._alive)
            os.close(self._begun)
            self._alive = self._begun = -1
        shutil.rmtree(self.folder, ignore_errors=True)

    def command_pipes(self) -> CommandPipes:
        """Create the pipes of one command."""
        return CommandPipes(self.folder, secrets.token_hex(16))


class CommandPipes:
    """The pipes of one command. Closed when the command has started."""

    def __init__(self, folder: Path, name: str) -> None:
        self.exports, self.reply, self.out = (folder / f"{name}.{what}" for what in ("exports", "reply", "out"))
        for pipe in (self.exports, self.reply, self.out):
            _make_pipe(pipe)
        self._reply = os.open(self.reply, os.O_RDONLY | os.O_NONBLOCK)

    def send_variables(self, variables: Mapping[str, str], gone: Callable[[], bool]) -> str | None:
        """Send the variables, and return the command's pid in the container or `missing`.

        None: the command is `gone`.
        """
        handle = _open_for_reader(self.exports, gone)
        if handle is None:
            return None
        try:
            os.set_blocking(handle, True)
            _write(handle, _exports(variables))
        except BrokenPipeError:
            return None
        finally:
            os.close(handle)
        return _read_line(self._reply, gone)

    def close(self) -> None:
        os.close(self._reply)
        for pipe in (self.exports, self.reply, self.out):
            pipe.unlink(missing_ok=True)


def exec_in_container(
    engine: str, root: Path, command: Sequence[str], cwd: Path, variables: Mapping[str, str]
) -> NoReturn:
    """Replace this process with a command beside the training.

    Raises OSError if the container or the engine is missing.
    """
    exports = root / "pipes" / f"{secrets.token_hex(16)}.exports"
    _make_pipe(exports)
    if os.fork() == 0:
        # This child sends the variables and exits, also after an error: it must not go on as a second `stoker`. Its
        # parent does not wait for it.
        try:
            until_s = time.monotonic() + _EXEC_TIMEOUT_S
            handle = _open_for_reader(exports, lambda: time.monotonic() > until_s)
            exports.unlink(missing_ok=True)
            if handle is not None:
                os.set_blocking(handle, True)
                _write(handle, _exports(variables))
        finally:
            os._exit(0)
    terminal = ("--tty",) if sys.stdin.isatty() and sys.stdout.isatty() else ()
    arguments = ("exec", "--interactive", *terminal, f"--workdir={cwd}", container_name(root))
    os.execvp(engine, (engine, *arguments, "sh", "-c", _EXEC_SCRIPT, "stoker", path_inside(exports), *command))


def path_inside(pipe: Path) -> str:
    """Return the path of a pipe inside the container."""
    return f"{INSIDE}/{pipe.name}"


def _open_for_reader(pipe: Path, gone: Callable[[], bool]) -> int | None:
    """Open the pipe once it has a reader. None: the reader is `gone`."""
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        if gone():
            return None
        time.sleep(_POLL_S)


def _make_pipe(path: Path) -> None:
    os.mkfifo(path)
    # Independent of the umask.
    path.chmod(0o666)


def _read_line(pipe: int, gone: Callable[[], bool]) -> str | None:
    """Read one line from a pipe. None: the writer is `gone`."""
    line = b""
    while not line.endswith(b"\n"):
        # Called before reading: data that was written before the writer went is still in the pipe.
        was_gone = gone()
        if select.select([pipe], [], [], _POLL_S)[0]:
            part = os.read(pipe, 64)
            line += part
            if part:
                continue
            # A writer opened and closed the pipe without writing; `select` would report the end of file again at once.
            time.sleep(_POLL_S)
        if was_gone:
            return None
    return line.decode("ascii", "replace").strip()


def _exports(variables: Mapping[str, str]) -> bytes:
    """Return the variables as code for `sh`, with a function `begin` that turns the shell into a command.

    A shell cannot set a variable with an unusual name (`SM_HP_BATCH-SIZE`); `env` can, if the image has it. These
    values are in the arguments of `env` for a moment. Secrets never are, because their names are valid in a shell.
    """
    named = {name: value for name, value in variables.items() if _VARIABLE.fullmatch(name)}
    unusual = " ".join(shlex.quote(f"{name}={value}") for name, value in variables.items() if name not in named)
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in named.items()]
    # `--`: a name may begin with a dash.
    call_env = f'command -v env >/dev/null && exec env -- {unusual} "$@"; ' if unusual else ""
    return os.fsencode("".join([*lines, f'begin() {{ {call_env}exec "$@"; }}\n']))


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
