"""What `stoker check ec2` says of a job's network: addresses, security groups, and the way to S3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.resources import Ec2Resources, Resources
from stoker.model.spec import Spec
from stoker.providers.base import CheckResult
from stoker.providers.ec2 import network_check
from stoker.providers.ec2.provider import Ec2Provider
from stoker.providers.registry import Context

REGION = "us-east-1"
P5 = Offering("ec2", "p5.48xlarge", "us-east-1a", False, REGION, cpus=192, gpu="H100", gpus=8)
G5 = Offering("ec2", "g5.8xlarge", "us-east-1a", False, REGION, cpus=32, gpu="A10G", gpus=1)
LOCAL = {"DestinationCidrBlock": "10.0.0.0/16", "GatewayId": "local", "State": "active"}
INTERNET = {"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1", "State": "active"}
NAT = {"DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-1", "State": "active"}
# "The following is an example route table with a gateway endpoint: pl-id-for-s3, vpce-id" (VPC user guide).
TO_S3 = {"DestinationPrefixListId": "pl-63a5400a", "GatewayId": "vpce-1", "State": "active"}
OPEN = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
ITSELF = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-1"}]}


def endpoint(kind: str, *tables: str, **facts: Any) -> dict[str, Any]:
    common = {"VpcEndpointId": "vpce-1", "State": "available", "ServiceName": f"com.amazonaws.{REGION}.s3"}
    return {**common, "VpcEndpointType": kind, "RouteTableIds": list(tables), **facts}


class Ec2:
    """A VPC as EC2 describes it: a subnet without a route table of its own has the main one."""

    def __init__(
        self,
        *routes: dict[str, Any],
        endpoints: tuple[dict[str, Any], ...] = (),
        public: bool = True,
        groups: list[dict[str, Any]] | None = None,
        subnets: list[dict[str, Any]] | None = None,
        denied: str = "",
    ) -> None:
        main = {"RouteTableId": "rtb-main", "Associations": [{"Main": True}], "Routes": [LOCAL, *routes]}
        other = {"RouteTableId": "rtb-2", "Associations": [{"SubnetId": "subnet-2"}], "Routes": [LOCAL, NAT]}
        self._tables = [other, main]
        self._endpoints = list(endpoints)
        self._groups = groups if groups is not None else [rules()]
        self._subnets = subnets if subnets is not None else [subnet(public=public)]
        self._denied = denied

    def describe_subnets(self, **_: Any) -> Any:
        return {"Subnets": self._subnets}

    def describe_security_groups(self, **_: Any) -> Any:
        return {"SecurityGroups": self._groups}

    def describe_route_tables(self, **asked: Any) -> Any:
        if self._denied:
            raise ClientError({"Error": {"Code": self._denied, "Message": "no"}}, "DescribeRouteTables")
        assert asked["Filters"] == [{"Name": "vpc-id", "Values": ["vpc-1"]}]
        return {"RouteTables": self._tables}

    def describe_vpc_endpoints(self, **asked: Any) -> Any:
        assert {"Name": "service-name", "Values": [f"com.amazonaws.{REGION}.s3"]} in asked["Filters"]
        return {"VpcEndpoints": self._endpoints}


def subnet(name: str = "subnet-1", *, public: bool = True, **facts: Any) -> dict[str, Any]:
    common = {"SubnetId": name, "VpcId": "vpc-1", "CidrBlock": "10.0.1.0/24", "AvailableIpAddressCount": 250}
    return {**common, "AvailabilityZone": "us-east-1a", "MapPublicIpOnLaunch": public, **facts}


def rules(ingress: Any = (ITSELF,), egress: Any = (OPEN, ITSELF), name: str = "sg-1") -> dict[str, Any]:
    return {"GroupId": name, "VpcId": "vpc-1", "IpPermissions": list(ingress), "IpPermissionsEgress": list(egress)}


def results(ec2: Ec2, *offered: Offering, nodes: int = 1, **settings: Any) -> dict[str, CheckResult]:
    wanted = Resources(provider="ec2", region=REGION, ec2=Ec2Resources(**settings))
    found: Iterator[CheckResult] = network_check.check_network(
        ec2, Spec(name="c", run="true", nodes=nodes, resources=wanted), offered or (G5,)
    )
    return {each.name: each for each in found}


def way(ec2: Ec2, *offered: Offering, **settings: Any) -> CheckResult:
    return results(ec2, *offered, **settings)["way to S3"]


@pytest.mark.parametrize(
    ("ec2", "settings", "word"),
    [
        # A default VPC: the internet gateway serves what has a public address.
        (Ec2(INTERNET), {}, "igw-1, with a public address"),
        (Ec2(INTERNET, public=False), {"public_ip": True}, "igw-1"),
        (Ec2(INTERNET), {"public_ip": False}, None),
        (Ec2(INTERNET, public=False), {}, None),
        (Ec2(public=True), {}, None),
        (Ec2(NAT, public=False), {}, "nat-1"),
        (Ec2(NAT | {"State": "blackhole"}, public=False), {}, None),
        (Ec2({"DestinationCidrBlock": "0.0.0.0/0", "TransitGatewayId": "tgw-1"}, public=False), {}, "tgw-1"),
        (Ec2({"DestinationCidrBlock": "10.9.0.0/16", "NatGatewayId": "nat-1"}, public=False), {}, None),
        (Ec2(TO_S3, public=False, endpoints=(endpoint("Gateway", "rtb-main"),)), {}, "the gateway endpoint vpce-1"),
        # A gateway endpoint serves the subnets of its route tables alone, and one of DynamoDB none.
        (Ec2(public=False, endpoints=(endpoint("Gateway", "rtb-2"),)), {}, None),
        (Ec2(TO_S3, public=False), {}, None),
        (Ec2(public=False, endpoints=(endpoint("Interface", PrivateDnsEnabled=True),)), {}, "the interface endpoint"),
        (Ec2(public=False, endpoints=(endpoint("Interface", PrivateDnsEnabled=False),)), {}, None),
        (Ec2(public=False, endpoints=(endpoint("Gateway", "rtb-main", State="deleted"),)), {}, None),
        (Ec2(public=False, subnets=[subnet("subnet-2", public=False)]), {}, "nat-1"),
        (Ec2(INTERNET, subnets=[subnet("subnet-2", public=False), subnet(public=False)]), {}, None),
    ],
)
def test_the_way_to_s3(ec2: Ec2, settings: dict[str, Any], word: str | None) -> None:
    found = way(ec2, **settings)
    assert found.ok is (word is not None)
    if word is not None:
        assert word in found.detail
    else:
        assert found.detail.startswith("subnet-1: no endpoint or NAT in the route table") and "\n" not in found.detail
        assert found.fix == (
            "aws ec2 create-vpc-endpoint --region us-east-1 --vpc-id vpc-1 --service-name com.amazonaws.us-east-1.s3"
            " --route-table-ids rtb-main"
        )


def test_several_interfaces_have_no_public_address_in_a_default_vpc() -> None:
    """ "You cannot specify more than one network interface in the request" (AssociatePublicIpAddress).

    "You can't auto-assign public IP addresses with this configuration" (EFAs on several cards).
    """
    found = way(Ec2(INTERNET), P5, efa=True)
    assert found.ok is False and "EC2 gives none to machines with 33 network interfaces" in found.detail
    assert way(Ec2(INTERNET), P5).ok is True, "without efa it has one interface"
    assert way(Ec2(INTERNET), G5, efa=True).ok is True, "an EFA of its only card is its only interface"
    assert way(Ec2(INTERNET, TO_S3, endpoints=(endpoint("Gateway", "rtb-main"),)), P5, efa=True).ok is True


def test_what_is_missing_is_named() -> None:
    assert way(Ec2(public=True)).detail.endswith("and no internet gateway")
    assert way(Ec2(INTERNET, public=False)).detail.endswith("and machines have no public address")


def test_a_way_that_may_not_be_looked_at_is_unknown() -> None:
    found = way(Ec2(INTERNET, denied="UnauthorizedOperation"))
    assert found.ok is None and "allow ec2:DescribeRouteTables and ec2:DescribeVpcEndpoints" in found.fix


@pytest.mark.parametrize(
    ("groups", "ok", "word"),
    [
        # "The EFA must be a member of a security group that allows all inbound and outbound traffic to and from the
        # security group itself." The outbound rule of a new group (0.0.0.0/0) is not of that form.
        ([rules()], True, ""),
        ([rules((ITSELF,), (OPEN,))], False, "authorize-security-group-egress"),
        ([rules((OPEN,), (ITSELF,))], False, "authorize-security-group-ingress"),
        ([rules((OPEN,), (OPEN,))], False, "; aws ec2 authorize-security-group-egress"),
        ([rules((ITSELF | {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 65535},))], False, "ingress"),
        ([rules((OPEN,), (OPEN,), name="sg-0"), rules()], True, ""),
        ([], False, "sg-…"),
    ],
)
def test_efa_needs_a_group_that_names_itself_both_ways(groups: list[dict[str, Any]], ok: bool, word: str) -> None:
    found = results(Ec2(INTERNET, groups=groups), P5, nodes=2, efa=True)["between nodes"]
    assert found.ok is ok and word in found.fix
    assert results(Ec2(INTERNET, groups=groups), P5, efa=True)["between nodes"].ok is (True if ok else None)


@pytest.mark.parametrize(
    ("egress", "ok", "word"),
    [
        ((OPEN,), True, ""),
        ((ITSELF,), True, ""),
        ((), False, "does not let nodes send to each other on MASTER_PORT 29500"),
        (
            ({"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]},),
            False,
            "does not let nodes send",
        ),
        (({"IpProtocol": "tcp", "FromPort": 29500, "ToPort": 29500, **ITSELF},), None, "on MASTER_PORT 29500 alone"),
    ],
)
def test_nodes_have_to_be_let_out_too(egress: Any, ok: bool | None, word: str) -> None:
    rule = [each | {"IpProtocol": "tcp"} if "FromPort" in each else each for each in egress]
    found = results(Ec2(INTERNET, groups=[rules((ITSELF,), rule)]), nodes=2)["between nodes"]
    assert found.ok is ok and word in found.detail
    assert ok is True or "authorize-security-group-egress" in found.fix


def test_a_subnet_needs_an_address_for_each_node() -> None:
    small = [subnet(AvailableIpAddressCount=3)]
    assert results(Ec2(INTERNET, subnets=small), P5, nodes=3, efa=True)["subnet"].ok is True, "EFAs have no addresses"
    found = results(Ec2(INTERNET, subnets=small), nodes=4)["subnet"]
    assert found.ok is False and "3 free addresses for 4 nodes" in found.detail
    # The nodes of a job are in one zone: one subnet has to have room for all.
    several = [subnet(AvailableIpAddressCount=3), subnet("subnet-2", AvailableIpAddressCount=9)]
    assert results(Ec2(INTERNET, subnets=several), nodes=4)["subnet"].ok is True


def test_a_subnet_for_ipv6_alone_is_refused_before() -> None:
    only = [subnet(Ipv6Native=True, CidrBlock="")]
    found = results(Ec2(INTERNET, subnets=only), subnet=("subnet-1",))["subnet"]
    assert found.ok is False and "subnet-1 is for IPv6 alone" in found.detail
    provider = Ec2Provider(Context(store="s3://bucket/team"))
    provider.clients.get = lambda *_, **__: Ec2(subnets=only)  # type: ignore[method-assign]
    asked = Resources(provider="ec2", region=REGION, machine=("c7i.large",), ec2=Ec2Resources(subnet=("subnet-1",)))
    with pytest.raises(UserError, match=r"^resources\.ec2\.subnet: subnet-1 is for IPv6 alone"):
        provider.offerings(asked)


def test_several_interfaces_are_remarked_on_before_the_launch() -> None:
    def remarks(machine: str, **settings: Any) -> tuple[str, ...]:
        wanted = Resources(provider="ec2", region=REGION, machine=(machine,), ec2=Ec2Resources(**settings))
        return Ec2Provider(Context(store="s3://b/t")).remarks(Spec(name="c", run="true", resources=wanted))

    (line,) = remarks("p5.48xlarge", efa=True)
    assert line.startswith("resources.ec2.efa: EC2 gives p5.48xlarge") and "stoker check ec2" in line
    assert not remarks("p5.48xlarge") and not remarks("g5.8xlarge", efa=True)
