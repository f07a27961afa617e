"""The permissions that Stoker needs, and why: the one table behind `stoker iam gce` and `stoker check gce`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Permission:
    """One permission. `methods` are the calls that need it, as Google's discovery document names them; empty for a
    permission on a resource that the body of a call names."""

    name: str
    why: str
    methods: tuple[str, ...] = ()

    @property
    def on_machines(self) -> bool:
        """Return whether it concerns an existing machine, so that it may be granted for some machines alone."""
        return self.name in _ON_MACHINES


_ON_MACHINES = frozenset({"compute.instances.delete", "compute.instances.getSerialPortOutput"})

# For launches, as https://cloud.google.com/compute/docs/instances/create-start-instance lists them.
_LAUNCHING = (
    Permission("compute.instances.create", "launch machines", ("instances.insert", "regionInstances.bulkInsert")),
    Permission("compute.instances.setLabels", "mark what is launched as this store's"),
    Permission("compute.instances.setMetadata", "give a machine its startup and shutdown scripts"),
    Permission("compute.instances.setServiceAccount", "give a machine its service account"),
    Permission("compute.instances.setTags", "network tags, where overrides name some"),
    Permission("compute.disks.create", "a machine's own disk"),
    Permission("compute.disks.setLabels", "mark that disk, to find it should it be left behind"),
    Permission("compute.images.useReadOnly", "an image of the project's own"),
    Permission("compute.subnetworks.use", "the network that machines are in"),
    Permission("compute.subnetworks.useExternalIp", "a public address"),
    Permission("compute.networks.use", "a network that has no subnetworks"),
    Permission("compute.networks.useExternalIp", "a public address there"),
    Permission(
        "compute.resourcePolicies.create", "put the nodes of a job close together", ("resourcePolicies.insert",)
    ),
    Permission("compute.resourcePolicies.use", "the same"),
    Permission(
        "compute.instanceTemplates.create",
        "request several machines by flex-start",
        ("regionInstanceTemplates.insert",),
    ),
    Permission("compute.instanceTemplates.useReadOnly", "the same"),
    Permission("compute.instanceGroupManagers.create", "the same", ("instanceGroupManagers.insert",)),
    Permission(
        "compute.instanceGroupManagers.update",
        "the same; withdraw the request",
        ("instanceGroupManagerResizeRequests.insert", "instanceGroupManagerResizeRequests.cancel"),
    ),
    Permission(
        "compute.instanceGroupManagers.get", "whether it was granted", ("instanceGroupManagerResizeRequests.get",)
    ),
)

# For every call of a governor, and for nothing else: a test compares this table with the calls of the provider.
GOVERNOR: tuple[Permission, ...] = (
    Permission("compute.instances.list", "which machines are there, and how they are", ("instances.aggregatedList",)),
    Permission(
        "compute.globalOperations.list",
        "how a machine ended, and which a request made",
        ("globalOperations.aggregatedList",),
    ),
    Permission("compute.zoneOperations.get", "whether a machine was made", ("zoneOperations.wait",)),
    Permission("compute.regionOperations.get", "whether several were", ("regionOperations.wait",)),
    Permission("compute.machineTypes.list", "which zones have a machine type", ("machineTypes.aggregatedList",)),
    Permission("compute.acceleratorTypes.list", "which zones have a GPU", ("acceleratorTypes.aggregatedList",)),
    Permission(
        "compute.reservations.list",
        "which machines the job's reservation is for, and where",
        ("reservations.aggregatedList",),
    ),
    Permission(
        "compute.futureReservations.list",
        "when a reservation in calendar mode begins and ends",
        ("futureReservations.aggregatedList",),
    ),
    Permission("compute.disks.list", "disks that were left behind", ("disks.aggregatedList",)),
    Permission("compute.resourcePolicies.list", "placement policies that were left behind", ("resourcePolicies.list",)),
    Permission(
        "compute.instanceGroupManagers.list",
        "flex-start requests that were left behind",
        ("instanceGroupManagers.aggregatedList",),
    ),
    Permission("compute.instanceTemplates.list", "their templates", ("regionInstanceTemplates.list",)),
    Permission("compute.instances.get", "whether a flex-start request was granted", ("instances.get",)),
    *_LAUNCHING,
    Permission("cloudscheduler.jobs.enable", "switch its own clock on, where it is deployed"),
    Permission("cloudscheduler.jobs.pause", "switch it off again"),
    Permission("cloudscheduler.jobs.get", "see whether it is so already"),
    Permission("compute.instances.delete", "give machines back", ("instances.delete",)),
    Permission("compute.disks.delete", "remove disks that were left behind", ("disks.delete",)),
    Permission("compute.resourcePolicies.delete", "remove placement policies after use", ("resourcePolicies.delete",)),
    Permission(
        "compute.instanceGroupManagers.delete",
        "remove flex-start requests after use",
        ("instanceGroupManagers.delete",),
    ),
    Permission("compute.instanceTemplates.delete", "the same", ("regionInstanceTemplates.delete",)),
    Permission(
        "compute.instances.getSerialPortOutput", "why a machine did not boot", ("instances.getSerialPortOutput",)
    ),
)

# For a person, beside the store: the plan, access to a machine, a simulated reclaim, and `stoker check`.
PLAN = tuple(each for each in GOVERNOR if each.name in {"compute.machineTypes.list", "compute.acceleratorTypes.list"})
SHELL: tuple[Permission, ...] = (
    Permission("compute.instances.get", "where a machine is", ("instances.get",)),
    Permission("compute.projects.get", "whether OS Login is on", ("projects.get",)),
    Permission("compute.instances.setMetadata", "give a machine a temporary key", ("instances.setMetadata",)),
    Permission("compute.instances.osAdminLogin", "log in where OS Login is on"),
    Permission("compute.zoneOperations.get", "whether the key is there", ("zoneOperations.wait",)),
)
INTERRUPT: tuple[Permission, ...] = (
    Permission(
        "compute.instances.simulateMaintenanceEvent", "rehearse a reclaim", ("instances.simulateMaintenanceEvent",)
    ),
)
# For the preflight check of the names in a job. Without these permissions a job can still be submitted.
PREFLIGHT: tuple[Permission, ...] = (
    Permission("compute.images.get", "whether the job's image is there", ("images.get",)),
    Permission("compute.images.getFromFamily", "the newest image of a family", ("images.getFromFamily",)),
    Permission("compute.networks.get", "whether the network is there", ("networks.get",)),
    Permission("compute.subnetworks.get", "whether the subnetwork is there", ("subnetworks.get",)),
    Permission(
        "compute.resourcePolicies.get", "whether the job's placement policy is there", ("resourcePolicies.get",)
    ),
    *(each for each in GOVERNOR if each.name in {"compute.reservations.list", "compute.futureReservations.list"}),
)
CHECK: tuple[Permission, ...] = (
    Permission("compute.instances.list", "whether the region answers", ("instances.aggregatedList",)),
    Permission("compute.projects.get", "limits of the whole project", ("projects.get",)),
    Permission("compute.regions.get", "limits of the region", ("regions.get",)),
    *PREFLIGHT,
    Permission("compute.subnetworks.list", "whether the network reaches the region", ("subnetworks.list",)),
    Permission("compute.firewalls.list", "whether nodes reach each other", ("firewalls.list",)),
)
WAKE: tuple[Permission, ...] = (Permission("pubsub.topics.publish", "wake a governor that is deployed"),)
PERSON = tuple({each.name: each for each in (*PLAN, *SHELL, *INTERRUPT, *CHECK, *WAKE)}.values())

# A machine that switches itself off is only stopped, and its disk costs: it deletes itself.
NODE: tuple[Permission, ...] = (Permission("compute.instances.delete", "delete itself", ("instances.delete",)),)

# Cloud Storage treats overwriting as deleting: with the permission to create alone, no existing object can be changed.
REMOVER: tuple[Permission, ...] = (Permission("storage.objects.delete", "replace and remove objects"),)

ACT_AS = "iam.serviceAccounts.actAs"


def names(permissions: Iterable[Permission]) -> list[str]:
    return sorted({each.name for each in permissions})


def methods(permissions: Iterable[Permission]) -> set[str]:
    """The calls that these allow, as the discovery document names them: `compute.instances.insert`."""
    return {f"compute.{method}" for each in permissions for method in each.methods}
