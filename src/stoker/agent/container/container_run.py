"""One command in a container."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from stoker.processes import Process

# Time for the engine's client to report the end of a command that is dead according to the kernel.
_CLIENT_S = 15.0


class ContainerRun:
    """A command in a container, with the engine's client process that waits for its end.

    `why_gone` is called with the exit code when the client ends, and returns what happened to the container.
    """

    def __init__(self, client: subprocess.Popen[bytes], pid: int, why_gone: Callable[[int], str | None]) -> None:
        self._client = client
        self._why_gone = why_gone
        self._code: int | None = None
        self.pid = pid
        self._process = Process.of(pid) if pid else None

    def poll(self) -> int | None:
        if self._code is None and self._client.poll() is not None:
            if self._process is not None and self._process.alive and self._why_gone(1) is None:
                return None  # Only the client was killed: the command still runs, and its end is watched here.
            self._code = self._client.returncode if self._client.returncode >= 0 else 137
            self._why_gone(self._code)
        return self._code

    def wait(self) -> int:
        dead_s: float | None = None
        while (code := self.poll()) is None:
            if self._process is None or not self._process.alive:
                dead_s = dead_s or time.monotonic()
                if time.monotonic() - dead_s > _CLIENT_S:
                    self._client.kill()
            time.sleep(0.005)
        return code
