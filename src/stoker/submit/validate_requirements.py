"""Find certain mistakes in requirements files when a job is submitted, rather than on its machines.

A line that may be right is left to uv and conda.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from stoker.agent.environment.read_requirements import FIELD, Requirements
from stoker.model.errors import UserError

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_SPECIFIER = r"(?:===|==|~=|!=|<=|>=|<|>)\s*[^\s,;()<>=!~]+"
_SPECIFIERS = rf"{_SPECIFIER}(?:\s*,\s*{_SPECIFIER})*\s*,?"
_REQUIREMENT = re.compile(rf"{_NAME}\s*(?:\[[^\]]*\])?\s*(?:@.*|{_SPECIFIERS}|\({_SPECIFIERS}\s*\))?\s*(?:;.+)?")
# Options of a single requirement, such as its hashes.
_OPTIONS = re.compile(r"\s--?[a-z].*$")
# Options, addresses, paths and variables: only the program that reads them can check them.
_OTHER = re.compile(r"-(?!\s)|\.|~|[^@;\[]*(?:[/\\$]|::)|.*\.(?:whl|zip|tgz|tar\.\w+)\b", re.IGNORECASE)
_LONGEST = 60


def check_packages(found: Requirements) -> None:
    """Raise UserError for the first mistake, with the file and the line."""
    for name, data in (found.files | found.settings).items():
        if name.endswith((".toml", ".lock")):
            check_toml(FIELD, name, data)
        elif b"\0" not in data:  # UTF-16 is for uv to read.
            _check_requirements(name, data.decode("utf-8-sig", errors="replace"))


def check_toml(field: str, name: str, data: bytes) -> dict[str, Any]:
    """The contents of a TOML file. Raises UserError where it is invalid."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        found: dict[str, Any] = tomllib.loads(data.decode("utf-8-sig"))
    except ValueError as error:
        problem = " ".join(str(error).split())
        raise UserError(f"{field}: {name} is not valid TOML: {problem}; correct it") from None
    return found


def check_yaml(field: str, name: str, data: bytes) -> None:
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
