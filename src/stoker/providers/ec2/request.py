"""Build requests to EC2, as data and purely.

A gang is one RunInstances with MinCount = MaxCount = nodes: it is launched completely or not at all. The rank of a node
is its launch index, which its metadata contain from the start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from stoker.cloudapi.aws.logs import is_group
from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.resources import Ec2Resources, Resources
from stoker.model.spec import Spec
from stoker.providers import image_info, request_overrides
from stoker.providers.base import LaunchOrder, Request
from stoker.providers.ec2 import (
    catalog,
    efa,
    image_lookup,
    images,
    overrides,
    places,
    reservations,
    role_names,
    root_volume,
    several_regions,
    subnets,
    tags,
    userdata,
)

_TOKEN_LENGTH = 64
# A container on the machine is one network hop further from the metadata service than the machine itself.
_METADATA_HOPS = 2

# Fields that overrides must not change: the machine would have no owner, be made twice, or outlive its job.
_PROTECTED = (
    "ClientToken",
    "DisableApiTermination",
    "DryRun",
    "ImageId",
    "InstanceInitiatedShutdownBehavior",
    "InstanceMarketOptions",
    "InstanceType",
    "LaunchTemplate",
    "MaxCount",
    "MetadataOptions.HttpEndpoint",
    "MinCount",
    "Placement.AvailabilityZone",
    "Placement.AvailabilityZoneId",
    "UserData",
)


def build(order: LaunchOrder) -> tuple[Request, ...]:
    """All requests to EC2 for one claim, in order. Pure: the same order gives the same requests."""
    spec = order.spec
    ec2 = spec.resources.ec2 or Ec2Resources()
    region = order.offering.region
    image = find_image(spec, order.offering)
    found: list[Request] = []
    group = ec2.placement_group
    if group is None and _wants_group(order) and not overrides.names_group(ec2.overrides):
        group = group_name(order)
        found.append(Request("ec2", "CreatePlacementGroup", _group(order, group), region))
    if image.id is None or image.root is None:
        arch = catalog.facts(order.offering.machine).arch
        found.append(Request("ec2", "DescribeImages", image_lookup.params(image, arch), region))
    if _looks_up_subnet(spec.resources):
        found.append(Request("ec2", "DescribeSubnets", subnets.params(ec2.subnet, order.offering.zone), region))
    if spec.resources.names_several and ec2.security_groups:
        asked = several_regions.filter_by("group-id", ec2.security_groups)
        found.append(Request("ec2", "DescribeSecurityGroups", asked, region))
    params = _run(order, ec2, image, group)
    found.append(Request("ec2", "RunInstances", overrides.merge(params, ec2.overrides), region))
    return tuple(found)


def check(spec: Spec) -> None:
    """Raise UserError for a spec that EC2 would refuse, or that would put a machine out of Stoker's control."""
    tags.check(spec.written_tags)
    for region in spec.resources.regions:
        places.check(region, spec.resources.in_region(region).zones)
    several_regions.check(spec.resources)
    if spec.resources.image:
        images.find(spec.resources.image, "x86_64")
        image_info.check_driver(spec, images.PLAIN)
    ec2 = spec.resources.ec2 or Ec2Resources()
    for name in _PROTECTED:
        if request_overrides.reaches(ec2.overrides, name):
            raise UserError(f"resources.ec2.overrides.{name}: {_instead(name)}")
    if not isinstance(ec2.overrides.get("TagSpecifications", []), list):
        raise UserError("resources.ec2.overrides.TagSpecifications: must be a list, as RunInstances takes it")
    keys = [tag.get("Key") for each in _specifications(ec2.overrides) for tag in each.get("Tags") or ()]
    for key in keys:
        if isinstance(key, str) and key.startswith("stoker:"):
            raise UserError(f"resources.ec2.overrides.TagSpecifications: {key} is Stoker's own; leave it out")
    overrides.check(ec2.overrides)
    root_volume.check(spec)
    # "If you specify a network interface, you must specify any security groups as part of the network interface instead
    # of using this parameter" (RunInstances, SecurityGroups), and an interface takes ids alone.
    if (ec2.efa or ec2.public_ip is not None) and "SecurityGroups" in ec2.overrides:
        field = "efa" if ec2.efa else "public_ip"
        raise UserError(
            f"resources.ec2.overrides.SecurityGroups: EC2 takes no names of groups with resources.ec2.{field}; "
            "write SecurityGroupIds or resources.ec2.security_groups"
        )
    group = spec.logs.cloudwatch
    if group is not None and not is_group(group):
        raise UserError(f"logs.cloudwatch: {group!r} is no name of a log group; it takes letters, digits and _ - / . #")
    reservations.check_name(ec2.reservation)
    if spec.resources.spot == "only" and ec2.reservation:
        raise UserError("resources.ec2.reservation: holds on-demand machines; set resources.spot to false")


def _instead(name: str) -> str:
    """The advice for a protected field."""
    return "is set by resources.image; write it there" if name == "ImageId" else "is Stoker's own; leave it out"


def token(order: LaunchOrder) -> str:
    """The client token: the same for every governor that repeats this claim's launch, and unique in the account.

    EC2 stores tokens by zone if a request names one. A claim has one offering, so it always asks in the same zone.
    https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html
    """
    digest = hashlib.sha256(f"{order.store}\0{order.token}".encode()).hexdigest()
    # Readable at the front, unique by the digest.
    return f"{order.token[: _TOKEN_LENGTH - 33]}-{digest[:32]}"


