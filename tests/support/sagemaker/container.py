"""One host of a training job that really runs: its container is a process with `/opt/ml` and a network name of its own.

The process has a mount and a process namespace: it is the first process in there, as in a container, and hears what
SageMaker tells the first process. Files are those of this machine but for `/opt/ml` and `/etc/hosts`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Nobody else sees the mounts, and nothing of them is on any disk: this machine has no /opt/ml.
_ENTER = """
import os, subprocess, sys
from stoker.processes.mounting import enter
ml, hosts, path, *argv = sys.argv[1:]
enter([(ml, "/opt/ml"), (hosts, "/etc/hosts")], "/")
subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True)
os.environ["PATH"] = path
os.execvp(argv[0], argv)
"""
_FIRST_S = 10.0


@dataclass(frozen=True)
class Ended:
    """How a container ended. `reason` is what it left in /opt/ml/output/failure."""

    code: int
    reason: str


class Container:
    """Started at once. `ml` is what it sees at /opt/ml; `output` gets what it prints."""

    def __init__(self, ml: Path, hosts: Path, argv: Sequence[str], env: Mapping[str, str], output: Path) -> None:
        self._ml = ml
        enter = [sys.executable, "-c", _ENTER, str(ml), str(hosts), env["PATH"]]
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *enter, *argv]
        with output.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                # The image's own PATH may have none of the programs that get there.
                env={**env, "PATH": os.environ["PATH"]},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ended(self) -> Ended | None:
        """None as long as it runs."""
        code = self._process.poll()
        if code is None:
            return None
        with suppress(OSError):
            return Ended(code, (self._ml / "output/failure").read_text(errors="replace")[:1024])
        return Ended(code, "")

    def terminate(self) -> None:
        """SIGTERM to its first process."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End everything in it. Returns when that is so."""
        self._process.kill()
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        """`unshare` waits outside; its only child is the first process inside."""
        deadline = time.monotonic() + _FIRST_S
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        while self._process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError):
                inside = children.read_text().split()
                if inside:
                    with suppress(ProcessLookupError):
                        os.kill(int(inside[0]), number)
                    return
            time.sleep(0.01)
