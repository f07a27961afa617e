"""What only EC2 has, on machines that really boot: images by name, its own command line, quotas for spot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ec2_world import Ec2World
from harness import chain, fields

from stoker.model.errors import UserError
from tests.support.ec2 import why_no_machines
from tests.support.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

if isolated():

    def test_another_debian_and_an_image_by_its_name(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        job = ec2.submit(params={"steps": 5}, resources={"image": "debian-13-amd64-*", "disk": "20GB"})
        with ec2.governed():
            summary = ec2.ended(job)
        assert summary.phase == "succeeded", ec2.story(job)
        assert any(chain(5) in line for line in ec2.lines(job))

    def test_no_quota_for_spot_is_no_reason_not_to_train(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        ec2.cloud.faults.refuse_launch("MaxSpotInstanceCountExceeded", lifecycle="spot")
        job = ec2.submit(params={"steps": 5}, resources={"spot": "prefer"})
        with ec2.governed():
            summary = ec2.ended(job)
        assert summary.phase == "succeeded" and fields(summary, "spot") == [(False,)], ec2.story(job)

    def test_a_full_subnet_is_left_for_that_of_another_zone(ec2: Ec2World) -> None:
        """ "The specified subnet does not contain enough free private IP addresses to fulfill your request." """
        ec2.script("counter.py")
        ec2.cloud.faults.refuse_launch("InsufficientFreeAddressesInSubnet", zone=ec2.zones[0])
        machines = ["c7i.large", "m7i.large"]
        job = ec2.submit(params={"steps": 5}, resources={"machine": machines, "zones": list(ec2.zones)})
        with ec2.governed():
            summary = ec2.ended(job)
        assert summary.phase == "succeeded" and fields(summary, "zone") == [(ec2.zones[1],)], ec2.story(job)
        assert "resources.ec2.subnet: " in ec2.story(job) and ec2.launches() == 2, ec2.story(job)

    def test_what_the_job_names_and_ec2_does_not_have_is_refused_before_anything_is_written(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        with pytest.raises(UserError, match=r"^resources\.ec2\.profile: .*nobody"):
            ec2.submit(resources={"ec2": {"profile": "nobody"}})
        with pytest.raises(UserError, match=r"^resources\.ec2\.security_groups: "):
            ec2.submit(resources={"ec2": {"security_groups": ["sg-0123"]}})
        with pytest.raises(UserError, match=r"^resources\.ec2\.key: .*'mine'"):
            ec2.submit(resources={"ec2": {"key": "mine"}})
        with pytest.raises(UserError, match=r"^resources\.image: .*nothing-\*"):
            ec2.submit(nodes=2, resources={"image": "nothing-*"})
        assert not list(ec2.store.list("")), "nothing is left of them"

    def test_the_real_command_line_reads_what_was_launched(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        job = ec2.submit(params={"steps": 5}, nodes=2)
        with ec2.governed():
            assert ec2.ended(job).phase == "succeeded", ec2.story(job)
        calls = ec2.cloud.calls()
        names = aws_cli(ec2, "ec2", "describe-instances", "--filters", f"Name=tag:stoker:job,Values={job}")
        assert sorted(names) == [f"{job}-1-0", f"{job}-1-1"]
        assert calls["CreatePlacementGroup"] == calls["DeletePlacementGroup"] == 1

else:

    def test_ec2_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)


def aws_cli(world: Ec2World, *words: str) -> list[str]:
    """What the real command line says the instances are called."""
    names = "Reservations[].Instances[].Tags[?Key=='Name'].Value[]"
    command = [str(Path(sys.executable).parent / "aws"), *words, "--query", names, "--output", "text"]
    ran = subprocess.run(command, env=world.environ(), capture_output=True, text=True, check=True)
    return ran.stdout.split()
