"""Choose the requirements file of a job: the one it names, or the one at the root of its code."""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.agent.environment import read_requirements
from stoker.agent.environment.read_requirements import DEFAULT_FILE, FIELD, NOTHING
from stoker.model.errors import UserError
from stoker.model.spec import Spec
from stoker.submit.validate_requirements import check_packages, check_yaml


@dataclass(frozen=True)
class RequirementsChoice:
    """The spec with its requirements file, and lines for the plan: notes, and warnings."""

    spec: Spec
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def check_conda(spec: Spec, code: Path, packed: Collection[str]) -> None:
    """Raise UserError where the packed code lacks the job's conda file, or the file is no valid YAML."""
    name = spec.environment.conda
    if name is None:
        return
    if posixpath.normpath(name) not in packed:
        problem = "is left out of the packed code" if (code / name).exists() else "is not in the code folder"
        raise UserError(f"environment.conda: {name} {problem}; name an environment.yml below {code}")
    check_yaml("environment.conda", name, (code / name).read_bytes())


def choose_requirements(spec: Spec, code: Path, packed: Collection[str]) -> RequirementsChoice:
    """Choose the requirements file. `packed` are the files that machines get. Raises UserError for an unusable file."""
    wishes = spec.environment
    name = wishes.requirements
    if name == NOTHING:
        return RequirementsChoice(spec)
    notes: tuple[str, ...] = ()
    if name is None:
        if wishes.conda is not None:
            return RequirementsChoice(spec)
        if DEFAULT_FILE not in packed:
            return RequirementsChoice(spec, warnings=_left_out(code))
        name = DEFAULT_FILE
        notes = (f"{DEFAULT_FILE} is installed before the training starts ({FIELD}: {NOTHING} skips it)",)
    files = read_requirements.read(code, name)
    for file in files.files:
        if file not in packed:
            raise UserError(
                f"{FIELD}: {file} is left out of the packed code (.gitignore, .stokerignore or a link that leads out); "
                f"add `!{file}` to .stokerignore"
            )
    check_packages(files)
    if wishes.system_packages and files.kind in ("uv-lock", "pylock"):
        raise UserError(
            f"environment.system_packages: {files.name} names every package with its version, so no package of "
            "the image is kept; leave one of the two out"
        )
    return RequirementsChoice(replace(spec, environment=replace(wishes, requirements=files.name)), notes)


def _left_out(code: Path) -> tuple[str, ...]:
    if not (code / DEFAULT_FILE).is_file():
        return ()
    advice = f"add `!{DEFAULT_FILE}` to .stokerignore, or set {FIELD}: {NOTHING}"
    return (f"{DEFAULT_FILE} is left out of the packed code by an ignore file, and is not installed; {advice}",)
