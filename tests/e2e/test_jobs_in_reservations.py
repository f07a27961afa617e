"""Jobs in reservations and subnets, on machines that really boot."""

from __future__ import annotations

import pytest
from cloud_world import BOOT_S
from ec2_world import Ec2World
from harness import fields

from stoker.core import reserved_time
from tests.support.ec2 import why_no_machines
from tests.support.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

HALF_AN_HOUR_S = 1800.0
MACHINE = "c7i.large"

if isolated():

    def test_the_end_of_a_capacity_block_is_a_notice(ec2: Ec2World, monkeypatch: pytest.MonkeyPatch) -> None:
        # An attempt would not begin so shortly before the end, and nobody waits longer than a boot takes here.
        monkeypatch.setattr(reserved_time, "LEAST_LEFT_S", 0.0)
        ec2.script("counter.py")
        for boot_s in (60.0, BOOT_S):
            job, block = _submit_into_block(ec2, boot_s)
            with ec2.governed():
                summary = ec2.ended(job, boot_s + BOOT_S)
            if ec2.steps(job):
                break
        trained = [one.step for one in ec2.steps(job)]
        assert trained == list(range(1, len(trained) + 1)), ec2.story(job)
        assert f"notice from ec2: the end of {block}: " in ec2.story(job)
        # Nothing was saved before the notice, and all of it after.
        (reclaimed,) = summary.attempts
        assert (reclaimed.outcome, fields(summary, "zone")) == ("reclaimed", [(ec2.zones[1],)]), ec2.story(job)
        (saved,) = ec2.checkpoints(job)
        assert saved.step == trained[-1], ec2.story(job)
        # No second attempt was asked for where there will be no machines.
        assert summary.phase == "failed" and ec2.launches() == 1, ec2.story(job)
        assert f"{block} ends its machines at " in summary.reason and f"`stoker clone {job} --set" in summary.reason

    def test_a_group_of_reservations_is_asked_for_where_it_has_machines(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        ec2.cloud.reserve(MACHINE, ec2.zones[1], group="mine")
        group = "arn:aws:resource-groups:us-east-1:123456789012:group/mine"
        job = ec2.submit(params={"steps": 5}, resources={"spot": False, "ec2": {"reservation": group}})
        with ec2.governed():
            summary = ec2.ended(job)
        assert summary.phase == "succeeded" and fields(summary, "zone") == [(ec2.zones[1],)], ec2.story(job)
        assert ec2.launches() == 1, ec2.story(job)

    def test_of_two_subnets_the_first_is_full(ec2: Ec2World) -> None:
        """ "The specified subnet does not contain enough free private IP addresses to fulfill your request." """
        import boto3

        client = boto3.client("ec2")
        ec2.script("counter.py")
        in_zone = [{"Name": "availability-zone", "Values": list(ec2.zones)}]
        found = client.describe_subnets(Filters=in_zone)["Subnets"]
        subnets = [each["SubnetId"] for each in sorted(found, key=lambda each: str(each["AvailabilityZone"]))]
        ec2.cloud.faults.refuse_launch("InsufficientFreeAddressesInSubnet", zone=ec2.zones[0])
        job = ec2.submit(params={"steps": 5}, resources={"spot": False, "ec2": {"subnet": subnets}})
        with ec2.governed():
            summary = ec2.ended(job)
        assert summary.phase == "succeeded" and fields(summary, "zone") == [(ec2.zones[1],)], ec2.story(job)
        (machine,) = ec2.machines()
        (reservation,) = client.describe_instances(InstanceIds=[machine])["Reservations"]
        assert reservation["Instances"][0]["SubnetId"] == subnets[1]
        assert "resources.ec2.subnet: " in ec2.story(job) and ec2.launches() == 2, ec2.story(job)

else:

    def test_ec2_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)


def _submit_into_block(ec2: Ec2World, boot_s: float) -> tuple[str, str]:
    """A job in a capacity block that starts in a moment and ends machines after a boot and the notice."""
    block = ec2.cloud.reserve(MACHINE, ec2.zones[1], block=True, starts_in_s=3600.0, ends_in_s=86400.0)
    resources = {"spot": False, "ec2": {"reservation": f"block:{block}"}}
    # It goes on for hours, and saves when it is told to and at no other time.
    job = ec2.submit(params={"steps": 100000, "pause": 0.1, "every": 1000000}, resources=resources)
    # Only now, because a first submission takes its time to pack what machines need.
    starts_in_s, notice_s = 8.0, 120.0
    ends_in_s = starts_in_s + boot_s + notice_s + HALF_AN_HOUR_S
    ec2.cloud.schedule(block, starts_in_s=starts_in_s, ends_in_s=ends_in_s)
    ec2.cloud.calls(reset=True)
    return job, block
