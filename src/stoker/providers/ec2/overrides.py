"""A job's overrides of a request to AWS: checked against botocore's description of the call, and merged into it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from stoker.model.errors import UserError
from stoker.providers import request_overrides

# Lists whose members have an identifying field.
_IDENTITIES = {"TagSpecifications": "ResourceType", "Tags": "Key", "BlockDeviceMappings": "DeviceName"}
# Sections of which EC2 takes one form or the other. An override replaces them whole.
_EITHER_OR = ("CapacityReservationSpecification", "IamInstanceProfile")
# "If you specify a network interface, you must specify any subnets as part of the network interface instead of using
# this parameter" (RunInstances, SubnetId), and so with these: the field of each interface, or of the first alone.
_OF_INTERFACES = {"SubnetId": "SubnetId", "SecurityGroupIds": "Groups"}
_OF_THE_FIRST = {
    "PrivateIpAddress": "PrivateIpAddress",
    "Ipv6AddressCount": "Ipv6AddressCount",
    "Ipv6Addresses": "Ipv6Addresses",
    "EnablePrimaryIpv6": "PrimaryIpv6",
}
_CARDS = "NetworkInterfaces"
# A machine on a dedicated host cannot be in a placement group.
_HOSTS = ("HostId", "HostResourceGroupArn")


def check(
    overrides: Mapping[str, Any],
    where: str = "resources.ec2.overrides",
    service: str = "ec2",
    operation: str = "RunInstances",
) -> None:
    """Raise UserError for a field that the call does not have, or a value that it does not accept.

    Without botocore nothing is checked: AWS itself will refuse.
    """
    if not overrides or importlib.util.find_spec("botocore") is None:
        return
    shape = _input(service, operation)
    for problem in _problems(operation, where, overrides, shape):
        raise UserError(problem)
    from botocore.validate import ParamValidator

    if operation == "RunInstances":
        _check_combined(overrides, where)
    report: str = ParamValidator().validate(overrides, shape).generate_report()
    # Fields that are missing here are in the request that the overrides are merged into.
    wrong = [line for line in report.splitlines() if line and not line.startswith("Missing required")]
    if wrong:
        raise UserError(f"{where}: {wrong[0][:1].lower()}{wrong[0][1:]}")


def merge(params: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of RunInstances with the overrides merged in, field by field; overrides win.

    A list replaces a list, but tags and disks are merged one by one. Where EC2 takes one of two forms, only that of the
    override is sent: a job that writes its network interfaces is sent without a subnet beside them.
    """
    before = {name: value for name, value in params.items() if name not in _EITHER_OR or name not in overrides}
    if "SecurityGroups" in overrides:
        before.pop("SecurityGroupIds", None)
    if isinstance(before.get("Placement"), Mapping):
        ruled_out = {"GroupName"} if _group_of(overrides) else set()
        # A subnet determines the zone.
        ruled_out |= {"AvailabilityZone"} if _names_subnet(overrides) else set()
        before["Placement"] = {key: to for key, to in before["Placement"].items() if key not in ruled_out}
    if "BlockDeviceMappings" in before:
        before["BlockDeviceMappings"] = _without_conflicts(before, overrides)
    merged = request_overrides.merge_overrides(before, overrides, _IDENTITIES)
    if not merged.get("Placement", True):
        del merged["Placement"]
    return _within_interfaces(merged) if merged.get(_CARDS) else merged


def names_group(overrides: Mapping[str, Any]) -> bool:
    """Return True if machines with these overrides cannot be in a placement group of Stoker's own."""
    placement = overrides.get("Placement")
    if "Placement" in overrides and not isinstance(placement, Mapping):
        return True
    return _group_of(overrides) or _on_host(placement or {})


def maps_instance_store(overrides: Mapping[str, Any]) -> bool:
    """Return True if the overrides name an instance disk (`VirtualName: ephemeral0`): the job uses them itself."""
    disks = overrides.get("BlockDeviceMappings") or ()
    return any(isinstance(each, Mapping) and "VirtualName" in each for each in disks)


def _group_of(overrides: Mapping[str, Any]) -> bool:
    return any(request_overrides.reaches(overrides, f"Placement.{name}") for name in ("GroupName", "GroupId"))


