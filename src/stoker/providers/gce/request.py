"""Requests to Compute Engine: built as data, purely.

One node is an `insert` into its zone. A gang is one regional `bulkInsert` that names every machine, with minCount =
count = nodes: it comes whole, in one zone, or not at all. By flex-start it is a managed instance group: see
`flex_group`. A node knows its rank by its name.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any

from stoker.cloudapi.google.logs import is_log
from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.resources import GceResources, Resources, short_region
from stoker.model.spec import Spec
from stoker.providers import image_info, node_disks, request_overrides
from stoker.providers.base import HttpRequest, LaunchOrder
from stoker.providers.gce import (
    cards,
    catalog,
    disk_sizes,
    flex_group,
    flex_start,
    identity,
    images,
    labels,
    names,
    overrides,
    owners,
    places,
    reservations,
    startup,
    tpu,
)
from stoker.providers.gce.machine import NOTICE_ATTRIBUTE
from stoker.providers.gce.places import ProjectRegion
from stoker.providers.machine_types import disk_size

SERVICE = "compute"
_API = "/compute/v1"
# The longest notice that Google offers: https://cloud.google.com/compute/docs/instances/spot
_NOTICE_S = 120
# The bounds of Compute Engine's maxRunDuration.
_LIFE_S = (30, 120 * 24 * 3600)
# Machines of the fourth and later generations take no Persistent Disk. A3 Ultra counts as one of them.
# TPU v5e and v5p take it.
_HYPERDISK = re.compile(r"(?!ct5)[a-z]+([4-9]|[1-9][0-9])[a-z]*-|a3-ultragpu-")
# A compact placement policy holds up to 150 machines, and more of A3 and A4:
# https://cloud.google.com/compute/docs/instances/placement-policies-overview
_MOST_COMPACT = 150
_COMPACT = re.compile(r"(a[2-4]|c2d?|c3d?|c4d?|g[24]|h3|h4d|n2d?)-")
# Machines that cannot migrate to another host while they run.
_TERMINATED = re.compile(r"(a[2-9]|g[2-9]|h[3-9]|ct[0-9]|x4|z3)[a-z]*-")

# The zone of several machines is not in their properties, so that zonal resources are given by their bare names.
_BARE = dict.fromkeys(("machineTypes", "diskTypes", "acceleratorTypes", "resourcePolicies"), "")

# Lists whose members are identified by a field: metadata by key, and the boot disk.
_IDENTITIES = {"items": "key", "disks": "boot"}


def build(order: LaunchOrder) -> tuple[HttpRequest, ...]:
    """All requests to Compute Engine for one claim, in order. Pure."""
    if order.offering.queued:
        order = flex_start.with_longest_life(order)
    gce = order.spec.resources.gce or GceResources()
    place = ProjectRegion.of(order.offering.region or "")
    if order.offering.queued and order.nodes > 1:
        # Google places these machines close together by itself, and takes no placement policy.
        properties = _overridden(order, _properties(order, place, gce, None, _BARE), gce)
        return flex_group.build(order, place, properties, partial(request_id, order))
    found: list[HttpRequest] = []
    policy = gce.placement_policy
    if policy is None and order.nodes > 1 and _may_be_compact(order.offering.machine, order.nodes):
        policy = names.base(order)
        found.append(_policy(order, place, policy))
    found.append(_one(order, place, gce, policy) if order.nodes == 1 else _gang(order, place, gce, policy))
    return tuple(found)


def _may_be_compact(machine: str, nodes: int) -> bool:
    """Return whether so many machines of this type can have one compact placement policy."""
    return _COMPACT.match(machine) is not None and (nodes <= _MOST_COMPACT or machine.startswith(("a3-", "a4-")))


def request_id(order: LaunchOrder, purpose: str = "") -> str:
    """The id of a claim's request: the same for every governor that finishes the claim, and unique in the project."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{order.store}\0{order.token}\0{purpose}"))


