"""Check the overrides of a job: fields that Compute Engine takes, and none that Stoker sets itself.

The table of fields (`data/gce_fields.json`) is written by `scripts/write_gce_fields.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from stoker.model.errors import UserError
from stoker.providers import packaged_data, request_overrides
from stoker.providers.gce import labels
from stoker.providers.gce.machine import NOTICE_ATTRIBUTE

_WHERE = "resources.gce.overrides"

# Fields that no override may change: the machine would lose its owner, be launched twice, or outlive its job.
_PROTECTED = (
    "deletionProtection",
    "guestAccelerators",
    "machineType",
    "name",
    "params.requestValidForDuration",
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
_OUR_METADATA = (
    "startup-script",
    "shutdown-script",
    "startup-script-url",
    "shutdown-script-url",
    NOTICE_ATTRIBUTE,
)

# The fields that name a disk's source.
_IMAGES = ("source", "sourceImage", "sourceSnapshot", "sourceInstantSnapshot")

# The schemas of a request for one machine, and for several.
_ONE, _SEVERAL = "Instance", "InstanceProperties"
# Names at least this similar are taken for a typing error. Two real fields of one schema are seldom so similar.
_SLIP = 0.9
# Kinds of fields in the table: a plain value, and a field that only Compute Engine sets.
_PLAIN, _READ_ONLY = "", "-"


def check(overrides: Mapping[str, Any], nodes: int) -> None:
    """Raise UserError for a field that Compute Engine does not have, and for one that Stoker must control."""
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
    for index, disk in enumerate(overrides.get("disks", ())):
        # A disk that outlives its machine would never be deleted.
        outlives = disk.get("autoDelete", disk.get("boot", False)) is not True
        if outlives and (disk.get("boot") or "initializeParams" in disk):
            raise UserError(f"{_WHERE}.disks: a disk that is made with the machine needs `autoDelete: true`")
        created = disk.get("initializeParams", {})
        if disk.get("boot") and any(name in disk or name in created for name in _IMAGES):
            raise UserError(f"{_WHERE}.disks: resources.image names what the machine boots; write it there")
        # A disk that was left behind is found by its labels.
        _check_labels(f"{_WHERE}.disks[{index}].initializeParams.labels", created.get("labels", {}))


def _check_labels(where: str, given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if str(key).startswith(labels.OURS):
            raise UserError(f"{where}.{key}: is Stoker's own; leave it out")
        # None removes a label.
        problem = labels.label_problem(str(key), value) if value is not None else ""
        if problem:
            raise UserError(f"{where}.{key}: {problem}")


def _problems(where: str, value: Any, kind: str) -> Iterator[str]:
    """Yield unknown names, and values of the wrong shape. `kind` is a field's kind in the table."""
    if kind == _PLAIN:
        if isinstance(value, (Mapping, list)):
            yield f"{where}: must be one value, no list and no mapping, as Compute Engine takes it"
    elif kind.startswith("["):
        if not isinstance(value, list):
            yield f"{where}: must be a list, as Compute Engine takes it"
            return
        for index, each in enumerate(value):
            yield from _problems(f"{where}[{index}]", each, kind[1:-1])
    elif not isinstance(value, Mapping):
        yield f"{where}: must be a mapping, as Compute Engine takes it"
    else:
        for name, inner in value.items():
            # A kind in braces is a mapping whose keys are free.
            below = kind[1:-1] if kind.startswith("{") else _table()[kind].get(str(name))
            if below is None:
                yield from (f"{where}.{name}: {problem}" for problem in _unknown(str(name), kind))
            elif below == _READ_ONLY:
                yield f"{where}.{name}: is set by Compute Engine alone; leave it out"
            else:
                yield from _problems(f"{where}.{name}", inner, below)


def _unknown(name: str, kind: str) -> Iterator[str]:
    """Yield the problem of a field that the table does not have.

    A field that is similar to no other is let through: Compute Engine may have added it since, and refuses an unknown
    field quickly.
    """
    for other, these, those in ((_ONE, "several nodes", "one"), (_SEVERAL, "one node", "several")):
        if kind in (_ONE, _SEVERAL) and kind != other and name in _table()[other]:
            yield f"Compute Engine has no such field for {these}, only for {those}; leave it out"
            return
    fields = {_folded(field): field for field, below in _table()[kind].items() if below != _READ_ONLY}
    for meant in get_close_matches(_folded(name), fields, n=1, cutoff=_SLIP):
        yield f"Compute Engine has no such field; did you mean {fields[meant]}?"


def _folded(name: str) -> str:
    """The name without case and separators: `minCpuPlatform` and `min_cpu_platform` are equal."""
    return name.replace("_", "").replace("-", "").lower()


def _table() -> Mapping[str, Mapping[str, str]]:
    """The kind of each field, by schema and field."""
    found: Mapping[str, Mapping[str, str]] = packaged_data.read_table("gce", "fields")["schemas"]
    return found
