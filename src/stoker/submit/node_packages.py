"""Pack what a job's machines install from the store: agents, and programs for each processor architecture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from stoker.model.offerings import Capabilities, Offering
from stoker.model.spec import Spec
from stoker.providers import registry
from stoker.providers.base import Provider
from stoker.providers.image_info import CONTAINER_IMAGE, IMAGE, Python

if TYPE_CHECKING:
    from stoker.submit.agent_bundle import AgentArchive
    from stoker.submit.node_programs import ProgramFile


@runtime_checkable
class KnowsArchitectures(Protocol):
    """A provider whose machines have more than one processor architecture."""

    def architectures(self, offerings: Iterable[Offering]) -> set[str]: ...


@dataclass(frozen=True)
class TargetMachines:
    """The machines that a job may get. `offline` asks no package index about them."""

    provider: Provider
    capabilities: Capabilities
    offerings: tuple[Offering, ...]
    offline: bool = False

    def architectures(self, offerings: Iterable[Offering] | None = None) -> set[str]:
        """The processor architectures of these offerings, or of all, such as `x86_64`."""
        if not isinstance(self.provider, KnowsArchitectures):
            return {"x86_64"}
        return self.provider.architectures(self.offerings if offerings is None else offerings)


def pack_agents(machines: TargetMachines, spec: Spec) -> tuple[tuple[AgentArchive, ...], tuple[str, ...]]:
    """Pack the agents for these machines, where they install their own; and a line for each kind without an agent.

    There is no line for a kind that the job's image is known not to be.
    """
    if not machines.capabilities.bundled:
        return (), ()
    # Imported here: the metadata of installed packages take longer to import than most commands run.
    from stoker.submit.agent_bundle import build_archives

    oldest = _oldest_python(spec, machines.offerings)
    built, problems = build_archives(machines.architectures(), offline=machines.offline, oldest=oldest)
    if IMAGE not in machines.capabilities.honours:
        # This provider's agents run inside the container, so the advice is about the container's image.
        problems = tuple(line.replace(IMAGE, CONTAINER_IMAGE) for line in problems)
    return built, problems


def pack_tools(machines: TargetMachines, spec: Spec) -> tuple[tuple[ProgramFile, ...], tuple[str, ...]]:
    """Pack the programs that the job needs on these machines; and a line for each that is not on this computer yet."""
    from stoker.submit.node_programs import SPY, UV, build_program_files, needs_uv

    if not machines.capabilities.bundled:
        return (), ()
    arches, offline = machines.architectures(), machines.offline
    # Every job gets py-spy: any training may stall.
    spies, _ = build_program_files(SPY, arches, offline=offline)
    uvs, missing = build_program_files(UV, arches, offline=offline) if needs_uv(spec) else ((), ())
    return (*spies, *uvs), missing


def _oldest_python(spec: Spec, offerings: tuple[Offering, ...]) -> Python | None:
    """The oldest Python among the machines' images; None where the Python of one of them is unknown."""
    images = registry.images(spec.resources.provider)
    if images is None:
        return None
    pythons = [images.python_of(spec.resources.image, offering.gpus, offering.gpu) for offering in offerings]
    known = [python for python in pythons if python is not None]
    return min(known) if known and len(known) == len(pythons) else None