def find_image(spec: Spec, offering: Offering) -> images.GceImage:
    arch = catalog.facts(offering.machine).arch
    wanted = spec.resources.image
    return images.find(wanted, arch) if wanted else images.default(arch, offering.gpus, offering.gpu)


def disk_note(spec: Spec, offering: Offering, inputs_bytes: int) -> str:
    """The line of the plan that says on which disk of such a machine a node's folders lie."""
    size = boot_disk_gb(spec, offering, inputs_bytes)
    room = "as large as its image" if size is None else f"{size} GB"
    machine = catalog.facts(offering.machine)
    own_disks = uses_local_ssd(spec, offering, inputs_bytes)
    return node_disks.plan_note(machine, f"the boot disk of {machine.name}, {room}", own_disks=own_disks)


# ── Checks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check(spec: Spec) -> None:
    """Raise UserError for what Compute Engine would refuse, or what would remove a machine from Stoker's control."""
    labels.check(spec.written_tags)
    resources = spec.resources
    for region in resources.regions:
        places.check_region(short_region(region), resources.in_region(region).zones)
    _check_links(resources)
    if resources.image:
        images.find(resources.image, "x86_64")
        if not catalog.is_tpu(resources.gpus.name if resources.gpus else ""):
            image_info.check_driver(spec, images.PLAIN)
    gce = resources.gce or GceResources()
    if gce.project:
        places.check_project(gce.project)
    identity.check(gce)
    cards.check(spec)
    if resources.spot == "only" and gce.reservation not in (None, "none"):
        raise UserError("resources.gce.reservation: holds standard machines; set resources.spot to false")
    log = spec.logs.cloud_logging
    if log is not None and not is_log(log):
        raise UserError(f"logs.cloud_logging: {log!r} is no name of a log; it takes letters, digits and _ - / .")
    reservations.check(resources)
    flex_start.check(spec)
    tpu.check(spec)
    overrides.check(gce.overrides, spec.nodes)
    disk_sizes.check(resources)


def _check_links(resources: Resources) -> None:
    """Raise UserError for a link to something in one region, if the job names several."""
    gce = resources.gce
    if gce is None or not resources.names_several:
        return
    links = (("network", gce.network), *(("gpu_networks", each) for each in gce.gpu_networks))
    for field, link in (*links, ("placement_policy", gce.placement_policy)):
        if link is not None and "/regions/" in f"/{link}":
            own = link.rpartition("/")[2]
            name = own if field == "placement_policy" else f"subnet:{own}"
            raise UserError(
                f"resources.gce.{field}: {link} is in one region, and the job may run in "
                f"{' and '.join(map(short_region, resources.regions))}; write {name}, and have one in each"
            )


# ── The machines ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _one(order: LaunchOrder, place: ProjectRegion, gce: GceResources, policy: str | None) -> HttpRequest:
    zone = order.offering.zone or next(iter(places.zones_of(place.region)), f"{place.region}-a")
    project = f"projects/{place.project}"
    links = {
        "machineTypes": f"{project}/zones/{zone}/machineTypes/",
        "diskTypes": f"{project}/zones/{zone}/diskTypes/",
        "acceleratorTypes": f"{project}/zones/{zone}/acceleratorTypes/",
        "resourcePolicies": f"{project}/regions/{place.region}/resourcePolicies/",
    }
    body = {"name": names.machine(order, 0), **_properties(order, place, gce, policy, links)}
    if order.offering.queued:
        body["params"] = {"requestValidForDuration": {"seconds": str(flex_start.queue_s(order))}}
    path = f"{_API}/{project}/zones/{zone}/instances?requestId={request_id(order)}"
    return HttpRequest(SERVICE, "POST", path, _overridden(order, body, gce), str(place))


