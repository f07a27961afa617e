"""A disk that no volume type has is refused at submission, in one line with the limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stoker.model.errors import UserError
from stoker.model.resources import Ec2Resources, GceResources, Resources
from stoker.providers.ec2 import request as ec2
from stoker.providers.gce import request as gce
from stoker.providers.sagemaker import request as sagemaker
from tests.support.sim_data import make_spec

TB = 10**12


def told(provider: Any, disk: int | None = None, **more: Any) -> str:
    spec = replace(make_spec(), resources=Resources(provider="x", disk_bytes=disk, **more))
    try:
        provider.check(spec)
    except UserError as error:
        return str(error)
    return ""


def volumes(*ebs: dict[str, Any]) -> Ec2Resources:
    return Ec2Resources(overrides={"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": each} for each in ebs]})


def disks(*made: dict[str, Any]) -> GceResources:
    return GceResources(
        overrides={
            "disks": [
                {"boot": not number, "autoDelete": True, "initializeParams": each} for number, each in enumerate(made)
            ]
        }
    )


# "gp2: 1 - 16,384 GiB, gp3: 1 - 65,536 GiB, io1: 4 - 16,384 GiB, io2: 4 - 65,536 GiB, st1 and sc1: 125 - 16,384 GiB,
# standard: 1 - 1024 GiB" (EC2 API Reference, EbsBlockDevice, VolumeSize).
@pytest.mark.parametrize(
    ("disk", "ebs", "line"),
    [
        (64 * 1024 * 10**9, None, ""),
        (
            100 * TB,
            None,
            "100,000 GB are asked for, and a disk of type gp3 on EC2 has 65,536 GB at most",
        ),
        (20 * TB, {"VolumeType": "io2"}, ""),
        (
            20 * TB,
            {"VolumeType": "gp2"},
            "resources.disk: 20,000 GB are asked for, and a disk of type gp2 on EC2 has 16,3",
        ),
        (3 * 10**9, {"VolumeType": "io1"}, "a disk of type io1 on EC2 has 4 GB at least"),
        (None, {"VolumeType": "st1", "VolumeSize": 16384}, ""),
        (
            None,
            {"VolumeType": "st1", "VolumeSize": 100},
            "BlockDeviceMappings[0].Ebs.VolumeSize: 100 GB are asked for, and a disk of type st1 on EC2 has 125 GB at",
        ),
        (None, {"VolumeType": "sc1", "VolumeSize": 16385}, "has 16,384 GB at most"),
        (None, {"VolumeType": "standard", "VolumeSize": 1025}, "has 1,024 GB at most"),
        (None, {"VolumeType": "of-tomorrow", "VolumeSize": 10**6}, ""),
    ],
)
def test_ec2(disk: int | None, ebs: dict[str, Any] | None, line: str) -> None:
    found = told(ec2, disk, ec2=None if ebs is None else volumes(ebs))
    assert line in found and bool(line) == bool(found)


# "Persistent Disk volumes can be up to 64 TiB in size" (Compute Engine, About Persistent Disk). "The maximum Hyperdisk
# volume size is: 64 TiB for Hyperdisk Balanced, 64 TiB for Hyperdisk Extreme, 32 TiB for Hyperdisk Throughput" (About
# Hyperdisk). "Size: between 64 GiB and 64 TiB" (About Hyperdisk Extreme).
@pytest.mark.parametrize(
    ("disk", "made", "line"),
    [
        (60 * TB, (), ""),
        (
            100 * TB,
            (),
            "resources.disk: 100,000 GB are asked for, and a disk of type pd-balanced on Compute Engine has 65,5",
        ),
        (
            100 * TB,
            ({"diskType": "zones/a/diskTypes/pd-ssd"},),
            "a disk of type pd-ssd on Compute Engine has 65,536 GB at",
        ),
        (
            50 * 10**9,
            ({"diskType": "hyperdisk-extreme"},),
            "type hyperdisk-extreme on Compute Engine has 64 GB at least",
        ),
        (9 * 10**9, (), "resources.disk: Compute Engine's disks have 10GB at least"),
        (
            None,
            ({}, {"diskType": "hyperdisk-throughput", "diskSizeGb": "40000"}),
            "disks[1].initializeParams.diskSizeGb: 40,000 GB are asked for, and a disk of type hyperdisk-throu",
        ),
        (None, ({"diskSizeGb": 60000},), ""),
    ],
)
def test_compute_engine(disk: int | None, made: tuple[dict[str, Any], ...], line: str) -> None:
    found = told(gce, disk, gce=disks(*made))
    assert line in found and bool(line) == bool(found)


def test_sagemaker() -> None:
    """ "SageMaker doesn't provision Amazon EBS General Purpose SSD (gp2) storage" where a type has disks of its own."""
    assert told(sagemaker, 16 * TB) == ""
    line = "resources.disk: 17,000 GB are asked for, and a disk of type gp2 on SageMaker has 16,384 GB at most"
    assert told(sagemaker, 17 * TB) == line
