"""SageMaker's machine types: those of EC2 that SageMaker trains on, with the prefix `ml.`.

Their properties come from EC2's table; the list of types is in `data/sagemaker_machines.json`, written by
`scripts/write_sagemaker_tables.py` from botocore's model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import resources as package
from typing import Any

from stoker.providers import machine_types
from stoker.providers.ec2 import catalog as ec2
from stoker.providers.machine_types import MachineType

__all__ = ["facts", "fitting", "local_gb", "serves", "table", "unchecked", "why_none"]

PREFIX = "ml."
_LOOKS_LIKE_A_TYPE = re.compile(r"ml\.[a-z][a-z0-9-]*[0-9][a-z0-9-]*\.(medium|large|[0-9]*xlarge)")


@lru_cache(maxsize=1)
def table() -> Mapping[str, MachineType]:
    """Every type that SageMaker trains on and EC2's table has, by name."""
    found = {name: ec2.find(name.removeprefix(PREFIX)) for name in _data()["machines"]}
    return {name: _named(name, machine) for name, machine in found.items() if machine is not None}


def local_gb(name: str) -> int | None:
    """The size of a type's local disks, in GB. SageMaker uses these, takes no key for them, and adds no other disk.

    None: the type has none, or is not in the table.
    """
    found = _data()["local_gb"].get(name)
    return None if found is None else int(found)


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    text = package.files("stoker.providers.sagemaker").joinpath("data/sagemaker_machines.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def facts(name: str) -> MachineType:
    """The machine type in the table, else what its name implies: the processor, and no more."""
    return table().get(name) or _named(name, ec2.facts(name.removeprefix(PREFIX)))


def _named(name: str, machine: MachineType) -> MachineType:
    return replace(machine, name=name)


def _misspelt(name: str) -> bool:
    return not name.startswith(PREFIX)


_CATALOG = machine_types.Catalog(
    cloud="SageMaker",
    table=table,
    facts=facts,
    name=_LOOKS_LIKE_A_TYPE,
    examples=("ml.g5.xlarge", "ml.p4d.24xlarge"),
    is_misspelt=_misspelt,
)
fitting = _CATALOG.fitting
serves = _CATALOG.serves
why_none = _CATALOG.why_none
unchecked = _CATALOG.unchecked