def _gang(order: LaunchOrder, place: ProjectRegion, gce: GceResources, policy: str | None) -> HttpRequest:
    properties = _properties(order, place, gce, policy, _BARE)
    body = {
        "count": str(order.nodes),
        "minCount": str(order.nodes),
        "perInstanceProperties": {name: {} for name in names.machines(order)},
        "instanceProperties": _overridden(order, properties, gce),
        "locationPolicy": _location(order, place),
    }
    path = f"{_API}/projects/{place.project}/regions/{place.region}/instances/bulkInsert?requestId={request_id(order)}"
    return HttpRequest(SERVICE, "POST", path, body, str(place))


def _overridden(order: LaunchOrder, body: Mapping[str, Any], gce: GceResources) -> dict[str, Any]:
    """Merge the job's overrides into a request. Disks that the overrides add get Stoker's labels as well, by which
    disks that were left behind are found."""
    found = request_overrides.merge_overrides(body, gce.overrides, _IDENTITIES)
    found["disks"] = [
        request_overrides.merge_overrides(disk, {"initializeParams": {"labels": labels.of_order(order)}}, _IDENTITIES)
        if disk.get("initializeParams")
        else disk
        for disk in found["disks"]
    ]
    return found


def _location(order: LaunchOrder, place: ProjectRegion) -> dict[str, Any]:
    """Allow the offering's zone alone: another zone is another offering, with a claim of its own. Zones that are not
    denied are allowed, so that all others are named."""
    found: dict[str, Any] = {"targetShape": "ANY_SINGLE_ZONE"}
    if order.offering.zone:
        others = (zone for zone in places.zones_of(place.region) if zone != order.offering.zone)
        found["locations"] = {
            f"zones/{order.offering.zone}": {"preference": "ALLOW"},
            **{f"zones/{zone}": {"preference": "DENY"} for zone in others},
        }
    return found


def _properties(
    order: LaunchOrder, place: ProjectRegion, gce: GceResources, policy: str | None, links: Mapping[str, str]
) -> dict[str, Any]:
    """The properties of every machine of the order. `links` are prefixes for the names of zonal and regional
    resources."""
    base, accelerator, count = catalog.split_name(order.offering.machine)
    image = find_image(order.spec, order.offering)
    found: dict[str, Any] = {
        "machineType": links["machineTypes"] + base,
        "labels": labels.of_order(order),
        "metadata": {"items": _metadata(order, image)},
        "disks": [_disk(order, image, links["diskTypes"])],
        "networkInterfaces": cards.interfaces(order.offering.machine, place, gce),
        "serviceAccounts": [identity.account(place.project, gce)],
        "scheduling": _scheduling(order),
    }
    if accelerator is not None:
        kind = links["acceleratorTypes"] + accelerator
        found["guestAccelerators"] = [{"acceleratorType": kind, "acceleratorCount": count}]
    if policy is not None:
        found["resourcePolicies"] = [policy if "/" in policy else links["resourcePolicies"] + policy]
    if order.offering.queued:
        found["reservationAffinity"] = _reservation("none")
    elif gce.reservation is not None and not order.offering.spot:
        found["reservationAffinity"] = _reservation(reservations.name_of(gce.reservation))
    return found


def _metadata(order: LaunchOrder, image: images.GceImage) -> list[dict[str, str]]:
    items = [
        {"key": "startup-script", "value": startup.startup_script(order)},
        {"key": "shutdown-script", "value": startup.shutdown_script()},
    ]
    if order.offering.spot:
        # The metadata server does not report the length of the promised notice, so that the request repeats it here.
        items.append({"key": NOTICE_ATTRIBUTE, "value": str(_NOTICE_S)})
    if order.offering.gpus and image.installs_driver:
        items.append({"key": "install-nvidia-driver", "value": "True"})
    return items


