"""Compute Engine's methods, by the names that the discovery document gives them."""

from __future__ import annotations

import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.support.gce.callers import Caller
from tests.support.gce.catalog import ALL_ZONES, IMAGES, PROJECTS, ZONES
from tests.support.gce.discovery import Api, Method
from tests.support.gce.drafts import check_labels, check_metadata
from tests.support.gce.errors import Failure, Json, bad_request, forbidden, in_use, invalid, not_found
from tests.support.gce.faults import Faults, permission_of
from tests.support.gce.fleet import Fleet
from tests.support.gce.groups import Groups, Made
from tests.support.gce.instances import Instance, Instances, check_fingerprint, fingerprint
from tests.support.gce.launching import Asked, Launching
from tests.support.gce.links import Links
from tests.support.gce.listing import Row, aggregated, listed
from tests.support.gce.operations import Operation, Operations
from tests.support.gce.policies import Policies
from tests.support.gce.readings import Readings

_CONSOLE_BYTES = 1 << 20
# What the role of machines allows, beside deleting themselves.
_MACHINES_MAY = frozenset({"instances.get", "zoneOperations.get", "zoneOperations.wait", "zoneOperations.list"})
_STATIC = (
    *("zones", "regions", "machineTypes", "acceleratorTypes", "images"),
    *("networks", "subnetworks", "firewalls", "reservations", "futureReservations"),
)
_PLACES = [f"zones/{zone}" for zone in ALL_ZONES]
_ALL_PLACES = ["global", *(f"regions/{region}" for region in ZONES), *_PLACES]


@dataclass(frozen=True)
class Call:
    """One valid request. `operation` is its method's name without "compute."."""

    method: Method
    query: Mapping[str, str]
    body: Json
    caller: Caller
    link: str

    @property
    def operation(self) -> str:
        return self.method.id.removeprefix("compute.")

    @property
    def project(self) -> str:
        return self.method.path["project"]

    @property
    def place(self) -> str:
        """ "zones/Z", "regions/R" or "global"."""
        for kind in ("zone", "region"):
            if kind in self.method.path:
                return f"{kind}s/{self.method.path[kind]}"
        return "global"


