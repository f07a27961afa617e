"""Everything that a test may order the cloud to do, beside the API."""

from __future__ import annotations

from typing import Any, Protocol

from tests.support.gce import faults as faults_data
from tests.support.gce.calendar import CALENDAR_WINDOW
from tests.support.gce.compute import Compute
from tests.support.gce.errors import Json
from tests.support.gce.faults import Faults
from tests.support.gce.fleet import Fleet
from tests.support.gce.groups import Groups
from tests.support.gce.instances import Instances
from tests.support.gce.operations import Operations
from tests.support.gce.policies import Policies
from tests.support.machines.serving import obey_about
from tests.support.machines.store_door import StoreDoor


class Records(Protocol):
    """What was asked of the APIs."""

    def take_calls(self, reset: bool) -> dict[str, int]: ...
    def broken(self, reset: bool) -> list[str]: ...
    def entries(self, reset: bool) -> list[Json]: ...


class Account:
    """The test's hands in the cloud."""

    def __init__(
        self,
        compute: Compute,
        instances: Instances,
        operations: Operations,
        fleet: Fleet,
        faults: Faults,
        policies: Policies,
        groups: Groups,
        door: StoreDoor,
    ) -> None:
        self._compute = compute
        self._instances = instances
        self._operations = operations
        self._usual_s = operations.takes_s
        self._fleet = fleet
        self._faults = faults
        self._policies = policies
        self._groups = groups
        self._door = door

    def obey(self, order: dict[str, Any], records: Records) -> Any:
        """Do what is ordered. Raises LookupError if there is no such machine."""
        match order["do"]:
            case "states":
                return self._fleet.states()
            case "left":
                return self._left()
            case "calls":
                return records.take_calls(order["reset"])
            case "broken":
                return records.broken(order["reset"])
            case "entries":
                return records.entries(order["reset"])
            case "fault":
                return self._faults.add(faults_data.load(order["fault"]))
            case "clear":
                return self._faults.clear(order["number"])
            case "reset":
                return self._reset(records)
            case _:
                return self._obey_about_settings(order)

    def _obey_about_settings(self, order: dict[str, Any]) -> Any:
        match order["do"]:
            case "listing_lag":
                self._compute.listing_lag_s = order["lag_s"]
            case "operations_take":
                self._operations.takes_s = self._usual_s if order["takes_s"] is None else order["takes_s"]
            case "calendar":
                CALENDAR_WINDOW.set(order["starts_in_s"], order["ends_in_s"])
            case "age_requests":
                self._groups.age(order["by_s"])
            case "node_may_delete":
                self._compute.node_may_delete = order["may"]
            case "quota":
                self._compute.readings.set_quota(order["metric"], order["limit"], order["region"])
            case "project_metadata":
                self._fleet.project_attributes[order["project"]].update(order["items"])
            case "shut_store":
                self._door.shut(order["who"])
            case _:
                return self._obey_about_machine(order)
        return None

    def _obey_about_machine(self, order: dict[str, Any]) -> Any:
        instance = self._instances.known(order["instance"])
        match order["do"]:
            case "kill":
                return self._fleet.kill(instance)
            case "preempt":
                about = {name: order[name] for name in ("grace_s", "notice_s", "says", "script", "button")}
                return self._fleet.preempt(instance, **about)
            case "maintenance":
                return self._fleet.announce(instance, order["event"])
            case "plan_maintenance":
                return self._fleet.plan_maintenance(instance, order["start"], order["status"])
            case "expire_request":
                instance.expired.set()
                return None
            case "expire":
                return self._fleet.expire(instance)
            case "resource":
                return {"name": instance.name, "project": instance.project, "number": instance.number}
            case _:
                return obey_about(self._fleet.machine(instance), order)

    def _reset(self, records: Records) -> None:
        """As it was in the beginning, but for the operations that there were."""
        self._faults.clear()
        self._compute.listing_lag_s = 0.0
        self._compute.node_may_delete = True
        self._compute.readings.clear()
        self._operations.takes_s = self._usual_s
        self._door.shut("nobody")
        self._groups.clear()
        for instance in self._instances.all():
            self._fleet.discard(instance)
        for disk in self._instances.disks():
            self._instances.remove_disk(disk)
        self._policies.clear()
        for attributes in self._fleet.project_attributes.values():
            attributes.clear()
        records.take_calls(True)
        records.broken(True)
        records.entries(True)

    def _left(self) -> dict[str, list[str]]:
        return {
            "instances": [each.id for each in self._instances.all()],
            "disks": [f"{disk.zone}/{disk.name}" for disk in self._instances.disks()],
            "resource_policies": self._policies.names(),
            "groups": self._groups.names("instanceGroupManager"),
            "templates": self._groups.names("instanceTemplate"),
        }
