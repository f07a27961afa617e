"""Run docker or podman, and tell a user's error from a fault of the machine."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from stoker.agent.rendezvous import sleep_interruptibly
from stoker.model import docker_flags
from stoker.model.errors import SetupFailed
from stoker.processes.spawn import LaunchSpec, Stream, start

FIELD = "environment.container"
_POLL_S = 0.05
# Time for a daemon to start, after the machine booted or the daemon was upgraded.
_DAEMON_WAIT_S = 30.0
_DAEMON_PAUSE_S = 0.5

# The daemon is not running, or does not answer.
_AWAY = re.compile(
    r"cannot connect to (the docker daemon|podman)|is the docker daemon running|error during connect|"
    r"dial unix \S+: connect: (no such file|connection refused)",
    re.IGNORECASE,
)
_FORBIDDEN = re.compile(r"permission denied while trying to connect|dial unix \S+: connect: permission denied", re.I)
_NO_COMPLAINT = ("See '", "Run '", "Error: failed to start containers: ")
_APPENDED = re.compile(r"Usage:|runtime stack:|goroutine \d|SIG[A-Z]+: ")
_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_UNKNOWN = re.compile(r"unknown flag: --([a-z0-9-]+)")
# `invalid argument "much" for "-m, --memory" flag`
_UNFIT = re.compile(r'for "(?:-\w, )?--([a-z0-9-]+)" flag')
_LISTED = re.compile(r"^ +(?:-\w, +)?--([a-z0-9-]+)", re.MULTILINE)


@dataclass(frozen=True)
class EngineResult:
    """The exit code and output of one call of the engine."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The engine's error message, in one line."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        # Docker appends its help, or advice to read it, and a container name that only Stoker knows. `runc` appends a
        # trace of itself where it may start no thread.
        appended = next((index for index, line in enumerate(lines) if _APPENDED.match(line)), len(lines))
        messages = [line for line in lines[:appended] if not line.startswith(_NO_COMPLAINT)]
        text = " ".join(messages[-3:])
        for prefix in (r"^(docker|podman): ", r"^error: ", r"^error response from daemon: "):
            text = re.sub(prefix, "", text, flags=re.IGNORECASE)
        return text.rstrip(".") or f"it exited with {self.code} and printed nothing"

    @property
    def unreachable(self) -> bool:
        """Tell if the daemon did not answer."""
        return bool(self.code) and _AWAY.search(self.err) is not None

    @property
    def disk_full(self) -> bool:
        """Tell if a disk was full."""
        return bool(self.code) and _FULL.search(self.err) is not None


class Engine:
    """`docker` or `podman`, as found on this machine's PATH. `check` is called while it runs, and may raise."""

    def __init__(
        self,
        program: str,
        check: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda _: None,
        *,
        runs_locally: bool = False,
    ) -> None:
        """`runs_locally`: this is the submitter's own computer, whose disk Stoker does not choose."""
        self.program = program
        self.runs_locally = runs_locally
        self._check = check
        self._say = say

    @property
    def disk_advice(self) -> str:
        """Advice for the user about a full disk."""
        own = f"make room where {self.program} stores its images (resources.disk does not apply to this computer)"
        return own if self.runs_locally else "ask for a larger disk with resources.disk"

    def run(self, *arguments: str) -> EngineResult:
        """Run the engine to its end. Raises SetupFailed if the program is missing."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = self.spawn(arguments, stdout=out, stderr=err)
            try:
                while not _ended(child, _POLL_S):
                    self._check()
            finally:
                if child.poll() is None:
                    child.kill()
                code = child.wait()
            return EngineResult(code, _text(out), _text(err))

    def spawn(
        self, arguments: Sequence[str], *, stdout: Stream = subprocess.DEVNULL, stderr: Stream = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start the engine. It dies with this thread. Raises SetupFailed if the program is missing."""
        argv = (self.program, *arguments)
        try:
            return start(LaunchSpec(argv, os.environ, stdout=stdout, stderr=stderr, dies_with_parent=True))
        except FileNotFoundError:
            other = "docker" if self.program == "podman" else "podman"
            raise SetupFailed(
                f"{FIELD}: there is no {self.program} on this machine; choose an image that has it "
                f"(resources.image), install it, or set {FIELD}.engine: {other}",
                user=True,
            ) from None

    def run_when_ready(self, *arguments: str) -> EngineResult:
        """As `run`, for a daemon that may still be starting.

        Raises SetupFailed if it does not start or this user may not use it.
        """
        began_s, logged = time.monotonic(), False
        while True:
            answer = self.run(*arguments)
            if _FORBIDDEN.search(answer.err):
                raise SetupFailed(
                    f"{FIELD}: this user may not use {self.program}: {answer.message}; join the group `docker`, or set "
                    f"{FIELD}.engine: podman",
                    user=True,
                )
            if not answer.unreachable:
                return answer
            if time.monotonic() - began_s >= _DAEMON_WAIT_S:
                raise SetupFailed(f"{FIELD}: {answer.message}", user=False)
            if not logged:
                self._say(f"{self.program} does not answer: {answer.message}; waiting for it")
                logged = True
            sleep_interruptibly(_DAEMON_PAUSE_S, self._check)


def describe_refusal(engine: Engine, answer: EngineResult, run: Mapping[str, Any]) -> str:
    """Return the field and the engine's message in one line, with the most similar flag if the flag is unknown."""
    unknown = _UNKNOWN.search(answer.err)
    found = unknown or _UNFIT.search(answer.err)
    name = docker_flags.written_as(run, found[1]) if found else None
    if name is None:
        return f"{FIELD}: {engine.program}: {answer.message}"
    what = f"{FIELD}.run.{name}: {engine.program}: {answer.message}"
    if unknown is None:
        return what
    near = docker_flags.nearest(name, _LISTED.findall(engine.run("create", "--help").out))
    return (
        f"{what}; did you mean {near}?" if near else f"{what}; `{engine.program} create --help` lists the valid flags"
    )


def _ended(child: subprocess.Popen[bytes], within_s: float) -> bool:
    try:
        child.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
