"""Overrides of whole sections of RunInstances: EC2 refuses a request that says the same thing in two ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_ec2_request import C7I, P4D, order, run_params

from stoker.model.errors import UserError
from stoker.model.resources import Ec2Resources
from stoker.providers.ec2 import image_lookup, request

# "If you specify a network interface, you must specify any subnets as part of the network interface instead of using
# this parameter" (RunInstances, SubnetId); the same is said of SecurityGroupIds and SecurityGroups, and "You cannot
# specify this option and the network interfaces option in the same request" of the addresses.
BESIDE_CARDS = (
    "SubnetId",
    "SecurityGroupIds",
    "SecurityGroups",
    "PrivateIpAddress",
    "Ipv6AddressCount",
    "Ipv6Addresses",
)


def built(overrides: dict[str, Any], nodes: int = 1, **settings: Any) -> dict[str, Any]:
    """The request to launch, which botocore's model takes."""
    from botocore.loaders import create_loader
    from botocore.model import ServiceModel
    from botocore.validate import ParamValidator

    asked = order(nodes=nodes, ec2=Ec2Resources(**settings, overrides=overrides))
    request.check(asked.spec)
    params = run_params(asked)
    shape = ServiceModel(create_loader().load_service_model("ec2", "service-2"), "ec2").operation_model("RunInstances")
    assert not ParamValidator().validate(params, shape.input_shape).has_errors()
    assert not params.get("NetworkInterfaces") or not set(BESIDE_CARDS) & set(params)
    return params


def test_interfaces_of_an_override_stand_alone_with_the_jobs_subnet_in_them() -> None:
    cards = [{"DeviceIndex": 0, "AssociatePublicIpAddress": True}, {"DeviceIndex": 1, "SubnetId": "subnet-2"}]
    first, second = built({"NetworkInterfaces": cards}, subnet=("subnet-1",), security_groups=("sg-1",))[
        "NetworkInterfaces"
    ]
    assert first == {"DeviceIndex": 0, "AssociatePublicIpAddress": True, "SubnetId": "subnet-1", "Groups": ["sg-1"]}
    assert second == {"DeviceIndex": 1, "SubnetId": "subnet-2", "Groups": ["sg-1"]}


def test_an_interface_that_exists_has_its_own_subnet() -> None:
    cards = [{"DeviceIndex": 0, "NetworkInterfaceId": "eni-1"}]
    params = built({"NetworkInterfaces": cards}, subnet=("subnet-1",), security_groups=("sg-1",))
    assert params["NetworkInterfaces"] == cards
    assert "Placement" not in built({"NetworkInterfaces": cards}), "the zone is that of the interface"


@pytest.mark.parametrize("settings", [{"public_ip": False}, {"efa": True}])
def test_a_subnet_of_an_override_goes_into_the_interfaces(settings: dict[str, Any]) -> None:
    params = built({"SubnetId": "subnet-9", "SecurityGroupIds": ["sg-9"], "Ipv6AddressCount": 1}, **settings)
    assert all(card["SubnetId"] == "subnet-9" and card["Groups"] == ["sg-9"] for card in params["NetworkInterfaces"])
    assert params["NetworkInterfaces"][0]["Ipv6AddressCount"] == 1
    assert all("Ipv6AddressCount" not in card for card in params["NetworkInterfaces"][1:])


def test_a_subnet_of_an_override_has_a_zone_of_its_own() -> None:
    assert "Placement" not in built({"SubnetId": "subnet-9"})
    assert built({"SubnetId": "subnet-9"})["SubnetId"] == "subnet-9"
    assert built({})["Placement"] == {"AvailabilityZone": C7I.zone}


def test_names_of_security_groups_replace_ids() -> None:
    params = built({"SecurityGroups": ["mine"]}, security_groups=("sg-1",))
    assert params["SecurityGroups"] == ["mine"] and "SecurityGroupIds" not in params


@pytest.mark.parametrize("settings", [{"public_ip": False}, {"public_ip": True}, {"efa": True}])
def test_names_of_security_groups_are_refused_where_interfaces_are_sent(settings: dict[str, Any]) -> None:
    """ "If you specify a network interface, you must specify any security groups as part of the network interface
    instead of using this parameter" (RunInstances, SecurityGroups)."""
    with pytest.raises(UserError) as raised:
        built({"SecurityGroups": ["mine"]}, **settings)
    (field,) = settings
    assert str(raised.value) == (
        f"resources.ec2.overrides.SecurityGroups: EC2 takes no names of groups with resources.ec2.{field}; "
        "write SecurityGroupIds or resources.ec2.security_groups"
    )


