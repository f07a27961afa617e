"""Machine types of any cloud, and which of them serve a job.

A cloud keeps a table of its types, says what is known of one that the table does not have, and what a name must look
like; the rest is the same everywhere. Clouds bring out new types all the time: one that a job names and the table does
not know is taken as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Generic, Literal, TypeVar

from stoker.model.errors import UserError
from stoker.model.spec import Resources
from stoker.providers import did_you_mean

Arch = Literal["x86_64", "arm64"]

# What a machine must have when the job does not say: less does not even hold a framework.
_LEAST_MEMORY_BYTES = 4 * 1024**3
_GB = 1000**3
_GIB = 1024**3


@dataclass(frozen=True)
class MachineType:
    """What a cloud says of a machine type. `cpus` and `memory_bytes` are None for one whose facts are not known yet."""

    name: str
    cpus: int | None
    memory_bytes: int | None
    # Accelerators: the name of each, how many, and the memory of one. A type with a slice of a GPU has a name and none.
    gpu: str | None = None
    gpus: int = 0
    gpu_memory_bytes: int = 0
    arch: Arch = "x86_64"
    spot: bool = True
    # Who makes the accelerators: what is written for CUDA runs on nvidia's alone.
    maker: str = "nvidia"
    # Shares its processor with others, or lives on credits, and is slow without them.
    burstable: bool = False

    @property
    def known(self) -> bool:
        return self.cpus is not None and self.memory_bytes is not None


T = TypeVar("T", bound=MachineType)


def size(machine: MachineType) -> tuple[int, int, int, str]:
    """Orders machine types from small to large: accelerators first, since they are what is paid for."""
    return (machine.gpus, machine.cpus or 0, machine.memory_bytes or 0, machine.name)


def same_gpu(wanted: str, machine: MachineType) -> bool:
    """`A100` is any A100, `A100-80GB` one with 80 GB; `L4` is no `L40S`; an empty name is any GPU that runs CUDA."""
    if machine.gpu is None:
        return False
    if not wanted:
        return machine.maker == "nvidia"
    # Makers count in either unit: 22888 MiB are sold as 24 GB, 81920 MiB as 80 GB.
    sizes = {f"{round(machine.gpu_memory_bytes / unit)}gb" for unit in (1000**3, 1024**3)}
    words = {*_words(machine.gpu), *sizes, machine.maker}
    return words.issuperset(_words(wanted))


def disk_size(size_bytes: int) -> int:
    """The size of a disk as clouds count it, in GiB that they call GB: `200GB` is 200, and nothing becomes less."""
    return size_bytes // _GB if size_bytes % _GB == 0 else -(-size_bytes // _GIB)


def featured(machines: Iterable[MachineType], family: Callable[[str], str]) -> list[str]:
    """The machines that people ask for first: of each family with accelerators, the smallest."""
    smallest: dict[str, MachineType] = {}
    for machine in machines:
        name = family(machine.name)
        if machine.gpus and (name not in smallest or size(machine) < size(smallest[name])):
            smallest[name] = machine
    return [machine.name for _, machine in sorted(smallest.items())]


def _no_wishes(_: Resources) -> Mapping[str, str]:
    return {}


def _no_misfit(_machine: MachineType, _resources: Resources) -> str:
    return ""


def _well_spelt(_: str) -> bool:
    return False


def _possible(_: str) -> str:
    return ""


@dataclass(frozen=True)
class Catalog(Generic[T]):
    """The machine types of one cloud."""

    # What people call it.
    cloud: str
    # Every machine type that is known, by name.
    table: Callable[[], Mapping[str, T]]
    # The machine type of the table, else what its name tells.
    facts: Callable[[str], T]
    # What the name of a machine type looks like, and some of them.
    name: re.Pattern[str]
    examples: tuple[str, ...]
    # Whether a name that the table does not have surely is a slip of the pen, though it looks like one.
    misspelt: Callable[[str], bool] = _well_spelt
    # Why the cloud has no such machine, and what to do, though its name is made as names are; empty where it may have.
    impossible: Callable[[str], str] = _possible
    # What a job may ask of this cloud alone: in words, by the field below `resources`; and why a machine cannot do it.
    wishes: Callable[[Resources], Mapping[str, str]] = _no_wishes
    misfit: Callable[[T, Resources], str] = _no_misfit

    def fitting(self, resources: Resources) -> list[T]:
        """The machine types that serve these resources: those named, as they are named, else all, the smallest first.

        Where no machine is named, what needs software of its own (arm64, accelerators without CUDA) is left out unless
        its GPU is asked for by name, and so is what is burstable, or has next to no memory while the job does not say
        how much it needs. Raises UserError for a name that no machine type can have.
        """
        if resources.machine:
            return [machine for machine in self._named(resources.machine) if self.serves(machine, resources)]
        return sorted((machine for machine in self._unnamed(resources) if self.serves(machine, resources)), key=size)

    def serves(self, machine: T, resources: Resources) -> bool:
        """Whether it has what is asked for, as far as its facts are known."""
        return not self._misfit(machine, resources)

    def why_none(self, resources: Resources) -> str:
        """Why no machine type serves these resources, in one line; empty when one does."""
        try:
            if self.fitting(resources):
                return ""
            if resources.machine:
                return self._misfit(next(iter(self._named(resources.machine))), resources)
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
        return self._too_much(resources)

    def unchecked(self, resources: Resources) -> tuple[str, ...]:
        """The machines that a job names and the table does not have, a line each, for a plan that asks nobody."""
        new = [name for name in dict.fromkeys(resources.machine) if name not in self.table()]
        return tuple(did_you_mean.unchecked("resources.machine", name, self.table()) for name in new)

    def _named(self, names: Iterable[str]) -> list[T]:
        for name in names:
            if name not in self.table() and (not self.name.fullmatch(name) or self.misspelt(name)):
                close = get_close_matches(name.lower(), self.table(), n=3, cutoff=0.5) or self.examples
                raise UserError(f"resources.machine: {self.cloud} has no machine type {name!r}; {_choices(close)}")
            why = self.impossible(name)
            if why:
                raise UserError(f"resources.machine: {name}: {why}")
        # Twice the same name would be twice the same offering.
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

    def _misfit(self, machine: T, resources: Resources) -> str:
        """Why this one cannot serve, naming the field; empty when it can, or when nobody knows yet."""
        if not machine.known:
            return ""
        gpus = resources.gpus
        if gpus is not None and gpus.count > 0:
            if machine.gpus < gpus.count or not same_gpu(gpus.name, machine):
                has = f"{machine.gpus} × {machine.gpu}" if machine.gpus else "no whole GPU"
                return f"resources.gpus: {machine.name} has {has}, {gpus.name or 'GPU'}:{gpus.count} was asked for"
        elif machine.gpu is not None and not resources.machine:
            return f"resources.gpus: {machine.name} has GPUs that were not asked for"
        own = self.misfit(machine, resources)
        if own:
            return own
        if resources.cpus is not None and (machine.cpus or 0) < resources.cpus:
            return f"resources.cpus: {machine.name} has {machine.cpus}, {resources.cpus} were asked for"
        if resources.memory_bytes is not None and (machine.memory_bytes or 0) < resources.memory_bytes:
            got, wanted = (machine.memory_bytes or 0) / 1e9, resources.memory_bytes / 1e9
            return f"resources.memory: {machine.name} has {got:.1f} GB, {wanted:.1f} GB were asked for"
        return ""

    def _too_much(self, resources: Resources) -> str:
        """The kind of machine is there; the rest is more than any of them has."""
        asked = {}
        if resources.cpus is not None:
            asked["cpus"] = f"{resources.cpus} CPUs"
        if resources.memory_bytes is not None:
            asked["memory"] = f"{resources.memory_bytes / 1e9:.0f} GB of memory"
        asked |= self.wishes(resources)
        field = next(iter(asked), "gpus")
        if resources.gpus is not None and resources.gpus.count > 0:
            asked = {"gpus": f"{resources.gpus.name or 'GPU'}:{resources.gpus.count}", **asked}
        words = " and ".join(asked.values())
        return f"resources.{field}: {self.cloud} has no machine with {words}; name one with resources.machine"


def _choices(names: Iterable[str]) -> str:
    return f"choose one of: {', '.join(names)}"


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.split(r"[^A-Za-z0-9]+", name) if word]
