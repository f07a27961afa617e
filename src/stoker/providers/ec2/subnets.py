"""The subnets that a job names: each is in one zone, and a machine is launched in the one that suits its zone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.model.errors import InvalidRequest, UserError
from stoker.model.resources import Resources
from stoker.providers.ec2 import network_check, several_regions
from stoker.providers.ec2.client import pages
from stoker.providers.ec2.errors import call_aws

_FIELD = several_regions.SUBNETS_FIELD
# A placeholder for the subnet that only EC2 can tell: `filled` replaces it.
SUBNET_ID = "(the subnet of that zone with free addresses)"


def restrict(ec2: Any, resources: Resources) -> Resources:
    """Restrict the zones to those of the job's subnets. Raises UserError for a subnet that machines cannot use.

    Of a job in several regions, subnets of another region are passed over.
    """
    named = resources.ec2.subnet if resources.ec2 else ()
    if resources.ec2 is None or not named:
        return resources
    found = {each["SubnetId"]: each for each in _described(ec2, resources)}
    if not found:
        region = resources.only_region
        problem = f"none of {', '.join(dict.fromkeys(named))} is in {region}"
        raise UserError(f"{_FIELD}: {problem}; name one there, or leave {region} out of resources.region")
    for each in found.values():
        if problem := network_check.ipv6_problem(each):
            raise UserError(f"{_FIELD}: {problem}")
        zone = each["AvailabilityZone"]
        if resources.zones and zone not in resources.zones:
            raise UserError(f"resources.zones: {each['SubnetId']} is in {zone}; name that zone, or another subnet")
    _check_networks(found, resources.ec2.security_groups)
    zones = dict.fromkeys(found[name]["AvailabilityZone"] for name in named if name in found)
    return replace(resources, zones=tuple(zones))


def _described(ec2: Any, resources: Resources) -> list[Mapping[str, Any]]:
    """The job's subnets, as EC2 describes them: all of them, or for one of several regions those that are there."""
    named = list(dict.fromkeys(resources.ec2.subnet if resources.ec2 else ()))
    # A filter returns what exists; a request by id fails for an id that does not.
    asked = params(tuple(named), "") if resources.names_several else {"SubnetIds": named}
    return call_aws(_FIELD, lambda: list(pages(ec2.describe_subnets, "Subnets", **asked)))


def _check_networks(found: Mapping[str, Mapping[str, Any]], groups: tuple[str, ...]) -> None:
    """Raise UserError for subnets of several networks if the job names security groups, which are of one network."""
    networks = {each["VpcId"]: name for name, each in found.items()}
    if len(networks) > 1 and groups:
        where = " and ".join(f"{name} is in {network}" for network, name in sorted(networks.items()))
        raise UserError(f"{_FIELD}: {where}, and security groups belong to one VPC; name subnets of one VPC")


def params(named: tuple[str, ...], zone: str) -> dict[str, Any]:
    """The parameters of DescribeSubnets: the job's subnets in this zone; an empty zone: in any."""
    asked = several_regions.filter_by("subnet-id", named)
    if zone:
        asked["Filters"].append({"Name": "availability-zone", "Values": [zone]})
    return asked


def find(ec2: Any, asked: Mapping[str, Any], nodes: int) -> str:
    """The first of the job's subnets with free addresses for all nodes; if none has, that with the most.

    Raises InvalidRequest if none of them is in the zone any more.
    """
    named = asked["Filters"][0]["Values"]
    found = call_aws(_FIELD, lambda: list(pages(ec2.describe_subnets, "Subnets", **asked)))
    if not found:
        raise InvalidRequest(f"{_FIELD}: none of {', '.join(named)} is in the zone of the launch; name one that is")

    def rank(subnet: Mapping[str, Any]) -> tuple[bool, int]:
        free = int(subnet.get("AvailableIpAddressCount", nodes))
        return (free < nodes, named.index(subnet["SubnetId"]) if free >= nodes else -free)

    return str(min(found, key=rank)["SubnetId"])


def filled(asked: Mapping[str, Any], subnet: str) -> dict[str, Any]:
    """The request to launch, with this subnet where the placeholder was. An empty subnet changes nothing."""
    return {key: _filled(value, subnet) for key, value in asked.items()} if subnet else dict(asked)


def _filled(value: Any, subnet: str) -> Any:
    if isinstance(value, list):
        return [_filled(each, subnet) for each in value]
    if isinstance(value, dict):
        return filled(value, subnet)
    return subnet if value == SUBNET_ID else value