@pytest.mark.parametrize(
    ("section", "settings", "override"),
    [
        ("IamInstanceProfile", {}, {"Arn": "arn:aws:iam::1:instance-profile/mine"}),
        ("IamInstanceProfile", {"profile": "arn:aws:iam::1:instance-profile/mine"}, {"Name": "another"}),
        ("CapacityReservationSpecification", {"reservation": "cr-1"}, {"CapacityReservationPreference": "none"}),
        (
            "CapacityReservationSpecification",
            {"reservation": "open"},
            {"CapacityReservationTarget": {"CapacityReservationId": "cr-2"}},
        ),
        (
            "CapacityReservationSpecification",
            {"reservation": "cr-1"},
            {
                "CapacityReservationTarget": {
                    "CapacityReservationResourceGroupArn": "arn:aws:resource-groups:us-east-1:1:group/g"
                }
            },
        ),
    ],
)
def test_a_section_of_which_ec2_takes_one_form_is_replaced(
    section: str, settings: dict[str, Any], override: dict[str, Any]
) -> None:
    assert built({section: override}, **settings)[section] == override


@pytest.mark.parametrize(
    ("placement", "kept"),
    [
        # "On input, you can specify GroupId or GroupName, but not both."
        ({"GroupId": "pg-1"}, {"GroupId": "pg-1", "AvailabilityZone": C7I.zone}),
        ({"GroupName": "mine", "PartitionNumber": 2}, None),
        # "You can't launch Dedicated Hosts in placement groups."
        ({"Tenancy": "host", "HostId": "h-1"}, None),
        ({"HostResourceGroupArn": "arn:aws:resource-groups:us-east-1:1:group/g"}, None),
    ],
)
def test_a_group_or_a_host_of_an_override_is_alone(placement: dict[str, Any], kept: dict[str, Any] | None) -> None:
    asked = order(nodes=2, ec2=Ec2Resources(overrides={"Placement": placement}))
    assert [each.operation for each in request.build(asked)] == ["RunInstances"], "no group is made that nothing is in"
    assert run_params(asked)["Placement"] == (kept or placement | {"AvailabilityZone": C7I.zone})
    named = order(nodes=2, ec2=Ec2Resources(placement_group="ours", overrides={"Placement": {"GroupId": "pg-1"}}))
    assert "GroupName" not in run_params(named)["Placement"]
    dedicated = order(nodes=2, ec2=Ec2Resources(overrides={"Placement": {"Tenancy": "dedicated"}}))
    assert run_params(dedicated)["Placement"]["GroupName"]


def test_disks_of_an_override_have_no_fields_of_another_kind_of_disk() -> None:
    def root(override: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = built({"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", **override}]})
        return dict(found["BlockDeviceMappings"][0])

    io2 = root({"Ebs": {"VolumeType": "io2", "Iops": 16000}})["Ebs"]
    assert io2["Iops"] == 16000 and "Throughput" not in io2 and io2["DeleteOnTermination"] is True
    assert "Iops" not in root({"Ebs": {"VolumeType": "standard"}})["Ebs"]
    # "0.25 MiB/s per provisioned IOPS" (gp3): a default of more would make EC2 refuse the job's own number.
    slow = {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"Iops": 3000}}]}
    (disk,) = run_params(order(P4D, ec2=Ec2Resources(overrides=slow)))["BlockDeviceMappings"]
    assert (disk["Ebs"]["Iops"], disk["Ebs"]["Throughput"]) == (3000, 750)
    assert root({"NoDevice": ""}) == {"DeviceName": "/dev/sda1", "NoDevice": ""}
    # Where the name of the root device is learnt from the image, too.
    mine = {"BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeType": "st1"}}]}
    run = run_params(order(P4D, image="mine-*", ec2=Ec2Resources(overrides=mine)))
    filled = image_lookup.filled(run, {"ImageId": "ami-1", "RootDeviceName": "/dev/xvda"})
    (disk,) = filled["BlockDeviceMappings"]
    assert disk["Ebs"]["VolumeType"] == "st1" and not {"Iops", "Throughput"} & set(disk["Ebs"])


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            {"NetworkInterfaces": [{"DeviceIndex": 0}], "SubnetId": "subnet-1"},
            "resources.ec2.overrides.SubnetId: EC2 takes no SubnetId beside NetworkInterfaces; write it in each",
        ),
        ({"NetworkInterfaces": [{"DeviceIndex": 0}], "SecurityGroups": ["a"]}, "EC2 takes no SecurityGroups beside"),
        (
            {"IamInstanceProfile": {"Arn": "arn:x", "Name": "x"}},
            "resources.ec2.overrides.IamInstanceProfile: EC2 takes one of Arn and Name; leave one out",
        ),
        (
            {
                "CapacityReservationSpecification": {
                    "CapacityReservationPreference": "open",
                    "CapacityReservationTarget": {"CapacityReservationId": "cr-1"},
                }
            },
            "takes one of CapacityReservationPreference and CapacityReservationTarget",
        ),
        ({"Placement": {"AvailabilityZoneId": "use1-az1"}}, "Placement.AvailabilityZoneId: is Stoker's own"),
    ],
)
def test_overrides_that_contradict_each_other_are_refused_before(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as raised:
        request.check(replace(order().spec, resources=order(ec2=Ec2Resources(overrides=overrides)).spec.resources))
    assert said in str(raised.value)
