"""Check the subnet of a job's machines, and whether their security groups let nodes reach each other."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from stoker.model.errors import InvalidRequest, NotFound, ProviderError
from stoker.model.resources import Ec2Resources
from stoker.model.spec import Spec, master_port
from stoker.providers.base import CheckResult
from stoker.providers.check_results import check_ok
from stoker.providers.ec2.errors import call_aws
from stoker.providers.ec2.verdicts import aws_message, fix_of, permission_fix

# All traffic between nodes, the master port alone, or nothing.
Openness = Literal["all", "port", "closed"]

_WORST_FIRST: list[Openness] = ["closed", "port", "all"]
_ALL_PORTS = (0, 65535)


def check_network(ec2: Any, spec: Spec) -> Iterator[CheckResult]:
    """Check the job's subnet, or the default subnets, and the traffic between nodes."""
    subnet = (spec.resources.ec2 or Ec2Resources()).subnet
    asked: dict[str, Any] = (
        {"SubnetIds": [subnet]} if subnet else {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
    )
    try:
        answer = call_aws("resources.ec2.subnet", lambda: ec2.describe_subnets(**asked))
    except ProviderError as error:
        yield CheckResult("subnet", check_ok(error), aws_message(error), fix_of(error))
        return
    found = answer["Subnets"]
    if not found:
        fix = f"aws ec2 create-default-vpc --region {spec.resources.region}, or set resources.ec2.subnet"
        yield CheckResult("subnet", False, "there is no default subnet in this region", fix)
        return
    subnets = subnet or f"{len(found)} default subnets"
    yield CheckResult("subnet", True, f"{subnets} in {found[0]['VpcId']}")
    yield _check_between_nodes(ec2, spec, found)


def _check_between_nodes(ec2: Any, spec: Spec, subnets: list[Mapping[str, Any]]) -> CheckResult:
    """Check the traffic between nodes. A job of one node does not need it: a problem is only a hint then."""
    try:
        found = _security_groups(ec2, spec, subnets[0]["VpcId"])
        check_vpc(found, subnets[0]["VpcId"])
    except (InvalidRequest, NotFound) as error:
        return CheckResult("security groups", False, aws_message(error), fix_of(error))
    except ProviderError as error:
        fix = permission_fix(error, "ec2:DescribeSecurityGroups")
        return CheckResult("between nodes", None, aws_message(error), fix)
    port = master_port(spec)
    # All nodes of a job are in one zone, but any of these subnets may be chosen, so the worst one counts.
    networks = {subnet.get("CidrBlock") for subnet in subnets}
    worst = min((openness(found, port, each) for each in networks), key=_WORST_FIRST.index)
    group = found[0]["GroupId"] if found else "sg-…"
    if worst == "all":
        detail = f"{group} lets nodes reach each other on MASTER_PORT {port} and all else"
        return CheckResult("between nodes", True, detail)
    fix = (
        f"aws ec2 authorize-security-group-ingress --region {spec.resources.region}"
        f" --group-id {group} --protocol all --source-group {group}"
    )
    if worst == "port":
        detail = f"{group} lets nodes reach each other on MASTER_PORT {port} alone; NCCL and gloo use further ports"
        return CheckResult("between nodes", None, detail, fix)
    detail = f"{group} does not let nodes reach each other on MASTER_PORT {port}"
    return CheckResult("between nodes", False if spec.nodes > 1 else None, detail, fix)


def _security_groups(ec2: Any, spec: Spec, vpc: str) -> list[Mapping[str, Any]]:
    """The job's security groups, or the default group of the VPC."""
    groups = list((spec.resources.ec2 or Ec2Resources()).security_groups)
    asked: dict[str, Any] = {"GroupIds": groups}
    if not groups:
        filters = {"vpc-id": vpc, "group-name": "default"}
        asked = {"Filters": [{"Name": name, "Values": [value]} for name, value in filters.items()]}
    answer = call_aws("resources.ec2.security_groups", lambda: ec2.describe_security_groups(**asked))
    found: list[Mapping[str, Any]] = answer["SecurityGroups"]
    return found


def check_vpc(groups: Sequence[Mapping[str, Any]], vpc: str) -> None:
    """Raise InvalidRequest for a group outside the subnet's VPC, as EC2 would at the launch."""
    for group in groups:
        if group.get("VpcId", vpc) != vpc:
            where = f"{group['GroupId']} is in {group['VpcId']}, and the subnet in {vpc}"
            raise InvalidRequest(f"resources.ec2.security_groups: {where}")


def openness(groups: Sequence[Mapping[str, Any]], port: int, network: str | None) -> Openness:
    """The traffic that machines in all of these groups accept from one another. `network` is the CIDR of their
    subnet."""
    names = {str(group["GroupId"]) for group in groups}
    rules = [rule for group in groups for rule in group.get("IpPermissions", ()) if _from_nodes(rule, names, network)]
    if any(_covers(rule, _ALL_PORTS) for rule in rules):
        return "all"
    return "port" if any(_covers(rule, (port, port)) for rule in rules) else "closed"


def _from_nodes(rule: Mapping[str, Any], names: set[str], network: str | None) -> bool:
    """Return True if a rule applies to connections from another node."""
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
