"""EC2: what becoming a node costs a machine, and what a job costs in calls.

On an EC2 that boots what it is asked to boot (`tests.support.ec2`), and for many jobs at once on moto alone, which
answers as EC2 does and boots nothing.
"""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

from bench import cloud_jobs
from bench.figures import Figure, Measurement, Size
from bench.sandbox import sandbox
from tests.support.machines import why_no_machines

JOBS = 100
MACHINE = "c7i.large"
PROFILE = "stoker-node"
RESOURCES = {"provider": "ec2", "machine": [MACHINE], "image": "debian/12", "ec2": {"profile": PROFILE}}
# EC2 takes the size of the root volume from the image where the request names none; moto refuses such a launch.
SIZED = RESOURCES | {"disk": "20GB"}


def boot_overhead(size: Size) -> dict[str, float]:
    """The time that an agent adds to the boot of a machine."""
    from tests.support.ec2 import IMAGES, ec2_cloud

    ami = next(image.ami for image in IMAGES if image.tree.suite == "bookworm")

    def launch_bare() -> str:
        (instance,) = _ec2().run_instances(
            ImageId=ami,
            InstanceType=MACHINE,
            MinCount=1,
            MaxCount=1,
            UserData=cloud_jobs.BARE,
            InstanceInitiatedShutdownBehavior="terminate",
        )["Instances"]
        return str(instance["InstanceId"])

    with ec2_cloud() as cloud:
        return {"ec2_boot_overhead_s": cloud_jobs.boot_overhead_s(cloud, "s3", RESOURCES, launch_bare, size)}


def bundle(_size: Size) -> dict[str, float]:
    """The size of the download that makes a machine a node."""
    from stoker.submit.agent_bundle import build_archive, local_tag

    return {"agent_bundle_mb": build_archive(local_tag()).size / 1e6}


def calls_per_job(_size: Size) -> dict[str, float]:
    """A job of one node, without a fault: calls to EC2 and its kin."""
    from tests.support.ec2 import ec2_cloud

    with ec2_cloud() as cloud:
        return {"ec2_calls_per_job": cloud_jobs.calls_per_job(cloud, "s3", RESOURCES)}


def pass_calls(size: Size) -> dict[str, float]:
    """One pass of a governor over 100 running jobs: calls to EC2."""
    from botocore.client import BaseClient

    from stoker.client import submit
    from stoker.governor.loop import Governor
    from stoker.store.base import open_store
    from tests.support.servers import moto_server

    jobs = size.choose(JOBS, 3)
    called: list[str] = []
    make = BaseClient._make_api_call  # type: ignore[attr-defined]

    def counted(self: Any, operation: str, params: Any) -> Any:
        called.append(operation)
        return make(self, operation, params)

    # Nothing boots here, so nothing is lost on a bucket that machines could not reach.
    reached = mock.patch("stoker.submit.prepare.unreachable", lambda _environ: ())
    with sandbox() as place, moto_server("bench") as moto, mock.patch.dict(os.environ, moto.env), reached:
        os.environ["STOKER_HOME"] = str(place.home)
        place.script("train.py", cloud_jobs.FIRST)
        store = "s3://bench"
        _make_profile()
        for _ in range(jobs):
            submit(cloud_jobs.job(place, SIZED), store=store, detach=False)
        governor = Governor(open_store(store))
        governor.run_pass()
        with mock.patch.object(BaseClient, "_make_api_call", counted):
            done = Governor(open_store(store)).run_pass()
    if done.active != jobs or done.problems:
        raise RuntimeError(f"{done.active} jobs, {list(done.problems.values())[:3]}")
    return {"ec2_pass_calls": float(len(called))}


def _make_profile() -> None:
    """The profile that machines get: an account that was made ready for Stoker has it."""
    import boto3

    boto3.client("iam", region_name="us-east-1").create_instance_profile(InstanceProfileName=PROFILE)


def _ec2() -> Any:
    import boto3

    return boto3.client("ec2", region_name="us-east-1")


MEASUREMENTS = (
    Measurement((Figure("ec2_boot_overhead_s", "s", 4.0, difference=True),), boot_overhead, why_no_machines),
    Measurement((Figure("agent_bundle_mb", "MB", 10.0),), bundle),
    Measurement((Figure("ec2_calls_per_job", "", 15.0),), calls_per_job, why_no_machines),
    Measurement((Figure("ec2_pass_calls", "", 5.0),), pass_calls),
)
