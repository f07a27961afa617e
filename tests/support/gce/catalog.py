"""What there is to be had in this Compute Engine: places, machine types, accelerators, images and accounts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tests.support.engines import MACHINE
from tests.support.machines import with_torch
from tests.support.machines.images import BOOKWORM, BULLSEYE, TRIXIE, Tree

# The test's own, and another that the same person may use.
PROJECT = "stoker-test"
OTHER_PROJECT = "stoker-other"
PROJECTS = {PROJECT: "424242424242", OTHER_PROJECT: "434343434343"}
REGION = "us-central1"

# The service account that machines are given, in each project.
NODE_ACCOUNT = "stoker-node"

ZONES = {
    "us-central1": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"),
    "us-east1": ("us-east1-b", "us-east1-c", "us-east1-d"),
    "europe-west4": ("europe-west4-a", "europe-west4-b", "europe-west4-c"),
}
ALL_ZONES = tuple(zone for zones in ZONES.values() for zone in zones)


@dataclass(frozen=True)
class Accelerator:
    """A kind of GPU. `attachable` ones are added to N1 machines; others come with their machine types."""

    name: str
    zones: tuple[str, ...]
    most: int
    attachable: bool = False


@dataclass(frozen=True)
class MachineType:
    """A machine type, with the GPUs that come with it."""

    name: str
    cpus: int
    memory_gb: float
    accelerator: str = ""
    count: int = 0

    @property
    def family(self) -> str:
        return self.name.partition("-")[0]


@dataclass(frozen=True)
class Image:
    """A public image, the newest of its family."""

    project: str
    family: str
    name: str
    tree: Tree
    size_gb: int = 10


_GPU_ZONES = ("us-central1-a", "us-central1-b", "us-central1-c", "us-east1-c", "us-east1-d", "europe-west4-a")
_MOST_GPU_ZONES = ("us-central1-a", "us-central1-c", "us-east1-b", "europe-west4-b")

ACCELERATORS = {
    each.name: each
    for each in (
        Accelerator("nvidia-tesla-t4", (*_GPU_ZONES, "us-central1-f", "europe-west4-b"), 4, attachable=True),
        Accelerator("nvidia-tesla-v100", ("us-central1-a", "us-central1-b", "europe-west4-a"), 8, attachable=True),
        Accelerator("nvidia-tesla-p100", ("us-central1-c", "us-central1-f", "us-east1-b"), 4, attachable=True),
        Accelerator("nvidia-tesla-p4", ("us-central1-a", "us-central1-c"), 4, attachable=True),
        Accelerator("nvidia-l4", _GPU_ZONES, 8),
        Accelerator("nvidia-tesla-a100", _MOST_GPU_ZONES, 16),
        Accelerator("nvidia-a100-80gb", ("us-central1-a", "us-central1-c", "europe-west4-a"), 8),
        Accelerator("nvidia-h100-80gb", ("us-central1-a", "us-central1-b", "us-central1-c", "europe-west4-b"), 8),
        Accelerator("nvidia-h100-mega-80gb", ("us-central1-a", "us-east1-d", "europe-west4-b"), 8),
        Accelerator("nvidia-h200-141gb", ("us-central1-b", "us-east1-b", "europe-west4-a"), 8),
        Accelerator("nvidia-rtx-pro-6000", ("us-central1-b", "us-central1-f", "us-east1-b"), 8),
        Accelerator("nvidia-b200", ("us-central1-b", "us-east1-b"), 8),
    )
}


def _plain(family: str, per_cpu_gb: float, *cpus: int) -> list[MachineType]:
    return [MachineType(f"{family}-standard-{each}", each, per_cpu_gb * each) for each in cpus]


MACHINE_TYPES = {
    each.name: each
    for each in (
        MachineType("e2-micro", 2, 1),
        MachineType("e2-small", 2, 2),
        MachineType("e2-medium", 2, 4),
        MachineType("e2-highcpu-4", 4, 4),
        *_plain("e2", 4, 2, 4, 8, 16, 32),
        *_plain("n1", 3.75, 1, 2, 4, 8, 16, 32, 64, 96),
        *(MachineType(f"n1-highmem-{each}", each, 6.5 * each) for each in (2, 4, 8, 16, 32, 64, 96)),
        *_plain("n2", 4, 2, 4, 8, 16, 32, 64, 96, 128),
        *_plain("n2d", 4, 2, 4, 8, 16, 32, 64),
        *_plain("c2", 4, 4, 8, 16, 30, 60),
        *_plain("c3", 4, 4, 8, 22, 44, 88, 176),
        MachineType("h4d-standard-192", 192, 720),
        MachineType("ct5lp-hightpu-4t", 112, 192),
        MachineType("ct5p-hightpu-4t", 208, 448),
        MachineType("ct6e-standard-1t", 44, 176),
        MachineType("ct6e-standard-4t", 180, 720),
        MachineType("g2-standard-4", 4, 16, "nvidia-l4", 1),
        MachineType("g2-standard-8", 8, 32, "nvidia-l4", 1),
        MachineType("g2-standard-12", 12, 48, "nvidia-l4", 1),
        MachineType("g2-standard-16", 16, 64, "nvidia-l4", 1),
        MachineType("g2-standard-32", 32, 128, "nvidia-l4", 1),
        MachineType("g2-standard-24", 24, 96, "nvidia-l4", 2),
        MachineType("g2-standard-48", 48, 192, "nvidia-l4", 4),
        MachineType("g2-standard-96", 96, 384, "nvidia-l4", 8),
        MachineType("g4-standard-48", 48, 180, "nvidia-rtx-pro-6000", 1),
        MachineType("g4-standard-96", 96, 360, "nvidia-rtx-pro-6000", 2),
        MachineType("g4-standard-192", 192, 720, "nvidia-rtx-pro-6000", 4),
        MachineType("g4-standard-384", 384, 1440, "nvidia-rtx-pro-6000", 8),
        MachineType("a2-highgpu-1g", 12, 85, "nvidia-tesla-a100", 1),
        MachineType("a2-highgpu-2g", 24, 170, "nvidia-tesla-a100", 2),
        MachineType("a2-highgpu-4g", 48, 340, "nvidia-tesla-a100", 4),
        MachineType("a2-highgpu-8g", 96, 680, "nvidia-tesla-a100", 8),
        MachineType("a2-megagpu-16g", 96, 1360, "nvidia-tesla-a100", 16),
        MachineType("a2-ultragpu-1g", 12, 170, "nvidia-a100-80gb", 1),
        MachineType("a2-ultragpu-2g", 24, 340, "nvidia-a100-80gb", 2),
        MachineType("a2-ultragpu-4g", 48, 680, "nvidia-a100-80gb", 4),
        MachineType("a2-ultragpu-8g", 96, 1360, "nvidia-a100-80gb", 8),
        MachineType("a3-highgpu-1g", 26, 234, "nvidia-h100-80gb", 1),
        MachineType("a3-highgpu-2g", 52, 468, "nvidia-h100-80gb", 2),
        MachineType("a3-highgpu-4g", 104, 936, "nvidia-h100-80gb", 4),
        MachineType("a3-highgpu-8g", 208, 1872, "nvidia-h100-80gb", 8),
        MachineType("a3-megagpu-8g", 208, 1872, "nvidia-h100-mega-80gb", 8),
        MachineType("a3-ultragpu-8g", 224, 2952, "nvidia-h200-141gb", 8),
        MachineType("a4-highgpu-8g", 224, 3968, "nvidia-b200", 8),
    )
}

# Series whose machines can be placed close to one another.
# https://cloud.google.com/compute/docs/instances/placement-policies-overview
COMPACT_FAMILIES = frozenset({"a2", "a3", "a4", "c2", "c2d", "c3", "c3d", "g2", "g4", "h3", "h4d", "n2", "n2d"})

# Networks of every project beside the default one, with their subnetworks, all of them in every region.
GPU_NETWORKS = {**{f"gpu-{n}": (f"gpu-{n}",) for n in range(1, 9)}, "rdma": tuple(f"rdma-{n}" for n in range(8))}
# The most network cards of a machine, by kind: https://cloud.google.com/compute/docs/gpus/gpu-network-bandwidth
CARDS = {
    "a3-highgpu-8g": {"GVNIC": 5},
    "a3-megagpu-8g": {"GVNIC": 9},
    "a3-ultragpu-8g": {"GVNIC": 2, "MRDMA": 8},
    "a4-highgpu-8g": {"GVNIC": 2, "MRDMA": 8},
}
# Series without VirtIO cards: https://cloud.google.com/compute/docs/networking/using-gvnic
GVNIC_FAMILIES = frozenset({"a3", "a4", "h4d", "ct5lp", "ct5p", "ct6e"})

DISK_TYPES = ("pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced")

_ACCEL = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
_DEBIAN, _UBUNTU, _DEEP = "debian-cloud", "ubuntu-os-cloud", "deeplearning-platform-release"

# Only Debian's own are what they say. The others boot a Debian too: this host can build no Ubuntu.
IMAGES = (
    Image(_DEBIAN, "debian-11", "debian-11-bullseye-v20240611", BULLSEYE),
    Image(_DEBIAN, "debian-12", "debian-12-bookworm-v20260609", BOOKWORM),
    Image(_DEBIAN, "debian-13", "debian-13-trixie-v20260609", TRIXIE),
    Image(_UBUNTU, "ubuntu-2204-lts", "ubuntu-2204-jammy-v20260610", BOOKWORM),
    Image(_UBUNTU, "ubuntu-2404-lts-amd64", "ubuntu-2404-noble-amd64-v20260610", BOOKWORM),
    *(
        Image(_DEEP, family, f"{family}-v20260610", BOOKWORM, 50)
        for family in (
            "common-cu129-ubuntu-2204-nvidia-580",
            "common-cu129-ubuntu-2404-nvidia-580",
            "pytorch-2-7-cu128-ubuntu-2204-nvidia-570",
            "pytorch-2-9-cu129-ubuntu-2404-nvidia-580",
        )
    ),
    Image("ubuntu-os-accelerator-images", _ACCEL, f"{_ACCEL}-v20260530", BOOKWORM),
    # The project's own: Debian with docker.
    Image(PROJECT, "docker", "docker-v20260610", MACHINE),
    # The project's own: Debian with PyTorch.
    Image(PROJECT, "torch", "torch-v20260610", with_torch.MACHINE),
)


@dataclass(frozen=True)
class Reservation:
    """Machines that are kept for a project, in one zone. Every project has its own."""

    name: str
    zone: str
    machine: str
    count: int


# The last is of a future reservation in calendar mode: it has machines while tests say so.
CALENDAR = "calendar"
RESERVATIONS = (
    Reservation("held", "us-central1-b", "n2-standard-2", 2),
    Reservation(CALENDAR, "us-central1-b", "n2-standard-2", 2),
)

# What each region lets a project have, by metric.
REGION_QUOTAS = {
    "CPUS": 500.0,
    "PREEMPTIBLE_CPUS": 500.0,
    "N2_CPUS": 500.0,
    "C2_CPUS": 500.0,
    "C3_CPUS": 500.0,
    "A2_CPUS": 500.0,
    "SSD_TOTAL_GB": 50_000.0,
    "DISKS_TOTAL_GB": 50_000.0,
    "INSTANCES": 500.0,
    "IN_USE_ADDRESSES": 64.0,
    **{
        f"{prefix}{name}_GPUS": 64.0
        for prefix in ("", "PREEMPTIBLE_")
        for name in (
            *("NVIDIA_T4", "NVIDIA_V100", "NVIDIA_P100", "NVIDIA_P4", "NVIDIA_L4"),
            *("NVIDIA_A100", "NVIDIA_A100_80GB", "NVIDIA_H100", "NVIDIA_H100_MEGA", "NVIDIA_H200"),
        )
    },
}
PROJECT_QUOTAS = {"CPUS_ALL_REGIONS": 1000.0, "GPUS_ALL_REGIONS": 64.0, "NETWORKS": 5.0, "FIREWALLS": 100.0}


def zones_of(machine: MachineType) -> tuple[str, ...]:
    """Where there are such machines."""
    return ACCELERATORS[machine.accelerator].zones if machine.accelerator else ALL_ZONES


def accounts(project: str) -> tuple[str, str]:
    """The service accounts of a project: Compute Engine's default one, and the one for Stoker's machines."""
    return f"{PROJECTS[project]}-compute@developer.gserviceaccount.com", node_account(project)


def node_account(project: str = PROJECT) -> str:
    """The address of the service account that machines are given."""
    return f"{NODE_ACCOUNT}@{project}.iam.gserviceaccount.com"


def number_of(path: str) -> str:
    """The id of something that was always there: the same in every cloud."""
    return str(int(hashlib.sha256(path.encode()).hexdigest()[:15], 16) + 1)
