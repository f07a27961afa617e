"""The images that the fake EC2 has."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.engines import MACHINE
from tests.support.machines import with_torch
from tests.support.machines.images import BOOKWORM, BULLSEYE, NVME, PYTORCH, TRIXIE, Tree

# The account of whoever asks, and Debian's, whose images EC2 counts as Amazon's: DescribeImages answers
# "ImageLocation": "amazon/debian-12-amd64-20231013-1532", "OwnerId": "136693071363", "ImageOwnerAlias": "amazon".
OWN_ACCOUNT = "123456789012"
DEBIAN_ACCOUNT = "136693071363"


@dataclass(frozen=True)
class Image:
    """One AMI. `aliases` are public SSM parameters that name it."""

    tree: Tree
    ami: str
    name: str
    aliases: tuple[str, ...]
    owner: str = OWN_ACCOUNT


@dataclass(frozen=True)
class Record:
    """An AMI that is listed, and never booted."""

    ami: str
    name: str
    owner: str
    created: str
    architecture: str = "x86_64"
    state: str = "available"
    deprecated: str = ""


IMAGES = (
    Image(
        BULLSEYE,
        "ami-0deb1100000000000",
        "debian-11-amd64-20240601-1",
        ("/aws/service/debian/release/11/latest/amd64",),
        DEBIAN_ACCOUNT,
    ),
    Image(
        BOOKWORM,
        "ami-0deb1200000000000",
        "debian-12-amd64-20250601-1",
        (
            "/aws/service/debian/release/12/latest/amd64",
            "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id",
            "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
            "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
            "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
            "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
        ),
        DEBIAN_ACCOUNT,
    ),
    Image(
        TRIXIE,
        "ami-0deb1300000000000",
        "debian-13-amd64-20260601-1",
        ("/aws/service/debian/release/13/latest/amd64",),
        DEBIAN_ACCOUNT,
    ),
    # Somebody's own: Debian with docker.
    Image(MACHINE, "ami-0deb12d0c00000000", "docker-12-amd64-20250601-1", ()),
    # Somebody's own: Debian with PyTorch.
    Image(with_torch.MACHINE, "ami-0deb1270c00000000", "torch-amd64-20250601-1", ()),
    # Another one: with an environment for training, and a driver that comes late.
    Image(PYTORCH, "ami-0deb12a1000000000", "pytorch-12-amd64-20250601-1", ()),
    # And one that mounts the instance store.
    Image(NVME, "ami-0deb12d1a00000000", "nvme-12-amd64-20250601-1", ()),
)

# Images that the pattern `docker-12-amd64-*` matches too, and that nobody may get who asks for their own or Amazon's.
RECORDS = (
    # Anybody may publish an image of any name.
    Record("ami-0bad0000000000001", "docker-12-amd64-20991231-1", "666666666666", "2099-12-31T00:00:00.000Z"),
    Record("ami-0bad0000000000002", "docker-12-amd64-20990101-a", OWN_ACCOUNT, "2099-01-01T00:00:00.000Z", "arm64"),
    Record(
        "ami-0bad0000000000003", "docker-12-amd64-20990101-p", OWN_ACCOUNT, "2099-01-01T00:00:00.000Z", state="pending"
    ),
    Record(
        "ami-0bad0000000000004",
        "docker-12-amd64-20980101-1",
        OWN_ACCOUNT,
        "2098-01-01T00:00:00.000Z",
        deprecated="2024-01-01T00:00:00.000Z",
    ),
    Record(
        "ami-0bad0000000000005",
        "docker-12-amd64-20970101-1",
        "amazon",
        "2097-01-01T00:00:00.000Z",
        deprecated="2024-01-01T00:00:00.000Z",
    ),
)
