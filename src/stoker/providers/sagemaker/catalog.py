"""SageMaker's machine types: those of EC2 that SageMaker trains on, with the prefix `ml.`.

Their properties come from EC2's table; the list of types is in `data/sagemaker_machines.json`, written by
`scripts/write_sagemaker_tables.py` from botocore's model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from stoker.model.resources import Resources
from stoker.providers import machine_types, packaged_data
from stoker.providers.ec2 import catalog as ec2
from stoker.providers.machine_types import MachineType

PREFIX = "ml."
_LOOKS_LIKE_A_TYPE = re.compile(r"ml\.[a-z][a-z0-9-]*[0-9][a-z0-9-]*\.(medium|large|[0-9]*xlarge)")


@lru_cache(maxsize=1)
def table() -> Mapping[str, MachineType]:
    """Every type that SageMaker trains on, by name: with EC2's facts, or its own about types that EC2 sells no more."""
    packaged = packaged_data.read_table("sagemaker", "machines")
    found = {name: ec2.find(name.removeprefix(PREFIX)) for name in packaged["machines"]}
    theirs: dict[str, MachineType] = {
        name: replace(machine, name=name) for name, machine in found.items() if machine is not None
    }
    return theirs | {
        name: MachineType(name, **machine_types.row_facts(row))
        for name, row in packaged["facts"].items()
        if name not in theirs
    }


def local_gb(name: str) -> int | None:
    """The size of a type's local disks, in GB. SageMaker uses these, takes no key for them, and adds no other disk.

    None: the type has none, or is not in the table.
    """
    found = packaged_data.read_table("sagemaker", "machines")["local_gb"].get(name)
    return None if found is None else int(found)


def facts(name: str) -> MachineType:
    """The machine type in the table, else what its name implies: the processor, and no more."""
    return table().get(name) or replace(ec2.facts(name.removeprefix(PREFIX)), name=name)


_CATALOG = machine_types.Catalog(
    cloud="SageMaker",
    table=table,
    facts=facts,
    name=_LOOKS_LIKE_A_TYPE,
    examples=("ml.g5.xlarge", "ml.p4d.24xlarge"),
    is_misspelt=lambda name: not name.startswith(PREFIX),
)
why_none = _CATALOG.why_none
unchecked = _CATALOG.unchecked


def fitting(resources: Resources) -> list[MachineType]:
    """The machine types that serve these resources, as `machine_types.Catalog.fitting` chooses them.

    Types that EC2 sells no more are chosen only by name, their own or their GPU's: few accounts have a quota for them.
    """
    found = _CATALOG.fitting(resources)
    if resources.machine or (resources.gpus is not None and resources.gpus.name):
        return found
    retired = packaged_data.read_table("sagemaker", "machines")["facts"]
    return [machine for machine in found if machine.name not in retired]
