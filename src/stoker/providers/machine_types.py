"""Machine types of any cloud, and the choice of those that serve a job.

A cloud supplies a table of its types, the facts that can be derived from a name missing in the table, and the pattern
of valid names; the rest is shared. Clouds add types all the time, so a type that a job names is accepted even if the
table does not have it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Generic, Literal, TypeVar

from stoker.model.errors import UserError
from stoker.model.resources import Resources
from stoker.providers import did_you_mean

Arch = Literal["x86_64", "arm64"]

# The minimum memory if the job names none: less does not even hold a framework.
_LEAST_MEMORY_BYTES = 4 * 1024**3
_GB = 1000**3
_GIB = 1024**3
_MIB = 1024**2


@dataclass(frozen=True)
class MachineType:
    """The facts about a machine type. `cpus` and `memory_bytes` are None until they are known."""

    name: str
    cpus: int | None
    memory_bytes: int | None
    # Accelerators: the name, the count, and the memory of each. A type with a part of a GPU has a name and count 0.
    gpu: str | None = None
    gpus: int = 0
    gpu_memory_bytes: int = 0
    arch: Arch = "x86_64"
    spot: bool = True
    # The maker of the accelerators: CUDA programs run on nvidia's alone.
    maker: str = "nvidia"
    # Shares its processor, or has CPU credits and is slow without them.
    burstable: bool = False
    # The fast disks that belong to it (instance store, Local SSD), all together, in GB.
    disks_gb: int = 0

    @property
    def known(self) -> bool:
        return self.cpus is not None and self.memory_bytes is not None


T = TypeVar("T", bound=MachineType)


def row_facts(row: Mapping[str, Any]) -> dict[str, Any]:
    """The facts in a row of a packaged table of machine types that all clouds share."""
    return {
        "cpus": row["cpus"],
        "memory_bytes": row["memory_mib"] * _MIB,
        "gpu": row.get("gpu"),
        "gpus": row.get("gpus", 0),
        "gpu_memory_bytes": row.get("gpu_memory_mib", 0) * _MIB,
        "arch": row.get("arch", "x86_64"),
        "burstable": row.get("burstable", False),
        "disks_gb": row.get("disks_gb", 0),
    }


def size(machine: MachineType) -> tuple[int, int, int, str]:
    """Sort key of machine types from small to large: accelerators first, since they dominate the price."""
    return (machine.gpus, machine.cpus or 0, machine.memory_bytes or 0, machine.name)


def same_gpu(wanted: str, machine: MachineType) -> bool:
    """Return True if the machine has the wanted GPU.

    `A100` is any A100, `A100-80GB` one with 80 GB; `L4` does not match `L40S`; an empty name matches any GPU that runs
    CUDA.
    """
    if machine.gpu is None:
        return False
    if not wanted:
        return machine.maker == "nvidia"
    # Makers use either unit: 22888 MiB are sold as 24 GB, 81920 MiB as 80 GB.
    sizes = {f"{round(machine.gpu_memory_bytes / unit)}gb" for unit in (1000**3, 1024**3)}
    words = {*_words(machine.gpu), *sizes, machine.maker}
    return words.issuperset(_words(wanted))


def disk_size(size_bytes: int) -> int:
    """The size of a disk in the GiB that clouds call GB: `200GB` is 200; other sizes are rounded up."""
    return size_bytes // _GB if size_bytes % _GB == 0 else -(-size_bytes // _GIB)


def featured(machines: Iterable[MachineType], family: Callable[[str], str]) -> list[str]:
    """The machines that users request most often: the smallest of each family with accelerators."""
    smallest: dict[str, MachineType] = {}
    for machine in machines:
        name = family(machine.name)
        if machine.gpus and (name not in smallest or size(machine) < size(smallest[name])):
            smallest[name] = machine
    return [machine.name for _, machine in sorted(smallest.items())]


@dataclass(frozen=True)
class Catalog(Generic[T]):
    """The machine types of one cloud."""

    # The cloud's name in messages.
    cloud: str
    # Returns all known machine types, by name.
    table: Callable[[], Mapping[str, T]]
    # Returns the machine type of the table, otherwise the facts that its name tells.
    facts: Callable[[str], T]
    # The pattern of valid type names, and some examples.
    name: re.Pattern[str]
    examples: tuple[str, ...]
    # Returns True for a name that matches the pattern but surely is a typing error.
    is_misspelt: Callable[[str], bool] = lambda _name: False
    # Returns why the cloud cannot have a type of this well-formed name, and what to do; empty if it may have it.
    impossible_reason: Callable[[str], str] = lambda _name: ""
    # Needs of a job that only this cloud knows: a description of each by its field below `resources`, and the reason
    # why a machine cannot meet them.
    extra_needs: Callable[[Resources], Mapping[str, str]] = lambda _resources: {}
    mismatch: Callable[[T, Resources], str] = lambda _machine, _resources: ""

    def fitting(self, resources: Resources) -> list[T]:
        """The machine types that serve these resources: those named, in the job's order, else all, the smallest first.

        If no machine is named, types that need special software (arm64, accelerators without CUDA) are left out unless
        their GPU is requested by name. Burstable types are left out too, and types with very little memory if the job
        does not say how much it needs. Raises UserError for a name that no machine type can have.
        """
        if resources.machine:
            return [machine for machine in self._named(resources.machine) if self.serves(machine, resources)]
        return sorted((machine for machine in self._unnamed(resources) if self.serves(machine, resources)), key=size)

    def serves(self, machine: T, resources: Resources) -> bool:
        """Return True if the machine meets the requirements, as far as its facts are known."""
        return not self._mismatch(machine, resources)

    def why_none(self, resources: Resources) -> str:
        """The reason why no machine type serves these resources, in one line; empty if one does."""
        try:
            if self.fitting(resources):
                return ""
            if resources.machine:
                return self._mismatch(next(iter(self._named(resources.machine))), resources)
        except UserError as error:
            return str(error)
        if resources.gpus is not None and resources.gpus.count > 0:
            kind = [machine for machine in self.table().values() if same_gpu(resources.gpus.name, machine)]
            if not kind:
                known = sorted({machine.gpu for machine in self.table().values() if machine.gpu})
                close = get_close_matches(resources.gpus.name.upper(), known, n=3, cutoff=0.5)
                return f"resources.gpus: {self.cloud} has no {resources.gpus.name}; {_choices(close or known)}"
            most = max(machine.gpus for machine in kind)
            if most < resources.gpus.count:
                count = resources.gpus.count
                return f"resources.gpus: {self.cloud} has no machine with {count} of them; at most {most}"
            enough = sorted((machine for machine in kind if machine.gpus >= resources.gpus.count), key=size)
            reasons = [self.mismatch(machine, resources) for machine in enough]
            if all(reasons):
                return reasons[0]
        return self._too_much(resources)

    def unchecked(self, resources: Resources) -> tuple[str, ...]:
        """The remarks of an offline plan about the named machines that the table does not have, one line each."""
        new = [name for name in dict.fromkeys(resources.machine) if name not in self.table()]
        return tuple(did_you_mean.unchecked("resources.machine", name, self.table()) for name in new)

    def _named(self, names: Iterable[str]) -> list[T]:
        for name in names:
            if name not in self.table() and (not self.name.fullmatch(name) or self.is_misspelt(name)):
                close = get_close_matches(name.lower(), self.table(), n=3, cutoff=0.5) or self.examples
                raise UserError(f"resources.machine: {self.cloud} has no machine type {name!r}; {_choices(close)}")
            if reason := self.impossible_reason(name):
                raise UserError(f"resources.machine: {name}: {reason}")
        # A repeated name would give the same offering twice.
        return [self.facts(name) for name in dict.fromkeys(names)]

    def _unnamed(self, resources: Resources) -> list[T]:
        by_name = resources.gpus is not None and bool(resources.gpus.name)
        least = _LEAST_MEMORY_BYTES if resources.memory_bytes is None else 0
        return [
            machine
            for machine in self.table().values()
            if (machine.memory_bytes or 0) >= least
            and (by_name or not (machine.burstable or machine.arch == "arm64" or machine.maker != "nvidia"))
        ]

    def _mismatch(self, machine: T, resources: Resources) -> str:
        """The reason, with the field's name, why this machine cannot serve; empty if it can, or if its facts are
        unknown."""
        if not machine.known:
            return ""
        gpus = resources.gpus
        if gpus is not None and gpus.count > 0:
            if machine.gpus < gpus.count or not same_gpu(gpus.name, machine):
                has = f"{machine.gpus} × {machine.gpu}" if machine.gpus else "no whole GPU"
                return f"resources.gpus: {machine.name} has {has}, {gpus.name or 'GPU'}:{gpus.count} was asked for"
        elif machine.gpu is not None and not resources.machine:
            return f"resources.gpus: {machine.name} has GPUs that were not asked for"
        if reason := self.mismatch(machine, resources):
            return reason
        if resources.cpus is not None and (machine.cpus or 0) < resources.cpus:
            return f"resources.cpus: {machine.name} has {machine.cpus}, {resources.cpus} were asked for"
        if resources.memory_bytes is not None and (machine.memory_bytes or 0) < resources.memory_bytes:
            got, wanted = (machine.memory_bytes or 0) / 1e9, resources.memory_bytes / 1e9
            return f"resources.memory: {machine.name} has {got:.1f} GB, {wanted:.1f} GB were asked for"
        return ""

    def _too_much(self, resources: Resources) -> str:
        """The reason if such machines exist, but none is large enough."""
        asked = {}
        if resources.cpus is not None:
            asked["cpus"] = f"{resources.cpus} CPUs"
        if resources.memory_bytes is not None:
            asked["memory"] = f"{resources.memory_bytes / 1e9:.0f} GB of memory"
        asked |= self.extra_needs(resources)
        field = next(iter(asked), "gpus")
        if resources.gpus is not None and resources.gpus.count > 0:
            asked = {"gpus": f"{resources.gpus.name or 'GPU'}:{resources.gpus.count}", **asked}
        needs = " and ".join(asked.values())
        return f"resources.{field}: {self.cloud} has no machine with {needs}; name one with resources.machine"


def _choices(names: Iterable[str]) -> str:
    return f"choose one of: {', '.join(names)}"


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.split(r"[^A-Za-z0-9]+", name) if word]
