"""The door of a container: named pipes in a folder that both sides see. Nothing that goes through is ever on a disk.

alive       held open by the agent alone; the container's first program reads from it, and ends when it ends
begun       that program says that it is there
*.words     the variables of a command, secrets among them, as a shell reads them, and how it is begun with them
*.reply     which process the command became, by the container's own numbers
*.out       its output, where a masker has to see it first
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

# Where the folder is seen inside: not where it lies, for whoever runs there may not be let through to that place.
INSIDE = "/run/stoker"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOOK_EVERY_S = 0.005
# How long an engine may take to let a person in.
_VISIT_S = 30.0

# Brings a command in: its variables from a pipe, its output to a file or a pipe, then the word that it is there. What
# follows is its argv. `command -v` so that a program that is missing is told from a program that ends with 127.
ENTER = """. "$1" && exec >>"$2" 2>&1 || exit 125
reply=$3; shift 3
command -v "$1" >/dev/null || { echo missing >"$reply"; exit 127; }
echo $$ >"$reply"
begin "$@"
"""


# The same for a person, whose output is the person's own.
_VISIT = """. "$1"; shift
command -v "$1" >/dev/null || { echo "stoker: there is no program '$1' in the container" >&2; exit 127; }
begin "$@"
"""


class Door:
    """One for each container."""

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
        """Make it anew. From here on whoever reads `alive` knows that this process lives."""
        self.close()
        # Who will run inside is known only when it runs, so everybody may go through; but nobody can look around here,
        # and the pipes through which secrets go have names that cannot be guessed.
        self.folder.mkdir()
        self.folder.chmod(0o711)
        for pipe in (self.alive, self.begun):
            _make_pipe(pipe)
        # For reading as well: so it can be opened before anybody else has. Children do not have it (PEP 446).
        self._alive = os.open(self.alive, os.O_RDWR)
        self._begun = os.open(self.begun, os.O_RDONLY | os.O_NONBLOCK)

    def hear_begun(self, gone: Callable[[], bool]) -> bool:
        """Whether the container's first program is there. False: it is `gone`."""
        return _hear(self._begun, gone) is not None

    def close(self) -> None:
        """The container ends. Repeating is harmless."""
        if self._alive >= 0:
            os.close(self._alive)
            os.close(self._begun)
            self._alive = self._begun = -1
        shutil.rmtree(self.folder, ignore_errors=True)

    def entrance(self) -> Entrance:
        """For one command."""
        return Entrance(self.folder, secrets.token_hex(16))


class Entrance:
    """The pipes of one command. Closed when it is inside."""

    def __init__(self, folder: Path, name: str) -> None:
        self.words, self.reply, self.out = (folder / f"{name}.{what}" for what in ("words", "reply", "out"))
        for pipe in (self.words, self.reply, self.out):
            _make_pipe(pipe)
        self._answers = os.open(self.reply, os.O_RDONLY | os.O_NONBLOCK)

    def pass_in(self, variables: Mapping[str, str], gone: Callable[[], bool]) -> str | None:
        """Hand the variables over, and hear what the command became: its number, or `missing`. None: it is `gone`."""
        handle = _open_for_reader(self.words, gone)
        if handle is None:
            return None
        try:
            os.set_blocking(handle, True)
            _write(handle, _exports(variables))
        except BrokenPipeError:
            return None
        finally:
            os.close(handle)
        return _hear(self._answers, gone)

    def close(self) -> None:
        os.close(self._answers)
        for pipe in (self.words, self.reply, self.out):
            pipe.unlink(missing_ok=True)


def visit(engine: str, root: Path, command: Sequence[str], cwd: Path, variables: Mapping[str, str]) -> NoReturn:
    """Become a command beside the training. Raises OSError when the container, or the engine, is not there."""
    words = root / "door" / f"{secrets.token_hex(16)}.words"
    _make_pipe(words)
    if os.fork() == 0:
        # Hands the variables over, and is gone. Nobody waits for it.
        until_s = time.monotonic() + _VISIT_S
        handle = _open_for_reader(words, lambda: time.monotonic() > until_s)
        words.unlink(missing_ok=True)
        if handle is not None:
            os.set_blocking(handle, True)
            _write(handle, _exports(variables))
        os._exit(0)
    terminal = ("--tty",) if sys.stdin.isatty() and sys.stdout.isatty() else ()
    arguments = ("exec", "--interactive", *terminal, f"--workdir={cwd}", container_name(root))
    os.execvp(engine, (engine, *arguments, "sh", "-c", _VISIT, "stoker", inside(words), *command))


def inside(pipe: Path) -> str:
    """How whoever is inside names a pipe of the door."""
    return f"{INSIDE}/{pipe.name}"


def _open_for_reader(pipe: Path, gone: Callable[[], bool]) -> int | None:
    """Open it once somebody reads. None: whoever would is `gone`."""
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        if gone():
            return None
        time.sleep(_LOOK_EVERY_S)


def _make_pipe(path: Path) -> None:
    os.mkfifo(path)
    # Whatever the umask is.
    path.chmod(0o666)


def _hear(pipe: int, gone: Callable[[], bool]) -> str | None:
    """One line from a pipe. None: whoever would say it is `gone`."""
    heard = b""
    while not heard.endswith(b"\n"):
        # Asked first: what was said before it went is still there.
        left = gone()
        if select.select([pipe], [], [], _LOOK_EVERY_S)[0]:
            part = os.read(pipe, 64)
            heard += part
            if part:
                continue
            # Somebody opened it, said nothing yet, and closed it; it would be told again at once.
            time.sleep(_LOOK_EVERY_S)
        if left:
            return None
    return heard.decode("ascii", "replace").strip()


def _exports(variables: Mapping[str, str]) -> bytes:
    """As `sh` reads them, and the function `begin`, with which a shell becomes a command.

    A shell cannot set a variable whose name is no name of a shell's (`SM_HP_BATCH-SIZE`); `env` can, where an image has
    one. What it is told is among its arguments for a moment. Secrets never are: their names are a shell's.
    """
    named = {name: value for name, value in variables.items() if _VARIABLE.fullmatch(name)}
    odd = " ".join(shlex.quote(f"{name}={value}") for name, value in variables.items() if name not in named)
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in named.items()]
    # `--`: a name may begin with a dash.
    through = f'command -v env >/dev/null && exec env -- {odd} "$@"; ' if odd else ""
    return os.fsencode("".join([*lines, f'begin() {{ {through}exec "$@"; }}\n']))


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
