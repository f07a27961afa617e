"""A cloud for one test or several: EC2, the APIs around it and S3, where machines and the test can reach them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.ec2.faults import Fault, Lifecycle, dump
from tests.support.machines.harness import Handle, Order, Started, started
from tests.support.machines.store_door import Who
from tests.support.servers import S3Server

REGION = "us-east-1"
# There from the start: an instance profile with a role of the same name.
PROFILE = "stoker-node"


@dataclass(frozen=True)
class Left:
    """What still exists, and is paid for."""

    instances: tuple[str, ...]
    volumes: tuple[str, ...]
    placement_groups: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.instances or self.volumes or self.placement_groups)


@dataclass(frozen=True)
class MachineHandle(Handle):
    """One machine, for the test's hands. Raises LookupError where there never was such an instance."""

    def notice(self, action: str = "terminate", in_s: float = 120.0) -> None:
        """Give it the spot notice. It is taken away at that time, by a power-off as in TerminateInstances."""
        self._order("notice", instance=self.id, action=action, in_s=in_s)

    def rebalance(self) -> None:
        """Give it a rebalance recommendation."""
        self._order("rebalance", instance=self.id)

    def maintenance(self, code: str = "system-reboot", in_s: float = 3600.0) -> None:
        """Announce maintenance to it. None takes place."""
        self._order("maintenance", instance=self.id, code=code, in_s=in_s)


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

    def make_profile(self, name: str) -> None:
        """A new instance profile, with a role of the same name."""
        self._order("profile", name=name)

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

    def reserve(
        self,
        machine: str,
        zone: str,
        *,
        count: int = 1,
        block: bool = False,
        starts_in_s: float = 0.0,
        ends_in_s: float | None = None,
        group: str = "",
    ) -> str:
        """A new capacity reservation, or a capacity block; its id. `group` names a resource group that it is in.

        EC2 begins to end the machines of a block half an hour before its end.
        """
        about = {"machine": machine, "zone": zone, "count": count, "block": block}
        when = {"starts_in_s": starts_in_s, "ends_in_s": ends_in_s}
        return str(self._order("reserve", **about, **when, group=group))

    def schedule(self, reservation: str, *, starts_in_s: float = 0.0, ends_in_s: float | None = None) -> None:
        """Set the times of a reservation anew."""
        self._order("schedule", name=reservation, starts_in_s=starts_in_s, ends_in_s=ends_in_s)

    def left(self) -> Left:
        """Everything that still exists."""
        return Left(**{kind: tuple(found) for kind, found in self._order("left").items()})

    def clear(self) -> None:
        """No faults, no machines, no groups, no reservations: for a cloud that several tests share. Calls are counted
        anew."""
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
    with started("tests.support.ec2.server", power_off_s=power_off_s, without=("AWS_", "MOTO_")) as server:
        yield _cloud(server)


def _cloud(server: Started) -> Ec2Cloud:
    at = server.at
    endpoint, s3_endpoint = f"http://{at['gateway']}:{at['ec2']}", f"http://{at['gateway']}:{at['s3']}"
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
        CloudFaults(server.order),
        server.log,
        server.order,
    )
