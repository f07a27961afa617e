"""Compute Engine's machine types: a packaged table, and which of them serve a job.

The table (`data/gce_machines.json`) is written by `scripts/write_gce_tables.py`. GPUs belong to a machine type, or are
attached to an N1 machine; then both make the name: `n1-standard-8+nvidia-tesla-t4:1`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from stoker.model.resources import Resources
from stoker.providers import did_you_mean, machine_types, packaged_data
from stoker.providers.gce import flex_start
from stoker.providers.machine_types import Arch, row_facts

_MIB = 1024**2
# `g2-standard-8`, `a3-highgpu-8g`, `n2-custom-8-32768`, `e2-medium`, `ct5lp-hightpu-4t`; then an attached GPU.
_LOOKS_LIKE_A_TYPE = re.compile(r"[a-z]{1,2}[0-9]+[a-z]{0,2}(-[a-z0-9]+){1,4}(\+nvidia-[a-z0-9-]+:[1-9][0-9]?)?")
_CUSTOM = re.compile(r"[a-z0-9]+-custom-(?P<cpus>[0-9]+)-(?P<memory_mib>[0-9]+)(-ext)?")
# Series with Arm processors: Ampere's, and Google's own.
_ARM = re.compile(r"(t2a|c4a|n4a|a4x)-")

# Machine classes (the part after the series) of machines that are too rare for the table.
_CLASSES = frozenset({"custom", "edgegpu", "highlssd", "hightpu", "hypermem", "maxgpu", "megamem", "ultramem"})

# Google's names of GPUs, and the common ones.
ACCELERATORS = {
    "nvidia-tesla-t4": "T4",
    "nvidia-tesla-v100": "V100",
    "nvidia-tesla-p100": "P100",
    "nvidia-tesla-p4": "P4",
    "nvidia-l4": "L4",
    "nvidia-tesla-a100": "A100-40GB",
    "nvidia-a100-80gb": "A100-80GB",
    "nvidia-h100-80gb": "H100",
    "nvidia-h100-mega-80gb": "H100",
    "nvidia-h200-141gb": "H200",
    "nvidia-b200": "B200",
    "nvidia-rtx-pro-6000": "RTX-PRO-6000",
}
GPU_MEMORY_MIB = {
    "T4": 16384,
    "V100": 16384,
    "P100": 16384,
    "P4": 8192,
    "L4": 24576,
    "A100-40GB": 40960,
    "A100-80GB": 81920,
    "H100": 81920,
    "H200": 144384,
    "B200": 184320,
    "RTX-PRO-6000": 98304,
    "TPU-v5e": 16384,
    "TPU-v5p": 97280,
    "TPU-v6e": 32768,
}


@dataclass(frozen=True)
class GceMachineType(machine_types.MachineType):
    """A machine type of Compute Engine."""

    # Sold on demand: neither spot nor a reservation is required.
    standard: bool = True


@lru_cache(maxsize=1)
def table() -> Mapping[str, GceMachineType]:
    """Every machine type of the table, by name."""
    rows = packaged_data.read_table("gce", "machines")["machines"]
    return {
        name: GceMachineType(
            name=name,
            **row_facts(row),
            standard=row.get("standard", True),
            maker="google" if is_tpu(row.get("gpu") or "") else "nvidia",
        )
        for name, row in rows.items()
    }


def find(name: str) -> GceMachineType | None:
    """The machine type in the table; None when the table does not have it."""
    return table().get(name)


def facts(name: str) -> GceMachineType:
    """The machine type in the table, else what its name implies: processor, attached GPUs, custom size."""
    found = find(name)
    if found is not None:
        return found
    base, accelerator, count = split_name(name)
    host = find(base) if accelerator else None
    custom = _CUSTOM.fullmatch(base)
    cpus = host.cpus if host else int(custom["cpus"]) if custom else None
    memory_bytes = host.memory_bytes if host else int(custom["memory_mib"]) * _MIB if custom else None
    return GceMachineType(
        name=name,
        cpus=cpus,
        memory_bytes=memory_bytes,
        **_gpus(accelerator, count),
        arch=arch_of(base),
    )


def split_name(name: str) -> tuple[str, str | None, int]:
    """Split a name into machine type, attached GPU and number of GPUs; None and 0 where there is none."""
    base, _, rest = name.partition("+")
    accelerator, _, count = rest.partition(":")
    return base, accelerator or None, int(count) if count.isdigit() else 0


def is_tpu(gpu: str) -> bool:
    """Return whether the accelerator is a TPU, by its name in a job file."""
    return gpu.upper().startswith("TPU")


def takes_gpus(name: str) -> bool:
    """Return whether GPUs can be attached: https://cloud.google.com/compute/docs/gpus#n1-gpus"""
    return name.startswith("n1-")


