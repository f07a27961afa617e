"""Where a node's folders lie, and how large and fast its boot disk is: by the machine, the image and the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_ec2_request import C7I, P4D, run_params
from test_ec2_request import order as ec2_order
from test_gce_request import A100, E2, T4, machine_of
from test_gce_request import order as gce_order

from stoker.model.errors import InvalidRequest
from stoker.model.offerings import Offering
from stoker.model.resources import Ec2Resources, GceResources
from stoker.model.spec import Container, Environment
from stoker.providers.base import LaunchOrder
from stoker.providers.ec2 import image_lookup, root_volume, userdata
from stoker.providers.ec2 import request as ec2
from stoker.providers.ec2.errors import map_error
from stoker.providers.gce import request as gce
from stoker.providers.gce import startup

G5 = replace(P4D, machine="g5.xlarge", gpu="A10G", gpus=1)
# No disks of its own.
INF2 = replace(P4D, machine="inf2.xlarge", gpu="Inferentia2", gpus=1)
SMALL = replace(C7I, machine="c5d.large")
ULTRA = replace(A100, machine="a2-ultragpu-1g", gpu="A100-80GB", gpus=1)
IN_CONTAINER = Environment(container=Container(image="nvcr.io/nvidia/pytorch:25.01-py3"))
EPHEMERAL = {"BlockDeviceMappings": [{"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"}]}


def volume(found: LaunchOrder) -> dict[str, Any]:
    disk: dict[str, Any] = run_params(found)["BlockDeviceMappings"][0]["Ebs"]
    return disk


def in_container(found: LaunchOrder) -> LaunchOrder:
    return replace(found, spec=replace(found.spec, environment=IN_CONTAINER))


@pytest.mark.parametrize(
    ("offering", "resources", "size"),
    [
        # The image, and room for what a job needs.
        (C7I, {}, 8 + 50),
        (C7I, {"image": "debian/13"}, 8 + 50),
        (INF2, {}, 100 + 50),
        # A disk of 50 GB is not 50 GiB.
        (SMALL, {}, 8 + 50),
        # With disks of its own, the image is all there is on the root volume.
        (G5, {}, None),
        (P4D, {}, None),
        # What the job asks for comes first.
        (C7I, {"disk_bytes": 30 * 10**9}, 30),
        (G5, {"disk_bytes": 200 * 10**9}, 200),
        # A job that uses the instance store itself.
        (G5, {"ec2": Ec2Resources(overrides=EPHEMERAL)}, 100 + 50),
        (C7I, {"ec2": Ec2Resources(overrides={"BlockDeviceMappings": [
            {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 40}}
        ]})}, 40),
    ],
)  # fmt: skip
def test_the_root_volume_has_room_for_the_job(offering: Offering, resources: dict[str, Any], size: int | None) -> None:
    assert volume(ec2_order(offering, **resources)).get("VolumeSize") == size


@pytest.mark.parametrize(("offering", "size"), [(C7I, 8 + 50 + 50), (G5, 100 + 50)])
def test_a_containers_image_is_on_the_root_volume_wherever_the_folders_are(offering: Offering, size: int) -> None:
    assert volume(in_container(ec2_order(offering)))["VolumeSize"] == size


def test_known_inputs_count() -> None:
    """g5.xlarge brings 250 GB."""
    assert volume(replace(ec2_order(C7I), inputs_bytes=100 << 30))["VolumeSize"] == 8 + 50 + 100
    assert "VolumeSize" not in volume(replace(ec2_order(G5), inputs_bytes=100 << 30))
    assert volume(replace(ec2_order(G5), inputs_bytes=200 << 30))["VolumeSize"] == 100 + 50 + 200


def test_an_image_that_is_looked_up_gets_room_beside_it() -> None:
    image = {
        "ImageId": "ami-1",
        "RootDeviceName": "/dev/xvda",
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/xvdb", "Ebs": {"VolumeSize": 500}},
            {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 75}},
        ],
    }
    run = run_params(ec2_order(image="my-image-*"))
    (root,) = run["BlockDeviceMappings"]
    assert root["Ebs"]["VolumeSize"] == "(the image's size and 50 GiB)"
    (root,) = image_lookup.filled(run, image)["BlockDeviceMappings"]
    assert (root["DeviceName"], root["Ebs"]["VolumeSize"]) == ("/dev/xvda", 125)
    # EC2's answer without a size: "If you specify a snapshot, the default is the snapshot size" (VolumeSize).
    (root,) = image_lookup.filled(run, {"ImageId": "ami-1", "RootDeviceName": "/dev/xvda"})["BlockDeviceMappings"]
    assert "VolumeSize" not in root["Ebs"]
    asked = run_params(ec2_order(image="my-image-*", disk_bytes=90 * 10**9))
    (root,) = image_lookup.filled(asked, image)["BlockDeviceMappings"]
    assert root["Ebs"]["VolumeSize"] == 90
    mine = Ec2Resources(overrides={"BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 300}}]})
    (root,) = image_lookup.filled(run_params(ec2_order(image="my-image-*", ec2=mine)), image)["BlockDeviceMappings"]
    assert root["Ebs"]["VolumeSize"] == 300


def test_less_than_the_image_has_is_refused_before_the_launch() -> None:
    """EC2 refuses it with "Volume of size 30GB is smaller than snapshot 'snap-…', expect size >= 75GB"."""
    image = {"ImageId": "ami-1", "RootDeviceName": "/dev/xvda", "BlockDeviceMappings": [
        {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 75}}
    ]}  # fmt: skip
    run = run_params(ec2_order(image="my-image-*", disk_bytes=30 * 10**9))
    with pytest.raises(InvalidRequest, match=r"^resources\.disk: the image has 75 GB, and 30 GB are asked for"):
        image_lookup.filled(run, image)
    told = {"Error": {
        "Code": "InvalidBlockDeviceMapping",
        "Message": "Volume of size 30GB is smaller than snapshot 'snap-1', expect size >= 75GB",
    }, "ResponseMetadata": {"HTTPStatusCode": 400}}  # fmt: skip
    found = map_error("c7i.large", told)
    assert isinstance(found, InvalidRequest) and str(found).startswith("resources.disk: Volume of size 30GB")


@pytest.mark.parametrize(
    ("gigabytes", "mib_s", "iops"),
    [(100, None, None), (400, 250, None), (2000, 250, 6000), (10_000, 250, 16_000)],
)
def test_a_large_volume_is_no_slower_than_gp2(gigabytes: int, mib_s: int | None, iops: int | None) -> None:
    """ "gp2: 3 IOPS per GiB of volume size (minimum of 100 IOPS) to a maximum of 16,000", and "volumes that are 334 GiB
    or larger deliver 250 MiB/s regardless of burst credits":
    https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html"""
    found = volume(ec2_order(C7I, disk_bytes=gigabytes * 10**9))
    assert (found.get("Throughput"), found.get("Iops")) == (mib_s, iops)


def test_a_large_volume_beside_instance_disks_is_not_paid_for_twice() -> None:
    assert "Iops" not in volume(ec2_order(replace(G5, machine="g5.48xlarge"), disk_bytes=2000 * 10**9))


@pytest.mark.parametrize(
    ("offering", "resources", "said"),
    [
        (P4D, {}, "p4d.24xlarge's own disks, 8.0 TB"),
        (G5, {"disk_bytes": 200 * 10**9}, "g5.xlarge's own disks, 250 GB"),
        (G5, {"disk_bytes": 10**12}, "the root volume of g5.xlarge, 1000 GB"),
        (C7I, {}, "the root volume of c7i.large, 58 GB"),
        (C7I, {"image": "mine-*"}, "the root volume of c7i.large, with 50 GB beside the image"),
    ],
)
def test_the_plan_says_where_the_folders_lie(offering: Offering, resources: dict[str, Any], said: str) -> None:
    spec = ec2_order(offering, **resources).spec
    note = root_volume.plan_note(spec, offering.machine, ec2.find_image(spec, offering), 0)
    assert note == f"disk: checkpoints, inputs and environments on {said}"


def test_the_machine_is_told_what_the_job_asked_for() -> None:
    assert userdata.settings_of(ec2_order(G5)).more == {}
    assert userdata.settings_of(ec2_order(G5, disk_bytes=10**12)).more == {"disk_bytes": 10**12}
    mapped = ec2_order(G5, ec2=Ec2Resources(overrides=EPHEMERAL), disk_bytes=10**12)
    assert userdata.settings_of(mapped).more == {"own_disks": True}
    other = Ec2Resources(overrides={"BlockDeviceMappings": [{"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 9}}]})
    assert userdata.settings_of(ec2_order(G5, ec2=other)).more == {}


# ── Compute Engine ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("offering", "resources", "size"),
    [
        (E2, {}, "60"),
        (E2, {"image": "debian/12"}, "60"),
        (T4, {}, "150"),
        (ULTRA, {}, None),
        (ULTRA, {"gce": GceResources(overrides={"disks": [{"type": "SCRATCH", "autoDelete": True}]})}, "150"),
        (E2, {"disk_bytes": 20 * 10**9}, "20"),
        # Its size is not known.
        (E2, {"image": "family:vision-1/our-image"}, None),
    ],
)
def test_the_boot_disk_has_room_for_the_job(offering: Offering, resources: dict[str, Any], size: str | None) -> None:
    found = machine_of(gce_order(offering, **resources))["disks"][0]["initializeParams"]
    assert found.get("diskSizeGb") == size


def test_a_containers_image_is_on_the_boot_disk() -> None:
    found = machine_of(in_container(gce_order(ULTRA)))["disks"][0]["initializeParams"]
    assert found["diskSizeGb"] == "150"


@pytest.mark.parametrize(
    ("offering", "resources", "said"),
    [
        (ULTRA, {}, "a2-ultragpu-1g's own disks, 375 GB"),
        (ULTRA, {"disk_bytes": 10**12}, "the boot disk of a2-ultragpu-1g, 1000 GB"),
        (E2, {"image": "family:vision-1/ours"}, "the boot disk of e2-standard-4, as large as its image"),
    ],
)
def test_the_plan_says_so_on_compute_engine_too(offering: Offering, resources: dict[str, Any], said: str) -> None:
    note = gce.disk_note(gce_order(offering, **resources).spec, offering, 0)
    assert note == f"disk: checkpoints, inputs and environments on {said}"


def test_a_machine_of_compute_engine_is_told_too() -> None:
    assert startup.boot(gce_order(ULTRA, disk_bytes=10**12)).more["disk_bytes"] == 10**12