def group_name(order: LaunchOrder) -> str:
    """The placement group of one claim."""
    return f"stoker-{token(order)}"


def find_image(spec: Spec, offering: Offering) -> images.Ec2Image:
    arch = catalog.facts(offering.machine).arch
    wanted = spec.resources.image
    return images.find(wanted, arch) if wanted else images.default(arch, offering.gpus, offering.gpu)


def _specifications(params: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = params.get("TagSpecifications")
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


# ── The machines ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _run(order: LaunchOrder, ec2: Ec2Resources, image: images.Ec2Image, group: str | None) -> dict[str, Any]:
    params: dict[str, Any] = {
        "ImageId": image.id or image_lookup.IMAGE_ID,
        "InstanceType": order.offering.machine,
        "MinCount": order.nodes,
        "MaxCount": order.nodes,
        "ClientToken": token(order),
        "UserData": userdata.render(userdata.settings_of(order)),
        "IamInstanceProfile": _profile(ec2.profile or role_names.node_role(order.store)),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": _METADATA_HOPS,
            "InstanceMetadataTags": "enabled",
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": image.root or image_lookup.ROOT_DEVICE,
                "Ebs": root_volume.ebs(order, image),
            }
        ],
        "TagSpecifications": _tagged(order),
    }
    placement: dict[str, Any] = {}
    # A subnet determines the zone.
    if order.offering.zone and not ec2.subnet:
        placement["AvailabilityZone"] = order.offering.zone
    if group is not None:
        placement["GroupName"] = group
    if placement:
        params["Placement"] = placement
    params |= _market(order, ec2)
    params |= _network(order, ec2)
    if ec2.key:
        params["KeyName"] = ec2.key
    return params


def _tagged(order: LaunchOrder) -> list[dict[str, Any]]:
    # A single machine gets its full name at once; the machines of a gang are renamed right after the launch.
    named = tags.to_aws(tags.of_order(order, 0 if order.nodes == 1 else None))
    kinds = ["instance", "volume", "network-interface", *(["spot-instances-request"] if order.offering.spot else [])]
    return [{"ResourceType": kind, "Tags": named} for kind in kinds]


def _market(order: LaunchOrder, ec2: Ec2Resources) -> dict[str, Any]:
    if order.offering.spot:
        options: dict[str, Any] = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        if order.spec.resources.max_price is not None:
            options["MaxPrice"] = f"{order.spec.resources.max_price:g}"
        return {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": options}}
    reservation = ec2.reservation
    if reservation is None:
        return {}
    name = reservation.removeprefix("block:")
    block = name != reservation
    if name.startswith("arn:"):
        target = {"CapacityReservationResourceGroupArn": name}
    elif name.startswith("cr-"):
        target = {"CapacityReservationId": name}
    else:
        return {"CapacityReservationSpecification": {"CapacityReservationPreference": name}}
    found: dict[str, Any] = {"CapacityReservationSpecification": {"CapacityReservationTarget": target}}
    if block:
        found["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    return found


def _network(order: LaunchOrder, ec2: Ec2Resources) -> dict[str, Any]:
    """Plain fields if possible; network interfaces if EC2 requires them."""
    resources = order.spec.resources
    groups = [several_regions.GROUP_IDS] if resources.names_several and ec2.security_groups else [*ec2.security_groups]
    subnet = subnets.SUBNET_ID if _looks_up_subnet(resources) else next(iter(ec2.subnet), None)
    if not ec2.efa and ec2.public_ip is None:
        found: dict[str, Any] = {"SubnetId": subnet} if subnet else {}
        return found | ({"SecurityGroupIds": groups} if groups else {})
    machine = catalog.facts(order.offering.machine)
    layout = efa.layout(machine) if ec2.efa else (efa.Interface(0, 0, "interface"),)
    interfaces = []
    for each in layout:
        interface: dict[str, Any] = {"DeviceIndex": each.device, "DeleteOnTermination": True}
        if ec2.efa:
            interface |= {"InterfaceType": each.type, "NetworkCardIndex": each.card}
        if subnet:
            interface["SubnetId"] = subnet
        if groups:
            interface["Groups"] = groups
        # "You cannot specify more than one network interface in the request" (AssociatePublicIpAddress).
        if ec2.public_ip is not None and len(layout) == 1:
            interface["AssociatePublicIpAddress"] = ec2.public_ip
        interfaces.append(interface)
    return {"NetworkInterfaces": interfaces}


def _looks_up_subnet(resources: Resources) -> bool:
    """Return whether only EC2 can tell which of the job's subnets a launch uses."""
    named = resources.ec2.subnet if resources.ec2 else ()
    return len(named) > 1 or bool(named and resources.names_several)


def _profile(name: str) -> dict[str, str]:
    return {"Arn": name} if name.startswith("arn:") else {"Name": name}


# ── Around them ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _wants_group(order: LaunchOrder) -> bool:
    return order.nodes > 1 and catalog.facts(order.offering.machine).clusters


def _group(order: LaunchOrder, name: str) -> dict[str, Any]:
    tagged = [{"ResourceType": "placement-group", "Tags": tags.to_aws(tags.of_order(order, None))}]
    return {"GroupName": name, "Strategy": "cluster", "TagSpecifications": tagged}
