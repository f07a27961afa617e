"""The EC2 for tests has reservations, capacity blocks and groups of them, as EC2 documents them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import test_fake_ec2 as fake
from test_fake_ec2 import ids, launch, refused, seen

from tests.support.ec2 import Ec2Cloud, why_no_machines
from tests.support.servers import isolated, pytest_isolated

# Fixtures that all tests of this EC2 share.
shared, cloud, ec2 = fake.shared, fake.cloud, fake.ec2

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

if not isolated():

    def test_in_isolation() -> None:
        pytest_isolated(__file__)


HALF_AN_HOUR_S = 1800.0
BLOCK = {"MarketType": "capacity-block"}


def into(name: str) -> dict[str, Any]:
    part = "CapacityReservationResourceGroupArn" if name.startswith("arn:") else "CapacityReservationId"
    return {"CapacityReservationSpecification": {"CapacityReservationTarget": {part: name}}}


def described(ec2: Any, name: str) -> dict[str, Any]:
    (found,) = ec2.describe_capacity_reservations(CapacityReservationIds=[name])["CapacityReservations"]
    return dict(found)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def states(cloud: Ec2Cloud, *instances: str) -> list[str]:
    return [cloud.instances()[each] for each in instances]


def test_a_launch_lands_in_its_reservation_while_there_is_room(cloud: Ec2Cloud, ec2: Any) -> None:
    """ "ReservationCapacityExceeded: The targeted Capacity Reservation does not enough available instance capacity to
    fulfill your request", and its answer: "… does not have sufficient compatible and available capacity".

    https://docs.aws.amazon.com/ec2/latest/devguide/errors-overview.html
    """
    name = cloud.reserve("m5.large", "us-east-1b")
    one = into(name)
    elsewhere = {"Placement": {"AvailabilityZone": "us-east-1a"}}
    assert refused(lambda: launch(ec2, **one, **elsewhere)) == ("ReservationCapacityExceeded", 400)
    assert refused(lambda: launch(ec2, **one, InstanceType="c5.large"))[0] == "ReservationCapacityExceeded"
    assert refused(lambda: launch(ec2, **one, MinCount=2, MaxCount=2))[0] == "ReservationCapacityExceeded"
    assert refused(lambda: launch(ec2, **into("cr-0123456789abcdef0")))[0] == "InvalidCapacityReservationId.NotFound"
    (made,) = launch(ec2, **one)
    assert (made["Placement"]["AvailabilityZone"], made["CapacityReservationId"]) == ("us-east-1b", name)
    full = described(ec2, name)
    assert (full["TotalInstanceCount"], full["AvailableInstanceCount"], full["State"]) == (1, 0, "active")
    assert (full["EndDateType"], full["ReservationType"]) == ("unlimited", "default") and "EndDate" not in full
    assert refused(lambda: launch(ec2, **one))[0] == "ReservationCapacityExceeded"
    cloud.machine(made["InstanceId"]).kill()
    cloud.machine(made["InstanceId"]).wait_gone()
    assert described(ec2, name)["AvailableInstanceCount"] == 1


def test_a_block_has_a_beginning_and_an_end_that_ends_its_machines(cloud: Ec2Cloud, ec2: Any) -> None:
    """ "InvalidCapacityReservationState.PendingActivation: Your Capacity Block is not active yet." """
    later = cloud.reserve("m5.large", "us-east-1b", block=True, starts_in_s=3600.0, ends_in_s=86400.0)
    assert described(ec2, later)["State"] == "scheduled"
    waiting = refused(lambda: launch(ec2, **into(later), InstanceMarketOptions=BLOCK))
    assert waiting == ("InvalidCapacityReservationState.PendingActivation", 400)
    over = cloud.reserve("m5.large", "us-east-1b", block=True, ends_in_s=0.0)
    assert described(ec2, over)["State"] == "expired"
    assert refused(lambda: launch(ec2, **into(over), InstanceMarketOptions=BLOCK))[0].startswith(
        "InvalidCapacityReservationState"
    )
    block = cloud.reserve("m5.large", "us-east-1b", count=2, block=True, ends_in_s=86400.0)
    assert refused(lambda: launch(ec2, **into(block)))[0] == "InvalidParameterCombination"
    assert refused(lambda: launch(ec2, InstanceMarketOptions=BLOCK))[0] == "InvalidParameterCombination"
    (inside,) = ids(launch(ec2, **into(block), InstanceMarketOptions=BLOCK))
    (outside,) = ids(launch(ec2))
    (found,) = seen(ec2, Filters=[{"Name": "instance-id", "Values": [inside]}])
    assert (found["InstanceLifecycle"], found["CapacityReservationId"]) == ("capacity-block", block)
    cloud.schedule(block, ends_in_s=HALF_AN_HOUR_S + 1.0)
    cloud.machine(inside).wait_gone()
    assert described(ec2, block)["State"] == "active", "machines end before the block does"
    assert states(cloud, inside) == ["terminated"] and states(cloud, outside) != ["terminated"]


def test_the_end_of_another_reservation_ends_no_machine(cloud: Ec2Cloud, ec2: Any) -> None:
    """Instances "continue to run normally outside of the capacity reservation at standard On-Demand Instance rates".

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-reservations-release.html
    """
    limited = cloud.reserve("m5.large", "us-east-1b", ends_in_s=86400.0)
    (made,) = ids(launch(ec2, **into(limited)))
    cloud.schedule(limited, ends_in_s=0.0)
    until(lambda: described(ec2, limited)["State"] == "expired", "the reservation ends")
    until(lambda: states(cloud, made) == ["running"], "the machine goes on")


def test_a_group_is_launched_into_where_it_has_room(cloud: Ec2Cloud, ec2: Any) -> None:
    """ "If the group does not have an On-Demand Capacity Reservation with matching attributes and available capacity,
    the instances run using On-Demand capacity."

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/cr-groups-lifecycle.html
    """
    import boto3

    first = cloud.reserve("m5.large", "us-east-1a", group="mine")
    second = cloud.reserve("m5.large", "us-east-1b", group="mine")
    cloud.reserve("m5.large", "us-east-1c", group="other")
    group = "arn:aws:resource-groups:us-east-1:123456789012:group/mine"
    listed = boto3.client("resource-groups").list_group_resources(Group=group)["Resources"]
    assert [each["Identifier"]["ResourceArn"].rpartition("/")[2] for each in listed] == [first, second]
    made = [launch(ec2, **into(group))[0] for _ in range(3)]
    assert [each.get("CapacityReservationId") for each in made] == [first, second, None]
    blocks = f"{group.removesuffix('mine')}blocks"
    cloud.reserve("m5.large", "us-east-1a", block=True, ends_in_s=86400.0, group="blocks", count=0)
    refusal = refused(lambda: launch(ec2, **into(blocks), InstanceMarketOptions=BLOCK))
    assert refusal[0] == "ReservationCapacityExceeded", "no machine is on demand there"
