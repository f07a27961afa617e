"""Which file of packages a job is installed from: named, or found at the root of its code."""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.agent.environment import requirements
from stoker.agent.environment.requirements import FIELD, NOTHING, USUAL
from stoker.model.errors import UserError
from stoker.model.spec import Spec
from stoker.submit.validate_requirements import check_packages, check_yaml


@dataclass(frozen=True)
class Chosen:
    """The spec with the file that is installed from, what the plan says of it, and what may not be as it was meant."""

    spec: Spec
    noted: tuple[str, ...] = ()
    told: tuple[str, ...] = ()


def check_conda(spec: Spec, code: Path, packed: Collection[str]) -> None:
    """Raise UserError where machines would not get the file that a conda environment is made from, or not read it."""
    name = spec.environment.conda
    if name is None:
        return
    if posixpath.normpath(name) not in packed:
        problem = "is left out of the packed code" if (code / name).exists() else "is not in the code folder"
        raise UserError(f"environment.conda: {name} {problem}; name an environment.yml below {code}")
    check_yaml("environment.conda", name, (code / name).read_bytes())


def choose_requirements(spec: Spec, code: Path, packed: Collection[str]) -> Chosen:
    """`packed` is what machines get of the code. Raises UserError for a file that cannot be installed from there."""
    wishes = spec.environment
    name = wishes.requirements
    if name == NOTHING:
        return Chosen(spec)
    noted: tuple[str, ...] = ()
    if name is None:
        if wishes.conda is not None:
            return Chosen(spec)
        if USUAL not in packed:
            return Chosen(spec, told=_left_out(code))
        name = USUAL
        noted = (f"{USUAL} is installed before the training starts ({FIELD}; `{NOTHING}` leaves it)",)
    files = requirements.read(code, name)
    for file in files.files:
        if file not in packed:
            raise UserError(
                f"{FIELD}: {file} is left out of the packed code (.gitignore, .stokerignore or a link that leads out); "
                f"add `!{file}` to .stokerignore"
            )
    check_packages(files)
    if wishes.system_packages and files.kind in ("uv-lock", "pylock"):
        raise UserError(
            f"environment.system_packages: {files.name} names every package with its version, so nothing of the "
            "image's is kept; leave one of the two out"
        )
    return Chosen(replace(spec, environment=replace(wishes, requirements=files.name)), noted)


def _left_out(code: Path) -> tuple[str, ...]:
    if not (code / USUAL).is_file():
        return ()
    advice = f"add `!{USUAL}` to .stokerignore, or set {FIELD}: {NOTHING}"
    return (f"{USUAL} is left out of the packed code by an ignore file, and is not installed; {advice}",)
