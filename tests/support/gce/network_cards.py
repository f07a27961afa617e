"""The network cards that a launch asks for, held against what its machine type has and the project's networks."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.gce.catalog import CARDS, GPU_NETWORKS, GVNIC_FAMILIES, MachineType
from tests.support.gce.errors import Json, bad_request, invalid
from tests.support.gce.links import Links, partial, region_of, tail


@dataclass(frozen=True)
class Cards:
    """Makes the cards of a machine in one zone. `field` is where the request describes the machine."""

    project: str
    zone: str
    links: Links
    field: str

    def made(self, request: Json, machine: MachineType) -> list[Json]:
        """Raises Failure (400). "Each NIC must be in a different VPC network", but those for RDMA."""
        asked = request.get("networkInterfaces") or []
        at = f"{self.field}.networkInterfaces"
        if not asked:
            raise invalid(at, 0, "At least one network interface is required.")
        most = CARDS.get(machine.name, {"GVNIC": 1, "VIRTIO_NET": 1})
        kinds = [card.get("nicType", "VIRTIO_NET") for card in asked]
        if machine.family in GVNIC_FAMILIES and "VIRTIO_NET" in kinds:
            raise invalid(f"{at}.nicType", kinds, f"{machine.name} requires GVNIC.")
        if (len(asked) > 1 and machine.name not in CARDS) or any(
            kinds.count(kind) > most.get(kind, 0) for kind in kinds
        ):
            raise invalid(at, kinds, f"{machine.name} does not support so many network interfaces of these types.")
        found = [self._card(card, index) for index, card in enumerate(asked)]
        taken = [each["network"] for each, kind in zip(found, kinds, strict=True) if kind != "MRDMA"]
        if len(set(taken)) < len(taken):
            raise invalid(at, taken, "Networks must be distinct for NICs attached to a VM.")
        return found

    def _card(self, card: Json, index: int) -> Json:
        region, home = region_of(self.zone), f"projects/{self.project}"
        at = f"{self.field}.networkInterfaces[{index}]"
        # A network whose subnetworks Google did not make itself is named by one of them.
        networks = [f"{home}/global/networks/default"]
        below = {each: name for name, subnetworks in GPU_NETWORKS.items() for each in subnetworks} | {
            "default": "default"
        }
        subnetworks = [f"{home}/regions/{region}/subnetworks/{each}" for each in below]
        for name, paths in (("network", networks), ("subnetwork", subnetworks)):
            if name in card and partial(card[name], self.project) not in paths:
                raise invalid(f"{at}.{name}", card[name], f"The referenced {name} resource cannot be found.")
        if "network" not in card and "subnetwork" not in card:
            raise invalid(f"{at}.network", "", "A network or subnetwork is required.")
        subnetwork = tail(card.get("subnetwork", "default"))
        configs = card.get("accessConfigs") or []
        if len(configs) > 1:
            raise bad_request("At most one access config currently supported.", "invalid")
        return {
            "kind": "compute#networkInterface",
            "name": f"nic{index}",
            "network": self.links.to(f"{home}/global/networks/{below[subnetwork]}"),
            "subnetwork": self.links.to(f"{home}/regions/{region}/subnetworks/{subnetwork}"),
            "stackType": "IPV4_ONLY",
            **({"nicType": card["nicType"]} if "nicType" in card else {}),
            **({"accessConfigs": [_access(config) for config in configs]} if configs else {}),
        }


def _access(config: Json) -> Json:
    if config.get("type", "ONE_TO_ONE_NAT") != "ONE_TO_ONE_NAT":
        raise bad_request(f"Access configs of type {config['type']} are not for IPv4.", "invalid")
    return {
        "kind": "compute#accessConfig",
        "type": "ONE_TO_ONE_NAT",
        "name": config.get("name", "external-nat"),
        "networkTier": config.get("networkTier", "PREMIUM"),
    }