def _names_subnet(overrides: Mapping[str, Any]) -> bool:
    cards = overrides.get(_CARDS) or ()
    named = any(isinstance(card, Mapping) and {"SubnetId", "NetworkInterfaceId"} & set(card) for card in cards)
    return "SubnetId" in overrides or named


def _on_host(placement: Mapping[str, Any]) -> bool:
    return placement.get("Tenancy") == "host" or any(name in placement for name in _HOSTS)


def _without_conflicts(params: Mapping[str, Any], overrides: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The disks of the request without the fields that an override of the same disk rules out."""
    written = overrides.get("BlockDeviceMappings") or ()
    wanted = {each.get("DeviceName"): each for each in written if isinstance(each, Mapping)}
    found = []
    for disk in params.get("BlockDeviceMappings", ()):
        theirs = wanted.get(disk.get("DeviceName"), {})
        ebs = dict(disk.get("Ebs", {}))
        if (theirs.get("Ebs") or {}).get("VolumeType", "gp3") != "gp3":
            # "This parameter is valid only for gp3 volumes" (Throughput). The default Iops are meant for gp3, too.
            ebs = {name: value for name, value in ebs.items() if name not in ("Throughput", "Iops")}
        iops = (theirs.get("Ebs") or {}).get("Iops")
        if isinstance(iops, int) and "Throughput" in ebs:
            # EC2 refuses a throughput that the operations do not allow, and this one is only a default.
            ebs["Throughput"] = min(ebs["Throughput"], max(125, iops // 4))
        # "When this property is specified, the device is removed from the block device mapping" (NoDevice).
        alone = "NoDevice" in theirs or "VirtualName" in theirs
        found.append({key: value for key, value in disk.items() if key != "Ebs"} | ({} if alone else {"Ebs": ebs}))
    return found


def _within_interfaces(params: Mapping[str, Any]) -> dict[str, Any]:
    """Move what EC2 takes from the request or from its network interfaces into the interfaces, where they lack it."""
    outer = {**_OF_INTERFACES, **_OF_THE_FIRST}
    cards = []
    for card in params[_CARDS]:
        first = card.get("DeviceIndex", 0) == 0 and card.get("NetworkCardIndex", 0) == 0
        moved = {**_OF_INTERFACES, **(_OF_THE_FIRST if first else {})}
        given = {field: params[name] for name, field in moved.items() if name in params}
        # An interface that exists already has its subnet and groups.
        cards.append(dict(card) if "NetworkInterfaceId" in card else given | dict(card))
    return {name: value for name, value in params.items() if name not in outer} | {_CARDS: cards}


def _check_combined(overrides: Mapping[str, Any], where: str) -> None:
    """Raise UserError for overrides that contradict each other."""
    beside = [name for name in (*_OF_INTERFACES, *_OF_THE_FIRST, "SecurityGroups") if name in overrides]
    if overrides.get(_CARDS) and beside:
        raise UserError(f"{where}.{beside[0]}: EC2 takes no {beside[0]} beside {_CARDS}; write it in each of them")
    for section in _EITHER_OR:
        written = overrides.get(section)
        if isinstance(written, Mapping) and len(written) > 1:
            raise UserError(f"{where}.{section}: EC2 takes one of {' and '.join(sorted(written))}; leave one out")


def _problems(operation: str, where: str, value: Any, shape: Any) -> Iterator[str]:
    """Unknown names, and values that should be lists or mappings: botocore's messages about them are less clear."""
    if shape.type_name == "list":
        if not isinstance(value, list):
            yield f"{where}: must be a list, as {operation} takes it"
            return
        for place, each in enumerate(value):
            yield from _problems(operation, f"{where}[{place}]", each, shape.member)
    elif shape.type_name == "structure":
        if not isinstance(value, Mapping):
            yield f"{where}: must be a mapping, as {operation} takes it"
            return
        for name, inner in value.items():
            if name in shape.members:
                yield from _problems(operation, f"{where}.{name}", inner, shape.members[name])
                continue
            close = get_close_matches(str(name), shape.members, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            yield f"{where}.{name}: {operation} has no such field{hint}"


@lru_cache(maxsize=4)
def _input(service: str, operation: str) -> Any:
    from botocore.loaders import create_loader
    from botocore.model import ServiceModel

    described = create_loader().load_service_model(service, "service-2")
    return ServiceModel(described, service).operation_model(operation).input_shape
