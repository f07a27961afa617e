"""Write a command's output to the log, through a masker if the command knows secrets.

Without secrets the command writes the file itself: the agent neither loses nor delays output. With secrets a process
runs in between (`stoker.secrets.masker`). It belongs to the agent, not to the command's processes, and lives until the
output ends, whatever happens to the agent.
"""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from stoker.processes import NODE
from stoker.secrets import masker

# Capacity for bursts before the command waits for the masker; the maximum for an unprivileged user.
_PIPE_BYTES = 1 << 20
# Time for the masker to drain the pipe when the command and all that it forked are dead.
_DRAIN_S = 5.0


class Run(Protocol):
    """A started command. `pid` is its first process, as numbered on this machine."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Return the exit status as in subprocess, negative for a signal; None while it runs."""

    def wait(self) -> int:
        """Wait until the command has ended and its output is in the log. Kill first what it may have left running."""


class CommandOutput:
    """Standard output and error of one command."""

    def __init__(self, stream: int, masking: _Masking | None = None) -> None:
        self.stream = stream
        self._masking = masking

    @property
    def masked(self) -> bool:
        return self._masking is not None

    def of(self, run: Run) -> Run:
        """Wrap the command that was started with this output: it ends when its output is in the log."""
        return run if self._masking is None else _MaskedRun(run, self._masking)


def can_mask(value: str) -> bool:
    """Tell if a secret is long enough to be masked."""
    return len(os.fsencode(value)) >= masker.SHORTEST_BYTES


def mask(data: bytes, secrets: Mapping[str, str]) -> bytes:
    """Return the data without the secrets that can be masked. A beginning of a secret at its end is masked, too."""
    found = masker.Masker(_maskable(secrets))
    return found.feed(data) + found.end()


def _maskable(secrets: Mapping[str, str]) -> list[bytes]:
    return [os.fsencode(value) for value in secrets.values() if can_mask(value)]


@contextmanager
def open_output(
    log: Path, secrets: Mapping[str, str], pipe: Path | None = None, *, piped: bool = False
) -> Iterator[CommandOutput]:
    """Open the output of a command that is started within the block.

    The output is appended to `log` without these secrets' values. `pipe` is a named pipe, for a command that inherits
    nothing and opens its output itself. `piped`: the command may not write to `log`, with or without secrets. Raises
    OSError.
    """
    values = _maskable(secrets)
    if not values and not piped:
        with log.open("ab", buffering=0) as file:
            yield CommandOutput(file.fileno())
        return
    reader, writer = os.pipe() if pipe is None else _open_ends(pipe)
    masking = None
    try:
        with suppress(OSError):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        masking = _Masking(reader, log, values)
        yield CommandOutput(writer, masking)
    except BaseException:  # an open writer would keep the masking process alive; raised again
        os.close(writer)
        if masking is not None:
            masking.finish()
        else:
            os.close(reader)
        raise
    os.close(writer)


def _open_ends(pipe: Path) -> tuple[int, int]:
    # Reading end first and non-blocking, because there is no writer yet.
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    return reader, os.open(pipe, os.O_WRONLY)


def way_out() -> tuple[str, ...]:
    """Return the command prefix that starts a program outside the agent's service; empty if the agent is not a service.

    systemd ends all processes of a service, so that nothing of the training is left. It must not end the masker.
    """
    try:
        inside = "/stoker-agent.service" in Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        inside = False
    program = shutil.which("systemd-run") if inside else None
    return (program, "--scope", "--") if program is not None else ()


class _Masking:
    """The process between the pipe and the log, restarted if it is killed."""

    def __init__(self, reader: int, log: Path, values: list[bytes]) -> None:
        self._reader = reader
        self._log = log
        self._values = values
        self._way_out = way_out()
        self._process = self._start()

    def ensure_running(self) -> None:
        """Restart the masker if it ended. Without it the command would soon hang."""
        if self._process.poll() is not None:
            self._start_again()

    def finish(self) -> None:
        """Wait until everything is in the log. Repeating is harmless."""
        if self._reader < 0:
            return
        # Exit code 0 means that it has read to the end.
        if self._process.poll():
            self._start_again()
        try:
            self._process.wait(_DRAIN_S)
        except subprocess.TimeoutExpired:
            # A process outside the command holds its output open.
            self._process.kill()
            self._process.wait()
        os.close(self._reader)
        self._reader = -1

    def _start_again(self) -> None:
        if self._process.returncode > 0:
            # A positive exit code means that systemd-run refused. A masker inside the service is better than none.
            self._way_out = ()
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        reader, writer = os.pipe()
        try:
            with self._log.open("ab", buffering=0) as file:
                process = subprocess.Popen(
                    [*self._way_out, sys.executable, "-I", "-S", masker.__file__, str(reader)],
                    # It belongs to the node and not to the training, and needs no other variable.
                    env={name: os.environ[name] for name in (NODE,) if name in os.environ},
                    stdin=self._reader,
                    stdout=file,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(reader,),
                )
        except BaseException:  # an open writer would keep the masking process alive; raised again
            os.close(writer)
            raise
        finally:
            os.close(reader)
        with suppress(BrokenPipeError), os.fdopen(writer, "wb") as secrets:
            secrets.write(b"".join(base64.b64encode(value) + b"\n" for value in self._values))
        return process


class _MaskedRun:
    def __init__(self, run: Run, masking: _Masking) -> None:
        self._run = run
        self._masking = masking

    @property
    def pid(self) -> int:
        return self._run.pid

    def poll(self) -> int | None:
        code = self._run.poll()
        if code is None:
            self._masking.ensure_running()
        return code

    def wait(self) -> int:
        code = self._run.wait()
        self._masking.finish()
        return code
