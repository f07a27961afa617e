"""What a job merges into its machines' request: fields that Compute Engine takes, and nothing that is Stoker's own.

The table of fields (`data/gce_fields.json`) is written by `scripts/write_gce_fields.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib import resources as package
from typing import Any

from stoker.model.errors import UserError
from stoker.providers import request_overrides
from stoker.providers.gce import labels
from stoker.providers.gce.machine import NOTICE_ATTRIBUTE

_WHERE = "resources.gce.overrides"

# What an override may not take away: the machine would be nobody's, be made twice, or outlive its job.
_PROTECTED = (
    "deletionProtection",
    "guestAccelerators",
    "machineType",
    "name",
    "scheduling.automaticRestart",
    "scheduling.gracefulShutdown",
    "scheduling.instanceTerminationAction",
    "scheduling.maxRunDuration",
    "scheduling.onInstanceStopAction",
    "scheduling.preemptible",
    "scheduling.preemptionNoticeDuration",
    "scheduling.provisioningModel",
    "scheduling.skipGuestOsShutdown",
    "scheduling.terminationTime",
    "zone",
)
_OUR_METADATA = ("startup-script", "shutdown-script", "startup-script-url", "shutdown-script-url", NOTICE_ATTRIBUTE)

# Where a disk comes from.
_IMAGES = ("source", "sourceImage", "sourceSnapshot", "sourceInstantSnapshot")

# What a request takes for one machine, and for each of several.
_ONE, _SEVERAL = "Instance", "InstanceProperties"
# A slip of the pen is so near to what was meant. Real fields of one thing are seldom so near to each other.
_SLIP = 0.9
# Of a field in the table: a plain value, and what Compute Engine tells and is never told.
_PLAIN, _TOLD = "", "-"


def check(overrides: Mapping[str, Any], nodes: int) -> None:
    """Raise UserError for a field that Compute Engine does not have, and for what would take a machine out of Stoker's
    hands."""
    if not overrides:
        return
    for name in _PROTECTED:
        if request_overrides.reaches(overrides, name):
            raise UserError(f"{_WHERE}.{name}: is Stoker's own; leave it out")
    for problem in _problems(_WHERE, overrides, _ONE if nodes == 1 else _SEVERAL):
        raise UserError(problem)
    _check_labels(f"{_WHERE}.labels", overrides.get("labels", {}))
    for item in overrides.get("metadata", {}).get("items", ()):
        if item.get("key") in _OUR_METADATA:
            raise UserError(f"{_WHERE}.metadata: {item['key']} is Stoker's own; put commands into `setup`")
    for place, disk in enumerate(overrides.get("disks", ())):
        # Nobody would ever delete it.
        kept = disk.get("autoDelete", disk.get("boot", False)) is not True
        if kept and (disk.get("boot") or "initializeParams" in disk):
            raise UserError(f"{_WHERE}.disks: a disk that is made with the machine needs `autoDelete: true`")
        # By its labels it is found should it be left behind.
        made = disk.get("initializeParams", {})
        if disk.get("boot") and any(name in disk or name in made for name in _IMAGES):
            raise UserError(f"{_WHERE}.disks: what the machine boots is told by resources.image; write it there")
        _check_labels(f"{_WHERE}.disks[{place}].initializeParams.labels", made.get("labels", {}))


def _check_labels(where: str, told: Mapping[str, Any]) -> None:
    for key, value in told.items():
        if str(key).startswith(labels.OURS):
            raise UserError(f"{where}.{key}: is Stoker's own; leave it out")
        # None takes one away.
        problem = labels.fault(str(key), value) if value is not None else ""
        if problem:
            raise UserError(f"{where}.{key}: {problem}")


def _problems(where: str, value: Any, kind: str) -> Iterator[str]:
    """Names that are not there, and lists and mappings that are none. `kind` is as the table says it of a field."""
    if kind == _PLAIN:
        if isinstance(value, (Mapping, list)):
            yield f"{where}: must be one value, no list and no mapping, as Compute Engine takes it"
    elif kind.startswith("["):
        if not isinstance(value, list):
            yield f"{where}: must be a list, as Compute Engine takes it"
            return
        for place, each in enumerate(value):
            yield from _problems(f"{where}[{place}]", each, kind[1:-1])
    elif not isinstance(value, Mapping):
        yield f"{where}: must be a mapping, as Compute Engine takes it"
    else:
        for name, inner in value.items():
            # In braces, people choose the names.
            below = kind[1:-1] if kind.startswith("{") else _table()[kind].get(str(name))
            if below is None:
                yield from (f"{where}.{name}: {problem}" for problem in _unknown(str(name), kind))
            elif below == _TOLD:
                yield f"{where}.{name}: is Compute Engine's to tell, not to be told; leave it out"
            else:
                yield from _problems(f"{where}.{name}", inner, below)


def _unknown(name: str, kind: str) -> Iterator[str]:
    """What is wrong with a field that the table does not have. Nothing, where it is like no other: Compute Engine may
    have learnt it since, and is quick to refuse what it does not know."""
    for other, these, those in ((_ONE, "several nodes", "one"), (_SEVERAL, "one node", "several")):
        if kind in (_ONE, _SEVERAL) and kind != other and name in _table()[other]:
            yield f"Compute Engine has no such field for {these}, only for {those}; leave it out"
            return
    fields = {_folded(field): field for field, below in _table()[kind].items() if below != _TOLD}
    for meant in get_close_matches(_folded(name), fields, n=1, cutoff=_SLIP):
        yield f"Compute Engine has no such field; did you mean {fields[meant]}?"


def _folded(name: str) -> str:
    """`minCpuPlatform` and `min_cpu_platform` are one to a person."""
    return name.replace("_", "").replace("-", "").lower()


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, str]]:
    """By schema, what is in each of its fields."""
    text = package.files("stoker.providers.gce").joinpath("data/gce_fields.json").read_text("utf-8")
    found: Mapping[str, Mapping[str, str]] = json.loads(text)["schemas"]
    return found
