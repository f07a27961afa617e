"""For which machines a job's wheels are gathered: their Python has to be known before one of them has booted."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.agent.environment.requirements import NOTHING, read
from stoker.model.errors import UserError
from stoker.model.offerings import Capabilities, Offering
from stoker.model.spec import Spec, Wheel
from stoker.providers import registry
from stoker.providers.image_info import version_text

if TYPE_CHECKING:
    from stoker.submit.wheels import Gathered, Target

_FIELD = "environment.wheels"
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
) -> tuple[Gathered | None, tuple[str, ...]]:
    """The wheels of a job that wants them packed, and a line where they are not gathered yet. Raises UserError."""
    if spec.environment.wheels is None:
        return None, ()
    if spec.environment.requirements in (None, NOTHING):
        raise UserError(f"{_FIELD}: there is nothing to gather; set environment.requirements, or leave `wheels` out")
    targets = _targets(spec, capabilities, offerings, architectures)
    if offline:
        return None, (f"{_FIELD}: the run itself gathers them, for {', '.join(sorted(t.name for t in targets))}",)
    from stoker.submit.wheels import gather

    assert spec.environment.requirements is not None
    found = gather(code, read(code, spec.environment.requirements), targets, spec.environment.index)
    return found, ()


def taken_over(
    spec: Spec,
    capabilities: Capabilities,
    offerings: tuple[Offering, ...],
    architectures: Architectures,
    wheels: dict[str, tuple[Wheel, ...]],
) -> Gathered | None:
    """Those of another job, for a clone of it. Raises UserError where its machines need others."""
    if spec.environment.wheels is None:
        return None
    from stoker.submit.wheels import Gathered

    needed = sorted(target.name for target in _targets(spec, capabilities, offerings, architectures))
    if not set(needed) <= set(wheels):
        there = ", ".join(sorted(wheels)) or "none"
        raise UserError(
            f"{_FIELD}: wheels were gathered for {there}, and this needs {', '.join(needed)}; submit it from its folder"
        )
    return Gathered({name: wheels[name] for name in needed})


def _targets(
    spec: Spec, capabilities: Capabilities, offerings: tuple[Offering, ...], architectures: Architectures
) -> set[Target]:
    from stoker.submit.wheels import Target

    wanted = spec.environment.python or ""
    contained = spec.environment.container is not None
    if capabilities.here and not contained:
        return {Target(_version_of(wanted), _this_arch(), wanted)}
    found = set()
    for offering in offerings:
        version = wanted if wanted or contained else _image_python(offering, spec)
        if version is None or not _VERSION.fullmatch(version):
            raise UserError(
                f"{_FIELD}: the version of the Python there is not known, and wheels are for one; set "
                "environment.python to it, such as 3.12"
            )
        arches = {_this_arch()} if capabilities.here else architectures((offering,))
        found |= {Target(version, arch) for arch in arches}
    return found


def _image_python(offering: Offering, spec: Spec) -> str | None:
    images = registry.images(spec.resources.provider)
    python = images.python_of(spec.resources.image, offering.gpus) if images is not None else None
    return version_text(python) if python is not None else None


def _this_arch() -> str:
    return "arm64" if platform.machine() in ("aarch64", "arm64") else platform.machine()


def _version_of(python: str) -> str:
    """What a Python on this computer says it is."""
    code = "import platform; print(platform.python_version())"
    try:
        told = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"environment.python: {python} does not run: {error}") from None
    return told.stdout.strip()
