"""What the servers of all clouds do alike: take the test's orders, hold disks that go with them, and end with the test.

A server runs in mount and process namespaces of its own (`unshare --mount --pid --fork --mount-proc`), where it is the
first process: when it ends, the kernel ends every machine and forgets every mount. It ends when its standard input
does, so it does not outlive the test either.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.machines.machine import Machine


def make_work(folder: Path) -> Path:
    """A place for machines' disks, gone with this process."""
    work = folder / "work"
    work.mkdir()
    # nspawn writes below /run; nothing else here needs what the host has there.
    for where in ("/run", str(work)):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", where], check=True)
    return work


def answer(control: Callable[[dict[str, Any]], Any], body: bytes) -> bytes:
    """What the test is told about its order, whatever came of it."""
    try:
        told = {"answer": control(json.loads(body))}
    except LookupError as error:
        told = {"lookup": str(error)}
    except Exception:  # noqa: BLE001 - the edge of the server: the test is shown what happened
        told = {"error": traceback.format_exc()}
    return json.dumps(told).encode()


def obey_about(machine: Machine[Any], order: dict[str, Any]) -> Any:
    """The orders that concern a machine and no cloud."""
    match order["do"]:
        case "connect":
            return machine.connect(order["connected"])
        case "address":
            return machine.address
        case "console":
            return base64.b64encode(machine.console()).decode()
        case "run":
            ran = machine.run(order["command"], order["limit_s"])
            return {"status": ran.status, "output": base64.b64encode(ran.output).decode()}
        case _:
            raise ValueError(f"there is no order {order['do']!r}")


def run_server(serve: Callable[[int, Path, float], None]) -> None:
    """Read the arguments that `harness.started` gives, and serve: the owner, a folder, and the time to power off."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--owner", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--power-off-s", type=float, required=True)
    asked = parser.parse_args()
    serve(asked.owner, asked.folder, asked.power_off_s)
    # Threads that wait for requests have nothing to finish.
    os._exit(0)
