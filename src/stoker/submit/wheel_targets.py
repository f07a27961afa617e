"""Decide for which machines a job's wheels are gathered. Their Python must be known before one of them boots."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.agent.environment.read_requirements import NOTHING, read
from stoker.model.errors import UserError
from stoker.model.offerings import Capabilities, Offering
from stoker.model.spec import Spec
from stoker.model.submission import Wheel
from stoker.providers import registry
from stoker.providers.image_info import version_text
from stoker.submit.pip_download import local_architecture

if TYPE_CHECKING:
    from stoker.submit.wheels import WheelSet, WheelTarget

FIELD = "environment.wheels"
_VERSION = re.compile(r"3\.\d+(?:\.\d+)*")
_ASK_S = 30.0

Architectures = Callable[[Iterable[Offering]], set[str]]


def pack_wheels(
    spec: Spec,
    capabilities: Capabilities,
    offerings: tuple[Offering, ...],
    architectures: Architectures,
    code: Path,
    *,
    offline: bool = False,
) -> tuple[WheelSet | None, tuple[str, ...]]:
    """The wheels of a job that wants them packed; offline, a line that the run gathers them. Raises UserError."""
    if spec.environment.wheels is None:
        return None, ()
    if spec.environment.requirements in (None, NOTHING):
        raise UserError(f"{FIELD}: there is nothing to gather; set environment.requirements, or leave `wheels` out")
    targets = _targets(spec, capabilities, offerings, architectures)
    if offline:
        return None, (f"{FIELD}: the run itself gathers them, for {', '.join(sorted(t.name for t in targets))}",)
    from stoker.submit.wheels import gather_wheels

    assert spec.environment.requirements is not None
    found = gather_wheels(code, read(code, spec.environment.requirements), targets, spec.environment.index)
    return found, ()


def reuse_wheels(
    spec: Spec,
    capabilities: Capabilities,
    offerings: tuple[Offering, ...],
    architectures: Architectures,
    wheels: dict[str, tuple[Wheel, ...]],
) -> WheelSet | None:
    """The wheels of another job for its clone. Raises UserError where the clone's machines need others."""
    if spec.environment.wheels is None:
        return None
    from stoker.submit.wheels import WheelSet

    needed = sorted(target.name for target in _targets(spec, capabilities, offerings, architectures))
    if not set(needed) <= set(wheels):
        there = ", ".join(sorted(wheels)) or "none"
        raise UserError(
            f"{FIELD}: wheels were gathered for {there}, and this needs {', '.join(needed)}; submit it from its folder"
        )
    return WheelSet({name: wheels[name] for name in needed})


def _targets(
    spec: Spec, capabilities: Capabilities, offerings: tuple[Offering, ...], architectures: Architectures
) -> set[WheelTarget]:
    from stoker.submit.wheels import WheelTarget

    wanted = spec.environment.python or ""
    contained = spec.environment.container is not None
    if capabilities.runs_locally and not contained:
        return {WheelTarget(_version_of(wanted), local_architecture(), wanted)}
    found = set()
    for offering in offerings:
        version = wanted if wanted or contained else _image_python(offering, spec)
        if version is None or not _VERSION.fullmatch(version):
            raise UserError(
                f"{FIELD}: the Python version of the machines is not known, and wheels depend on it; set "
                "environment.python to it, such as 3.12"
            )
        arches = {local_architecture()} if capabilities.runs_locally else architectures((offering,))
        found |= {WheelTarget(version, arch) for arch in arches}
    return found


def _image_python(offering: Offering, spec: Spec) -> str | None:
    images = registry.images(spec.resources.provider)
    python = images.python_of(spec.resources.image, offering.gpus, offering.gpu) if images is not None else None
    return version_text(python) if python is not None else None


def _version_of(python: str) -> str:
    """The version of a Python on this computer."""
    code = "import platform; print(platform.python_version())"
    try:
        answer = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"environment.python: {python} does not run: {error}") from None
    return answer.stdout.strip()
