"""What goes wrong with a call or a launch, as data: written by a test, carried to the server, matched there."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from tests.support.fault_book import FaultBook
from tests.support.gce.errors import Failure, Json, OperationFailed

Lifecycle = Literal["", "spot", "standard"]

EXHAUSTED = "ZONE_RESOURCE_POOL_EXHAUSTED"
EXHAUSTED_WITH_DETAILS = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
QUOTA = "QUOTA_EXCEEDED"

_REASONS = {403: "forbidden", 429: "rateLimitExceeded", 500: "backendError", 503: "backendError"}


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong. Empty fields match everything.

    With a `status` the call is refused at once with `code` as its reason; without one `code` is the error in which the
    operation of a launch ends. `available` is how many machines there are in a dry pool. It ends after `times` calls,
    after `for_s` seconds, or when it is cleared.
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
    status: int = 0
    # The call happens, and the client sees its connection break.
    lose_reply: bool = False
    # The operation takes so much longer.
    slow_s: float = 0.0
    # Flex-start requests wait in the queue for as long as this is in force.
    scarce: bool = False
    # Their operation succeeds while they wait, and nothing tells of their end.
    silent: bool = False
    # What a quota that is exceeded is about, and its limit.
    metric: str = "CPUS"
    limit: float = 0.0

    @property
    def about_launches(self) -> bool:
        """Whether it is met by a launch, once it is known what is launched where."""
        return bool(self.code) and not self.status and not self.scarce

    @property
    def about_calls(self) -> bool:
        """Whether a call meets it before it does anything."""
        return bool(self.status) or self.lose_reply

    def covers(self, operation: str) -> bool:
        return not self.operations or operation in self.operations

    def hits(self, zone: str, machine: str, lifecycle: str) -> bool:
        """Whether such a launch meets it."""
        pairs = ((self.zone, zone), (self.machine, machine), (self.lifecycle, lifecycle))
        return all(not wanted or wanted == given for wanted, given in pairs)

    @property
    def dries(self) -> bool:
        return self.code in (EXHAUSTED, EXHAUSTED_WITH_DETAILS)


def permission_of(operation: str) -> str:
    """What one needs to be allowed for a call, "compute.instances.create" for "instances.insert"."""
    kind, _, verb = operation.partition(".")
    verbs = {
        "insert": "create",
        "bulkInsert": "create",
        "aggregatedList": "list",
        "wait": "get",
        "getFromFamily": "get",
    }
    if kind == "instanceGroupManagerResizeRequests":
        # https://cloud.google.com/compute/docs/instance-groups/manage-resize-requests-mig
        return f"compute.instanceGroupManagers.{verb if verb in ('get', 'list') else 'update'}"
    if operation == "instanceGroupManagers.deleteInstances":
        return "compute.instanceGroupManagers.update"
    kinds = {"regionInstances": "instances", "regionInstanceTemplates": "instanceTemplates"}
    return f"compute.{kinds.get(kind, kind)}.{verbs.get(verb, verb)}"


def refusal(fault: Fault, operation: str) -> Failure:
    """What the caller is told at once."""
    reason = fault.code or _REASONS.get(fault.status, "backendError")
    told = fault.message or {
        "rateLimitExceeded": "Rate Limit Exceeded",
        "quotaExceeded": "Quota 'CPUS' exceeded.  Limit: 0.0 in region us-central1.",
        "forbidden": f"Required '{permission_of(operation)}' permission for 'projects/stoker-test'",
    }.get(reason, "Backend Error")
    return Failure(fault.status, reason, told)


def ending(fault: Fault, project: str, zone: str, machine: str) -> OperationFailed:
    """How the operation of a launch ends that met it."""
    error: Json = {"code": fault.code}
    status, told = 503, "SERVICE UNAVAILABLE"
    if fault.dries:
        error["message"] = fault.message or (
            f"The zone 'projects/{project}/zones/{zone}' does not have enough resources available to fulfill the"
            " request.  Try a different zone, or try again later."
        )
        details = {"vmType": machine, "zone": zone, "attachment": "", "zonesAvailable": ""}
        error["errorDetails"] = [
            {
                "errorInfo": {
                    "reason": "resource_availability" if fault.code == EXHAUSTED else "stockout",
                    "domain": "compute.googleapis.com",
                    "metadatas": details,
                }
            },
            {
                "localizedMessage": {
                    "locale": "en-US",
                    "message": f"A {machine} VM instance is currently unavailable in the {zone} zone.",
                }
            },
        ]
    elif fault.code == QUOTA:
        status, told = 403, "FORBIDDEN"
        region = zone.rpartition("-")[0]
        told_limit = f"Quota '{fault.metric}' exceeded.  Limit: {fault.limit} in region {region}."
        error["message"] = fault.message or told_limit
        info = {
            "metricName": f"compute.googleapis.com/{fault.metric.lower()}",
            "limitName": f"{fault.metric.replace('_', '-')}-per-project-region",
            "dimensions": {"region": region},
            "limit": fault.limit,
        }
        error["errorDetails"] = [{"quotaInfo": info}]
    else:
        error["message"] = fault.message or f"injected: {fault.code}"
    return OperationFailed([error], status, told)


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
                if fault.about_calls and fault.covers(operation):
                    self._use(number)
                    return fault
        return None

    def slow_s(self, operation: str) -> float:
        """How much longer the operation of such a call takes."""
        with self._lock:
            for number, fault in self._in_force():
                if fault.slow_s and fault.covers(operation):
                    self._use(number)
                    return fault.slow_s
        return 0.0

    def launching(self, zone: str, machine: str, lifecycle: str, least: int, most: int) -> Fault | int:
        """The fault that such a launch meets, else how many machines it gets (between `least` and `most`)."""
        with self._lock:
            for number, fault in self._in_force():
                if not fault.about_launches or not fault.hits(zone, machine, lifecycle):
                    continue
                if fault.dries and fault.available >= least:
                    most = min(most, fault.available)
                    continue
                self._use(number)
                return fault
        return most

    def scarcity(self, zone: str, machine: str) -> Fault | None:
        """What keeps such a flex-start request waiting; None where there is capacity."""
        with self._lock:
            return next(
                (fault for _, fault in self._in_force() if fault.scarce and fault.hits(zone, machine, "")), None
            )

    def forbids(self, permission: str) -> bool:
        """Whether nobody has this permission now. Counts as nothing."""
        with self._lock:
            return any(
                fault.status == 403
                and fault.code == "forbidden"
                and (not fault.operations or permission in map(permission_of, fault.operations))
                for _, fault in self._in_force()
            )
