"""A cloud for one test or several: EC2, the APIs around it and S3, where machines and the test can reach them."""

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.testing.ec2 import cgroups
from stoker.testing.ec2.faults import Fault, Lifecycle, dump
from stoker.testing.ec2.needs import why_no_machines
from stoker.testing.ec2.store_door import Who
from stoker.testing.servers import S3Server, isolated

REGION = "us-east-1"
# There from the start: an instance profile with a role of the same name.
PROFILE = "stoker-node"
_PATIENCE_S = 60.0
_FOLDER = "stoker-ec2-"

Order = Callable[..., Any]


class MachineFailed(AssertionError):
    """A command inside a machine ended with another status than 0."""


@dataclass(frozen=True)
class Left:
    """What still exists, and is paid for."""

    instances: tuple[str, ...]
    volumes: tuple[str, ...]
    placement_groups: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.instances or self.volumes or self.placement_groups)


@dataclass(frozen=True)
class MachineHandle:
    """One machine, for the test's hands. Raises LookupError where there never was such an instance."""

    id: str
    _order: Order

    def kill(self) -> None:
        """Cut its power, without notice. EC2 then says that it is terminated."""
        self._order("kill", instance=self.id)

    def notice(self, action: str = "terminate", in_s: float = 120.0) -> None:
        """Give it the spot notice. It is taken away at that time, by a power-off as in TerminateInstances."""
        self._order("notice", instance=self.id, action=action, in_s=in_s)

    def rebalance(self) -> None:
        """Give it a rebalance recommendation."""
        self._order("rebalance", instance=self.id)

    def maintenance(self, code: str = "system-reboot", in_s: float = 3600.0) -> None:
        """Announce maintenance to it. None takes place."""
        self._order("maintenance", instance=self.id, code=code, in_s=in_s)

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
        """What EC2 says of it."""
        return str(self._order("states").get(self.id, "terminated"))

    def wait_until(self, holds: Callable[[MachineHandle], bool], what: str, limit_s: float = _PATIENCE_S) -> None:
        """Wait for a condition. Raises AssertionError, with the console, where it does not come."""
        give_up = time.monotonic() + limit_s
        while not holds(self):
            if time.monotonic() > give_up:
                raise AssertionError(f"waited {limit_s:g} s for {self.id} ({self.state()}): {what}\n{self.console()}")
            time.sleep(0.05)

    def wait_gone(self, limit_s: float = _PATIENCE_S) -> None:
        """Wait until it is terminated."""
        self.wait_until(lambda machine: machine.state() == "terminated", "to be terminated", limit_s)

    def wait_console(self, text: str, limit_s: float = _PATIENCE_S) -> None:
        """Wait until this text is on its console."""
        self.wait_until(lambda machine: text in machine.console(), f"to write {text!r}", limit_s)


@dataclass(frozen=True)
class CloudFaults:
    """What a test can make go wrong. Each answers a number to clear it by."""

    _order: Order

    def add(self, fault: Fault) -> int:
        """Any fault."""
        return int(self._order("fault", fault=dump(fault)))

    def no_capacity(
        self,
        *,
        zone: str = "",
        machine: str = "",
        lifecycle: Lifecycle = "",
        available: int = 0,
        times: int | None = None,
    ) -> int:
        """A pool has no more than `available` machines for a request: HTTP 500, as EC2 sends it."""
        code = "InsufficientInstanceCapacity"
        return self.add(Fault(code, (), zone, machine, lifecycle, times=times, available=available))

    def refuse_launch(
        self, code: str, *, zone: str = "", machine: str = "", lifecycle: Lifecycle = "", times: int | None = None
    ) -> int:
        """RunInstances fails: SpotMaxPriceTooLow, VcpuLimitExceeded, MaxSpotInstanceCountExceeded…"""
        return self.add(Fault(code, ("RunInstances",), zone, machine, lifecycle, times=times))

    def unauthorized(self, *operations: str) -> int:
        """These operations are not allowed, dry runs of them included. None named: nothing is."""
        return self.add(Fault("UnauthorizedOperation", operations))

    def throttle(self, *operations: str, times: int | None = None) -> int:
        """HTTP 503 RequestLimitExceeded."""
        return self.add(Fault("RequestLimitExceeded", operations, times=times))

    def internal_error(self, *operations: str, for_s: float | None = None, times: int | None = None) -> int:
        """HTTP 500 for every call, or for these, for a while."""
        return self.add(Fault("InternalError", operations, for_s=for_s, times=times))

    def lose_replies(self, *operations: str, times: int | None = 1) -> int:
        """The call happens; its client sees the connection break."""
        return self.add(Fault(operations=operations, times=times, lose_reply=True))

    def shut_store(self, who: Who = "everyone") -> None:
        """S3 answers 500 to these, until `shut_store("nobody")`."""
        self._order("shut_store", who=who)

    def dead_tokens_answer(self, instances: bool) -> None:
        """What a token of terminated instances answers: those instances, or (at first) IdempotentInstanceTerminated."""
        self._order("dead_tokens", fail=not instances)

    def listing_lag(self, lag_s: float) -> None:
        """Instances are listed only once they are this old, for EC2 is consistent in the end only. 0 ends it."""
        self._order("listing_lag", lag_s=lag_s)

    def clear(self, number: int | None = None) -> None:
        """Clear one fault, or all."""
        self._order("clear", number=number)