def family(name: str) -> str:
    """`a2-highgpu` for `a2-highgpu-8g`, `n1+nvidia-tesla-t4` for any N1 machine with that GPU."""
    base, accelerator, _ = split_name(name)
    return f"{base.partition('-')[0]}+{accelerator}" if accelerator else base.rpartition("-")[0] or base


def arch_of(name: str) -> Arch:
    return "arm64" if _ARM.match(name) else "x86_64"


def from_api(found: Mapping[str, Any]) -> GceMachineType:
    """The machine type of an entry of Compute Engine's `machineTypes`."""
    built_in: Mapping[str, Any] = next(iter(found.get("accelerators") or ()), {})
    kind, count = built_in.get("guestAcceleratorType"), built_in.get("guestAcceleratorCount", 0)
    name = str(found["name"])
    return GceMachineType(
        name=name,
        cpus=int(found["guestCpus"]),
        memory_bytes=int(found["memoryMb"]) * _MIB,
        **_gpus(kind, int(count)),
        arch="arm64" if found.get("architecture") == "ARM64" else arch_of(name),
        burstable=bool(found.get("isSharedCpu", False)),
    )


def _gpus(accelerator: str | None, count: int) -> dict[str, Any]:
    """The fields about GPUs. An unknown GPU keeps Google's name; a TPU gets the maker `google`."""
    if not accelerator or not count:
        return {}
    gpu = ACCELERATORS.get(accelerator, accelerator.removeprefix("nvidia-").upper())
    maker = "nvidia" if accelerator.startswith("nvidia-") else "google"
    return {"gpu": gpu, "gpus": count, "gpu_memory_bytes": GPU_MEMORY_MIB.get(gpu, 0) * _MIB, "maker": maker}


def _misspelt(name: str) -> bool:
    """Return whether the name has a likely typing error: `standrad` for `standard`, or almost the name of a GPU."""
    base, accelerator, _ = split_name(name)
    classes = _CLASSES.union(known.split("-")[1] for known in table())
    gpu = accelerator.removesuffix("-vws") if accelerator else None
    return did_you_mean.is_typo(base.split("-")[1:2], classes) or bool(
        gpu and did_you_mean.is_typo([gpu], ACCELERATORS)
    )


def _impossible(name: str) -> str:
    base, accelerator, count = split_name(name)
    if accelerator is None or takes_gpus(base):
        return ""
    return f"only N1 machines take attached GPUs; write n1-standard-8+{accelerator}:{count}, or a type that brings GPUs"


def _mismatch(machine: GceMachineType, resources: Resources) -> str:
    if flex_start.is_wanted(resources) and resources.spot == "never" and not flex_start.is_sold(machine.name):
        return f"{flex_start.FIELD}: {machine.name} is not sold by flex-start; A2, A3, A4, G2, H4D and TPU machines are"
    return ""


_CATALOG = machine_types.Catalog(
    cloud="Compute Engine",
    table=table,
    facts=facts,
    name=_LOOKS_LIKE_A_TYPE,
    examples=("g2-standard-8", "a2-highgpu-1g", "n1-standard-8+nvidia-tesla-t4:1"),
    is_misspelt=_misspelt,
    impossible_reason=_impossible,
    mismatch=_mismatch,
)
fitting = _CATALOG.fitting
serves = _CATALOG.serves
why_none = _CATALOG.why_none
unchecked = _CATALOG.unchecked