def _disk(order: LaunchOrder, image: images.GceImage, link: str) -> dict[str, Any]:
    kind = "hyperdisk-balanced" if _HYPERDISK.match(order.offering.machine) else "pd-balanced"
    made: dict[str, Any] = {
        "sourceImage": image.source,
        "diskType": link + kind,
        "labels": labels.of_order(order),
    }
    size_gb = boot_disk_gb(order.spec, order.offering, order.inputs_bytes)
    if size_gb is not None:
        made["diskSizeGb"] = str(size_gb)
    return {"boot": True, "autoDelete": True, "type": "PERSISTENT", "mode": "READ_WRITE", "initializeParams": made}


def boot_disk_gb(spec: Spec, offering: Offering, inputs_bytes: int) -> int | None:
    """The size of the boot disk: what the job asks for, or what it needs beside the image. None for the image's own."""
    if spec.resources.disk_bytes is not None:
        return disk_size(spec.resources.disk_bytes)
    if tpu.slice_of(offering.machine) is not None:
        return tpu.DISK_GB
    own_disks = uses_local_ssd(spec, offering, inputs_bytes)
    beside = node_disks.beside_image_gib(spec, inputs_bytes, own_disks=own_disks)
    image = find_image(spec, offering).gib
    return image + beside if image is not None and beside else None


def uses_local_ssd(spec: Spec, offering: Offering, inputs_bytes: int) -> bool:
    """Return whether the node's folders are on the Local SSD that belongs to the machine type."""
    gce = spec.resources.gce
    taken = gce is not None and bool(gce.overrides.get("disks"))
    return not taken and node_disks.on_own_disks(catalog.facts(offering.machine), spec, inputs_bytes)


def _scheduling(order: LaunchOrder) -> dict[str, Any]:
    found: dict[str, Any] = {"automaticRestart": False}
    machine = catalog.facts(order.offering.machine)
    if order.offering.spot:
        found |= {
            "provisioningModel": "SPOT",
            "preemptible": True,
            "onHostMaintenance": "TERMINATE",
            "instanceTerminationAction": "DELETE",
            "preemptionNoticeDuration": {"seconds": str(_NOTICE_S)},
        }
    elif order.offering.queued:
        found |= {"provisioningModel": "FLEX_START", "onHostMaintenance": "TERMINATE"}
    elif reservations.is_calendar(order.spec.resources):
        # It lives as long as its reservation, which is paid for whether it is used or not.
        return found | {
            "provisioningModel": "RESERVATION_BOUND",
            "onHostMaintenance": "TERMINATE",
            "instanceTerminationAction": "DELETE",
        }
    else:
        # A machine type that is sold by reservation alone lives as long as its reservation.
        found["provisioningModel"] = "STANDARD" if machine.standard else "RESERVATION_BOUND"
        migrates = machine.gpu is None and not _TERMINATED.match(machine.name)
        found["onHostMaintenance"] = "MIGRATE" if migrates else "TERMINATE"
    if order.max_life_s is not None:
        least, most = _LIFE_S
        life_s = min(most, max(least, math.ceil(order.max_life_s)))
        found |= {"maxRunDuration": {"seconds": str(life_s)}, "instanceTerminationAction": "DELETE"}
    return found


def _reservation(name: str) -> dict[str, Any]:
    if name in ("any", "none"):
        return {"consumeReservationType": "ANY_RESERVATION" if name == "any" else "NO_RESERVATION"}
    key = "compute.googleapis.com/reservation-name"
    return {"consumeReservationType": "SPECIFIC_RESERVATION", "key": key, "values": [name]}


def _policy(order: LaunchOrder, place: ProjectRegion, name: str) -> HttpRequest:
    """A compact placement policy. Policies have no labels: the description names the owner."""
    body = {
        "name": name,
        "description": owners.describe(owners.Owner.of_order(order)),
        "groupPlacementPolicy": {"collocation": "COLLOCATED"},
    }
    where = f"projects/{place.project}/regions/{place.region}/resourcePolicies"
    return HttpRequest(SERVICE, "POST", f"{_API}/{where}?requestId={request_id(order, 'policy')}", body, str(place))