@dataclass(frozen=True)
class Ec2Cloud:
    """A running cloud. `env` is what a client needs to talk to it and to nothing else; `gateway` is the test's own
    address in the machines' network."""

    endpoint: str
    s3_endpoint: str
    gateway: str
    s3: S3Server
    env: Mapping[str, str]
    faults: CloudFaults
    server_log: Path
    _order: Order

    def new_bucket(self) -> str:
        """The name of a new, empty bucket."""
        return self.s3.new_bucket()

    def instances(self) -> dict[str, str]:
        """The state of every instance there ever was, by its id."""
        return dict(self._order("states"))

    def machine(self, instance_id: str) -> MachineHandle:
        """The machine of an instance."""
        return MachineHandle(instance_id, self._order)

    def calls(self, *, reset: bool = False) -> dict[str, int]:
        """How often each operation was called: "RunInstances", "ssm:GetParameter". S3 is not counted."""
        return dict(self._order("calls", reset=reset))

    def set_spot_price(self, machine: str, price: float, zone: str = "") -> None:
        """What a spot machine costs from now on, in one zone or in all."""
        self._order("price", machine=machine, zone=zone, price=price)

    def left(self) -> Left:
        """Everything that still exists."""
        return Left(**{kind: tuple(found) for kind, found in self._order("left").items()})

    def clear(self) -> None:
        """No faults, no machines, no groups: for a cloud that several tests share. Calls are counted anew."""
        self.faults.clear()
        self.faults.shut_store("nobody")
        self.faults.listing_lag(0.0)
        self.faults.dead_tokens_answer(instances=False)
        for instance in self.left().instances:
            self.machine(instance).kill()
            self.machine(instance).wait_gone()
        self._order("remove_groups")
        self.calls(reset=True)


@contextmanager
def ec2_cloud(*, power_off_s: float = 20.0) -> Iterator[Ec2Cloud]:
    """A cloud with nothing in it but its images. Machines told to end get `power_off_s` to do so by themselves.

    Raises RuntimeError where machines cannot be booted, or where more than loopback can be reached.
    """
    if (why := why_no_machines()) is not None:
        raise RuntimeError(why)
    if not isolated():
        raise RuntimeError("a cloud for tests is started only where nothing but loopback can be reached")
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))
    try:
        process = _start(folder, power_off_s)
        try:
            yield _cloud(process, folder)
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


def _start(folder: Path, power_off_s: float) -> subprocess.Popen[bytes]:
    command = [
        # When the server is gone, or the one that waits for it, the kernel ends all that it started.
        *("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"),
        *(sys.executable, "-m", "stoker.testing.ec2.server", f"--owner={os.getpid()}", f"--folder={folder}"),
        f"--power-off-s={power_off_s}",
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MOTO_"))}
    # S3 keeps its objects below.
    env["TMPDIR"] = str(folder)
    with (folder / "server.log").open("wb") as log:
        return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)


def _cloud(process: subprocess.Popen[bytes], folder: Path) -> Ec2Cloud:
    assert process.stdout is not None
    told = process.stdout.readline()
    if not told:
        raise RuntimeError(f"the EC2 server does not start:\n{(folder / 'server.log').read_text(errors='replace')}")
    at = json.loads(told)
    endpoint, s3_endpoint = f"http://{at['gateway']}:{at['ec2']}", f"http://{at['gateway']}:{at['s3']}"

    def order(do: str, **about: Any) -> Any:
        return _order(endpoint, {"do": do, **about})

    env = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ENDPOINT_URL_S3": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        # What the person at this computer has set up is none of a test's business.
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    return Ec2Cloud(
        endpoint,
        s3_endpoint,
        at["gateway"],
        S3Server(at["s3_itself"], env),
        env,
        CloudFaults(order),
        folder / "server.log",
        order,
    )


def _order(endpoint: str, order: dict[str, Any]) -> Any:
    request = urllib.request.Request(f"{endpoint}/_control", json.dumps(order).encode(), method="POST")
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
