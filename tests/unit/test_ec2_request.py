"""What is asked of EC2: built purely, and never by surprise. `STOKER_GOLDEN=1` writes the golden requests anew."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.model import codec
from stoker.model.errors import (
    AuthDenied,
    InvalidRequest,
    NoCapacity,
    NotFound,
    ProviderError,
    QuotaExceeded,
    SubnetFull,
    Throttled,
    Transient,
    UserError,
)
from stoker.model.offerings import Offering
from stoker.model.resources import Ec2Resources, Resources
from stoker.model.spec import Spec
from stoker.providers.base import LaunchOrder
from stoker.providers.ec2 import images, request, tags
from stoker.providers.ec2.errors import error_type, map_error

GOLDEN = Path(__file__).parent / "golden"
P4D = Offering("ec2", "p4d.24xlarge", "us-east-1b", True, "us-east-1", 9.5, 32.77, "test", 96, 1152 << 30, "A100", 8)
C7I = Offering("ec2", "c7i.large", "eu-west-1a", False, "eu-west-1", 0.1, 0.1, "test", 2, 4 << 30)


def order(
    offering: Offering = C7I, nodes: int = 1, tagged: dict[str, str] | None = None, **resources: Any
) -> LaunchOrder:
    spec = Spec(
        name="gpt",
        run="python train.py",
        nodes=nodes,
        resources=Resources(provider="ec2", **resources),
        tags=tagged or {},
    )
    return LaunchOrder(
        job="gpt-7f3k",
        name="gpt",
        claim=4,
        nodes=nodes,
        attempt=2,
        store="s3://bucket/team",
        spec=spec,
        submitter="jane@laptop",
        offering=offering,
        max_life_s=90000.0,
        bundles={"cp311-x86_64": "d" * 64},
    )


def run_params(found: LaunchOrder) -> dict[str, Any]:
    requests = request.build(found)
    assert requests[-1].operation == "RunInstances"
    return requests[-1].params


WHOLE = Ec2Resources(
    profile="training",
    subnet=("subnet-1",),
    security_groups=("sg-1", "sg-2"),
    key="jane",
    public_ip=False,
    overrides={"Monitoring": {"Enabled": True}, "MetadataOptions": {"HttpPutResponseHopLimit": 3}},
)
ORDERS = {
    "one-on-demand": order(),
    "gang-on-spot": order(P4D, nodes=2, tagged={"project": "vision"}, max_price=12.0, disk_bytes=200_000_000_000),
    "everything": order(C7I, image="ami-0123456789abcdef0", ec2=WHOLE),
    "efa-and-block": order(
        replace(P4D, spot=False), nodes=2, image="my image *", ec2=Ec2Resources(efa=True, reservation="block:cr-1")
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_the_requests_are_the_golden_ones(name: str) -> None:
    built = [codec.dump(each) for each in request.build(ORDERS[name])]
    for each in built:
        if "UserData" in each["params"]:
            # Its own tests read it; here it would only hide what is asked of EC2.
            assert len(each["params"]["UserData"].encode()) <= 16 * 1024
            each["params"]["UserData"] = "…"
    path = GOLDEN / f"ec2-{name}.json"
    if os.environ.get("STOKER_GOLDEN"):
        path.write_text(json.dumps(built, indent=2) + "\n")
    assert built == json.loads(path.read_text())


def test_building_is_pure(monkeypatch: pytest.MonkeyPatch) -> None:
    first = request.build(ORDERS["gang-on-spot"])
    monkeypatch.setenv("AWS_REGION", "mars-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody-else")
    assert request.build(ORDERS["gang-on-spot"]) == first


def test_no_secret_and_nothing_of_the_builder_is_in_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-tell")
    assert "do-not-tell" not in json.dumps([codec.dump(each) for each in request.build(order())])


def test_the_token_is_the_claims_own() -> None:
    one = request.token(order())
    assert one == request.token(replace(order(P4D, nodes=8), submitter="joe"))
    assert one != request.token(replace(order(), claim=5))
    assert one != request.token(replace(order(), store="s3://another"))
    long = request.token(replace(order(), job="x" * 200))
    assert len(long) == 64 and long != request.token(replace(order(), job="x" * 201))


def test_an_image_is_an_id_an_alias_a_parameter_or_a_name() -> None:
    assert images.find("ami-0abc", "x86_64") == images.Ec2Image("ami-0abc")
    ubuntu = images.find("ubuntu/24.04", "arm64").id
    assert ubuntu == "resolve:ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/arm64/hvm/ebs-gp3/ami-id"
    older = images.find("dlami/pytorch-2.7", "x86_64").id or ""
    assert older.endswith("pytorch-2.7-ubuntu-22.04/latest/ami-id")
    assert images.find("ssm:/my/own", "x86_64").id == "resolve:ssm:/my/own"
    assert images.find("Our image 7", "x86_64").name == "Our image 7"
    with pytest.raises(UserError, match=r"resources\.image: there is no ubuntu/23\.04; known are"):
        images.find("ubuntu/23.04", "x86_64")


def test_machines_with_gpus_get_drivers_and_others_need_none() -> None:
    assert "deeplearning" in run_params(order(P4D))["ImageId"]
    assert "ubuntu" in run_params(order(C7I))["ImageId"]


def test_a_disk_is_as_large_as_it_says() -> None:
    for size, expected in ((200_000_000_000, 200), (64 << 30, 64), (1_500_000_000, 2)):
        (disk,) = run_params(order(disk_bytes=size))["BlockDeviceMappings"]
        assert disk["Ebs"]["VolumeSize"] == expected
        assert disk["Ebs"]["DeleteOnTermination"] is True


def test_the_disk_of_a_gpu_is_fast_and_has_the_operations_for_it() -> None:
    """ "Throughput scales up to 0.25 MiB/s per provisioned IOPS", of which gp3 has 3000 by default."""
    for gpus, mib_s, iops in ((0, None, None), (1, 250, None), (4, 625, None), (8, 1000, 4000), (16, 1000, 4000)):
        (disk,) = run_params(order(replace(P4D, gpus=gpus), image="ubuntu/22.04"))["BlockDeviceMappings"]
        assert (disk["Ebs"].get("Throughput"), disk["Ebs"].get("Iops")) == (mib_s, iops)


def test_overrides_win_part_by_part() -> None:
    overrides = {
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/sda1", "Ebs": {"VolumeType": "io2", "Iops": 9000}},
            {"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 900, "DeleteOnTermination": True}},
        ],
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "cost-centre", "Value": "7"}]}],
        "CpuOptions": {"ThreadsPerCore": 1},
    }
    params = run_params(order(ec2=Ec2Resources(overrides=overrides)))
    root, second = params["BlockDeviceMappings"]
    assert root["Ebs"] == {"VolumeType": "io2", "DeleteOnTermination": True, "Iops": 9000, "VolumeSize": 58}
    assert second["DeviceName"] == "/dev/sdf"
    told = {tag["Key"]: tag["Value"] for tag in params["TagSpecifications"][0]["Tags"]}
    assert told["cost-centre"] == "7" and told["stoker:job"] == "gpt-7f3k"
    assert params["CpuOptions"] == {"ThreadsPerCore": 1}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"ClientToken": "x"}, "resources.ec2.overrides.ClientToken: is Stoker's own"),
        ({"InstanceInitiatedShutdownBehavior": "stop"}, "InstanceInitiatedShutdownBehavior: is Stoker's own"),
        ({"MaxCount": 3}, "MaxCount: is Stoker's own"),
        ({"InstanceType": "p5.48xlarge"}, "InstanceType: is Stoker's own"),
        ({"ImageId": "ami-1"}, "resources.ec2.overrides.ImageId: is set by resources.image; write it there"),
        ({"InstanceMarketOptions": {"SpotOptions": {"SpotInstanceType": "persistent"}}}, "InstanceMarketOptions: is"),
        ({"MetadataOptions": {"HttpEndpoint": "disabled"}}, "MetadataOptions.HttpEndpoint: is Stoker's own"),
        ({"MetadataOptions": None}, "MetadataOptions.HttpEndpoint: is Stoker's own"),
        ({"Placement": {"AvailabilityZone": "us-east-1z"}}, "Placement.AvailabilityZone: is Stoker's own"),
        ({"TagSpecifications": None}, "TagSpecifications: must be a list"),
        (
            {"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "stoker:job", "Value": "x"}]}]},
            "TagSpecifications: stoker:job is Stoker's own",
        ),
    ],
)
def test_an_override_cannot_take_a_machine_out_of_our_hands(overrides: dict[str, Any], said: str) -> None:
    odd = order(ec2=Ec2Resources(overrides=overrides))
    with pytest.raises(UserError) as raised:
        request.check(odd.spec)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("my tag", "x", "tags.my tag: EC2's metadata takes letters"),
        ("team/vision", "x", "EC2's metadata takes letters"),
        ("aws:mine", "x", "belong to AWS"),
        ("AWS:mine", "x", "belong to AWS"),
        ("Name", "x", "is set by Stoker"),
        ("stoker:job", "x", "is set by Stoker"),
        ("_index", "x", "EC2's metadata"),
        ("k" * 129, "x", "has 129 characters; EC2 takes 128"),
        ("project", "x" * 257, "has 257 characters; EC2 takes 256"),
    ],
)
def test_a_tag_that_ec2_would_refuse_is_refused_before(key: str, value: str, said: str) -> None:
    with pytest.raises(UserError) as raised:
        tags.check({key: value})
    assert said in str(raised.value)


def test_the_tags_that_ec2_takes_are_taken() -> None:
    tags.check({"cost-centre": "Ω 7/8", "a.b,c_d:e@f+g=h": ""})
    with pytest.raises(UserError, match="takes 45 beside Stoker's own, found 46"):
        tags.check({f"k{n}": "" for n in range(46)})


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("InsufficientInstanceCapacity", 500, NoCapacity),
        ("SpotMaxPriceTooLow", 400, NoCapacity),
        ("InsufficientFreeAddressesInSubnet", 400, SubnetFull),
        ("VcpuLimitExceeded", 400, QuotaExceeded),
        ("MaxSpotInstanceCountExceeded", 400, QuotaExceeded),
        ("UnauthorizedOperation", 403, AuthDenied),
        ("RequestLimitExceeded", 503, Throttled),
        ("InvalidInstanceID.NotFound", 400, NotFound),
        ("InvalidAMIID.NotFound", 400, InvalidRequest),
        ("Unsupported", 400, InvalidRequest),
        ("ExpiredToken", 400, Transient),
        ("InternalError", 500, Transient),
        ("InvalidWhatever", 503, Transient),
        ("SomethingNew", 400, InvalidRequest),
        ("VPCIdNotSpecified", 400, InvalidRequest),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", 403, AuthDenied),
        ("NetworkInterfaceLimitExceeded", 400, QuotaExceeded),
        ("IdempotentParameterMismatch", 400, Transient),
        ("Whatever", 429, Transient),
        ("", 0, Transient),
    ],
)
def test_errors_are_mapped_by_code(code: str, status: int, kind: type[ProviderError]) -> None:
    assert error_type(code, status) is kind


def test_an_error_is_one_line_with_its_code() -> None:
    told = {"Error": {"Code": "VcpuLimitExceeded", "Message": "too many\nrequest id 7"}}
    line = str(map_error("p4d.24xlarge", told))
    assert line.startswith("p4d.24xlarge: too many (VcpuLimitExceeded); ") and "`stoker check ec2`" in line
    full = {"Error": {"Code": "InsufficientFreeAddressesInSubnet", "Message": "Not enough free addresses in subnet-1"}}
    assert str(map_error("c7i.large", full)) == (
        "resources.ec2.subnet: Not enough free addresses in subnet-1 (InsufficientFreeAddressesInSubnet); name a "
        "larger subnet, or end machines in this one"
    )
    for code, message in (
        ("InvalidParameterValue", "Unable to resolve the SSM parameter /a"),
        (
            "SsmInvalidParameter",
            "Unsupported data type. The following parameter data types are supported: aws:ec2:image",
        ),
    ):
        found = map_error("c7i.large", {"Error": {"Code": code, "Message": message}})
        assert str(found) == f"resources.image: {message} ({code})"
    gone = {"Error": {"Code": "InvalidSubnetID.NotFound", "Message": "no such subnet"}}
    assert str(map_error("subnet", gone)) == "resources.ec2.subnet: no such subnet (InvalidSubnetID.NotFound)"


def test_an_image_that_is_none_is_refused_before() -> None:
    with pytest.raises(UserError, match=r"resources\.image: there is no debian/11"):
        request.check(order(image="debian/11").spec)
    request.check(order(image="my-image-*").spec)


@pytest.mark.parametrize("name", ["foo", "block:", "block:open", "Open", "CR-0123", "block:foo", "cr-", ""])
def test_a_reservation_that_is_none_is_refused_before(name: str) -> None:
    """EC2 would take such a text for a preference, and an empty one for no reservation at all."""
    with pytest.raises(UserError, match=r"^resources\.ec2\.reservation: '.*' is no reservation; write cr-0123, block:"):
        request.check(order(ec2=Ec2Resources(reservation=name)).spec)


@pytest.mark.parametrize(
    "name",
    ["cr-0123456789abcdef0", "block:cr-1", "open", "none", "arn:aws-cn:resource-groups:cn-north-1:1:group/g"],
)
def test_a_reservation_in_each_form_is_taken(name: str) -> None:
    request.check(order(ec2=Ec2Resources(reservation=name)).spec)
