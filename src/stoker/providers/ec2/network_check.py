"""Check the subnet of a job's machines, and whether their security groups let nodes reach each other and S3."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from stoker.model.errors import InvalidRequest, NotFound, ProviderError
from stoker.model.offerings import Offering
from stoker.model.resources import Ec2Resources
from stoker.model.spec import Spec, master_port
from stoker.providers.base import CheckResult
from stoker.providers.check_results import check_ok
from stoker.providers.ec2 import catalog, efa, several_regions
from stoker.providers.ec2.errors import call_aws
from stoker.providers.ec2.s3_way_check import check_way_to_s3
from stoker.providers.ec2.verdicts import aws_message, fix_of, permission_fix

# All traffic between nodes, the master port alone, or nothing.
Openness = Literal["all", "port", "closed"]

_WORST_FIRST: list[Openness] = ["closed", "port", "all"]
_ALL_PORTS = (0, 65535)
# The rules of a security group: what machines accept, and what they send.
Direction = Literal["IpPermissions", "IpPermissionsEgress"]
INGRESS: Direction = "IpPermissions"
EGRESS: Direction = "IpPermissionsEgress"


def check_network(ec2: Any, spec: Spec, offered: Iterable[Offering] = ()) -> Iterator[CheckResult]:
    """Check the job's subnet, or the default subnets, the traffic between nodes, and the way to S3."""
    ec2_resources = spec.resources.ec2 or Ec2Resources()
    named = list(dict.fromkeys(ec2_resources.subnet))
    asked: dict[str, Any] = {"SubnetIds": named}
    if not named:
        asked = {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
    elif spec.resources.names_several:
        asked = several_regions.filter_by("subnet-id", ec2_resources.subnet)
    try:
        answer = call_aws("resources.ec2.subnet", lambda: ec2.describe_subnets(**asked))
    except ProviderError as error:
        yield CheckResult("subnet", check_ok(error), aws_message(error), fix_of(error))
        return
    found = answer["Subnets"]
    if not found and named:
        none_here = f"none of {', '.join(named)} is in {spec.resources.only_region}"
        yield CheckResult("subnet", False, none_here, fix_of(InvalidRequest(f"{several_regions.SUBNETS_FIELD}: ")))
        return
    if not found:
        fix = f"aws ec2 create-default-vpc --region {spec.resources.only_region}, or set resources.ec2.subnet"
        yield CheckResult("subnet", False, "there is no default subnet in this region", fix)
        return
    subnets = ", ".join(each["SubnetId"] for each in found) if named else f"{len(found)} default subnets"
    yield _check_addresses(f"{subnets} in {found[0]['VpcId']}", found, spec)
    yield _check_between_nodes(ec2, spec, found)
    machines = [catalog.facts(each.machine) for each in offered] if ec2_resources.efa else []
    interfaces = max((len(efa.layout(machine)) for machine in machines), default=1)
    yield check_way_to_s3(
        ec2, spec.resources.only_region, found, public_ip=ec2_resources.public_ip, interfaces=interfaces
    )


def ipv6_problem(subnet: Mapping[str, Any]) -> str:
    """The reason why machines cannot be in an IPv6-only subnet; empty for other subnets."""
    if not subnet.get("Ipv6Native"):
        return ""
    return f"{subnet['SubnetId']} is for IPv6 alone, and nodes reach S3 and each other by IPv4; name a subnet with IPv4"


def _check_addresses(detail: str, subnets: list[Mapping[str, Any]], spec: Spec) -> CheckResult:
    """Check that one of the subnets has IPv4, and free addresses for all nodes: one each, for EFAs have none."""
    problem = next((problem for each in subnets if (problem := ipv6_problem(each))), "")
    if problem:
        return CheckResult("subnet", False, problem, fix_of(InvalidRequest("resources.ec2.subnet: ")))
    free = max(int(each.get("AvailableIpAddressCount", spec.nodes)) for each in subnets)
    if free < spec.nodes:
        fix = "name a larger one with resources.ec2.subnet, or end machines in it"
        return CheckResult("subnet", False, f"{detail}: {free} free addresses for {spec.nodes} nodes", fix)
    return CheckResult("subnet", True, detail)


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
    if (spec.resources.ec2 or Ec2Resources()).efa:
        return _check_efa(found, spec)
    port = master_port(spec)
    # All nodes of a job are in one zone, but any of these subnets may be chosen, so the worst one counts.
    networks = {subnet.get("CidrBlock") for subnet in subnets}
    group = found[0]["GroupId"] if found else "sg-…"
    for direction, verb in ((INGRESS, "lets nodes reach each other"), (EGRESS, "lets nodes send to each other")):
        worst = min((openness(found, port, each, direction) for each in networks), key=_WORST_FIRST.index)
        fix = _authorize(spec, group, direction)
        if worst == "port":
            detail = f"{group} {verb} on MASTER_PORT {port} alone; NCCL and gloo use further ports"
            return CheckResult("between nodes", None, detail, fix)
        if worst == "closed":
            detail = f"{group} {verb.replace('lets nodes', 'does not let nodes')} on MASTER_PORT {port}"
            return CheckResult("between nodes", False if spec.nodes > 1 else None, detail, fix)
    return CheckResult("between nodes", True, f"{group} lets nodes reach each other on MASTER_PORT {port} and all else")


def _check_efa(groups: Sequence[Mapping[str, Any]], spec: Spec) -> CheckResult:
    """Check the traffic of EFAs, for which rules with address ranges do not count.

    "The EFA must be a member of a security group that allows all inbound and outbound traffic to and from the security
    group itself": https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/create-efa.html
    """
    itself = [
        direction for direction in (INGRESS, EGRESS) if not any(_allows_itself(each, direction) for each in groups)
    ]
    group = groups[0]["GroupId"] if groups else "sg-…"
    if not itself:
        return CheckResult("between nodes", True, f"{group} allows all traffic to and from itself, as EFA needs it")
    missing = " and ".join("inbound" if each == INGRESS else "outbound" for each in itself)
    detail = f"{group} does not allow all {missing} traffic from and to itself, which EFA needs"
    fix = "; ".join(_authorize(spec, group, each) for each in itself)
    return CheckResult("between nodes", False if spec.nodes > 1 else None, detail, fix)


def _allows_itself(group: Mapping[str, Any], direction: Direction) -> bool:
    return any(
        rule.get("IpProtocol") == "-1" and pair.get("GroupId") == group["GroupId"]
        for rule in group.get(direction, ())
        for pair in rule.get("UserIdGroupPairs", ())
    )


def _authorize(spec: Spec, group: str, direction: Direction) -> str:
    """The command that allows all traffic within a group."""
    call = "ingress" if direction == INGRESS else "egress"
    rule = f"'IpProtocol=-1,UserIdGroupPairs=[{{GroupId={group}}}]'"
    start = f"aws ec2 authorize-security-group-{call} --region {spec.resources.only_region} --group-id {group}"
    # Only the command for inbound traffic takes a group by a flag of its own.
    return (
        f"{start} --protocol all --source-group {group}" if direction == INGRESS else f"{start} --ip-permissions {rule}"
    )


def _security_groups(ec2: Any, spec: Spec, vpc: str) -> list[Mapping[str, Any]]:
    """The job's security groups, or the default group of the VPC."""
    groups = list((spec.resources.ec2 or Ec2Resources()).security_groups)
    if groups and spec.resources.names_several:
        groups = list(several_regions.find_groups(ec2, several_regions.filter_by("group-id", tuple(groups))))
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


def openness(
    groups: Sequence[Mapping[str, Any]], port: int, network: str | None, direction: Direction = "IpPermissions"
) -> Openness:
    """The traffic that machines in all of these groups accept from one another, or send to one another. `network` is
    the CIDR of their subnet."""
    if direction == EGRESS and any(EGRESS not in group for group in groups):
        return "all"  # Not known; EC2's default is to allow everything.
    names = {str(group["GroupId"]) for group in groups}
    rules = [rule for group in groups for rule in group.get(direction, ()) if _from_nodes(rule, names, network)]
    if any(_covers(rule, _ALL_PORTS) for rule in rules):
        return "all"
    return "port" if any(_covers(rule, (port, port)) for rule in rules) else "closed"


def _from_nodes(rule: Mapping[str, Any], names: set[str], network: str | None) -> bool:
    """Return True if a rule applies to connections from another node, or to another node."""
    if any(pair.get("GroupId") in names for pair in rule.get("UserIdGroupPairs", ())):
        return True
    return bool(network) and _within(str(network), (each.get("CidrIp", "") for each in rule.get("IpRanges", ())))


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
