"""EC2's machine types: a table in the project, and which of them serve a job.

The table (`data/ec2_machines.json`) is written by `scripts/write_ec2_tables.py`. EC2 brings out new types all the time:
one that a job names and the table does not know is taken as it is, and its facts are learnt from EC2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources as package
from typing import Any

from stoker.model.spec import Resources
from stoker.providers import machine_types
from stoker.providers.machine_types import Arch, same_gpu, size

__all__ = [
    "MachineType",
    "described",
    "facts",
    "find",
    "fitting",
    "same_gpu",
    "serves",
    "size",
    "table",
    "unchecked",
    "why_none",
]

_MIB = 1024**2
# Family, generation and options, then a size: `p5.48xlarge`, `c7i-flex.large`, `p6-b200.48xlarge`, `m7i.metal-24xl`.
_LOOKS_LIKE_A_TYPE = re.compile(
    r"[a-z][a-z0-9-]*[0-9][a-z0-9-]*\.(nano|micro|small|medium|large|[0-9]*xlarge|metal(-[0-9]+xl)?)"
)
# What follows the generation names the options, and `g` among them is AWS's own processor, which is arm64.
_OPTIONS = re.compile(r"[a-z]+[0-9]+([a-z]*)")


@dataclass(frozen=True)
class MachineType(machine_types.MachineType):
    """What EC2 says of a machine type."""

    efa_interfaces: int = 0


@lru_cache(maxsize=1)
def table() -> Mapping[str, MachineType]:
    """Every machine type of the table, by name."""
    text = package.files("stoker.providers.ec2").joinpath("data/ec2_machines.json").read_text("utf-8")
    return {name: _from_row(name, row) for name, row in json.loads(text)["machines"].items()}


def find(name: str) -> MachineType | None:
    """The machine type of the table; None when it is not there."""
    return table().get(name)


def facts(name: str) -> MachineType:
    """The machine type of the table, else what its name tells: the processor, and no more."""
    found = find(name)
    if found is not None:
        return found
    options = _OPTIONS.match(name)
    arch: Arch = "arm64" if options and "g" in options[1] else "x86_64"
    return MachineType(name=name, cpus=None, memory_bytes=None, arch=arch)


def described(found: Mapping[str, Any]) -> MachineType:
    """A machine type as DescribeInstanceTypes tells it."""
    gpu: Mapping[str, Any] = next(iter(found.get("GpuInfo", {}).get("Gpus", ())), {})
    neuron: Mapping[str, Any] = next(iter(found.get("NeuronInfo", {}).get("NeuronDevices", ())), {})
    accelerator = gpu or neuron
    network = found.get("NetworkInfo", {})
    return MachineType(
        name=found["InstanceType"],
        cpus=found["VCpuInfo"]["DefaultVCpus"],
        memory_bytes=found["MemoryInfo"]["SizeInMiB"] * _MIB,
        gpu=accelerator.get("Name"),
        gpus=accelerator.get("Count", 0),
        gpu_memory_bytes=accelerator.get("MemoryInfo", {}).get("SizeInMiB", 0) * _MIB,
        arch="arm64" if "arm64" in found["ProcessorInfo"]["SupportedArchitectures"] else "x86_64",
        efa_interfaces=network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        spot="spot" in found.get("SupportedUsageClasses", ("spot",)),
        # AWS's own run nothing that was written for CUDA.
        maker="aws" if neuron and not gpu else "nvidia",
        burstable=found.get("BurstablePerformanceSupported", False),
    )


# ── Inside ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_row(name: str, row: Mapping[str, Any]) -> MachineType:
    return MachineType(
        name=name,
        cpus=row["cpus"],
        memory_bytes=row["memory_mib"] * _MIB,
        gpu=row.get("gpu"),
        gpus=row.get("gpus", 0),
        gpu_memory_bytes=row.get("gpu_memory_mib", 0) * _MIB,
        arch=row.get("arch", "x86_64"),
        efa_interfaces=row.get("efa", 0),
        spot=row.get("spot", True),
        maker="aws" if row.get("neuron") else "nvidia",
        burstable=row.get("burstable", False),
    )


def _wishes(resources: Resources) -> dict[str, str]:
    return {"ec2.efa": "EFA"} if resources.ec2 is not None and resources.ec2.efa else {}


def _misfit(machine: MachineType, resources: Resources) -> str:
    if not _wishes(resources) or machine.efa_interfaces:
        return ""
    return f"resources.ec2.efa: {machine.name} has no Elastic Fabric Adapter; leave efa out, or name another machine"


_CATALOG = machine_types.Catalog(
    cloud="EC2",
    table=table,
    facts=facts,
    name=_LOOKS_LIKE_A_TYPE,
    examples=("g5.xlarge", "p5.48xlarge"),
    wishes=_wishes,
    misfit=_misfit,
)
fitting = _CATALOG.fitting
serves = _CATALOG.serves
why_none = _CATALOG.why_none
unchecked = _CATALOG.unchecked
