"""Files that name Python packages: their kinds, what they include, and whether they install parts of the code itself.

Needs the standard library alone: those who submit check with it, and machines install by it.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker.errors import UserError

Kind = Literal["requirements", "project", "uv-lock", "pylock"]

# `environment.requirements: none` installs nothing, whatever lies in the folder.
NOTHING = "none"
# Found by itself at the root of the code.
USUAL = "requirements.txt"
FIELD = "environment.requirements"

_PATTERNS: tuple[tuple[str, Kind], ...] = (
    ("pyproject.toml", "project"),
    ("uv.lock", "uv-lock"),
    ("pylock*.toml", "pylock"),
    ("*.txt", "requirements"),
    ("*.in", "requirements"),
)
_KINDS = "requirements*.txt, pyproject.toml, uv.lock or pylock.toml"
# Locks that uv does not read, and the command that writes one it does.
_EXPORTS = {
    "poetry.lock": "poetry export -o requirements.txt",
    "pdm.lock": "pdm export -f requirements -o requirements.txt",
    "Pipfile.lock": "pipenv requirements > requirements.txt",
    "Pipfile": "pipenv requirements > requirements.txt",
}
_INCLUDE = re.compile(r"(?:-r|-c|--requirements?|--constraints?)(?:\s+|=|(?<=-[rc]))(?P<name>\S+)")
_EDITABLE = re.compile(r"(?:-e|--editable)(?:\s+|=)(?P<what>.+)")
_FIND_LINKS = re.compile(r"(?:-f|--find-links)(?:\s+|=)(?P<what>\S+)")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://|git\+", re.IGNORECASE)
_DYNAMIC = re.compile(r"^dynamic\s*=\s*\[[^\]]*[\"'](?:optional-)?dependencies[\"']", re.MULTILINE)
_PATH_SOURCE = re.compile(r"\b(?:path|workspace)\s*=\s*(?:[\"']|true)")
# What a uv.lock or a pylock says about a package that lies in the code.
_LOCKED_HERE = re.compile(
    r"source\s*=\s*\{\s*(?:editable|directory|path|virtual)\s*=\s*\"(?P<path>[^\"]*)\""
    r"|(?:\[packages\.directory\]|directory\s*=\s*\{)"
)


@dataclass(frozen=True)
class Requirements:
    """A file that names packages, with everything that decides what it means."""

    # Relative to the code.
    name: str
    kind: Kind
    # Every file that it needs, by its path relative to the code: itself, and what it includes.
    files: dict[str, bytes]
    # What uv reads besides where it is there.
    settings: dict[str, bytes]
    # Parts of the code are installed, too: any change of the code may change what is installed.
    local: bool


def kind_of(name: str) -> Kind:
    """What kind of file this is, by its name. Raises UserError for one that cannot be installed from."""
    last = posixpath.basename(name)
    if last in _EXPORTS:
        raise UserError(f"{FIELD}: {last} cannot be read; run `{_EXPORTS[last]}`, and name that file")
    if last.endswith((".yml", ".yaml")):
        raise UserError(f"{FIELD}: {last} is not a requirements file; for conda, set environment.conda: {name}")
    for pattern, kind in _PATTERNS:
        if fnmatch.fnmatchcase(last, pattern):
            return kind
    raise UserError(f"{FIELD}: {name} is no file of packages that Stoker knows; give {_KINDS}")


def read(code: Path, name: str) -> Requirements:
    """Read the file and whatever it includes. Raises UserError, naming the file, for what is missing or leads out."""
    kind = kind_of(name)
    if posixpath.isabs(name) or posixpath.normpath(name).startswith(".."):
        raise UserError(f"{FIELD}: {name} is not inside the code folder; give a path below it")
    name = posixpath.normpath(name)
    files: dict[str, bytes] = {}
    _add(code, name, files, "")
    text = files[name].decode(errors="replace")
    local = False
    match kind:
        case "requirements":
            local = _read_includes(code, name, files)
        case "project":
            local = bool(_DYNAMIC.search(text)) or bool(_PATH_SOURCE.search(text))
        case "uv-lock":
            _add(code, posixpath.join(posixpath.dirname(name), "pyproject.toml"), files, f", the project of {name}")
            # The project itself is not installed: it is imported from the code.
            local = any(found["path"] != "." for found in _LOCKED_HERE.finditer(text))
        case "pylock":
            local = _LOCKED_HERE.search(text) is not None
    return Requirements(name, kind, files, _settings(code), local)


def _add(code: Path, name: str, files: dict[str, bytes], why: str) -> None:
    try:
        files[name] = (code / name).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{FIELD}: there is no {name} in the code folder{why}") from None
    except OSError as error:
        raise UserError(f"{FIELD}: {name} cannot be read ({error.strerror}){why}") from None


def _settings(code: Path) -> dict[str, bytes]:
    """What uv reads by itself where it runs."""
    found: dict[str, bytes] = {}
    for name, mark in (("uv.toml", b""), ("pyproject.toml", b"[tool.uv")):
        try:
            data = (code / name).read_bytes()
        except OSError:
            continue
        if mark in data:
            found[name] = data
    return found


def _read_includes(code: Path, name: str, files: dict[str, bytes]) -> bool:
    """Add what a requirements file includes, and what that includes. True: parts of the code are among it."""
    folder = posixpath.dirname(name)
    local = False
    for line in _lines(files[name].decode(errors="replace")):
        include = _INCLUDE.match(line)
        if include is None:
            local = local or _is_local(line, code / folder)
            continue
        if _URL.match(include["name"]):
            continue
        inner = posixpath.normpath(posixpath.join(folder, include["name"]))
        if inner.startswith(("..", "/")):
            raise UserError(f"{FIELD}: {name} includes {include['name']}, which is not inside the code folder")
        if inner not in files:
            _add(code, inner, files, f", which {name} includes")
            local = _read_includes(code, inner, files) or local
    return local


def _lines(text: str) -> Iterator[str]:
    """Requirements and options, each whole, without comments."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        bare = re.sub(r"(^|\s)#.*$", "", line).strip()
        if bare:
            yield bare


def _is_local(line: str, folder: Path) -> bool:
    """Whether a line of a requirements file names something that lies on this computer."""
    for option in (_EDITABLE, _FIND_LINKS):
        found = option.match(line)
        if found is not None:
            return not _URL.match(found["what"]) or found["what"].startswith("file:")
    if line.startswith("-"):
        return False
    what = line.partition(" @ ")[2].strip() or line
    if what.startswith(("file:", ".", "/")):
        return True
    # `libs/tools[extra]` is a path as much as `./libs/tools` is.
    path = re.split(r"[\s;\[]", what)[0]
    return not _URL.match(path) and "/" in path and (folder / path).exists()
