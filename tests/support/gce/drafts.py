"""What is asked for in a launch, beyond what the discovery document says: held against what there is, and completed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.gce.calendar import CALENDAR_WINDOW
from tests.support.gce.catalog import (
    ACCELERATORS,
    CALENDAR,
    COMPACT_FAMILIES,
    DISK_TYPES,
    IMAGES,
    MACHINE_TYPES,
    RESERVATIONS,
    Image,
    MachineType,
    accounts,
    zones_of,
)
from tests.support.gce.errors import Failure, Json, bad_request, invalid
from tests.support.gce.links import Links, partial, region_of, tail
from tests.support.gce.network_cards import Cards
from tests.support.gce.provisioning import check_model, seconds

_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_TAG = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_MOST_LABELS = 64
_MOST_VALUE_BYTES = 262_144
_MOST_METADATA_BYTES = 524_288
# How long a machine may be told to run, and how long before its end a spot machine may be told of it.
_RUN_S = range(30, 120 * 24 * 3600 + 1)
_NOTICE_S = range(121)


@dataclass(frozen=True)
class Draft:
    """A machine to be, in one zone. `body` is the resource without what is known only later."""

    project: str
    zone: str
    machine: MachineType
    image: Image
    body: Json
    disk: Json
    spot: bool

    @property
    def lifecycle(self) -> str:
        return "spot" if self.spot else "standard"

    @property
    def scheduling(self) -> Json:
        found: Json = self.body["scheduling"]
        return found

    @property
    def run_s(self) -> float | None:
        """How long it may run."""
        return seconds(self.scheduling.get("maxRunDuration"))

    @property
    def wait_s(self) -> float:
        """How long its request waits for capacity. 0 but for flex-start."""
        return seconds((self.body.get("params") or {}).get("requestValidForDuration")) or 0.0

    @property
    def notice_s(self) -> float:
        """How long before its end it wants to be told of it."""
        return seconds(self.scheduling.get("preemptionNoticeDuration")) or 0.0


def drafted(
    asked: Json, project: str, zone: str, links: Links, policies: Callable[[str], Json | None], field: str = "resource"
) -> Draft:
    """The machine that `asked` (an Instance, or InstanceProperties) describes. Raises Failure (400).

    Machine and accelerator types are URLs in the one and bare names in the other. `policies` finds a resource policy by
    its path.
    """
    return _Drafting(asked, project, zone, links, policies, field).draft()


def found_image(link: str, project: str) -> Image:
    """The image behind any of the names that it has. Raises Failure (400)."""
    path = partial(link, project)
    for image in IMAGES:
        home = f"projects/{image.project}"
        named = (
            f"{home}/global/images/{image.name}",
            f"{home}/global/images/family/{image.family}",
            f"{home}/zones/-/imageFamilyViews/{image.family}",
        )
        if path in named:
            return image
    raise invalid(
        "resource.disks[0].initializeParams.sourceImage", link, "The referenced image resource cannot be found."
    )


class _Drafting:
    def __init__(
        self, asked: Json, project: str, zone: str, links: Links, policies: Callable[[str], Json | None], field: str
    ) -> None:
        self._asked = asked
        self._project = project
        self._zone = zone
        self._links = links
        self._policies = policies
        self._field = field

    def draft(self) -> Draft:
        machine = self._machine()
        self._check_reservation(machine)
        image, disk, attached = self._disk()
        scheduling = self._scheduling(bool(machine.accelerator or self._asked.get("guestAccelerators")))
        check_model(self._asked, machine, scheduling, self._field)
        body = {
            **{name: self._asked[name] for name in _KEPT if name in self._asked},
            "machineType": self._links.to(f"{self._home}/machineTypes/{machine.name}"),
            "disks": [attached, *(self._asked.get("disks") or [])[1:]],
            "networkInterfaces": Cards(self._project, self._zone, self._links, self._field).made(self._asked, machine),
            "scheduling": scheduling,
            "labels": self._labels(),
            "metadata": self._metadata(),
            "tags": {"items": self._tags()},
            "serviceAccounts": self._accounts(),
            "guestAccelerators": self._accelerators(machine),
            "resourcePolicies": self._resource_policies(machine),
        }
        empty = ("labels", "serviceAccounts", "guestAccelerators", "resourcePolicies")
        body = {name: value for name, value in body.items() if value or name not in empty}
        spot = scheduling["provisioningModel"] == "SPOT"
        return Draft(self._project, self._zone, machine, image, body, disk, spot)

    @property
    def _home(self) -> str:
        return f"projects/{self._project}/zones/{self._zone}"

    def _machine(self) -> MachineType:
        link = self._asked.get("machineType", "")
        at = f"{self._field}.machineType"
        if not link:
            raise invalid(at, "", "The machine type is required.")
        if self._field == "resource" or "/" in link:
            self._must_be_here(link, "machineTypes", at)
        machine = MACHINE_TYPES.get(tail(link))
        if machine is None or self._zone not in zones_of(machine):
            raise invalid(at, link, f"Machine type with name '{tail(link)}' does not exist in zone '{self._zone}'.")
        return machine

    def _check_reservation(self, machine: MachineType) -> None:
        """One that is targeted by its name is there, and for such machines."""
        affinity = self._asked.get("reservationAffinity") or {}
        for name in affinity.get("values") or ():
            found = [each for each in RESERVATIONS if (each.name, each.zone) == (tail(name), self._zone)]
            if not found:
                told = f"The resource '{self._home}/reservations/{tail(name)}' was not found."
                raise invalid(f"{self._field}.reservationAffinity.values", name, told)
            model = (self._asked.get("scheduling") or {}).get("provisioningModel")
            # A reservation in calendar mode is for machines that end with it, between its start and its end.
            calendar = found[0].name == CALENDAR
            unfit = calendar and not CALENDAR_WINDOW.has_machines()
            if unfit or (model == "RESERVATION_BOUND") != calendar:
                raise invalid(f"{self._field}.reservationAffinity", affinity, "No available resources in it.")
            spot = model == "SPOT"
            if spot or self._asked.get("guestAccelerators") or found[0].machine != machine.name:
                told = "No available resources in specified reservations."
                raise invalid(f"{self._field}.reservationAffinity", affinity, told)

    def _must_be_here(self, link: str, kind: str, at: str) -> None:
        wanted = f"{self._home}/{kind}/{tail(link)}"
        if partial(link, self._project) != wanted:
            raise invalid(at, link, f"The URL is malformed, or is not one of zone '{self._zone}'.")

    def _disk(self) -> tuple[Image, Json, Json]:
        disks = self._asked.get("disks") or []
        boot = disks[:1]
        if not boot or not boot[0].get("boot") or any(disk.get("type") != "SCRATCH" for disk in disks[1:]):
            told = "This Compute Engine takes a boot disk first, and then scratch disks only."
            raise invalid(f"{self._field}.disks", len(disks), told)
        (disk,) = boot
        params = disk.get("initializeParams") or {}
        if not params.get("sourceImage"):
            raise invalid(f"{self._field}.disks[0].initializeParams.sourceImage", "", "An image is required.")
        image = found_image(params["sourceImage"], self._project)
        size = int(params.get("diskSizeGb") or disk.get("diskSizeGb") or image.size_gb)
        if size < image.size_gb:
            raise invalid(
                f"{self._field}.disks[0].initializeParams.diskSizeGb",
                size,
                f"Requested disk size cannot be smaller than the image size ({image.size_gb} GB).",
            )
        kind = params.get("diskType", "pd-standard")
        if "/" in kind:
            self._must_be_here(kind, "diskTypes", f"{self._field}.disks[0].initializeParams.diskType")
        if tail(kind) not in DISK_TYPES:
            raise invalid(f"{self._field}.disks[0].initializeParams.diskType", kind, "There is no such disk type.")
        made = {
            "sizeGb": str(size),
            "type": self._links.to(f"{self._home}/diskTypes/{tail(kind)}"),
            "sourceImage": self._links.to(f"projects/{image.project}/global/images/{image.name}"),
            "labels": params.get("labels", {}),
            "status": "READY",
            "architecture": "X86_64",
            # A disk's name is its machine's, where none was given.
            "name": params.get("diskName", ""),
        }
        attached = {
            "kind": "compute#attachedDisk",
            "type": "PERSISTENT",
            "mode": disk.get("mode", "READ_WRITE"),
            "boot": True,
            "index": 0,
            # Not so by itself: who forgets it keeps paying.
            "autoDelete": disk.get("autoDelete", False),
            "deviceName": disk.get("deviceName", "persistent-disk-0"),
            "diskSizeGb": str(size),
            "interface": "SCSI",
            "architecture": "X86_64",
        }
        return image, made, attached

    def _scheduling(self, has_gpus: bool) -> Json:
        asked = dict(self._asked.get("scheduling") or {})
        spot = asked.get("provisioningModel") == "SPOT" or asked.get("preemptible", False)
        at = f"{self._field}.scheduling"
        if spot and asked.get("automaticRestart"):
            raise bad_request("Scheduling must have preemptible be false when AutomaticRestart is true.", "invalid")
        host = asked.get("onHostMaintenance", "TERMINATE" if spot else "MIGRATE")
        if host == "MIGRATE" and spot:
            raise bad_request("Scheduling must have preemptible be false when OnHostMaintenance isn't TERMINATE.")
        if host == "MIGRATE" and has_gpus:
            raise invalid(at, host, "Instances with guest accelerators do not support live migration.")
        ends = asked.get("instanceTerminationAction")
        run_s, notice_s = seconds(asked.get("maxRunDuration")), seconds(asked.get("preemptionNoticeDuration"))
        bound = asked.get("provisioningModel") == "RESERVATION_BOUND"
        if ends and not spot and not bound and run_s is None:
            raise invalid(f"{at}.instanceTerminationAction", ends, "It needs SPOT or a maximum run duration.")
        if run_s is not None and not ends:
            raise invalid(f"{at}.maxRunDuration", run_s, "It needs an instance termination action.")
        if run_s is not None and run_s not in _RUN_S:
            raise invalid(f"{at}.maxRunDuration", run_s, "It must be between 30 seconds and 120 days.")
        if notice_s is not None and (not spot or notice_s not in _NOTICE_S):
            raise invalid(f"{at}.preemptionNoticeDuration", notice_s, "It is for Spot VMs, and at most 120 seconds.")
        return {
            **asked,
            "provisioningModel": "SPOT" if spot else asked.get("provisioningModel", "STANDARD"),
            "preemptible": spot,
            "automaticRestart": asked.get("automaticRestart", not spot),
            "onHostMaintenance": host,
            **({"instanceTerminationAction": ends or "STOP"} if spot or ends else {}),
        }

    def _labels(self) -> dict[str, str]:
        labels: dict[str, str] = self._asked.get("labels") or {}
        check_labels(labels, f"{self._field}.labels")
        return labels

    def _metadata(self) -> Json:
        metadata = self._asked.get("metadata") or {}
        return {"items": check_metadata(metadata, f"{self._field}.metadata")}

    def _tags(self) -> list[str]:
        tags: list[str] = (self._asked.get("tags") or {}).get("items") or []
        for tag in tags:
            if _TAG.fullmatch(tag) is None:
                raise invalid(f"{self._field}.tags.items", tag, "Must be a match of regex '[a-z]([-a-z0-9]*[a-z0-9])?'")
        return tags

    def _accounts(self) -> list[Json]:
        asked: list[Json] = self._asked.get("serviceAccounts") or []
        if len(asked) > 1:
            raise bad_request("At most one service account is allowed.", "invalid")
        found = []
        default, ours = accounts(self._project)
        for account in asked:
            email = default if account.get("email", "default") == "default" else account["email"]
            if email not in (default, ours):
                told = f"The resource '{email}' of type 'serviceAccount' was not found."
                raise invalid(f"{self._field}.serviceAccounts[0].email", email, told)
            if not account.get("scopes"):
                raise invalid(f"{self._field}.serviceAccounts[0].scopes", "", "At least one scope is required.")
            found.append({"email": email, "scopes": account["scopes"]})
        return found

    def _accelerators(self, machine: MachineType) -> list[Json]:
        asked: list[Json] = self._asked.get("guestAccelerators") or []
        at = f"{self._field}.guestAccelerators[0]"
        found = []
        for each in asked:
            link = each.get("acceleratorType", "")
            if self._field == "resource" or "/" in link:
                self._must_be_here(link, "acceleratorTypes", f"{at}.acceleratorType")
            known = ACCELERATORS.get(tail(link))
            if known is None or self._zone not in known.zones:
                raise invalid(f"{at}.acceleratorType", link, "The referenced accelerator type cannot be found.")
            count = each.get("acceleratorCount", 0)
            comes_along = (known.name, count) == (machine.accelerator, machine.count)
            attached = known.attachable and machine.family == "n1" and count in (1, 2, 4, 8) and count <= known.most
            if not comes_along and not attached:
                raise invalid(at, count, f"[{count}, {known.name}] is not available with {machine.name}.")
            found.append({"acceleratorType": self._link("acceleratorTypes", known.name), "acceleratorCount": count})
        if not found and machine.accelerator:
            link = self._link("acceleratorTypes", machine.accelerator)
            found.append({"acceleratorType": link, "acceleratorCount": machine.count})
        return found

    def _link(self, kind: str, name: str) -> str:
        return self._links.to(f"{self._home}/{kind}/{name}")

    def _resource_policies(self, machine: MachineType) -> list[str]:
        asked: list[str] = self._asked.get("resourcePolicies") or []
        region, at = region_of(self._zone), f"{self._field}.resourcePolicies"
        found = []
        for link in asked:
            # In a bulk request it may be named alone.
            path = partial(link if "/" in link else f"regions/{region}/resourcePolicies/{link}", self._project)
            policy = self._policies(path)
            if policy is None:
                raise invalid(at, link, "The referenced resource policy cannot be found.")
            if "groupPlacementPolicy" in policy and machine.family not in COMPACT_FAMILIES:
                told = f"Resource policies with group placement do not support machine type {machine.name}."
                raise Failure(400, "invalid", told)
            found.append(self._links.to(path))
        return found


# Fields that are given back as they came.
_KEPT = (
    "params",
    *("description", "canIpForward", "minCpuPlatform", "reservationAffinity", "shieldedInstanceConfig", "hostname"),
    *("deletionProtection", "confidentialInstanceConfig", "advancedMachineFeatures", "displayDevice"),
    *("networkPerformanceConfig", "keyRevocationActionType", "privateIpv6GoogleAccess"),
)


def check_labels(labels: dict[str, str], field: str) -> None:
    """Raises Failure (400) for labels that Google would not take."""
    if len(labels) > _MOST_LABELS:
        raise invalid(field, len(labels), f"There are at most {_MOST_LABELS} labels.")
    for key, value in labels.items():
        if _LABEL_KEY.fullmatch(key) is None or _LABEL_VALUE.fullmatch(value) is None:
            raise invalid(field, f"{key}={value}", "Label keys and values have lower-case letters, digits, - and _.")


def check_metadata(metadata: Json, field: str) -> list[Json]:
    """The items. Raises Failure (400) for those that Google would not take."""
    items: list[Json] = metadata.get("items") or []
    keys = [item["key"] for item in items]
    if len(set(keys)) < len(keys):
        raise invalid(field, keys, "Metadata has duplicate keys.")
    sizes = [len(item.get("value", "").encode()) for item in items]
    if any(size > _MOST_VALUE_BYTES for size in sizes) or sum(sizes) > _MOST_METADATA_BYTES:
        raise Failure(413, "uploadTooLarge", f"The value of {field} is too large.")
    return [dict(item) for item in items]
