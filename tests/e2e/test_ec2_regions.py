"""A job in two regions of EC2, on machines that really boot: sold out in the first, and reclaimed there."""

from __future__ import annotations

from typing import Any

import pytest
from cloud_world import BOOT_S
from ec2_world import Ec2World
from harness import chain, fields

from tests.support.ec2 import why_no_machines
from tests.support.servers import isolated, pytest_isolated

if why_no_machines() is not None:
    pytest.skip(str(why_no_machines()), allow_module_level=True)

EAST, WEST = "us-east-1", "us-west-2"

if isolated():

    def regions(*zones: str, **more: Any) -> dict[str, Any]:
        return {"region": [EAST, WEST], "zones": list(zones), **more}

    def test_sold_out_in_the_first_region_it_runs_in_the_second(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        ec2.cloud.faults.no_capacity(zone=f"{EAST}a")
        ec2.cloud.faults.no_capacity(zone=f"{EAST}b")
        job = ec2.submit(nodes=2, params={"steps": 5}, resources=regions(f"{EAST}a", f"{EAST}b", f"{WEST}b"))
        with ec2.governed():
            summary = ec2.ended(job)
        assert summary.phase == "succeeded", ec2.story(job)
        # The gang is in one zone.
        assert fields(summary, "zone") == [(f"{WEST}b",)], ec2.story(job)
        tried = [(claim.offering.region, claim.offering.zone) for claim in ec2.state(job).claims]
        assert tried == [(EAST, f"{EAST}a"), (EAST, f"{EAST}b"), (WEST, f"{WEST}b")]
        assert any(chain(5) in line for line in ec2.lines(job))
        # A claim without machines is watched for minutes; a person can clean up before, in all regions.
        swept = ec2.cli("reap", timeout_s=BOOT_S)
        assert swept.returncode == 0 and not ec2.cloud.left().placement_groups, swept.stdout + swept.stderr

    def test_a_reclaim_moves_it_to_the_other_region_where_it_resumes(ec2: Ec2World) -> None:
        ec2.script("counter.py")
        ec2.cloud.set_spot_price("c7i.large", 0.01, f"{EAST}a")
        ec2.cloud.set_spot_price("c7i.large", 0.02, f"{WEST}a")
        job = ec2.submit(
            params={"steps": 200, "pause": 0.1, "every": 1000},
            resources=regions(f"{EAST}a", f"{WEST}a", spot=True),
        )
        with ec2.governed():
            ec2.trained(job, 5)
            ec2.cloud.faults.no_capacity(zone=f"{EAST}a")
            ec2.notice(job)
            # Two machines boot, one after the other.
            summary = ec2.ended(job, 2 * BOOT_S)
        assert fields(summary, "outcome", "zone") == [("reclaimed", f"{EAST}a"), ("succeeded", f"{WEST}a")], ec2.story(
            job
        )
        # Nothing was trained twice, and nothing left out.
        assert [one.step for one in ec2.steps(job)] == list(range(1, 201))
        assert any(chain(200) in line for line in ec2.lines(job))

else:

    def test_regions_of_ec2_in_a_network_of_its_own() -> None:
        pytest_isolated(__file__)
