"""The network cards of machines: which kind each has to be, and the networks of those beside the first. Pure.

Machines with many GPUs have cards of their own for the traffic between GPUs. Each is in a network of its own, or, for
RDMA, in a subnetwork of one RDMA network; these networks are made by the project's owner:
https://cloud.google.com/compute/docs/gpus/gpu-network-bandwidth
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from stoker.model.errors import UserError
from stoker.model.resources import GceResources
from stoker.model.spec import Spec
from stoker.providers.gce.places import ProjectRegion

FIELD = "resources.gce.gpu_networks"
Kind = Literal["GVNIC", "MRDMA"]
# The cards beside the first, by machine type. "eight NVIDIA ConnectX-7 (CX7) network interface cards (NICs) and two
# Google virtual NICs (gVNIC)" have A3 Ultra and A4; A3 High has four beside the first, and A3 Mega eight.
_FURTHER: dict[str, tuple[Kind, ...]] = {
    "a3-highgpu-8g": ("GVNIC",) * 4,
    "a3-megagpu-8g": ("GVNIC",) * 8,
    "a3-ultragpu-8g": ("GVNIC", *("MRDMA",) * 8),
    "a4-highgpu-8g": ("GVNIC", *("MRDMA",) * 8),
}
# Machines that take no other card than Google's own.
_GVNIC = re.compile(r"(a[3-9]|ct[5-9][a-z]*|h4d)-")
_NETWORK = re.compile(r"(subnet:)?[a-z]([-a-z0-9]*[a-z0-9])?")


def check(spec: Spec) -> None:
    """Raise UserError for networks that no machine of this job has cards for, and for names that are none."""
    gce = spec.resources.gce
    if gce is None:
        return
    for field, names in (("network", [gce.network] if gce.network else []), ("gpu_networks", gce.gpu_networks)):
        for name in names:
            if "/" not in name and not _NETWORK.fullmatch(name):
                raise UserError(
                    f"resources.gce.{field}: {name!r} is none; give the name of a network, subnet:NAME, or a link"
                )
    for machine in spec.resources.machine if gce.gpu_networks else ():
        most = len(_FURTHER.get(machine, ()))
        if len(gce.gpu_networks) > most:
            beside = f"{most} cards beside its first" if most else "one network card"
            named = len(gce.gpu_networks)
            were = "1 network was" if named == 1 else f"{named} networks were"
            raise UserError(f"{FIELD}: {machine} has {beside}, and {were} named")
    repeated = sorted({name for name in gce.gpu_networks if gce.gpu_networks.count(name) > 1 or name == gce.network})
    if repeated:
        raise UserError(f"{FIELD}: {repeated[0]} is named twice; each network card needs a network of its own")


def remarks(spec: Spec, machines: Sequence[str]) -> tuple[str, ...]:
    """Warn that nodes have cards for the traffic between GPUs which stay unused, in one line for the first machine."""
    gce = spec.resources.gce or GceResources()
    for machine in machines:
        further = len(_FURTHER.get(machine, ()))
        if spec.nodes > 1 and further > len(gce.gpu_networks):
            has = f"{machine} has {further} network cards for the traffic between GPUs"
            return (f"{FIELD}: {has}, of which {further - len(gce.gpu_networks)} stay unused; name a network for each",)
    return ()


def interfaces(machine: str, place: ProjectRegion, gce: GceResources) -> list[dict[str, Any]]:
    """The `networkInterfaces` of a request, the first of which has the public address."""
    first = _interface(place, gce.network or "default")
    if _GVNIC.match(machine):
        first["nicType"] = "GVNIC"
    # Without a public address a machine reaches the bucket only by Private Google Access, and a package index only by a
    # NAT. The default network of a new project has neither.
    if gce.public_ip is not False:
        first["accessConfigs"] = [{"name": "external-nat", "type": "ONE_TO_ONE_NAT"}]
    further = zip(gce.gpu_networks, _FURTHER.get(machine, ()), strict=False)
    return [first, *({**_interface(place, name), "nicType": kind} for name, kind in further)]


def _interface(place: ProjectRegion, network: str) -> dict[str, Any]:
    project = f"projects/{place.project}"
    subnet = network.removeprefix("subnet:")
    if "/subnetworks/" in network:
        return {"subnetwork": network}
    if subnet != network:
        return {"subnetwork": f"{project}/regions/{place.region}/subnetworks/{subnet}"}
    return {"network": network if "/" in network else f"{project}/global/networks/{network}"}
