"""The images that the fake EC2 has."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.engines import MACHINE
from tests.support.machines import with_torch
from tests.support.machines.images import BOOKWORM, BULLSEYE, PYTORCH, TRIXIE, Tree


@dataclass(frozen=True)
class Image:
    """One AMI. `aliases` are public SSM parameters that name it."""

    tree: Tree
    ami: str
    name: str
    aliases: tuple[str, ...]


IMAGES = (
    Image(
        BULLSEYE,
        "ami-0deb1100000000000",
        "debian-11-amd64-20240601-1",
        ("/aws/service/debian/release/11/latest/amd64",),
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
    ),
    Image(
        TRIXIE,
        "ami-0deb1300000000000",
        "debian-13-amd64-20260601-1",
        ("/aws/service/debian/release/13/latest/amd64",),
    ),
    # Somebody's own: Debian with docker.
    Image(MACHINE, "ami-0deb12d0c00000000", "docker-12-amd64-20250601-1", ()),
    # Somebody's own: Debian with PyTorch.
    Image(with_torch.MACHINE, "ami-0deb1270c00000000", "torch-amd64-20250601-1", ()),
    # Another one: with an environment for training, and a driver that comes late.
    Image(PYTORCH, "ami-0deb12a1000000000", "pytorch-12-amd64-20250601-1", ()),
)
