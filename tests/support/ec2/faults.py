"""What goes wrong with a call, as data: written by a test, carried to the server, matched there against each call."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from tests.support.fault_book import FaultBook

Lifecycle = Literal["", "spot", "on-demand"]

# What EC2 answers, and with which status: https://docs.aws.amazon.com/ec2/latest/devguide/errors-overview.html
STATUS = {
    "InsufficientInstanceCapacity": 500,
    "InternalError": 500,
    "RequestLimitExceeded": 503,
    "Unavailable": 503,
    "UnauthorizedOperation": 403,
    "AuthFailure": 401,
}
MESSAGES = {
    "InsufficientInstanceCapacity": (
        "We currently do not have sufficient capacity in the Availability Zone you requested. Our system will be"
        " working on provisioning additional capacity."
    ),
    "SpotMaxPriceTooLow": "Your Spot request price is lower than the minimum required Spot request fulfillment price.",
    "VcpuLimitExceeded": (
        "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the instance bucket that"
        " the specified instance type belongs to."
    ),
    "MaxSpotInstanceCountExceeded": "Max spot instance count exceeded",
    "UnauthorizedOperation": "You are not authorized to perform this operation.",
    "RequestLimitExceeded": "Request limit exceeded.",
    "InternalError": "An internal error has occurred",
}


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong. Empty fields match everything; `code` is empty where only the reply is lost.

    `available` is how many machines there are in a dry pool. It ends after `times` calls, after `for_s` seconds, or
    when it is cleared.
    """

    code: str = ""
    operations: tuple[str, ...] = ()
    zone: str = ""
    machine: str = ""
    lifecycle: Lifecycle = ""
    times: int | None = None
    for_s: float | None = None
    available: int = 0
    message: str = ""
    # The call happens, and the client sees its connection break.
    lose_reply: bool = False

    @property
    def about_launches(self) -> bool:
        """Whether it can be told only once it is known what is launched where."""
        return bool(self.zone or self.machine or self.lifecycle or self.code == "InsufficientInstanceCapacity")

    def covers(self, operation: str) -> bool:
        return not self.operations or operation in self.operations

    def hits(self, zone: str, machine: str, lifecycle: str) -> bool:
        """Whether such a launch meets it."""
        pairs = ((self.zone, zone), (self.machine, machine), (self.lifecycle, lifecycle))
        return all(not wanted or wanted == given for wanted, given in pairs)


class Failure(Exception):
    """An error that EC2 answers."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def failure(fault: Fault) -> Failure:
    """What the caller is told."""
    told = fault.message or MESSAGES.get(fault.code, f"injected: {fault.code}")
    return Failure(fault.code, told, STATUS.get(fault.code, 400))


def dump(fault: Fault) -> dict[str, Any]:
    return asdict(fault)


def load(data: dict[str, Any]) -> Fault:
    known = {each.name for each in fields(Fault)}
    return Fault(
        **{**{key: value for key, value in data.items() if key in known}, "operations": tuple(data["operations"])}
    )


class Faults(FaultBook[Fault]):
    """The faults in force, and what meets them."""

    def meet(self, operation: str) -> Fault | None:
        """The first fault that such a call meets whatever it asks for. Counts as one of its `times`."""
        with self._lock:
            for number, fault in self._in_force():
                if fault.covers(operation) and not fault.about_launches:
                    self._use(number)
                    return fault
        return None

    def launching(self, zone: str, machine: str, lifecycle: str, least: int, most: int) -> Fault | int:
        """The fault that such a launch meets, else how many machines it gets (between `least` and `most`)."""
        with self._lock:
            for number, fault in self._in_force():
                if not (fault.about_launches and fault.covers("RunInstances") and fault.hits(zone, machine, lifecycle)):
                    continue
                if fault.code == "InsufficientInstanceCapacity" and fault.available >= least:
                    most = min(most, fault.available)
                    continue
                self._use(number)
                return fault
        return most
