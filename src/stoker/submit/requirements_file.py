"""Choose the requirements file of a job: the one it names, or the one at the root of its code.

Certain mistakes in it are found when a job is submitted, rather than on its machines. A line that may be right is left
to uv and conda.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.agent.environment import read_requirements
from stoker.agent.environment.read_requirements import DEFAULT_FILE, FIELD, NOTHING, Requirements
from stoker.model.errors import UserError
from stoker.model.spec import Spec

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_SPECIFIER = r"(?:===|==|~=|!=|<=|>=|<|>)\s*[^\s,;()<>=!~]+"
_SPECIFIERS = rf"{_SPECIFIER}(?:\s*,\s*{_SPECIFIER})*\s*,?"
_REQUIREMENT = re.compile(rf"{_NAME}\s*(?:\[[^\]]*\])?\s*(?:@.*|{_SPECIFIERS}|\({_SPECIFIERS}\s*\))?\s*(?:;.+)?")
# Options of a single requirement, such as its hashes.
_OPTIONS = re.compile(r"\s--?[a-z].*$")
# Options, addresses, paths and variables: only the program that reads them can check them.
_OTHER = re.compile(r"-(?!\s)|\.|~|[^@;\[]*(?:[/\\$]|::)|.*\.(?:whl|zip|tgz|tar\.\w+)\b", re.IGNORECASE)
_LONGEST = 60


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
    _check_yaml("environment.conda", name, (code / name).read_bytes())


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
    _check_packages(files)
    if wishes.system_packages and files.is_lock:
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


# ── Mistakes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_packages(found: Requirements) -> None:
    """Raise UserError for the first mistake, with the file and the line."""
    for name, data in (found.files | found.settings).items():
        if name.endswith((".toml", ".lock")):
            _check_toml(name, data)
        elif b"\0" not in data:  # UTF-16 is for uv to read.
            _check_requirements(name, data.decode("utf-8-sig", errors="replace"))


def _check_toml(name: str, data: bytes) -> None:
    """Raise UserError for a TOML file that is invalid."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        tomllib.loads(data.decode("utf-8-sig"))
    except ValueError as error:
        problem = " ".join(str(error).split())
        raise UserError(f"{FIELD}: {name} is not valid TOML: {problem}; correct it") from None


def _check_yaml(field: str, name: str, data: bytes) -> None:
    """Raise UserError for a YAML file that is invalid, or no mapping."""
    import yaml

    try:
        found = yaml.safe_load(data)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}" if mark is not None else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserError(f"{field}: {name}{place}: not valid YAML: {problem}; correct it") from None
    if not isinstance(found, dict):
        raise UserError(f"{field}: {name} holds no fields such as `dependencies:`; correct it")


def _check_requirements(name: str, text: str) -> None:
    for number, line in _numbered(text):
        bare = _OPTIONS.sub("", line).strip()
        if not bare or _OTHER.match(bare) or _REQUIREMENT.fullmatch(bare):
            continue
        shown = bare if len(bare) <= _LONGEST else f"{bare[: _LONGEST - 1]}…"
        raise UserError(
            f"{FIELD}: {name}:{number}: {shown!r} is no requirement; write one such as numpy or torch==2.5.1"
        )


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """Requirements and options without comments, each with the number of its first line."""
    begun, parts = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        begun = begun if parts else number
        continued = line.endswith("\\")
        parts.append(line.removesuffix("\\"))
        if not continued:
            yield begun, re.sub(r"(^|\s)#.*$", "", " ".join(parts)).strip()
            parts = []
