"""EC2's machine types: the packaged table, and the choice of the types that serve a job.

`scripts/write_ec2_tables.py` writes the table (`data/ec2_machines.json`). EC2 adds types all the time: a type that a
job names is accepted even if the table does not have it, and EC2 is asked for its facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from stoker.model.resources import Resources
from stoker.providers import machine_types, packaged_data
from stoker.providers.ec2 import efa, images
from stoker.providers.machine_types import Arch, row_facts

_MIB = 1024**2
# Family, generation and options, then a size: `p5.48xlarge`, `c7i-flex.large`, `p6-b200.48xlarge`, `m7i.metal-24xl`.
_LOOKS_LIKE_A_TYPE = re.compile(
    r"[a-z][a-z0-9-]*[0-9][a-z0-9-]*\.(nano|micro|small|medium|large|[0-9]*xlarge|metal(-[0-9]+xl)?)"
)
# Families that cannot be in a cluster placement group: burstable ones, `-flex`, Mac and video. For types that are not
# in the table; for the others EC2 tells it. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/placement-strategies.html
_UNCLUSTERED = re.compile(r"t[0-9]|mac|vt[0-9]|[a-z0-9]+-flex\.")
# Accelerators that people call by another name than EC2's.
_NAMES = {"Gaudi HL-205": "Gaudi"}
# The letters after the generation name the options; `g` among them is AWS's own processor, which is arm64.
_OPTIONS = re.compile(r"[a-z]+[0-9]+([a-z]*)")


@dataclass(frozen=True)
class Ec2MachineType(machine_types.MachineType):
    """The facts about an EC2 machine type."""

    # Elastic Fabric Adapters: how many, and the network card of the first. Further ones are on the cards after it.
    efa_interfaces: int = 0
    efa_card: int = 0
    # May be in a cluster placement group.
    clusters: bool = True


@lru_cache(maxsize=1)
def table() -> Mapping[str, Ec2MachineType]:
    """Every machine type of the table, by name."""
    return {
        name: Ec2MachineType(
            name=name,
            **row_facts(row),
            efa_interfaces=row.get("efa", 0),
            efa_card=row.get("efa_card", 0),
            spot=row.get("spot", True),
            maker=row.get("maker", "nvidia"),
            clusters=row.get("clusters", True),
        )
        for name, row in packaged_data.read_table("ec2", "machines")["machines"].items()
    }


def find(name: str) -> Ec2MachineType | None:
    """The machine type of the table; None if it is missing there."""
    return table().get(name)


def facts(name: str) -> Ec2MachineType:
    """The machine type of the table, otherwise the facts that its name tells: only the processor."""
    found = find(name)
    if found is not None:
        return found
    options = _OPTIONS.match(name)
    arch: Arch = "arm64" if options and "g" in options[1] else "x86_64"
    clusters = not _UNCLUSTERED.match(name)
    return Ec2MachineType(name=name, cpus=None, memory_bytes=None, arch=arch, clusters=clusters)


def described(found: Mapping[str, Any]) -> Ec2MachineType:
    """Convert a machine type from DescribeInstanceTypes."""
    accelerator, maker = _accelerator(found)
    network = found.get("NetworkInfo", {})
    return Ec2MachineType(
        name=found["InstanceType"],
        cpus=found["VCpuInfo"]["DefaultVCpus"],
        memory_bytes=found["MemoryInfo"]["SizeInMiB"] * _MIB,
        gpu=_NAMES.get(accelerator.get("Name", ""), accelerator.get("Name")),
        gpus=accelerator.get("Count", 0),
        gpu_memory_bytes=accelerator.get("MemoryInfo", {}).get("SizeInMiB", 0) * _MIB,
        arch="arm64" if "arm64" in found["ProcessorInfo"]["SupportedArchitectures"] else "x86_64",
        efa_interfaces=network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        efa_card=_first_efa_card(network),
        spot="spot" in found.get("SupportedUsageClasses", ("spot",)),
        maker=maker,
        burstable=found.get("BurstablePerformanceSupported", False),
        clusters="cluster" in found.get("PlacementGroupInfo", {}).get("SupportedStrategies", ("cluster",)),
        disks_gb=_instance_store_gb(found),
    )


def _accelerator(found: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The accelerator of a machine type, and its maker."""
    # AWS's own come first: EC2 lists Inferentia among other makers' inference accelerators as well.
    for info, kind in (
        ("NeuronInfo", "NeuronDevices"),
        ("GpuInfo", "Gpus"),
        ("InferenceAcceleratorInfo", "Accelerators"),
    ):
        for each in found.get(info, {}).get(kind, ()):
            maker = "AWS" if info == "NeuronInfo" else each.get("Manufacturer", "NVIDIA")
            return each, str(maker).lower()
    return {}, "nvidia"


def _instance_store_gb(found: Mapping[str, Any]) -> int:
    """The size of the instance store. That of machines from before NVMe is not used, and counts as none."""
    disks = found.get("InstanceStorageInfo", {})
    return int(disks.get("TotalSizeInGB", 0)) if disks.get("NvmeSupport") != "unsupported" else 0


def _first_efa_card(network: Mapping[str, Any]) -> int:
    """The first network card that takes an EFA: on some machine types the first card is for IP traffic alone."""
    cards = network.get("NetworkCards", ())
    # Answers of before 2025 do not tell the types of interfaces.
    fitting = (card["NetworkCardIndex"] for card in cards if "efa" in card.get("InterfaceTypes", ("efa",)))
    return min(fitting, default=0)


def _extra_needs(resources: Resources) -> dict[str, str]:
    return {"ec2.efa": "EFA"} if resources.ec2 is not None and resources.ec2.efa else {}


def _mismatch(machine: Ec2MachineType, resources: Resources) -> str:
    if machine.gpus and (reason := images.driver_problem(resources.image, machine.gpu or "", machine.maker)):
        return f"resources.image: {machine.name} has {machine.gpu}, {reason}"
    ec2 = resources.ec2
    if ec2 is None or not ec2.efa:
        return ""
    if not machine.efa_interfaces:
        return (
            f"resources.ec2.efa: {machine.name} has no Elastic Fabric Adapter; leave efa out, or name another machine"
        )
    if ec2.public_ip and len(efa.layout(machine)) > 1:
        return (
            f"resources.ec2.public_ip: {machine.name} has several network interfaces with efa, and EC2 gives such"
            " machines no public address; leave public_ip out, and see that the subnet has another way to S3"
        )
    return ""


_CATALOG = machine_types.Catalog(
    cloud="EC2",
    table=table,
    facts=facts,
    name=_LOOKS_LIKE_A_TYPE,
    examples=("g5.xlarge", "p5.48xlarge"),
    extra_needs=_extra_needs,
    mismatch=_mismatch,
)
fitting = _CATALOG.fitting
serves = _CATALOG.serves
why_none = _CATALOG.why_none
unchecked = _CATALOG.unchecked
