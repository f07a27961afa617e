"""Managed instance groups of size 0, their regional templates, and resize requests that queue for several machines.

https://cloud.google.com/compute/docs/instance-groups/about-resize-requests-mig says what each state means, what a group
and a template must be like, and what deleting does. A group with repairs off never makes a machine again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tests.support.gce.drafts import Draft, drafted
from tests.support.gce.errors import Failure, Json, OperationFailed, already_exists, in_use, invalid, not_found
from tests.support.gce.faults import Fault, Faults, ending
from tests.support.gce.fleet import Fleet
from tests.support.gce.instances import Instance, Instances
from tests.support.gce.links import Links, partial, region_of
from tests.support.gce.listing import Row
from tests.support.gce.operations import Numbers, Operation, Operations, now, stamp
from tests.support.gce.provisioning import seconds

if TYPE_CHECKING:
    from tests.support.gce.compute import Call

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
# "The duration must be between 10 minutes and seven days."
_RUN_S = range(600, 7 * 24 * 3600 + 1)
_MOST = 1000
_SERVICE_AGENT = "4711@cloudservices.gserviceaccount.com"


@dataclass
class Made:
    """A template, a group or a resize request. `path` is "projects/…"."""

    kind: str
    number: str
    path: str
    body: Json
    made: datetime = field(default_factory=now)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def place(self) -> str:
        return "/".join(self.path.split("/")[2:4])

    def resource(self, links: Links) -> Json:
        """It as Google tells it now."""
        where, _, _ = self.place.partition("/")
        return {
            **self.body,
            "kind": f"compute#{self.kind}",
            "id": self.number,
            "creationTimestamp": stamp(self.made),
            where.removesuffix("s"): links.to("/".join(self.path.split("/")[:4])),
            "selfLink": links.to(self.path),
        }


@dataclass
class Resize(Made):
    """A request for machines in a group."""

    state: str = "CREATING"
    error: OperationFailed | None = None
    # What hindered it when it was last tried.
    attempt: OperationFailed | None = None
    machines: list[Instance] = field(default_factory=list)
    settled: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)

    # Machines that the group was told to delete: they count no more.
    leaving: list[Instance] = field(default_factory=list)

    @property
    def active(self) -> bool:
        return self.state in ("CREATING", "ACCEPTED")

    def resource(self, links: Links) -> Json:
        status: Json = {"error": {"errors": self.error.errors}} if self.error is not None else {}
        if self.active and self.attempt is not None:
            # "The value is cleared when ResizeRequest transitions to the final state (becomes inactive)."
            status["lastAttempt"] = {"error": {"errors": self.attempt.errors}}
        return {**super().resource(links), "state": self.state, "status": status}


class Groups:
    """All groups, templates and requests. Safe to use from many threads."""

    def __init__(
        self,
        numbers: Numbers,
        links: Links,
        instances: Instances,
        operations: Operations,
        fleet: Fleet,
        faults: Faults,
        policies: Callable[[str], Json | None],
        token: Callable[[Instance], dict[str, object]],
    ) -> None:
        self._numbers = numbers
        self._links = links
        self._instances = instances
        self._operations = operations
        self._fleet = fleet
        self._faults = faults
        self._policies = policies
        self._token = token
        self._lock = threading.RLock()
        self._held: dict[str, Made] = {}

    # ── templates and groups ─────────────────────────────────────────────────────────────────────────────────────────

    def add_template(self, call: Call) -> Made:
        """Raises Failure where its name is taken, or where it describes no machine."""
        if "machineType" not in call.body.get("properties", {}):
            raise invalid("resource.properties.machineType", "", "The machine type is required.")
        return self._add(
            Made("instanceTemplate", self._numbers.new(), self._path(call, "instanceTemplates"), call.body)
        )

    def add_group(self, call: Call) -> Made:
        """Raises Failure where its name is taken, or its template is not there."""
        versions = call.body.get("versions") or []
        template = partial(versions[0].get("instanceTemplate", "") if versions else "", call.project)
        if len(versions) != 1 or self._held.get(template) is None:
            raise invalid("resource.versions[0].instanceTemplate", template, "There is no such template.")
        if call.body.get("targetSize") != 0:
            raise invalid("resource.targetSize", call.body.get("targetSize"), "These groups are for requests alone.")
        if len(call.body.get("baseInstanceName", "")) > 58:
            raise invalid("resource.baseInstanceName", call.body["baseInstanceName"], "It is too long.")
        path = self._path(call, "instanceGroupManagers")
        return self._add(Made("instanceGroupManager", self._numbers.new(), path, call.body))

    def find(self, call: Call) -> Made:
        """The template or group that a call names. Raises Failure (404)."""
        kind = "instanceTemplates" if "instanceTemplate" in call.method.path else "instanceGroupManagers"
        name = call.method.path[kind.removesuffix("s")]
        return self._at(f"projects/{call.project}/{call.place}/{kind}/{name}")

    def resource(self, found: Made) -> Json:
        told = found.resource(self._links)
        if found.kind == "instanceGroupManager":
            told["targetSize"] = sum(
                len(each.body["instances"]) - len(each.leaving)
                for each in self._requests(found)
                if each.active or each.state == "SUCCEEDED"
            )
        return told

    def check_unused(self, template: Made) -> None:
        """Raises Failure while a group is made from a template."""
        with self._lock:
            for each in self._held.values():
                links = [version["instanceTemplate"] for version in each.body.get("versions", ())]
                if any(partial(link, template.path.split("/")[1]) == template.path for link in links):
                    raise in_use("instance_template", template.path, each.path)

    def remove(self, found: Made) -> None:
        with self._lock:
            self._held.pop(found.path, None)

    def delete_group(self, group: Made) -> None:
        """ "this deletion also removes any resize requests and VMs in the MIG. However, if you delete a MIG when the
        MIG creates VMs to fulfill a resize request, Compute Engine waits until the MIG has finished creating"."""
        for request in self._requests(group):
            request.cancelled.set()
            request.settled.wait(timeout=60)
            for machine in request.machines:
                self._fleet.delete(machine)
                machine.removed.wait()
            self.remove(request)
        self.remove(group)

    def members_to_delete(self, call: Call) -> tuple[Made, list[tuple[Resize, Instance]]]:
        """The members that a call names. Raises Failure for one that is none, or is being deleted already: "If this
        field is set to `false` and such an instance is specified in the request, the operation fails." """
        group = self._at(f"projects/{call.project}/{call.place}/instanceGroupManagers/{self._group_of(call)}")
        zone = group.place.partition("/")[2]
        named = list(call.body.get("instances") or ())
        wrong = [link for link in named if re.fullmatch(rf"(?:.*/)?zones/{zone}/instances/[^/]+", link) is None]
        if not named or wrong or len(named) > _MOST:
            raise invalid("instances", wrong or named, "The URLs of one or more instances of the group's zone.")
        with self._lock:
            held = {each.name: (one, each) for one in self._requests(group) for each in one.machines}
            left = {each.name for one in self._requests(group) for each in one.leaving}
        found = [held.get(link.rpartition("/")[2]) for link in named]
        members = [each for each in found if each is not None and each[1].name not in left and each[1].goes != "delete"]
        if len(members) < len(named) and not call.body.get("skipInstancesOnValidationError"):
            raise invalid("instances", named, "It is no member of the group, or is being deleted or abandoned already.")
        return group, members

    def delete_members(self, group: Made, members: list[tuple[Resize, Instance]]) -> None:
        """ "This method reduces the targetSize of the managed instance group by the number of instances that you
        delete. This operation is marked as DONE when the action is scheduled even if the instances are still being
        deleted." """
        for request, machine in members:
            with self._lock:
                request.leaving.append(machine)
            self._end(machine)

    def _end(self, machine: Instance) -> None:
        def work(_: Operation) -> None:
            self._fleet.delete(machine)
            machine.removed.wait()

        place = f"zones/{machine.zone}"
        begun = self._operations.new(machine.project, place, "delete", machine.path, machine.number, _SERVICE_AGENT)
        self._operations.begin(begun, work)

    # ── resize requests ──────────────────────────────────────────────────────────────────────────────────────────────

    def add_resize(self, call: Call) -> Resize:
        """Raises Failure where the group or its template do not allow it."""
        group = self._at(f"projects/{call.project}/{call.place}/instanceGroupManagers/{self._group_of(call)}")
        body = call.body
        asked = [each["name"] for each in body.get("instances") or ()]
        if not asked or "resizeBy" in body or len(asked) > _MOST or len({*asked}) < len(asked):
            raise invalid("resource.instances", asked, "This Compute Engine takes up to 1000 different names.")
        if any(_NAME.fullmatch(name) is None for name in asked):
            raise invalid("resource.instances", asked, f"Must be a match of regex '{_NAME.pattern}'")
        if "requestedRunDuration" in body and seconds(body["requestedRunDuration"]) not in _RUN_S:
            raise invalid("resource.requestedRunDuration", "", "It must be between 10 minutes and 7 days.")
        if group.body.get("instanceLifecyclePolicy", {}).get("defaultActionOnFailure") != "DO_NOTHING":
            raise invalid("resource", group.name, "Repairs must be turned off in the managed instance group.")
        if group.body.get("updatePolicy", {}).get("type", "OPPORTUNISTIC") != "OPPORTUNISTIC":
            raise invalid("resource", group.name, "The update type of the group must be opportunistic.")
        draft = self._draft(group, asked[0])
        path = f"{group.path}/resizeRequests/{body['name']}"
        made = Resize("instanceGroupManagerResizeRequest", self._numbers.new(), path, body)
        self._add(made)
        threading.Thread(target=self._queue, args=(made, draft), daemon=True).start()
        return made

    def accept(self, request: Resize) -> None:
        """Its operation has ended: it is in the queue."""
        with self._lock:
            if request.state == "CREATING":
                request.state = "ACCEPTED"

    def find_resize(self, call: Call) -> Resize:
        """Raises Failure (404)."""
        group = f"projects/{call.project}/{call.place}/instanceGroupManagers/{self._group_of(call)}"
        found = self._at(f"{group}/resizeRequests/{call.method.path['resizeRequest']}")
        assert isinstance(found, Resize)
        return found

    def cancel(self, request: Resize) -> None:
        """ "Cancel is only possible for requests that are accepted in the queue." Raises Failure (400)."""
        with self._lock:
            if request.state != "ACCEPTED" or request.machines:
                told = f"Cannot cancel '{request.name}': it is {request.state}."
                raise Failure(400, "invalid", told)
            request.state = "CANCELLED"
            request.cancelled.set()

    def check_inactive(self, request: Resize) -> None:
        """ "Requests that are still active cannot be deleted." """
        if request.active:
            raise Failure(400, "resourceNotReady", f"The resource '{request.path}' is not ready")

    def _draft(self, group: Made, name: str) -> Draft:
        """The machine of a group's template. Raises Failure for one that flex-start does not take."""
        zone, project = group.place.partition("/")[2], group.path.split("/")[1]
        template = self._at(partial(group.body["versions"][0]["instanceTemplate"], project))
        if template.place != f"regions/{region_of(zone)}":
            raise invalid("resource.versions[0].instanceTemplate", template.path, "It is of another region.")
        properties = template.body["properties"]
        scheduling = properties.get("scheduling", {})
        if scheduling.get("provisioningModel") != "FLEX_START" or "maxRunDuration" not in scheduling:
            raise invalid("resource", name, "The template must be for Flex-start VMs, with a run duration.")
        if properties.get("resourcePolicies"):
            raise invalid("resource", name, "The template of a resize request takes no placement policy.")
        return drafted(properties, project, zone, self._links, self._policies, "resource.properties")

    def _queue(self, request: Resize, draft: Draft) -> None:
        """Wait for capacity for all, as long as it takes."""
        try:
            while request.state == "CREATING" or self._hindered(request, draft):
                if request.cancelled.wait(timeout=0.05):
                    break
            with self._lock:
                if request.cancelled.is_set():
                    request.state = "CANCELLED"
                    return
                self._add_machines(request, draft)
            self._boot(request)
        except (Failure, OperationFailed) as failure:
            with self._lock:
                for machine in request.machines:
                    self._instances.remove(machine, with_disk=True)
                told = {"code": "RESOURCE_ALREADY_EXISTS", "message": str(failure)}
                ended = failure if isinstance(failure, OperationFailed) else OperationFailed([told], 409, "CONFLICT")
                request.state, request.error = "FAILED", ended
                request.machines.clear()
        finally:
            request.settled.set()

    def _hindered(self, request: Resize, draft: Draft) -> bool:
        fault = self._faults.scarcity(draft.zone, draft.machine.name)
        said = fault is not None and fault.code
        request.attempt = ending(fault, draft.project, draft.zone, draft.machine.name) if fault and said else None
        return fault is not None

    def _add_machines(self, request: Resize, draft: Draft) -> None:
        asked = [each["name"] for each in request.body["instances"]]
        met = self._faults.launching(draft.zone, draft.machine.name, draft.lifecycle, len(asked), len(asked))
        if isinstance(met, Fault):
            raise ending(met, draft.project, draft.zone, draft.machine.name)
        for name in asked:
            # Each has labels and metadata of its own from here on.
            own = Draft(**{**draft.__dict__, "body": dict(draft.body)})
            # As Google's machines have it, with the project's number.
            group = f"projects/4711/{request.path.partition('/resizeRequests/')[0].split('/', 2)[2]}"
            held = own.body["metadata"]
            own.body["metadata"] = {**held, "items": [*held["items"], {"key": "created-by", "value": group}]}
            request.machines.append(self._instances.add(name, own))

    def _boot(self, request: Resize) -> None:
        begun = [self._begin(machine) for machine in request.machines]
        for operation in begun:
            operation.done.wait()
        with self._lock:
            request.state = "SUCCEEDED"

    def _begin(self, machine: Instance) -> Operation:
        place = f"zones/{machine.zone}"
        begun = self._operations.new(machine.project, place, "insert", machine.path, machine.number, _SERVICE_AGENT)
        return self._operations.begin(begun, lambda _: self._fleet.boot(machine, self._token))

    # ── all of them ──────────────────────────────────────────────────────────────────────────────────────────────────

    def rows(self, project: str, kind: str) -> list[Row]:
        with self._lock:
            held = [each for each in self._held.values() if each.kind == kind and each.path.split("/")[1] == project]
        return [Row(each.place, self.resource(each)) for each in held]

    def requests_of(self, call: Call) -> list[Row]:
        group = self._at(f"projects/{call.project}/{call.place}/instanceGroupManagers/{self._group_of(call)}")
        return [Row(each.place, each.resource(self._links)) for each in self._requests(group)]

    def names(self, kind: str) -> list[str]:
        with self._lock:
            return [each.name for each in self._held.values() if each.kind == kind]

    def age(self, by_s: float) -> None:
        """Every resize request is so much older than it was."""
        with self._lock:
            for each in self._held.values():
                if isinstance(each, Resize):
                    each.made -= timedelta(seconds=by_s)

    def clear(self) -> None:
        with self._lock:
            held = list(self._held.values())
            self._held.clear()
        for each in held:
            if isinstance(each, Resize):
                each.cancelled.set()
                each.settled.wait(timeout=60)

    def _requests(self, group: Made) -> list[Resize]:
        with self._lock:
            within = f"{group.path}/resizeRequests/"
            return [each for each in self._held.values() if isinstance(each, Resize) and each.path.startswith(within)]

    def _add(self, made: Made) -> Made:
        with self._lock:
            if made.path in self._held:
                raise already_exists(made.path)
            self._held[made.path] = made
        return made

    def _at(self, path: str) -> Made:
        with self._lock:
            if path not in self._held:
                raise not_found(path)
            return self._held[path]

    def _path(self, call: Call, kind: str) -> str:
        return f"projects/{call.project}/{call.place}/{kind}/{call.body['name']}"

    def _group_of(self, call: Call) -> str:
        return str(call.method.path["instanceGroupManager"])
