"""Whether security groups can be used, and let the nodes of a job reach each other. Pure: groups as EC2 tells them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from stoker.model.errors import InvalidRequest

# All traffic between nodes, the one port alone, or not even that.
Open = Literal["all", "port", "closed"]

_ALL_PORTS = (0, 65535)


def check_home(groups: Sequence[Mapping[str, Any]], vpc: str) -> None:
    """Raise InvalidRequest for a group that is not in the subnet's VPC, as EC2 would at the launch."""
    for group in groups:
        if group.get("VpcId", vpc) != vpc:
            where = f"{group['GroupId']} is in {group['VpcId']}, and the subnet in {vpc}"
            raise InvalidRequest(f"resources.ec2.security_groups: {where}")


def openness(groups: Sequence[Mapping[str, Any]], port: int, network: str | None) -> Open:
    """What machines that are in all of these groups let in from one another. `network` is the subnet they are in."""
    names = {str(group["GroupId"]) for group in groups}
    rules = [rule for group in groups for rule in group.get("IpPermissions", ()) if _from_nodes(rule, names, network)]
    if any(_covers(rule, _ALL_PORTS) for rule in rules):
        return "all"
    return "port" if any(_covers(rule, (port, port)) for rule in rules) else "closed"


def _from_nodes(rule: Mapping[str, Any], names: set[str], network: str | None) -> bool:
    """Whether a rule is about connections that come from another node."""
    if any(pair.get("GroupId") in names for pair in rule.get("UserIdGroupPairs", ())):
        return True
    return network is not None and _within(network, (each.get("CidrIp", "") for each in rule.get("IpRanges", ())))


def _within(network: str, ranges: Iterable[str]) -> bool:
    inner = ipaddress.IPv4Network(network)
    return any(inner.subnet_of(ipaddress.IPv4Network(each, strict=False)) for each in ranges if each)


def _covers(rule: Mapping[str, Any], ports: tuple[int, int]) -> bool:
    if rule.get("IpProtocol") == "-1":
        return True
    first, last = rule.get("FromPort"), rule.get("ToPort")
    if rule.get("IpProtocol") not in ("tcp", "6") or first is None or last is None:
        return False
    return bool(first <= ports[0] and ports[1] <= last)
