"""EC2's machine types: a table in the project, and which of them serve a job.

The table (`data/ec2_machines.json`) is written by `scripts/write_ec2_tables.py`. EC2 brings out new types all the time:
one that a job names and the table does not know is taken as it is, and its facts are learnt from EC2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib import resources as package
from typing import Any, Literal

from stoker.errors import UserError
from stoker.spec import Resources

Arch = Literal["x86_64", "arm64"]

_MIB = 1024**2
# What a machine must have when the job does not say: less does not even hold a framework.
_LEAST_MEMORY_BYTES = 4 * 1024**3
# Family, generation and options, then a size: `p5.48xlarge`, `c7i-flex.large`, `p6-b200.48xlarge`, `m7i.metal-24xl`.
_LOOKS_LIKE_A_TYPE = re.compile(
    r"[a-z][a-z0-9-]*[0-9][a-z0-9-]*\.(nano|micro|small|medium|large|[0-9]*xlarge|metal(-[0-9]+xl)?)"
)
# What follows the generation names the options, and `g` among them is AWS's own processor, which is arm64.
_OPTIONS = re.compile(r"[a-z]+[0-9]+([a-z]*)")


@dataclass(frozen=True)
class MachineType:
    """What EC2 says of a machine type. `cpus` and `memory_bytes` are None for one whose facts are not known yet."""

    name: str
    cpus: int | None
    memory_bytes: int | None
    # Accelerators: the name of each, how many, and the memory of one. A type with a slice of a GPU has a name and none.
    gpu: str | None = None
    gpus: int = 0
    gpu_memory_bytes: int = 0
    arch: Arch = "x86_64"
    efa_interfaces: int = 0
    spot: bool = True
    # An accelerator of AWS's own: it runs nothing that was written for CUDA.
    neuron: bool = False
    # Lives on CPU credits, and is slow without them.
    burstable: bool = False

    @property
    def known(self) -> bool:
        return self.cpus is not None and self.memory_bytes is not None


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


def fitting(resources: Resources) -> list[MachineType]:
    """The machine types that serve these resources: those named, as they are named, else all, the smallest first.

    Where no machine is named, what needs software of its own (arm64, Neuron) is left out unless its GPU is asked for by
    name, and so is what lives on CPU credits, or has next to no memory while the job does not say how much it needs.
    Raises UserError for a name that no machine type can have.
    """
    if resources.machine:
        return [machine for machine in _named(resources.machine) if not _misfit(machine, resources)]
    found = [machine for machine in _unnamed(resources) if not _misfit(machine, resources)]
    return sorted(found, key=size)


def serves(machine: MachineType, resources: Resources) -> bool:
    """Whether it has what is asked for, as far as its facts are known."""
    return not _misfit(machine, resources)


def size(machine: MachineType) -> tuple[int, int, int, str]:
    """Orders machine types from small to large: accelerators first, since they are what is paid for."""
    return (machine.gpus, machine.cpus or 0, machine.memory_bytes or 0, machine.name)


def why_none(resources: Resources) -> str:
    """Why no machine type serves these resources, in one line; empty when one does."""
    try:
        if fitting(resources):
            return ""
        if resources.machine:
            return _misfit(next(iter(_named(resources.machine))), resources)
    except UserError as error:
        return str(error)
    if resources.gpus is not None and resources.gpus.count > 0:
        kind = [machine for machine in table().values() if same_gpu(resources.gpus.name, machine)]
        if not kind:
            known = sorted({machine.gpu for machine in table().values() if machine.gpu})
            close = get_close_matches(resources.gpus.name.upper(), known, n=3, cutoff=0.5)
            return f"resources.gpus: EC2 has no {resources.gpus.name}; {_choices(close or known)}"
        most = max(machine.gpus for machine in kind)
        if most < resources.gpus.count:
            return f"resources.gpus: EC2 has no machine with {resources.gpus.count} of them; at most {most}"
    return _too_much(resources)


def same_gpu(wanted: str, machine: MachineType) -> bool:
    """`A100` is any A100, `A100-80GB` one with 80 GB; `L4` is no `L40S`; an empty name is any GPU that runs CUDA."""
    if machine.gpu is None:
        return False
    if not wanted:
        return not machine.neuron
    # Makers count in either unit: 22888 MiB are sold as 24 GB, 81920 MiB as 80 GB.
    sizes = {f"{round(machine.gpu_memory_bytes / unit)}gb" for unit in (1000**3, 1024**3)}
    words = {*_words(machine.gpu), *sizes, "aws" if machine.neuron else "nvidia"}
    return words.issuperset(_words(wanted))


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
        neuron=not gpu and bool(neuron),
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
        neuron=row.get("neuron", False),
        burstable=row.get("burstable", False),
    )


def _named(names: Iterable[str]) -> list[MachineType]:
    for name in names:
        if find(name) is None and not _LOOKS_LIKE_A_TYPE.fullmatch(name):
            close = get_close_matches(name.lower(), table(), n=3, cutoff=0.5) or ["g5.xlarge", "p5.48xlarge"]
            raise UserError(f"resources.machine: EC2 has no machine type {name!r}; {_choices(close)}")
    # Twice the same name would be twice the same offering.
    return [facts(name) for name in dict.fromkeys(names)]


def _unnamed(resources: Resources) -> list[MachineType]:
    by_name = resources.gpus is not None and bool(resources.gpus.name)
    least = _LEAST_MEMORY_BYTES if resources.memory_bytes is None else 0
    return [
        machine
        for machine in table().values()
        if (machine.memory_bytes or 0) >= least
        and (by_name or not (machine.burstable or machine.arch == "arm64" or machine.neuron))
    ]


def _misfit(machine: MachineType, resources: Resources) -> str:
    """Why this one cannot serve, naming the field; empty when it can, or when nobody knows yet."""
    if not machine.known:
        return ""
    gpus = resources.gpus
    if gpus is not None and gpus.count > 0:
        if machine.gpus < gpus.count or not same_gpu(gpus.name, machine):
            has = f"{machine.gpus} × {machine.gpu}" if machine.gpus else "no whole GPU"
            return f"resources.gpus: {machine.name} has {has}, {gpus.name or 'GPU'}:{gpus.count} was asked for"
    elif machine.gpu is not None and not resources.machine:
        return f"resources.gpus: {machine.name} has GPUs that nobody asked for"
    if _wants_efa(resources) and not machine.efa_interfaces:
        return (
            f"resources.ec2.efa: {machine.name} has no Elastic Fabric Adapter; leave efa out, or name another machine"
        )
    if resources.cpus is not None and (machine.cpus or 0) < resources.cpus:
        return f"resources.cpus: {machine.name} has {machine.cpus}, {resources.cpus} were asked for"
    if resources.memory_bytes is not None and (machine.memory_bytes or 0) < resources.memory_bytes:
        got, wanted = (machine.memory_bytes or 0) / 1e9, resources.memory_bytes / 1e9
        return f"resources.memory: {machine.name} has {got:.1f} GB, {wanted:.1f} GB were asked for"
    return ""


def _wants_efa(resources: Resources) -> bool:
    return resources.ec2 is not None and resources.ec2.efa


def _too_much(resources: Resources) -> str:
    """The kind of machine is there; the rest is more than any of them has."""
    asked = []
    if resources.gpus is not None and resources.gpus.count > 0:
        asked.append(f"{resources.gpus.name or 'GPU'}:{resources.gpus.count}")
    if resources.cpus is not None:
        asked.append(f"{resources.cpus} CPUs")
    if resources.memory_bytes is not None:
        asked.append(f"{resources.memory_bytes / 1e9:.0f} GB of memory")
    if _wants_efa(resources):
        asked.append("EFA")
    field = "cpus" if resources.cpus is not None else "memory" if resources.memory_bytes is not None else "ec2.efa"
    return f"resources.{field}: EC2 has no machine with {' and '.join(asked)}; name one with resources.machine"


def _choices(names: Iterable[str]) -> str:
    return f"choose one of: {', '.join(names)}"


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.split(r"[^A-Za-z0-9]+", name) if word]
