"""Check whether the machines of a job can reach S3 from their subnets, where the agent and the store are.

A machine reaches S3 through a gateway endpoint, an interface endpoint or a NAT device; or through an internet gateway
if it has a public address. EC2 gives a machine with several network interfaces no public address by itself.
https://docs.aws.amazon.com/vpc/latest/userguide/vpc-ip-addressing.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.model.errors import ProviderError
from stoker.providers.base import CheckResult
from stoker.providers.ec2.client import pages
from stoker.providers.ec2.errors import call_aws
from stoker.providers.ec2.verdicts import aws_message, permission_fix

_NAME = "way to S3"
_EVERYWHERE = "0.0.0.0/0"
# The targets of a default route that need no public address: a NAT gateway, a NAT instance or a firewall behind an
# interface, and other networks, which may have a way of their own.
_FORWARDERS = (
    "NatGatewayId",
    "TransitGatewayId",
    "NetworkInterfaceId",
    "InstanceId",
    "LocalGatewayId",
    "CarrierGatewayId",
    "CoreNetworkArn",
)


@dataclass(frozen=True)
class VpcWays:
    """The route tables of a VPC, and its endpoints for S3."""

    tables: Sequence[Mapping[str, Any]]
    endpoints: Sequence[Mapping[str, Any]]


def check_way_to_s3(
    ec2: Any, region: str | None, subnets: Sequence[Mapping[str, Any]], *, public_ip: bool | None, interfaces: int
) -> CheckResult:
    """Check each subnet. `public_ip` is the job's wish, `interfaces` the number that its machines have."""
    vpc = subnets[0]["VpcId"]
    try:
        ways = _ask(ec2, region, vpc)
    except ProviderError as error:
        action = "ec2:DescribeRouteTables and ec2:DescribeVpcEndpoints"
        return CheckResult(_NAME, None, aws_message(error), permission_fix(error, action))
    public = [_is_public(each, public_ip, interfaces) for each in subnets]
    found = [way_to_s3(ways, each, public=public) for each, public in zip(subnets, public, strict=True)]
    without = [subnet for subnet, way in zip(subnets, found, strict=True) if not way]
    if not without:
        return CheckResult(_NAME, True, f"from {_named(subnets)} through {' or '.join(dict.fromkeys(found))}")
    table = table_of(ways.tables, without[0]) or {}
    lack = "no internet gateway" if any(public) else "machines have no public address"
    why = f" (EC2 gives none to machines with {interfaces} network interfaces)" if interfaces > 1 else ""
    detail = f"{_named(without)}: no endpoint or NAT in the route table, and {lack}{why}"
    fix = (
        f"aws ec2 create-vpc-endpoint --region {region} --vpc-id {vpc} --service-name {_service(region)}"
        f" --route-table-ids {table.get('RouteTableId', 'rtb-…')}"
    )
    return CheckResult(_NAME, False, detail, fix)


def _is_public(subnet: Mapping[str, Any], public_ip: bool | None, interfaces: int) -> bool:
    """Return True if EC2 gives a machine in this subnet a public address."""
    return interfaces == 1 and bool(subnet.get("MapPublicIpOnLaunch") if public_ip is None else public_ip)


def way_to_s3(ways: VpcWays, subnet: Mapping[str, Any], *, public: bool) -> str:
    """The way from a subnet to S3, for people; empty if there is none. `public`: the machine has a public address."""
    table = table_of(ways.tables, subnet)
    for endpoint in ways.endpoints:
        if endpoint.get("State", "available").lower() not in ("available", "pending"):
            continue
        if endpoint.get("VpcEndpointType") == "Interface" and endpoint.get("PrivateDnsEnabled"):
            return f"the interface endpoint {endpoint['VpcEndpointId']}"
        if table is not None and table["RouteTableId"] in endpoint.get("RouteTableIds", ()):
            return f"the gateway endpoint {endpoint['VpcEndpointId']}"
    for route in (table or {}).get("Routes", ()):
        if route.get("State") == "blackhole" or route.get("DestinationCidrBlock") != _EVERYWHERE:
            continue
        forwarder = next((str(route[name]) for name in _FORWARDERS if route.get(name)), "")
        gateway = str(route.get("GatewayId", ""))
        if forwarder or gateway.startswith("vgw-"):
            return forwarder or gateway
        if gateway.startswith("igw-") and public:
            return f"{gateway}, with a public address"
    return ""


def table_of(tables: Sequence[Mapping[str, Any]], subnet: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The route table of a subnet: its own, else the main one of the VPC."""
    main = None
    for table in tables:
        for association in table.get("Associations", ()):
            if association.get("SubnetId") == subnet.get("SubnetId") and subnet.get("SubnetId"):
                return table
            if association.get("Main"):
                main = table
    return main


def _ask(ec2: Any, region: str | None, vpc: str) -> VpcWays:
    filters = [{"Name": "vpc-id", "Values": [vpc]}]
    tables = call_aws("route tables", lambda: list(pages(ec2.describe_route_tables, "RouteTables", Filters=filters)))
    asked = [*filters, {"Name": "service-name", "Values": [_service(region)]}]
    endpoints = call_aws("endpoints", lambda: list(pages(ec2.describe_vpc_endpoints, "VpcEndpoints", Filters=asked)))
    return VpcWays(tables, endpoints)


def _service(region: str | None) -> str:
    return f"com.amazonaws.{region}.s3"


def _named(subnets: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(subnet.get("SubnetId", "the subnet")) for subnet in subnets)
