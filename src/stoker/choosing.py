"""Which file of packages a job is installed from: named, or found at the root of its code."""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from stoker import requirements
from stoker.errors import UserError
from stoker.requirements import FIELD, NOTHING, USUAL
from stoker.spec import Spec


def check_conda(spec: Spec, code: Path, packed: Collection[str]) -> None:
    """Raise UserError where machines would not get the file that a conda environment is made from."""
    name = spec.environment.conda
    if name is None or posixpath.normpath(name) in packed:
        return
    problem = "is left out of the packed code" if (code / name).exists() else "is not in the code folder"
    raise UserError(f"environment.conda: {name} {problem}; name an environment.yml below {code}")


def choose_requirements(spec: Spec, code: Path, packed: Collection[str]) -> tuple[Spec, tuple[str, ...]]:
    """The spec with the file that is installed from, and a line that tells where nobody named one.

    `packed` is what machines get of the code. Raises UserError for a file that cannot be installed from there.
    """
    wishes = spec.environment
    name = wishes.requirements
    if name == NOTHING:
        return spec, ()
    told: tuple[str, ...] = ()
    if name is None:
        if USUAL not in packed or wishes.conda is not None:
            return spec, ()
        name = USUAL
        told = (f"{USUAL} is installed before the training starts ({FIELD}; `{NOTHING}` leaves it)",)
    files = requirements.read(code, name)
    for file in files.files:
        if file not in packed:
            raise UserError(
                f"{FIELD}: {file} is left out of the packed code (.gitignore, .stokerignore or a link that leads out); "
                f"add `!{file}` to .stokerignore"
            )
    if wishes.system_packages and files.kind in ("uv-lock", "pylock"):
        raise UserError(
            f"environment.system_packages: {files.name} names every package with its version, so nothing of the "
            "image's is kept; leave one of the two out"
        )
    return replace(spec, environment=replace(wishes, requirements=files.name)), told
