"""Several subnets: zones are tried in order of the market, each in the subnet that is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_ec2_request import C7I, P4D, order

from stoker.model.errors import InvalidRequest, UserError
from stoker.model.resources import Ec2Resources, Resources
from stoker.providers.ec2 import request, subnets
from stoker.providers.ec2.provider import Ec2Provider
from stoker.providers.registry import Context

A, B, B_TOO = "subnet-a", "subnet-b", "subnet-b2"


def subnet(name: str, zone: str, free: int = 250, **facts: Any) -> dict[str, Any]:
    return {
        "SubnetId": name,
        "VpcId": "vpc-1",
        "CidrBlock": "10.0.1.0/24",
        "AvailabilityZone": zone,
        "AvailableIpAddressCount": free,
        **facts,
    }


class Ec2:
    """Subnets, found by ids and by filters: "availability-zone", "subnet-id" (DescribeSubnets)."""

    def __init__(self, *found: dict[str, Any]) -> None:
        self._found = {each["SubnetId"]: each for each in found}

    def describe_subnets(self, SubnetIds: Any = (), Filters: Any = (), **_: Any) -> dict[str, Any]:
        listed = [self._found[name] for name in SubnetIds] if SubnetIds else list(self._found.values())
        keys = {"subnet-id": "SubnetId", "availability-zone": "AvailabilityZone"}
        for each in Filters:
            listed = [one for one in listed if one[keys[each["Name"]]] in each["Values"]]
        return {"Subnets": listed}

    def describe_images(self, **_: Any) -> dict[str, Any]:
        return {"Images": [{"ImageId": "ami-1", "RootDeviceName": "/dev/sda1"}]}


def restricted(cloud: Ec2, *names: str, groups: tuple[str, ...] = (), zones: tuple[str, ...] = ()) -> tuple[str, ...]:
    asked = Resources(provider="ec2", zones=zones, ec2=Ec2Resources(subnet=names, security_groups=groups))
    return subnets.restrict(cloud, asked).zones


def launch_params(
    monkeypatch: pytest.MonkeyPatch, cloud: Ec2, zone: str, nodes: int = 1, **settings: Any
) -> dict[str, Any]:
    provider = Ec2Provider(Context(store="s3://bucket/team"))
    monkeypatch.setattr(provider.clients, "get", lambda *_, **__: cloud)
    asked = order(replace(P4D, zone=zone), nodes=nodes, ec2=Ec2Resources(**settings))
    (run,) = [each for each in provider.resolved(provider.build(asked)) if each.operation == "RunInstances"]
    return run.params


def test_the_zones_are_those_of_the_subnets() -> None:
    cloud = Ec2(subnet(A, "us-east-1a"), subnet(B, "us-east-1b"), subnet(B_TOO, "us-east-1b"))
    assert restricted(cloud, B, A, B_TOO, B) == ("us-east-1b", "us-east-1a")
    assert restricted(cloud) == ()


def test_a_launch_is_in_the_subnet_of_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Ec2(subnet(A, "us-east-1a"), subnet(B, "us-east-1b"))
    for zone, name in (("us-east-1a", A), ("us-east-1b", B)):
        params = launch_params(monkeypatch, cloud, zone, subnet=(A, B))
        assert params["SubnetId"] == name and "AvailabilityZone" not in params.get("Placement", {})
        (card,) = launch_params(monkeypatch, cloud, zone, subnet=(A, B), public_ip=True)["NetworkInterfaces"]
        assert card["SubnetId"] == name


def test_a_full_subnet_leads_to_the_next_of_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "AvailableIpAddressCount: The number of unused private IPv4 addresses in the subnet" (Subnet)."""
    both = (subnet(B, "us-east-1b", free=3), subnet(B_TOO, "us-east-1b", free=9))
    chosen = {
        nodes: launch_params(monkeypatch, Ec2(*both), "us-east-1b", nodes, subnet=(B, B_TOO))["SubnetId"]
        for nodes in (3, 4, 20)
    }
    # Where none has room for the whole gang, EC2 says so, and another zone is tried.
    assert chosen == {3: B, 4: B_TOO, 20: B_TOO}


def test_one_subnet_needs_no_look_up() -> None:
    (run,) = [
        each for each in request.build(order(C7I, ec2=Ec2Resources(subnet=(A,)))) if each.operation != "DescribeImages"
    ]
    assert run.params["SubnetId"] == A
    operations = [each.operation for each in request.build(order(C7I, ec2=Ec2Resources(subnet=(A, B))))]
    assert operations[-2:] == ["DescribeSubnets", "RunInstances"]


def test_a_subnet_that_is_no_longer_in_the_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match=r"^resources\.ec2\.subnet: none of subnet-a, subnet-b is in the zone"):
        launch_params(monkeypatch, Ec2(subnet(A, "us-east-1a")), "us-east-1b", subnet=(A, B))


def test_a_subnet_outside_the_zones_of_the_job_is_one_line() -> None:
    cloud = Ec2(subnet(A, "us-east-1a"), subnet(B, "us-east-1b"))
    with pytest.raises(UserError, match=r"^resources\.zones: subnet-b is in us-east-1b; name that zone, or another"):
        restricted(cloud, A, B, zones=("us-east-1a",))


def test_security_groups_are_of_one_network() -> None:
    cloud = Ec2(subnet(A, "us-east-1a"), subnet(B, "us-east-1b", VpcId="vpc-2"))
    assert restricted(cloud, A, B) == ("us-east-1a", "us-east-1b")
    told = r"^resources\.ec2\.subnet: subnet-a is in vpc-1 and subnet-b is in vpc-2, and security groups belong to one"
    with pytest.raises(UserError, match=told):
        restricted(cloud, A, B, groups=("sg-1",))


def test_each_of_several_subnets_needs_ipv4() -> None:
    cloud = Ec2(subnet(A, "us-east-1a"), subnet(B, "us-east-1b", Ipv6Native=True))
    with pytest.raises(UserError, match=r"^resources\.ec2\.subnet: subnet-b is for IPv6 alone"):
        restricted(cloud, A, B)
