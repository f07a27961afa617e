"""Launches: one machine, or several at once that come all or not at all."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tests.support.gce.catalog import ZONES
from tests.support.gce.drafts import Draft, drafted
from tests.support.gce.errors import Failure, Json, OperationFailed, bad_request, invalid
from tests.support.gce.faults import EXHAUSTED, Fault, Faults, ending
from tests.support.gce.fleet import Fleet
from tests.support.gce.instances import Instance, Instances
from tests.support.gce.links import Links, tail
from tests.support.gce.operations import Operation, Operations

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_MOST_AT_ONCE = 1000
_SHAPES = ("ANY_SINGLE_ZONE", "ANY", "BALANCED")


@dataclass(frozen=True)
class Asked:
    """Who asks for a launch, and how much longer than usual it takes."""

    project: str
    user: str
    slow_s: float


@dataclass(frozen=True)
class _Bulk:
    """A launch of several: in which zones they may come, and what each is in each of them."""

    names: tuple[str, ...]
    pattern: str
    count: int
    least: int
    drafts: tuple[Draft, ...]


class Launching:
    """Turns requests into machines."""

    def __init__(
        self,
        instances: Instances,
        operations: Operations,
        fleet: Fleet,
        faults: Faults,
        links: Links,
        policies: Callable[[str], Json | None],
        token: Callable[[Instance], dict[str, object]],
    ) -> None:
        self._instances = instances
        self._operations = operations
        self._fleet = fleet
        self._faults = faults
        self._links = links
        self._policies = policies
        self._token = token

    def insert(self, asked: Asked, zone: str, body: Json) -> Operation:
        """One machine. Raises Failure where it cannot be; whether there is one is known when the operation ends."""
        draft = drafted(body, asked.project, zone, self._links, self._policies)
        instance = self._instances.add(body["name"], draft)
        operation = self._operation(asked, instance, "")
        scarce = self._faults.scarcity(zone, draft.machine.name) if draft.wait_s else None
        if scarce is not None:
            # "after you create a standalone Flex-start VM with a wait time (requestValidForDuration) that is 90 seconds
            # or longer, the VM state changes to PENDING". https://cloud.google.com/compute/docs/instances/instance-lifecycle
            instance.status = "PENDING"
        if scarce is not None and scarce.silent:
            threading.Thread(target=self._wait_silently, args=(instance,), daemon=True).start()
            return self._operations.begin(operation, lambda _: None, slow_s=asked.slow_s)
        return self._operations.begin(operation, lambda _: self._queue_and_provision(instance), slow_s=asked.slow_s)

    def _wait_silently(self, instance: Instance) -> None:
        with suppress(OperationFailed):
            self._queue_and_provision(instance)

    def _queue_and_provision(self, instance: Instance) -> None:
        """Wait for capacity as long as the request is valid. "Otherwise, you encounter an error and Compute Engine
        deletes the Flex-start VM. You can optionally delete the Flex-start VM before the wait time ends"."""
        draft = instance.draft
        until_s = time.monotonic() + draft.wait_s
        while draft.wait_s and self._faults.scarcity(draft.zone, draft.machine.name) is not None:
            with self._instances.lock:
                over = instance.goes or instance.expired.is_set() or time.monotonic() >= until_s
                if over:
                    self._instances.remove(instance, with_disk=True)
            if over:
                raise ending(Fault(EXHAUSTED), draft.project, draft.zone, draft.machine.name)
            instance.expired.wait(timeout=0.05)
        with self._instances.lock:
            if instance.status == "PENDING":
                instance.status = "PROVISIONING"
        self._provision(instance)

    def _operation(self, asked: Asked, instance: Instance, group: str) -> Operation:
        place = f"zones/{instance.zone}"
        return self._operations.new(asked.project, place, "insert", instance.path, instance.number, asked.user, group)

    def _provision(self, instance: Instance) -> None:
        draft = instance.draft
        met = self._faults.launching(draft.zone, draft.machine.name, draft.lifecycle, 1, 1)
        if isinstance(met, Fault):
            self._instances.remove(instance, with_disk=True)
            raise ending(met, draft.project, draft.zone, draft.machine.name)
        self._fleet.boot(instance, self._token)

    # ── several ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def bulk(self, asked: Asked, place: str, zones: Sequence[str], body: Json) -> Operation:
        """Several machines in one of these zones, at least `minCount` of them or none. Raises Failure as `insert`."""
        plan = self._plan(asked, zones, body)
        group = str(uuid.uuid4())
        target = f"projects/{asked.project}/{place}/instances"
        operation = self._operations.new(asked.project, place, "bulkInsert", target, "", asked.user, group)
        return self._operations.begin(operation, lambda begun: self._launch(begun, asked, plan), slow_s=asked.slow_s)

    def regional_zones(self, region: str, body: Json) -> tuple[str, ...]:
        """Where a regional launch may go. Zones that are not named are allowed, as gcloud says of them."""
        policy = body.get("locationPolicy") or {}
        if policy.get("targetShape", "ANY_SINGLE_ZONE") not in _SHAPES:
            raise invalid("resource.locationPolicy.targetShape", policy["targetShape"], "It is not known.")
        known = ZONES[region]
        if policy.get("zones"):
            named = [tail(each.get("zone", "")) for each in policy["zones"]]
        else:
            denied = set()
            for link, about in (policy.get("locations") or {}).items():
                if not re.fullmatch(r"zones/[^/]+", link) or tail(link) not in known:
                    raise invalid("resource.locationPolicy.locations", link, "It is no zone of this region.")
                if about.get("preference") == "DENY":
                    denied.add(tail(link))
            named = [zone for zone in known if zone not in denied]
        if not named or any(zone not in known for zone in named):
            raise invalid("resource.locationPolicy", named, "No zone of this region is left.")
        return tuple(named)

    def _plan(self, asked: Asked, zones: Sequence[str], body: Json) -> _Bulk:
        count = int(body.get("count") or 0)
        least = int(body.get("minCount") or count)
        if not 1 <= count <= _MOST_AT_ONCE:
            raise invalid("resource.count", count, f"It must be between 1 and {_MOST_AT_ONCE}.")
        if not 1 <= least <= count:
            raise invalid("resource.minCount", least, "It must be between 1 and count.")
        names, pattern = tuple(body.get("perInstanceProperties") or {}), body.get("namePattern", "")
        if bool(names) == bool(pattern):
            raise bad_request("Either namePattern or perInstanceProperties must be set.", "invalid")
        if names and len(names) != count:
            raise invalid("resource.perInstanceProperties", len(names), "It must name as many as count says.")
        for name in names:
            if _NAME.fullmatch(name) is None:
                raise invalid("resource.perInstanceProperties", name, f"Must be a match of regex '{_NAME.pattern}'")
        if pattern and re.fullmatch(r"[a-z][-a-z0-9]*#{1,18}[-a-z0-9]*", pattern) is None:
            raise invalid("resource.namePattern", pattern, "It needs one sequence of #.")
        if "instanceProperties" not in body:
            raise invalid("resource.instanceProperties", "", "They are required.")
        return _Bulk(names, pattern, count, least, self._drafts(asked, zones, body["instanceProperties"]))

    def _drafts(self, asked: Asked, zones: Sequence[str], properties: Json) -> tuple[Draft, ...]:
        """One for each zone that has such machines. Raises the first Failure where none has."""
        found, failures = [], []
        for zone in zones:
            try:
                field = "resource.instanceProperties"
                found.append(drafted(properties, asked.project, zone, self._links, self._policies, field))
            except Failure as failure:
                failures.append(failure)
        if not found:
            raise failures[0]
        return tuple(found)

    def _launch(self, parent: Operation, asked: Asked, plan: _Bulk) -> None:
        met: list[tuple[Fault, Draft]] = []
        for draft in plan.drafts:
            given = self._faults.launching(draft.zone, draft.machine.name, draft.lifecycle, plan.least, plan.count)
            if isinstance(given, int):
                self._come(parent, asked, plan, draft, given)
                return
            met.append((given, draft))
        fault, draft = met[-1]
        if fault.dries and fault.available:
            self._roll_back(parent, asked, plan, draft, fault)
        causes = [error for fault, draft in met for error in _ended(fault, draft).errors]
        raise _too_few(plan, causes if not fault.available else [])

    def _come(self, parent: Operation, asked: Asked, plan: _Bulk, draft: Draft, count: int) -> None:
        """As many as there are, in one zone: all of them at the same time."""
        made = self._add(plan, draft, count)
        begun = [self._boot(asked, instance, parent.group) for instance in made]
        _tell(parent, draft.zone, "CREATING", target=plan.count)
        for child in begun:
            child.done.wait()
        _tell(parent, draft.zone, "DONE", target=plan.count, created=count, failed=plan.count - count)

    def _boot(self, asked: Asked, instance: Instance, group: str) -> Operation:
        child = self._operation(asked, instance, group)
        return self._operations.begin(child, lambda _: self._fleet.boot(instance, self._token))

    def _add(self, plan: _Bulk, draft: Draft, count: int) -> list[Instance]:
        names = plan.names[:count] or self._numbered(plan.pattern, draft, count)
        made: list[Instance] = []
        try:
            for name in names:
                # Each has labels and metadata of its own from here on.
                own = Draft(**{**draft.__dict__, "body": dict(draft.body)})
                made.append(self._instances.add(name, own))
        except Failure as failure:
            for instance in made:
                self._instances.remove(instance, with_disk=True)
            told = {"code": "RESOURCE_ALREADY_EXISTS", "message": failure.message}
            raise OperationFailed([told], failure.status, "CONFLICT") from failure
        return made

    def _numbered(self, pattern: str, draft: Draft, count: int) -> tuple[str, ...]:
        head, marks, rest = re.split(r"(#+)", pattern)
        taken = [
            int(found[1])
            for each in self._instances.all(draft.project)
            if (found := re.fullmatch(f"{re.escape(head)}([0-9]+){re.escape(rest)}", each.name)) is not None
        ]
        first = max(taken, default=0) + 1
        return tuple(f"{head}{number:0{len(marks)}}{rest}" for number in range(first, first + count))

    def _roll_back(self, parent: Operation, asked: Asked, plan: _Bulk, draft: Draft, fault: Fault) -> None:
        """Some would come and others not: then those that came go again."""
        made = self._add(plan, draft, plan.count)
        begun = []
        for index, instance in enumerate(made):
            child = self._operation(asked, instance, parent.group)

            def work(_: Operation, fails: bool = index >= fault.available) -> None:
                if fails:
                    raise _ended(fault, draft)

            begun.append(self._operations.begin(child, work))
        _tell(parent, draft.zone, "ROLLING_BACK", target=plan.count, failed=plan.count - fault.available)
        for child in begun:
            child.done.wait()
        for instance in made:
            self._instances.remove(instance, with_disk=True)
        _tell(
            parent,
            draft.zone,
            "DONE",
            target=plan.count,
            failed=plan.count - fault.available,
            deleted=fault.available,
        )


def _ended(fault: Fault, draft: Draft) -> OperationFailed:
    return ending(fault, draft.project, draft.zone, draft.machine.name)


def _too_few(plan: _Bulk, causes: list[Json]) -> OperationFailed:
    told = f"Requested minimum count of {plan.least} VMs could not be created."
    status = 403 if any(each["code"] == "QUOTA_EXCEEDED" for each in causes) else 503
    return OperationFailed(
        [{"code": "VM_MIN_COUNT_NOT_REACHED", "message": told}, *causes],
        status,
        "FORBIDDEN" if status == 403 else "SERVICE UNAVAILABLE",
    )


def _tell(
    parent: Operation, zone: str, status: str, *, target: int, created: int = 0, failed: int = 0, deleted: int = 0
) -> None:
    parent.per_location = {
        f"zones/{zone}": {
            "status": status,
            "targetVmCount": target,
            "createdVmCount": created,
            "failedToCreateVmCount": failed,
            "deletedVmCount": deleted,
        }
    }
