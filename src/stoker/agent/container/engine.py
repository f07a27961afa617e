"""Asking docker or podman, and telling whose fault it is when they refuse."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from stoker.agent.rendezvous import sleep_interruptibly
from stoker.model.errors import SetupFailed
from stoker.processes.spawn import Launch, Stream, start

FIELD = "environment.container"
_LOOK_EVERY_S = 0.05
# A daemon that is about to start, on a machine that has just booted, or after an upgrade of it.
_DAEMON_WAIT_S = 30.0
_DAEMON_PAUSE_S = 0.5

# The daemon is not there, or does not answer.
_AWAY = re.compile(
    r"cannot connect to (the docker daemon|podman)|is the docker daemon running|error during connect|"
    r"dial unix \S+: connect: (no such file|connection refused)",
    re.IGNORECASE,
)
_FORBIDDEN = re.compile(r"permission denied while trying to connect|dial unix \S+: connect: permission denied", re.I)
_NO_COMPLAINT = ("See '", "Run '", "Error: failed to start containers: ")
_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """What the engine said."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Its complaint, in one line."""
        lines = [line.strip() for line in self.err.splitlines() if line.strip()]
        # Docker ends with its help, or with advice to read it, and with a name that only Stoker knows.
        helped = next((index for index, line in enumerate(lines) if line.startswith("Usage:")), len(lines))
        telling = [line for line in lines[:helped] if not line.startswith(_NO_COMPLAINT)]
        text = " ".join(telling[-3:])
        for prefix in (r"^(docker|podman): ", r"^error: ", r"^error response from daemon: "):
            text = re.sub(prefix, "", text, flags=re.IGNORECASE)
        return text.rstrip(".") or f"it ended with {self.code} and said nothing"

    @property
    def away(self) -> bool:
        return bool(self.code) and _AWAY.search(self.err) is not None

    @property
    def full(self) -> bool:
        """Whether it was a disk that had no room."""
        return bool(self.code) and _FULL.search(self.err) is not None


class Engine:
    """`docker` or `podman`, as this machine has it on its PATH. `check` is asked while it works, and may raise."""

    def __init__(
        self,
        program: str,
        check: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda _: None,
        *,
        here: bool = False,
    ) -> None:
        """`here`: on the submitter's own computer, whose disk is not Stoker's to choose."""
        self.program = program
        self.here = here
        self._check = check
        self._say = say

    @property
    def room(self) -> str:
        """What to do about a disk that is full."""
        own = f"make room where {self.program} keeps its images (resources.disk is for other machines than this one)"
        return own if self.here else "ask for a larger disk with resources.disk"

    def ask(self, *arguments: str) -> Answer:
        """Run it to its end. Raises SetupFailed where the program is not there."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = self.spawn(arguments, stdout=out, stderr=err)
            try:
                while not _ended(child, _LOOK_EVERY_S):
                    self._check()
            finally:
                if child.poll() is None:
                    child.kill()
                code = child.wait()
            return Answer(code, _text(out), _text(err))

    def spawn(
        self, arguments: Sequence[str], *, stdout: Stream = subprocess.DEVNULL, stderr: Stream = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start it. It dies with this thread. Raises SetupFailed where the program is not there."""
        argv = (self.program, *arguments)
        try:
            return start(Launch(argv, os.environ, stdout=stdout, stderr=stderr, dies_with_parent=True))
        except FileNotFoundError:
            other = "docker" if self.program == "podman" else "podman"
            raise SetupFailed(
                f"{FIELD}: there is no {self.program} on this machine; choose an image that has it "
                f"(resources.image), install it, or set {FIELD}.engine: {other}",
                user=True,
            ) from None

    def ask_first(self, *arguments: str) -> Answer:
        """As `ask`, of an engine that may be starting just now. Raises SetupFailed when it is not there or not ours."""
        began_s, said = time.monotonic(), False
        while True:
            answer = self.ask(*arguments)
            if _FORBIDDEN.search(answer.err):
                raise SetupFailed(
                    f"{FIELD}: this user may not use {self.program}: {answer.said}; join the group `docker`, or set "
                    f"{FIELD}.engine: podman",
                    user=True,
                )
            if not answer.away:
                return answer
            if time.monotonic() - began_s >= _DAEMON_WAIT_S:
                raise SetupFailed(f"{FIELD}: {answer.said}", user=False)
            if not said:
                self._say(f"{self.program} does not answer: {answer.said}; it is waited for")
                said = True
            sleep_interruptibly(_DAEMON_PAUSE_S, self._check)


def _ended(child: subprocess.Popen[bytes], within_s: float) -> bool:
    try:
        child.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
