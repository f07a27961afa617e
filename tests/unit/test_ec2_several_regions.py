"""EC2 in several regions: what a job names is found in the region of each launch, or refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from test_ec2_plan import Plan, plan
from test_ec2_request import P4D, order

from stoker.governor.deployment_record import DeploymentRecord
from stoker.governor.region_events_check import events_warning
from stoker.model.errors import InvalidRequest, ProviderError, UserError
from stoker.model.resources import Ec2Resources, Resources
from stoker.model.spec import Spec
from stoker.providers.ec2 import network_check, request, subnets
from stoker.providers.ec2.provider import Ec2Provider
from stoker.providers.regional_offerings import offerings_in_regions
from stoker.providers.registry import Context

__all__ = ["plan"]

EAST, WEST = "us-east-1", "us-west-2"
BOTH = (EAST, WEST)
ONE = "is in one region, and the job may run in us-east-1 and us-west-2"
EAST_SUBNET, WEST_SUBNET, EAST_GROUP, WEST_GROUP = "subnet-e", "subnet-w", "sg-e", "sg-w"
IN_WEST = replace(P4D, zone="us-west-2b", region=WEST)
IN_EAST = replace(P4D, zone="us-east-1b", region=EAST)


class Ec2:
    """One region: subnets and groups by ids and filters, two machine types, and their prices for spot.

    "If you specify an ID that is not valid, the request fails" for ids; a filter returns what matches it.
    """

    def __init__(self, region: str, price: str) -> None:
        self.meta = type("Meta", (), {"region_name": region})
        self._price = price
        end = "e" if region == EAST else "w"
        self._subnets = {
            f"subnet-{end}": {"SubnetId": f"subnet-{end}", "VpcId": f"vpc-{end}", "AvailabilityZone": f"{region}b"}
        }
        self._groups = {f"sg-{end}": {"GroupId": f"sg-{end}", "VpcId": f"vpc-{end}", "IpPermissions": []}}

    def describe_subnets(self, SubnetIds: Iterable[str] = (), Filters: Any = (), **_: Any) -> dict[str, Any]:
        return {"Subnets": _found(self._subnets, "InvalidSubnetID.NotFound", SubnetIds, Filters, "subnet-id")}

    def describe_security_groups(self, GroupIds: Iterable[str] = (), Filters: Any = (), **_: Any) -> dict[str, Any]:
        return {"SecurityGroups": _found(self._groups, "InvalidGroup.NotFound", GroupIds, Filters, "group-id")}

    def describe_images(self, **_: Any) -> dict[str, Any]:
        return {"Images": [{"ImageId": f"ami-{self.meta.region_name}", "RootDeviceName": "/dev/sda1"}]}

    def describe_route_tables(self, **_: Any) -> dict[str, Any]:
        return {"RouteTables": []}

    def describe_vpc_endpoints(self, **_: Any) -> dict[str, Any]:
        return {"VpcEndpoints": []}

    def describe_instance_type_offerings(self, **_: Any) -> dict[str, Any]:
        where = (f"{self.meta.region_name}{letter}" for letter in "ab")
        return {"InstanceTypeOfferings": [{"InstanceType": "c7i.large", "Location": zone} for zone in where]}

    def describe_spot_price_history(self, StartTime: Any, **_: Any) -> dict[str, Any]:
        where = (f"{self.meta.region_name}{letter}" for letter in "ab")
        fixed = {"InstanceType": "c7i.large", "SpotPrice": self._price, "Timestamp": StartTime}
        return {"SpotPriceHistory": [{**fixed, "AvailabilityZone": zone} for zone in where]}


class Silent:
    """A region that does not answer."""

    meta = type("Meta", (), {"region_name": WEST})

    def __getattr__(self, _: str) -> Any:
        def call(**_: Any) -> Any:
            raise EndpointConnectionError(endpoint_url="https://ec2.us-west-2.amazonaws.com")

        return call


def _found(held: dict[str, Any], code: str, ids: Iterable[str], filters: Any, name: str) -> list[dict[str, Any]]:
    for each in ids:
        if each not in held:
            raise ClientError({"Error": {"Code": code, "Message": f"'{each}' does not exist"}}, "Describe")
    wanted = [each["Values"] for each in filters if each["Name"] == name]
    zones = [each["Values"] for each in filters if each["Name"] == "availability-zone"]
    listed = [held[each] for each in ids] if ids else list(held.values())
    listed = [each for each in listed if all(each.get("SubnetId", each.get("GroupId")) in one for one in wanted)]
    return [each for each in listed if all(each["AvailabilityZone"] in one for one in zones)]


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Ec2Provider:
    found = Ec2Provider(Context(store="s3://bucket/team"))
    regions: dict[str, Any] = {EAST: Ec2(EAST, "0.05"), WEST: Ec2(WEST, "0.03")}
    monkeypatch.setattr(found.clients, "get", lambda _service, region, **_: regions[region])
    monkeypatch.setattr(found, "regions", regions, raising=False)
    return found


def asked(**more: Any) -> Resources:
    return Resources(**{"provider": "ec2", "machine": ("c7i.large",), "region": BOTH, "spot": "only", **more})


def spec(**more: Any) -> Spec:
    return Spec("x", "true", resources=asked(**more))


# ── Offerings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_cheapest_region_comes_first(provider: Ec2Provider) -> None:
    found = [each for each in offerings_in_regions(provider, asked()).offerings if each.spot]
    assert [(each.region, each.zone, each.price) for each in found] == [
        (WEST, "us-west-2a", 0.03),
        (WEST, "us-west-2b", 0.03),
        (EAST, "us-east-1a", 0.05),
        (EAST, "us-east-1b", 0.05),
    ]
    zones = offerings_in_regions(provider, asked(zones=("us-east-1b", "us-west-2a"))).offerings
    assert {each.zone for each in zones} == {"us-east-1b", "us-west-2a"}


def test_a_region_that_does_not_answer_leaves_the_other(provider: Ec2Provider) -> None:
    provider.regions[WEST] = Silent()  # type: ignore[attr-defined]
    found = offerings_in_regions(provider, asked())
    assert {each.region for each in found.offerings} == {EAST} and list(found.unanswered) == [WEST]
    provider.regions[EAST] = provider.regions[WEST]  # type: ignore[attr-defined]
    with pytest.raises(ProviderError):
        offerings_in_regions(provider, asked(spot="never"))


# ── Subnets and security groups ───────────────────────────────────────────────────────────────────────────────────────


def test_each_region_has_the_zones_of_its_own_subnets(provider: Ec2Provider) -> None:
    wanted = asked(ec2=Ec2Resources(subnet=(EAST_SUBNET, WEST_SUBNET)))
    assert {each.zone for each in offerings_in_regions(provider, wanted).offerings} == {"us-east-1b", "us-west-2b"}
    alone = wanted.in_region(EAST)
    assert subnets.restrict(provider.clients.get("ec2", EAST), alone).zones == ("us-east-1b",)


def test_a_region_without_any_of_the_subnets_is_refused(provider: Ec2Provider) -> None:
    wanted = asked(ec2=Ec2Resources(subnet=(EAST_SUBNET,))).in_region(WEST)
    with pytest.raises(UserError) as caught:
        subnets.restrict(provider.clients.get("ec2", WEST), wanted)
    assert str(caught.value) == (
        "resources.ec2.subnet: none of subnet-e is in us-west-2; name one there, or leave us-west-2 out of "
        "resources.region"
    )


@pytest.mark.parametrize("more", [{}, {"public_ip": True}])
@pytest.mark.parametrize(
    ("offering", "subnet", "group"), [(IN_EAST, EAST_SUBNET, EAST_GROUP), (IN_WEST, WEST_SUBNET, WEST_GROUP)]
)
def test_a_launch_uses_what_is_in_its_region(
    provider: Ec2Provider, offering: Any, subnet: str, group: str, more: dict[str, Any]
) -> None:
    named = Ec2Resources(subnet=(EAST_SUBNET, WEST_SUBNET), security_groups=(WEST_GROUP, EAST_GROUP), **more)
    requests = provider.build(order(offering, nodes=2, ec2=named, region=BOTH))
    assert {each.region for each in requests} == {offering.region}
    placement, run = provider.resolved(requests)
    assert placement.operation == "CreatePlacementGroup"
    network = run.params["NetworkInterfaces"][0] if more else run.params
    assert network["SubnetId"] == subnet and network["Groups" if more else "SecurityGroupIds"] == [group]
    # Ids are looked up in the region as well: an alias names another image in each.
    assert "(" not in str({key: run.params[key] for key in ("ImageId", "BlockDeviceMappings")})


def test_a_launch_without_a_group_in_its_region_is_refused(provider: Ec2Provider) -> None:
    named = Ec2Resources(security_groups=(EAST_GROUP,))
    requests = provider.build(order(IN_WEST, ec2=named, region=BOTH))
    with pytest.raises(
        InvalidRequest, match=r"^resources\.ec2\.security_groups: none of sg-e is in us-west-2; name one"
    ):
        list(provider.resolved(requests))


def test_a_job_in_one_region_asks_for_no_group() -> None:
    named = Ec2Resources(security_groups=(EAST_GROUP,), subnet=(EAST_SUBNET,))
    for region in (EAST, None):
        operations = [each.operation for each in request.build(order(IN_EAST, ec2=named, region=region))]
        assert not {"DescribeSecurityGroups", "DescribeSubnets"} & set(operations)


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({"subnet": (EAST_SUBNET, WEST_SUBNET, "subnet-9")}, "resources.ec2.subnet: subnet-9 is in none of"),
        ({"security_groups": ("sg-9",)}, "resources.ec2.security_groups: sg-9 is in none of us-east-1, us-west-2"),
    ],
)
def test_a_name_in_none_of_the_regions_is_refused(provider: Ec2Provider, named: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        provider.check_regions(asked(ec2=Ec2Resources(**named)))


def test_names_that_are_each_in_one_of_the_regions_are_right(provider: Ec2Provider) -> None:
    provider.check_regions(
        asked(ec2=Ec2Resources(subnet=(EAST_SUBNET, WEST_SUBNET), security_groups=(EAST_GROUP, WEST_GROUP)))
    )


def test_check_looks_at_the_subnets_and_groups_of_its_region(provider: Ec2Provider) -> None:
    named = Ec2Resources(subnet=(EAST_SUBNET, WEST_SUBNET), security_groups=(EAST_GROUP, WEST_GROUP))
    there = replace(spec(), resources=asked(ec2=named).in_region(WEST))
    found = {each.name: each for each in network_check.check_network(provider.clients.get("ec2", WEST), there)}
    assert (found["subnet"].ok, found["subnet"].detail) == (True, "subnet-w in vpc-w")
    assert "sg-w" in found["between nodes"].detail
    bare = replace(spec(), resources=asked(ec2=Ec2Resources(subnet=(EAST_SUBNET,))).in_region(WEST))
    (none,) = network_check.check_network(provider.clients.get("ec2", WEST), bare)
    assert (none.ok, none.detail) == (False, "none of subnet-e is in us-west-2")


# ── What is refused, and told ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            {"image": "ami-0123456789"},
            f"resources.image: ami-0123456789 {ONE}; name the image by an alias, its name or ssm:PARAMETER",
        ),
        (
            {"spot": "never", "ec2": Ec2Resources(reservation="block:cr-1")},
            f"resources.ec2.reservation: cr-1 {ONE}; name that region alone",
        ),
        (
            {"zones": ("us-east-1a", "us-west-2a", "eu-west-1a")},
            "resources.zones: eu-west-1a is in none of us-east-1, us-west-2; name zones of these, or `any`",
        ),
        ({"region": (EAST, "us-wset-2")}, "resources.region: AWS has no region 'us-wset-2'; did you mean us-west-2?"),
    ],
)
def test_what_cannot_be_in_every_region_is_refused(provider: Ec2Provider, more: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError) as caught:
        provider.check(spec(**more))
    assert str(caught.value) == why


@pytest.mark.parametrize(
    "more", [{}, {"image": "debian/12"}, {"image": "my-image-*"}, {"image": "ssm:/team/image"}, {"region": EAST}]
)
def test_what_is_in_every_region_is_right(provider: Ec2Provider, more: dict[str, Any]) -> None:
    provider.check(spec(**more))
    provider.check(spec(region=EAST, image="ami-0123456789", ec2=None))


def test_secrets_by_name_are_told_of(provider: Ec2Provider) -> None:
    arn = "aws-sm:arn:aws:secretsmanager:us-east-1:123456789012:secret:hf"
    secrets = {"HF_TOKEN": "aws-sm:hf/token", "WANDB": arn, "PIP": "aws-codeartifact:team"}
    there = "is looked up in the machine's region; keep it in us-east-1 and us-west-2"
    assert provider.remarks(replace(spec(), secrets=secrets)) == (
        f"secrets.HF_TOKEN: aws-sm:hf/token {there}, or write its ARN",
        f"secrets.PIP: aws-codeartifact:team {there}",
    )
    assert provider.remarks(replace(spec(region=EAST), secrets=secrets)) == ()


def test_a_plan_without_a_cloud_has_all_regions(plan: Plan) -> None:
    code, _, err = plan("resources.region=[us-east-1, us-west-2]", "resources.machine=p4d.24xlarge")
    assert code == 0, err
    assert "p4d.24xlarge in 2 regions, " in err and "the transfer is charged" in err
    code, _, err = plan("resources.region=[us-east-1, us-wset-2]")
    assert code == 2 and "'us-wset-2'; did you mean us-west-2?" in err and err.count("\n") == 1


def test_regions_without_events_are_told_of() -> None:
    deployed = DeploymentRecord("aws", "stoker-1", EAST, "stoker-1", "0" * 64, "me")
    said = events_warning(deployed, spec(region=(EAST, WEST, "eu-west-1")))
    assert said == (
        "resources.region: the governor stoker-1 gets no events from us-west-2, eu-west-1, and looks there once a "
        "minute; `stoker deploy aws --events-from us-west-2 --events-from eu-west-1` forwards them"
    )
    assert events_warning(replace(deployed, elsewhere=(WEST,)), spec()) is None
    assert events_warning(deployed, spec(region=EAST)) is None
    assert events_warning(deployed, Spec("x", "true")) is None
    assert events_warning(deployed, replace(spec(), resources=asked(provider="gce"))) is None
    google = replace(deployed, cloud="gcp", region="us-central1")
    assert events_warning(google, replace(spec(), resources=asked(provider="gce"))) is None
