"""What Compute Engine tells about what was always there: places, machine types, accelerators, images, networks."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.gce.calendar import CALENDAR_WINDOW
from tests.support.gce.catalog import (
    ACCELERATORS,
    ALL_ZONES,
    CALENDAR,
    GPU_NETWORKS,
    IMAGES,
    MACHINE_TYPES,
    PROJECT_QUOTAS,
    REGION_QUOTAS,
    RESERVATIONS,
    ZONES,
    Accelerator,
    Image,
    MachineType,
    accounts,
    number_of,
    zones_of,
)
from tests.support.gce.errors import Json, not_found
from tests.support.gce.links import Links, region_of
from tests.support.gce.listing import Row

_BORN = "2024-01-02T03:04:05.678-08:00"
# Subnetworks by network.
_NETWORKS: dict[str, tuple[str, ...]] = {"default": ("default",), **GPU_NETWORKS}

Rows = list[Row]


class Readings:
    """Everything that nobody changes, but for the limits of quotas."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._limits: dict[tuple[str, str], float] = {}

    def set_quota(self, metric: str, limit: float, region: str) -> None:
        """What is told of a quota from now on, in one region or in all."""
        self._limits[region, metric] = limit

    def clear(self) -> None:
        self._limits.clear()
        CALENDAR_WINDOW.clear()

    def rows(self, kind: str, project: str) -> Rows:
        """All of one kind, as the API calls it. Raises KeyError for what is none of these."""
        makers: dict[str, Callable[[str], Rows]] = {
            "zones": self._zones,
            "regions": self._regions,
            "machineTypes": self._machine_types,
            "acceleratorTypes": self._accelerator_types,
            "images": self._images,
            "networks": self._networks,
            "subnetworks": self._subnetworks,
            "firewalls": self._firewalls,
            "reservations": self._reservations,
            "futureReservations": self._future_reservations,
        }
        return makers[kind](project)

    def one(self, kind: str, project: str, place: str, name: str) -> Json:
        """One of them, by its name or number. Raises Failure (404)."""
        for row in self.rows(kind, project):
            if row.place == place and name in (row.resource["name"], row.resource["id"]):
                return row.resource
        below = f"{kind}/{name}" if place == "" else f"{place}/{kind}/{name}"
        raise not_found(f"projects/{project}/{below}")

    def newest(self, project: str, family: str) -> Json:
        """The newest image of a family. Raises Failure (404)."""
        for image in IMAGES:
            if (image.project, image.family) == (project, family):
                return self._image(image)
        raise not_found(f"projects/{project}/global/images/family/{family}")

    def project(self, project: str, attributes: dict[str, str], metadata: Json) -> Json:
        found = self._thing("project", f"projects/{project}", project)
        return {
            **found,
            "commonInstanceMetadata": {**metadata, "items": [{"key": k, "value": v} for k, v in attributes.items()]},
            "defaultServiceAccount": accounts(project)[0],
            "defaultNetworkTier": "PREMIUM",
            "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
            "quotas": [self._quota("", metric, limit) for metric, limit in PROJECT_QUOTAS.items()],
        }

    def _thing(self, kind: str, path: str, name: str, *, zone: str = "", region: str = "") -> Json:
        found = {
            "kind": f"compute#{kind}",
            "id": number_of(path),
            "name": name,
            "creationTimestamp": _BORN,
            "selfLink": self._links.to(path),
        }
        project = path.split("/")[1]
        if zone:
            found["zone"] = self._links.to(f"projects/{project}/zones/{zone}")
        if region:
            found["region"] = self._links.to(f"projects/{project}/regions/{region}")
        return found

    def _quota(self, region: str, metric: str, limit: float) -> Json:
        limit = self._limits.get((region, metric), self._limits.get(("", metric), limit))
        return {"metric": metric, "limit": limit, "usage": 0.0}

    def _zones(self, project: str) -> Rows:
        return [
            Row(
                "",
                {
                    **self._thing("zone", f"projects/{project}/zones/{zone}", zone, region=region_of(zone)),
                    "description": zone,
                    "status": "UP",
                },
            )
            for zone in ALL_ZONES
        ]

    def _regions(self, project: str) -> Rows:
        return [
            Row(
                "",
                {
                    **self._thing("region", f"projects/{project}/regions/{region}", region),
                    "description": region,
                    "status": "UP",
                    "zones": [self._links.to(f"projects/{project}/zones/{zone}") for zone in zones],
                    "quotas": [self._quota(region, metric, limit) for metric, limit in REGION_QUOTAS.items()],
                },
            )
            for region, zones in ZONES.items()
        ]

    def _machine_types(self, project: str) -> Rows:
        return [
            Row(f"zones/{zone}", self._machine_type(project, zone, machine))
            for machine in MACHINE_TYPES.values()
            for zone in zones_of(machine)
        ]

    def _machine_type(self, project: str, zone: str, machine: MachineType) -> Json:
        path = f"projects/{project}/zones/{zone}/machineTypes/{machine.name}"
        gpus = [{"guestAcceleratorType": machine.accelerator, "guestAcceleratorCount": machine.count}]
        return {
            **self._thing("machineType", path, machine.name),
            # A bare name here, alone among all resources.
            "zone": zone,
            "description": f"{machine.cpus} vCPUs, {machine.memory_gb:g} GB RAM",
            "guestCpus": machine.cpus,
            "memoryMb": int(machine.memory_gb * 1024),
            "imageSpaceGb": 0,
            "maximumPersistentDisks": 128,
            "maximumPersistentDisksSizeGb": "263168",
            "isSharedCpu": machine.name in ("e2-micro", "e2-small", "e2-medium"),
            "architecture": "X86_64",
            **({"accelerators": gpus} if machine.accelerator else {}),
        }

    def _accelerator_types(self, project: str) -> Rows:
        return [
            Row(f"zones/{zone}", self._accelerator(project, zone, each))
            for each in ACCELERATORS.values()
            for zone in each.zones
        ]

    def _accelerator(self, project: str, zone: str, accelerator: Accelerator) -> Json:
        path = f"projects/{project}/zones/{zone}/acceleratorTypes/{accelerator.name}"
        return {
            **self._thing("acceleratorType", path, accelerator.name, zone=zone),
            "description": accelerator.name.replace("-", " ").upper(),
            "maximumCardsPerInstance": accelerator.most,
        }

    def _images(self, project: str) -> Rows:
        return [Row("global", self._image(image)) for image in IMAGES if image.project == project]

    def _image(self, image: Image) -> Json:
        path = f"projects/{image.project}/global/images/{image.name}"
        return {
            **self._thing("image", path, image.name),
            "description": f"{image.family}, built on 20260610",
            "family": image.family,
            "status": "READY",
            "diskSizeGb": str(image.size_gb),
            "archiveSizeBytes": "1000000000",
            "architecture": "X86_64",
            "sourceType": "RAW",
            "storageLocations": ["us"],
        }

    def _networks(self, project: str) -> Rows:
        return [Row("global", self._network(project, name, below)) for name, below in _NETWORKS.items()]

    def _network(self, project: str, name: str, subnetworks: tuple[str, ...]) -> Json:
        home = f"projects/{project}"
        return {
            **self._thing("network", f"{home}/global/networks/{name}", name),
            "autoCreateSubnetworks": name == "default",
            "mtu": 1460,
            "subnetworks": [
                self._links.to(f"{home}/regions/{region}/subnetworks/{each}")
                for each in subnetworks
                for region in ZONES
            ],
            "routingConfig": {"routingMode": "REGIONAL"},
        }

    def _subnetworks(self, project: str) -> Rows:
        home = f"projects/{project}"
        pairs = [(name, each) for name, below in _NETWORKS.items() for each in below]
        return [
            Row(
                f"regions/{region}",
                {
                    **self._thing("subnetwork", f"{home}/regions/{region}/subnetworks/{each}", each, region=region),
                    "network": self._links.to(f"{home}/global/networks/{network}"),
                    "ipCidrRange": f"10.{128 + 4 * index + number // 16}.{16 * (number % 16)}.0/20",
                    "gatewayAddress": f"10.{128 + 4 * index + number // 16}.{16 * (number % 16)}.1",
                    "privateIpGoogleAccess": False,
                    "purpose": "PRIVATE",
                    "stackType": "IPV4_ONLY",
                },
            )
            for index, region in enumerate(ZONES)
            for number, (network, each) in enumerate(pairs)
        ]

    def _reservations(self, project: str) -> Rows:
        return [
            Row(
                f"zones/{each.zone}",
                {
                    **self._thing(
                        "reservation",
                        f"projects/{project}/zones/{each.zone}/reservations/{each.name}",
                        each.name,
                        zone=each.zone,
                    ),
                    "status": "READY",
                    "specificReservationRequired": True,
                    "specificReservation": {
                        "count": str(each.count),
                        "inUseCount": "0",
                        "instanceProperties": {"machineType": each.machine},
                    },
                },
            )
            for each in RESERVATIONS
        ]

    def _firewalls(self, project: str) -> Rows:
        rules: tuple[tuple[str, list[str], list[Json]], ...] = (
            ("default-allow-ssh", ["0.0.0.0/0"], [{"IPProtocol": "tcp", "ports": ["22"]}]),
            (
                "default-allow-internal",
                ["10.128.0.0/9"],
                [{"IPProtocol": each, "ports": ["0-65535"]} for each in ("tcp", "udp")],
            ),
        )
        return [
            Row(
                "global",
                {
                    **self._thing("firewall", f"projects/{project}/global/firewalls/{name}", name),
                    "network": self._links.to(f"projects/{project}/global/networks/default"),
                    "direction": "INGRESS",
                    "priority": 65534,
                    "sourceRanges": ranges,
                    "allowed": allowed,
                    "disabled": False,
                },
            )
            for name, ranges, allowed in rules
        ]

    def _future_reservations(self, project: str) -> Rows:
        """The one of the reservation in calendar mode, which exists from the approval on."""
        rows = []
        for each in RESERVATIONS:
            if each.name != CALENDAR:
                continue
            path = f"projects/{project}/zones/{each.zone}/futureReservations/future-{each.name}"
            made = {
                **self._thing("futureReservation", path, f"future-{each.name}", zone=each.zone),
                "reservationMode": "CALENDAR",
                "reservationName": each.name,
                "planningStatus": "SUBMITTED",
                "timeWindow": CALENDAR_WINDOW.resource(),
                "status": {"procurementStatus": "FULFILLED" if CALENDAR_WINDOW.has_machines() else "APPROVED"},
            }
            rows.append(Row(f"zones/{each.zone}", made))
        return rows