class Compute:
    """Answers calls. `node_may_delete`: whether the role of machines lets them delete themselves."""

    def __init__(
        self,
        api: Api,
        links: Links,
        instances: Instances,
        operations: Operations,
        fleet: Fleet,
        faults: Faults,
        policies: Policies,
        launching: Launching,
        groups: Groups,
    ) -> None:
        self.readings = Readings(links)
        self.listing_lag_s = 0.0
        self.node_may_delete = True
        self._api = api
        self._links = links
        self._instances = instances
        self._operations = operations
        self._fleet = fleet
        self._faults = faults
        self._policies = policies
        self._launching = launching
        self._groups = groups
        self._one_at_a_time = threading.Lock()
        self._methods = self._named()

    def answer(self, call: Call) -> Json:
        """Do what is asked. Raises Failure."""
        self._allow(call)
        self._must_exist(call)
        found = self._methods.get(call.operation)
        if found is None:
            raise Failure(501, "notImplemented", f"this Compute Engine has no {call.operation}")
        if "requestId" in call.query:
            return self._once(call, found)
        told = found(call)
        return told.resource(self._links) if isinstance(told, Operation) else told

    def _once(self, call: Call, act: Callable[[Call], Operation | Json]) -> Json:
        request_id = call.query["requestId"]
        try:
            number = uuid.UUID(request_id)
        except ValueError:
            number = uuid.UUID(int=0)
        if not number.int or len(request_id) != len(str(number)):
            raise invalid("requestId", request_id, "It must be a UUID, and not zero.")
        asked = json.dumps([call.method.id, dict(call.method.path), call.body], sort_keys=True)
        digest = hashlib.sha256(asked.encode()).hexdigest()
        with self._one_at_a_time:
            known = self._operations.asked_before(call.project, request_id, digest)
            if known is None:
                known_now = act(call)
                assert isinstance(known_now, Operation)
                self._operations.remember(call.project, request_id, digest, known_now)
                known = known_now
        return known.resource(self._links)

    def _allow(self, call: Call) -> None:
        if not call.caller.scopes & {*call.method.about.get("scopes", ())}:
            raise Failure(403, "insufficientPermissions", "Request had insufficient authentication scopes.")
        caller = call.caller.instance
        if caller is None or call.operation in _MACHINES_MAY:
            return
        itself = call.method.path.get("instance") in (caller.name, caller.number)
        if call.operation == "instances.delete" and itself and self.node_may_delete:
            return
        raise forbidden(permission_of(call.operation), f"projects/{call.project}/{call.place}")

    def _must_exist(self, call: Call) -> None:
        """The project and the place of a call."""
        public = call.operation.startswith(("images.", "imageFamilyViews.")) and call.project in {
            image.project for image in IMAGES
        }
        if call.project not in PROJECTS and not public:
            raise not_found(f"projects/{call.project}")
        kind, _, place = call.place.partition("/")
        known = {"zones": (*ALL_ZONES, "-"), "regions": tuple(ZONES)}.get(kind, (place,))
        if place not in known:
            raise not_found(f"projects/{call.project}/{call.place}")

    def _named(self) -> dict[str, Callable[[Call], Operation | Json]]:
        named: dict[str, Callable[[Call], Operation | Json]] = {
            "projects.get": self._project,
            "images.getFromFamily": lambda call: self.readings.newest(call.project, call.method.path["family"]),
            "instances.insert": self._insert,
            "instances.bulkInsert": self._bulk,
            "regionInstances.bulkInsert": self._bulk,
            "instances.get": lambda call: self._instance(call).resource(self._links),
            "instances.list": lambda call: self._list(call, self._instance_rows(call.project)),
            "instances.aggregatedList": lambda call: self._aggregate(call, self._instance_rows(call.project), _PLACES),
            "instances.delete": self._delete,
            "instances.stop": self._stop,
            "instances.setLabels": self._set_labels,
            "instances.setMetadata": self._set_metadata,
            "instances.getSerialPortOutput": self._serial_port,
            "instances.simulateMaintenanceEvent": self._maintain,
            "instances.testIamPermissions": self._test_permissions,
            "disks.get": lambda call: self._instances.disk(self._path(call, "disks", "disk")).resource(self._links),
            "disks.list": lambda call: self._list(call, self._disk_rows(call.project)),
            "disks.aggregatedList": lambda call: self._aggregate(call, self._disk_rows(call.project), _PLACES),
            "disks.delete": self._delete_disk,
            "resourcePolicies.insert": self._insert_policy,
            "resourcePolicies.get": lambda call: self._policies.find(call).resource,
            "resourcePolicies.list": lambda call: self._list(call, self._policies.rows(call.project)),
            "resourcePolicies.aggregatedList": lambda call: self._aggregate(
                call, self._policies.rows(call.project), [f"regions/{region}" for region in ZONES]
            ),
            "resourcePolicies.delete": self._delete_policy,
            "globalOperations.aggregatedList": lambda call: self._aggregate(
                call, self._operation_rows(call.project), _ALL_PLACES
            ),
        }
        named |= self._named_of_groups()
        for kind in ("zoneOperations", "regionOperations", "globalOperations"):
            named[f"{kind}.get"] = lambda call: self._operation(call).resource(self._links)
            named[f"{kind}.wait"] = self._wait
            named[f"{kind}.list"] = lambda call: self._list(call, self._operation_rows(call.project))
        for kind in _STATIC:
            named[f"{kind}.get"] = self._static
            named[f"{kind}.list"] = self._static_list
            named[f"{kind}.aggregatedList"] = self._static_aggregate
        return named

    def _named_of_groups(self) -> dict[str, Callable[[Call], Operation | Json]]:
        groups, told = self._groups, self._groups.resource
        return {
            "regionInstanceTemplates.insert": lambda call: self._made(call, groups.add_template(call)),
            "regionInstanceTemplates.get": lambda call: told(groups.find(call)),
            "regionInstanceTemplates.list": lambda call: self._list(
                call, groups.rows(call.project, "instanceTemplate")
            ),
            "regionInstanceTemplates.delete": self._delete_template,
            "instanceGroupManagers.insert": lambda call: self._made(call, groups.add_group(call)),
            "instanceGroupManagers.get": lambda call: told(groups.find(call)),
            "instanceGroupManagers.list": lambda call: self._list(
                call, groups.rows(call.project, "instanceGroupManager")
            ),
            "instanceGroupManagers.aggregatedList": lambda call: self._aggregate(
                call, groups.rows(call.project, "instanceGroupManager"), _PLACES
            ),
            "instanceGroupManagers.delete": self._delete_group,
            "instanceGroupManagers.deleteInstances": self._delete_members,
            "instanceGroupManagerResizeRequests.insert": self._insert_resize,
            "instanceGroupManagerResizeRequests.get": lambda call: told(groups.find_resize(call)),
            "instanceGroupManagerResizeRequests.list": lambda call: self._list(call, groups.requests_of(call)),
            "instanceGroupManagerResizeRequests.cancel": self._cancel_resize,
            "instanceGroupManagerResizeRequests.delete": self._delete_resize,
        }

    # ── lists ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _list(self, call: Call, rows: list[Row]) -> Json:
        place = "" if call.operation in ("zones.list", "regions.list") else call.place
        here = [row for row in rows if row.place == place]
        return listed(self._api, call.method, call.query, here, call.link)

    def _aggregate(self, call: Call, rows: list[Row], places: list[str]) -> Json:
        return aggregated(self._api, call.method, call.query, rows, call.link, places)

    def _instance_rows(self, project: str) -> list[Row]:
        oldest_unseen = time.monotonic() - self.listing_lag_s
        with self._instances.lock:
            return [
                Row(f"zones/{each.zone}", each.resource(self._links))
                for each in self._instances.all(project)
                if each.made_at <= oldest_unseen
            ]

    def _disk_rows(self, project: str) -> list[Row]:
        return [Row(f"zones/{each.zone}", each.resource(self._links)) for each in self._instances.disks(project)]

    def _operation_rows(self, project: str) -> list[Row]:
        return [Row(each.place, each.resource(self._links)) for each in self._operations.all(project)]

    # ── what was always there ────────────────────────────────────────────────────────────────────────────────────────

    def _project(self, call: Call) -> Json:
        attributes = self._fleet.project_attributes[call.project]
        metadata = {"kind": "compute#metadata", "fingerprint": fingerprint(attributes)}
        return self.readings.project(call.project, attributes, metadata)

    def _static(self, call: Call) -> Json:
        kind = call.operation.partition(".")[0]
        name = call.method.path[call.method.about["parameterOrder"][-1]]
        return self.readings.one(kind, call.project, "" if kind in ("zones", "regions") else call.place, name)

    def _static_list(self, call: Call) -> Json:
        return self._list(call, self.readings.rows(call.operation.partition(".")[0], call.project))

    def _static_aggregate(self, call: Call) -> Json:
        kind = call.operation.partition(".")[0]
        places = [f"regions/{region}" for region in ZONES] if kind == "subnetworks" else _PLACES
        return self._aggregate(call, self.readings.rows(kind, call.project), places)

    # ── instances ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _asked(self, call: Call) -> Asked:
        return Asked(call.project, call.caller.email, self._faults.slow_s(call.operation))

    def _insert(self, call: Call) -> Operation:
        for name in ("sourceInstanceTemplate", "sourceMachineImage"):
            if name in call.query:
                raise invalid(name, call.query[name], "This Compute Engine has no templates.")
        return self._launching.insert(self._asked(call), call.method.path["zone"], call.body)

    def _bulk(self, call: Call) -> Operation:
        region = call.method.path.get("region", "")
        zones = self._launching.regional_zones(region, call.body) if region else (call.method.path["zone"],)
        if not region and "locationPolicy" in call.body:
            raise bad_request("locationPolicy is for regional requests.", "invalid")
        return self._launching.bulk(self._asked(call), call.place, zones, call.body)

    def _instance(self, call: Call) -> Instance:
        path = call.method.path
        return self._instances.find(call.project, path["zone"], path.get("instance") or path["resource"])

    def _path(self, call: Call, kind: str, name: str) -> str:
        return f"projects/{call.project}/{call.place}/{kind}/{call.method.path[name]}"

    def _begin(
        self, call: Call, kind: str, target: str, target_id: str, work: Callable[[Operation], None]
    ) -> Operation:
        operation = self._operations.new(call.project, call.place, kind, target, target_id, call.caller.email)
        return self._operations.begin(operation, work, slow_s=self._faults.slow_s(call.operation))

    def _delete(self, call: Call) -> Operation:
        instance = self._instance(call)
        if instance.draft.body.get("deletionProtection"):
            raise bad_request(f"Resource cannot be deleted if it's protected: '{instance.path}'", "resourceInUse")

        def work(_: Operation) -> None:
            self._fleet.delete(instance)
            instance.removed.wait()

        return self._begin(call, "delete", instance.path, instance.number, work)

    def _stop(self, call: Call) -> Operation:
        instance = self._instance(call)
        if instance.status in ("PROVISIONING", "STAGING"):
            raise Failure(400, "resourceNotReady", f"The resource '{instance.path}' is not ready")

        def work(_: Operation) -> None:
            self._fleet.stop(instance)
            instance.settled.wait()

        return self._begin(call, "stop", instance.path, instance.number, work)

    def _set_labels(self, call: Call) -> Operation:
        instance = self._instance(call)
        labels = call.body.get("labels") or {}
        check_labels(labels, "resource.labels")
        with self._instances.lock:
            check_fingerprint(call.body.get("labelFingerprint", ""), instance.draft.body.get("labels", {}))
            instance.draft.body["labels"] = labels
        return self._begin(call, "setLabels", instance.path, instance.number, lambda _: None)

    def _set_metadata(self, call: Call) -> Operation:
        instance = self._instance(call)
        items = check_metadata(call.body, "resource.metadata")
        with self._instances.lock:
            check_fingerprint(call.body.get("fingerprint", ""), instance.draft.body["metadata"])
            instance.draft.body["metadata"] = {"items": items}
        return self._begin(call, "setMetadata", instance.path, instance.number, lambda _: self._fleet.changed(instance))

    def _serial_port(self, call: Call) -> Json:
        instance = self._instance(call)
        port = int(call.query.get("port") or 1)
        if not 1 <= port <= 4:
            raise invalid("port", port, "There are ports 1 to 4.")
        written = self._fleet.console(instance) if port == 1 else b""
        # Only the last of it is kept.
        begin = max(int(call.query.get("start") or 0), len(written) - _CONSOLE_BYTES, 0)
        return {
            "kind": "compute#serialPortOutput",
            "contents": written[begin:].decode(errors="replace"),
            "start": str(begin),
            "next": str(max(begin, len(written))),
            "selfLink": call.link,
        }

    def _maintain(self, call: Call) -> Operation:
        instance = self._instance(call)
        if instance.status != "RUNNING":
            raise Failure(400, "resourceNotReady", f"The resource '{instance.path}' is not ready")
        return self._begin(
            call,
            "compute.instances.simulateMaintenanceEvent",
            instance.path,
            instance.number,
            lambda _: self._fleet.maintain(instance),
        )

    def _test_permissions(self, call: Call) -> Json:
        self._instance(call)
        granted = [each for each in call.body.get("permissions") or [] if not self._faults.forbids(each)]
        return {"permissions": granted} if granted else {}

    # ── disks, policies, operations ──────────────────────────────────────────────────────────────────────────────────

    def _delete_disk(self, call: Call) -> Operation:
        disk = self._instances.disk(self._path(call, "disks", "disk"))
        if disk.user is not None:
            raise in_use("disk", disk.path, disk.user.path)
        return self._begin(call, "delete", disk.path, disk.number, lambda _: self._instances.remove_disk(disk))

    def _insert_policy(self, call: Call) -> Operation:
        policy = self._policies.add(call)
        return self._begin(call, "insert", policy.path, policy.number, lambda _: self._policies.ready(policy))

    def _delete_policy(self, call: Call) -> Operation:
        policy = self._policies.find(call)
        link = self._links.to(policy.path)
        for instance in self._instances.all(call.project):
            if link in instance.draft.body.get("resourcePolicies", ()):
                raise in_use("resource_policy", policy.path, instance.path)
        return self._begin(call, "delete", policy.path, policy.number, lambda _: self._policies.remove(policy))

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _made(self, call: Call, made: Made) -> Operation:
        return self._begin(call, "insert", made.path, made.number, lambda _: None)

    def _delete_template(self, call: Call) -> Operation:
        template = self._groups.find(call)
        self._groups.check_unused(template)
        return self._begin(call, "delete", template.path, template.number, lambda _: self._groups.remove(template))

    def _delete_group(self, call: Call) -> Operation:
        group = self._groups.find(call)
        return self._begin(call, "delete", group.path, group.number, lambda _: self._groups.delete_group(group))

    def _delete_members(self, call: Call) -> Operation:
        group, members = self._groups.members_to_delete(call)
        verb = "compute.instanceGroupManagers.deleteInstances"
        return self._begin(call, verb, group.path, group.number, lambda _: self._groups.delete_members(group, members))

    def _insert_resize(self, call: Call) -> Operation:
        request = self._groups.add_resize(call)
        return self._begin(call, "insert", request.path, request.number, lambda _: self._groups.accept(request))

    def _cancel_resize(self, call: Call) -> Operation:
        request = self._groups.find_resize(call)
        self._groups.cancel(request)
        return self._begin(call, "cancel", request.path, request.number, lambda _: None)

    def _delete_resize(self, call: Call) -> Operation:
        request = self._groups.find_resize(call)
        self._groups.check_inactive(request)
        return self._begin(call, "delete", request.path, request.number, lambda _: self._groups.remove(request))

    def _operation(self, call: Call) -> Operation:
        return self._operations.find(call.project, call.place, call.method.path["operation"])

    def _wait(self, call: Call) -> Json:
        operation = self._operation(call)
        self._operations.wait(operation)
        return operation.resource(self._links)
