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
from stoker.providers.machine_types import Arch, row_facts

_MIB = 1024**2
# Family, generation and options, then a size: `p5.48xlarge`, `c7i-flex.large`, `p6-b200.48xlarge`, `m7i.metal-24xl`.
_LOOKS_LIKE_A_TYPE = re.compile(
    r"[a-z][a-z0-9-]*[0-9][a-z0-9-]*\.(nano|micro|small|medium|large|[0-9]*xlarge|metal(-[0-9]+xl)?)"
)
# The letters after the generation name the options; `g` among them is AWS's own processor, which is arm64.
_OPTIONS = re.compile(r"[a-z]+[0-9]+([a-z]*)")


@dataclass(frozen=True)
class Ec2MachineType(machine_types.MachineType):
    """The facts about an EC2 machine type."""

    efa_interfaces: int = 0


@lru_cache(maxsize=1)
def table() -> Mapping[str, Ec2MachineType]:
    """Every machine type of the table, by name."""
    return {
        name: Ec2MachineType(
            name=name,
            **row_facts(row),
            efa_interfaces=row.get("efa", 0),
            spot=row.get("spot", True),
            maker="aws" if row.get("neuron") else "nvidia",
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
    return Ec2MachineType(name=name, cpus=None, memory_bytes=None, arch=arch)


def described(found: Mapping[str, Any]) -> Ec2MachineType:
    """Convert a machine type from DescribeInstanceTypes."""
    gpu: Mapping[str, Any] = next(iter(found.get("GpuInfo", {}).get("Gpus", ())), {})
    neuron: Mapping[str, Any] = next(iter(found.get("NeuronInfo", {}).get("NeuronDevices", ())), {})
    accelerator = gpu or neuron
    network = found.get("NetworkInfo", {})
    return Ec2MachineType(
        name=found["InstanceType"],
        cpus=found["VCpuInfo"]["DefaultVCpus"],
        memory_bytes=found["MemoryInfo"]["SizeInMiB"] * _MIB,
        gpu=accelerator.get("Name"),
        gpus=accelerator.get("Count", 0),
        gpu_memory_bytes=accelerator.get("MemoryInfo", {}).get("SizeInMiB", 0) * _MIB,
        arch="arm64" if "arm64" in found["ProcessorInfo"]["SupportedArchitectures"] else "x86_64",
        efa_interfaces=network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        spot="spot" in found.get("SupportedUsageClasses", ("spot",)),
        # AWS's own accelerators do not run CUDA programs.
        maker="aws" if neuron and not gpu else "nvidia",
        burstable=found.get("BurstablePerformanceSupported", False),
    )


def _extra_needs(resources: Resources) -> dict[str, str]:
    return {"ec2.efa": "EFA"} if resources.ec2 is not None and resources.ec2.efa else {}


def _mismatch(machine: Ec2MachineType, resources: Resources) -> str:
    if not _extra_needs(resources) or machine.efa_interfaces:
        return ""
    return f"resources.ec2.efa: {machine.name} has no Elastic Fabric Adapter; leave efa out, or name another machine"


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
