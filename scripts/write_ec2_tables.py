"""Write the table of EC2's machine types, and bring the table of prices into its form.

The facts are those of DescribeInstanceTypes, which moto packages for its fake of EC2: run this after moto was upgraded.

    python scripts/write_ec2_tables.py
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from importlib import resources as package
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stoker.providers.ec2 import prices
from stoker.providers.ec2.catalog import Ec2MachineType, described

DATA = Path(__file__).resolve().parents[1] / "src/stoker/providers/ec2/data"
_MIB = 1024**2


def _answer(
    name: str, cpus: int, memory_gib: int, gpu: tuple[str, str, int, int], *, cards: int = 0, disks_gb: int = 0
) -> dict[str, Any]:
    """An answer of DescribeInstanceTypes. `cards` is the number of network cards with EFA."""
    maker, model, count, gpu_mib = gpu
    accelerator = {"Manufacturer": maker, "Name": model, "Count": count, "MemoryInfo": {"SizeInMiB": gpu_mib}}
    return {
        "InstanceType": name,
        "VCpuInfo": {"DefaultVCpus": cpus},
        "MemoryInfo": {"SizeInMiB": memory_gib * 1024},
        "GpuInfo": {"Gpus": [accelerator]},
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "NetworkInfo": {"EfaInfo": {"MaximumEfaInterfaces": cards}},
        "InstanceStorageInfo": {"TotalSizeInGB": disks_gb, "NvmeSupport": "required"},
    }


# The types that people train on: all with an accelerator, and the common families without. No bare metal, which takes
# ten minutes to boot and costs the same.
_ACCELERATED = re.compile(r"(p[3-9]|g[4-9]|gr[6-9]|trn[1-9]|inf[1-9]|dl[1-9])[a-z0-9-]*")
_PLAIN = re.compile(r"[cmr][5-9][a-z-]*|t3a?|t4g")
# Types that moto no longer packages, because it asks fewer regions than sell them: as packaged by moto 4.2.14.
_OLDER: tuple[dict[str, Any], ...] = (
    _answer("dl1.24xlarge", 96, 768, ("Habana", "Gaudi HL-205", 8, 32768), cards=4, disks_gb=4000),
    _answer("g4ad.xlarge", 4, 16, ("AMD", "Radeon Pro V520", 1, 8192), disks_gb=150),
    _answer("g4ad.2xlarge", 8, 32, ("AMD", "Radeon Pro V520", 1, 8192), disks_gb=300),
    _answer("g4ad.4xlarge", 16, 64, ("AMD", "Radeon Pro V520", 1, 8192), disks_gb=600),
    _answer("g4ad.8xlarge", 32, 128, ("AMD", "Radeon Pro V520", 2, 8192), disks_gb=1200),
    _answer("g4ad.16xlarge", 64, 256, ("AMD", "Radeon Pro V520", 4, 8192), disks_gb=2400),
    _answer("p3.2xlarge", 8, 61, ("NVIDIA", "V100", 1, 16384)),
    _answer("p3.8xlarge", 32, 244, ("NVIDIA", "V100", 4, 16384)),
    _answer("p3.16xlarge", 64, 488, ("NVIDIA", "V100", 8, 16384)),
)
# DescribeInstanceTypes says nothing of its Neuron devices; they are those of the other one:
# https://aws.amazon.com/ec2/instance-types/trn2/
_SAME_NEURON = {"trn2u.48xlarge": "trn2.48xlarge"}


def main() -> int:
    """Write both files, and say what is in them."""
    machines = [described(each) for each in _moto() if _kept(each["InstanceType"])]
    rows = {machine.name: _row(machine) for machine in _distinguished(machines)}
    _write_machines(rows, f"DescribeInstanceTypes, as packaged by moto {version('moto')}")
    print(f"{DATA / 'ec2_machines.json'}: {len(rows)} machine types")
    tables = prices.BOOK.packaged()
    (DATA / "ec2_prices.json").write_text(prices.BOOK.render(tables), encoding="utf-8")
    print(f"{DATA / 'ec2_prices.json'}: " + ", ".join(f"{name} {len(one.prices)}" for name, one in tables.items()))
    return 0


def _moto() -> list[dict[str, Any]]:
    data = package.files("moto").joinpath("ec2/resources/instance_types.json.gz").read_bytes()
    found: dict[str, dict[str, Any]] = {each["InstanceType"]: each for each in _OLDER} | json.loads(
        gzip.decompress(data)
    )
    for name, other in _SAME_NEURON.items():
        found[name]["NeuronInfo"] = found[other]["NeuronInfo"]
    return [found[name] for name in sorted(found)]


def _kept(name: str) -> bool:
    family, _, size = name.partition(".")
    return not size.startswith("metal") and bool(_ACCELERATED.fullmatch(family) or _PLAIN.fullmatch(family))


def _distinguished(machines: Iterable[Ec2MachineType]) -> list[Ec2MachineType]:
    """A GPU that is sold with more or less memory under one name gets its memory into its name."""
    from dataclasses import replace

    machines = list(machines)
    whole = {(machine.gpu, machine.gpu_memory_bytes) for machine in machines if machine.gpus}
    sizes = Counter(name for name, _ in whole)
    return [
        replace(machine, gpu=f"{machine.gpu}-{round(machine.gpu_memory_bytes / 1024**3)}GB")
        if machine.gpu and machine.gpus and sizes[machine.gpu] > 1
        else machine
        for machine in machines
    ]


def _row(machine: Ec2MachineType) -> dict[str, Any]:
    """The facts that differ from the defaults, in the order in which people read them."""
    row: dict[str, Any] = {"cpus": machine.cpus, "memory_mib": (machine.memory_bytes or 0) // _MIB}
    if machine.gpu:
        row |= {"gpu": machine.gpu, "gpus": machine.gpus, "gpu_memory_mib": machine.gpu_memory_bytes // _MIB}
    if machine.arch != "x86_64":
        row["arch"] = machine.arch
    if machine.efa_interfaces:
        row["efa"] = machine.efa_interfaces
    if machine.efa_interfaces and machine.efa_card:
        row["efa_card"] = machine.efa_card
    row |= {} if machine.spot else {"spot": False}
    row |= {} if machine.maker == "nvidia" else {"maker": machine.maker}
    row |= {"burstable": True} if machine.burstable else {}
    row |= {} if machine.clusters else {"clusters": False}
    row |= {"disks_gb": machine.disks_gb} if machine.disks_gb else {}
    return row


def _write_machines(rows: dict[str, dict[str, Any]], source: str) -> None:
    lines = ",\n".join(f'    "{name}": {json.dumps(row)}' for name, row in rows.items())
    text = f'{{\n  "source": {json.dumps(source)},\n  "machines": {{\n{lines}\n  }}\n}}\n'
    (DATA / "ec2_machines.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
