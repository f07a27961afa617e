"""A cloud in a process of its own, as the test that started it sees it: its machines, and the orders that it takes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import ROOT
from tests.support.machines import cgroups
from tests.support.machines.needs import why_no_machines
from tests.support.servers import isolated

# What every cloud here says of a machine that is there no more, whatever its API calls it.
GONE = "terminated"

_PATIENCE_S = 60.0
_FOLDER = "stoker-cloud-"

Order = Callable[..., Any]


class MachineFailed(AssertionError):
    """A command inside a machine ended with another status than 0."""


@dataclass(frozen=True)
class Handle:
    """One machine of a cloud, for the test's hands. Raises LookupError where there never was such an instance."""

    id: str
    _order: Order

    def kill(self) -> None:
        """Cut its power, without notice."""
        self._order("kill", instance=self.id)

    def connect(self, connected: bool) -> None:
        """Pull its network cable, or plug it in again. Its metadata service is its own and stays."""
        self._order("connect", instance=self.id, connected=connected)

    @property
    def address(self) -> str:
        return str(self._order("address", instance=self.id))

    def run(self, *command: str, limit_s: float = 60.0, check: bool = True) -> str:
        """What a command inside, as root, wrote. Raises LookupError if the machine is not up, MachineFailed if `check`
        and the command failed."""
        ran = self._order("run", instance=self.id, command=command, limit_s=limit_s)
        output = base64.b64decode(ran["output"]).decode(errors="replace")
        if check and ran["status"]:
            raise MachineFailed(f"{' '.join(command)} ended with {ran['status']} on {self.id}\n{output}")
        return output

    def console(self) -> str:
        """All that it wrote to its console, also when it is gone."""
        return base64.b64decode(self._order("console", instance=self.id)).decode(errors="replace")

    def state(self) -> str:
        """What the cloud says of it."""
        return str(self._order("states").get(self.id, GONE))

    def wait_until(self, holds: Callable[[Handle], bool], what: str, limit_s: float = _PATIENCE_S) -> None:
        """Wait for a condition. Raises AssertionError, with the console, where it does not come."""
        give_up = time.monotonic() + limit_s
        while not holds(self):
            if time.monotonic() > give_up:
                raise AssertionError(f"waited {limit_s:g} s for {self.id} ({self.state()}): {what}\n{self.console()}")
            time.sleep(0.05)

    def wait_gone(self, limit_s: float = _PATIENCE_S) -> None:
        """Wait until it is there no more."""
        self.wait_until(lambda machine: machine.state() == GONE, "to be gone", limit_s)

    def wait_console(self, text: str, limit_s: float = _PATIENCE_S) -> None:
        """Wait until this text is on its console."""
        self.wait_until(lambda machine: text in machine.console(), f"to write {text!r}", limit_s)


@dataclass(frozen=True)
class Started:
    """A running server: where it says it is, where its log is, and how to order it about."""

    at: dict[str, Any]
    log: Path
    order: Order


@contextmanager
def started(module: str, *, power_off_s: float, without: tuple[str, ...]) -> Iterator[Started]:
    """Run a cloud's server until the end of the context. Variables that begin with one of `without` are kept from it.

    It prints one line of JSON once it serves, with its `control` address. Raises RuntimeError where machines cannot be
    booted, or where more than loopback can be reached.
    """
    if (why := why_no_machines()) is not None:
        raise RuntimeError(why)
    if not isolated():
        raise RuntimeError("a cloud for tests is started only where nothing but loopback can be reached")
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
    log = folder / "server.log"
    try:
        process = _start(module, folder, power_off_s, without)
        try:
            assert process.stdout is not None
            told = process.stdout.readline()
            if not told:
                raise RuntimeError(f"{module} does not start:\n{log.read_text(errors='replace')}")
            at = json.loads(told)
            yield Started(at, log, lambda do, **about: _order(at["control"], {"do": do, **about}))
        finally:
            _stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep() -> None:
    """Remove what clouds left behind whose test was killed: the kernel takes all but these."""
    cgroups.sweep()
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        owner = folder.name.removeprefix(_FOLDER).partition("-")[0]
        if not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _start(module: str, folder: Path, power_off_s: float, without: tuple[str, ...]) -> subprocess.Popen[bytes]:
    command = [
        # When the server is gone, or the one that waits for it, the kernel ends all that it started.
        *("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
        *(sys.executable, "-m", module, f"--owner={os.getpid()}", f"--folder={folder}"),
        f"--power-off-s={power_off_s}",
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    # Its store keeps its objects below.
    env["TMPDIR"] = str(folder)
    with (folder / "server.log").open("wb") as log:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)


def _order(control: str, order: dict[str, Any]) -> Any:
    request = urllib.request.Request(control, json.dumps(order).encode(), method="POST")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=order.get("limit_s", 0.0) + 60.0) as answer:
        told = json.load(answer)
    if "lookup" in told:
        raise LookupError(told["lookup"])
    if "error" in told:
        raise RuntimeError(told["error"])
    return told["answer"]


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    cgroups.sweep()
