"""Files that name Python packages: their kinds, what they include, and whether they install parts of the code itself.

Needs the standard library alone: those who submit check with it, and machines install by it.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stoker.model.errors import UserError

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
# What certainly lies elsewhere.
_REMOTE = re.compile(r"(?!(?:[a-z0-9.-]+\+)?file:)(?:[a-z][a-z0-9+.-]*://[^/]|git\+)", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(?:whl|zip|tgz|tar)\b", re.IGNORECASE)
# Options that have no value, and those whose value is not a place. Any other may name one.
_FLAGS = frozenset({"--no-index", "--pre", "--prefer-binary", "--require-hashes", "--no-deps"})
_WORDED = frozenset({"--only-binary", "--no-binary", "--trusted-host", "--use-feature", "--hash"})
_DYNAMIC = re.compile(r"^dynamic\s*=\s*\[[^\]]*[\"'](?:optional-)?dependencies[\"']", re.MULTILINE)
_PATH_SOURCE = re.compile(r"\b(?:path|workspace)\s*=\s*(?:[\"']|true)")
_NAMED = re.compile(r"[A-Za-z0-9._-]+\s*(?:\[[^\]]*\])?\s*@\s*(?P<what>\S+)")
# Where a uv.lock or a pylock says that a package comes from.
_LOCKED_FROM = re.compile(
    r"\b(?P<key>path|directory|editable|virtual|registry|url|git)\s*=\s*[\"'](?P<what>[^\"']*)[\"']"
    r"|(?:\[packages\.directory\]|\bdirectory\s*=\s*\{)"
)
_TOML_STRING = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'")
_TOML_TABLE = re.compile(r"^[ \t]*\[+[ \t]*([^\[\]\n]+?)[ \t]*\]+[ \t]*(?:#.*)?$", re.MULTILINE)
_TOML_REMARK = re.compile(r"^\s*#.*$", re.MULTILINE)
# Tables of uv's that say nothing about where `uv pip install` finds packages: it reads sources for a project alone.
_OTHER_TABLES = ("sources", "workspace", "build-backend")


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
    # Parts of the code may be installed, too: any change of the code may change what is installed.
    local: bool
    # So may packages that lie in the code, since uv is told to look there.
    local_settings: bool = False


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
    folder = (code / name).parent
    match kind:
        case "requirements":
            local = _read_includes(code, name, files)
        case "project":
            local = _project_is_here(text, folder)
        case "uv-lock":
            _add(code, posixpath.join(posixpath.dirname(name), "pyproject.toml"), files, f", the project of {name}")
            local = _lock_is_here(text)
        case "pylock":
            local = _lock_is_here(text)
    settings = _settings(code)
    found_here = any(_settings_lead_here(each, data.decode(errors="replace"), code) for each, data in settings.items())
    return Requirements(name, kind, files, settings, local, found_here)


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
        words = line[include.end() :].split() if include is not None else line.split()
        local = local or any_here(words, code / folder)
        if include is None or _REMOTE.match(include["name"]):
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


def any_here(words: Iterable[str], folder: Path) -> bool:
    """Whether words of a requirements file may name something that lies on this computer.

    In doubt they do. There are many ways to say it: what is told apart is what certainly lies elsewhere.
    """
    # A place follows: what is no address lies here.
    place = False
    for each in words:
        option, value = _option(each)
        if option:
            place = option not in _FLAGS and option not in _WORDED
            if value and place and not _REMOTE.match(value):
                return True
            place = place and not value
            continue
        if _REMOTE.match(each):
            place = False
            continue
        _, at, after = each.partition("@")
        here = not _REMOTE.match(after) if after else _looks_here(re.split(r"[;\[]", each)[0], folder)
        if place or here:
            return True
        place = bool(at) and not after
    return False


def _option(word: str) -> tuple[str, str]:
    """An option and what is written onto it: `--find-links=wheels`, `-fwheels`. Empty for any other word."""
    if word.startswith("--"):
        name, _, value = word.partition("=")
        return name, value
    return (word[:2], word[2:].removeprefix("=")) if word.startswith("-") else ("", "")


def _looks_here(word: str, folder: Path, *, bare: bool = False) -> bool:
    """Whether a word that stands for itself is a path. `bare`: also without a slash, where there is such a file."""
    if _REMOTE.match(word):
        return False
    if word.startswith((".", "/", "~")) or any(part in word for part in ("file:", "$", "{", "\\")):
        return True
    if _ARCHIVE.search(word):
        return True
    # `libs/tools` is a path as much as `./libs/tools` is; `nvidia/label/cuda-12.4` is a channel.
    return bool(word) and (bare or "/" in word) and _exists(folder / word)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False  # It is no name of a file at all.


def _strings(toml: str) -> Iterator[str]:
    for found in _TOML_STRING.finditer(_TOML_REMARK.sub("", toml)):
        yield found[1] if found[1] is not None else found[2]


def _project_is_here(text: str, folder: Path) -> bool:
    """Whether a project may need parts of the code. Most texts in it are no requirements, e-mail addresses for one."""
    if _DYNAMIC.search(text) or _PATH_SOURCE.search(_TOML_REMARK.sub("", text)):
        return True
    for string in _strings(text):
        named = _NAMED.match(string)
        if "file:" in string or (named is not None and _looks_here(named["what"], folder, bare=True)):
            return True
    return False


def _lock_is_here(text: str) -> bool:
    """Whether a lock may name parts of the code. The project itself is not installed: it is imported from the code."""
    for found in _LOCKED_FROM.finditer(text):
        itself = found["key"] in ("editable", "virtual") and found["what"] == "."
        if not itself and (found["what"] is None or not _REMOTE.match(found["what"])):
            return True
    return False


def _settings_lead_here(name: str, text: str, folder: Path) -> bool:
    """Whether uv's settings may lead to packages in the code: `find-links`, or an index that is a folder."""
    texts = _TOML_TABLE.split(text)
    for table, body in zip(["", *texts[1::2]], texts[::2], strict=True):
        words = re.split(r"\s*\.\s*", table.replace('"', ""))
        if name == "pyproject.toml":
            if words[:2] != ["tool", "uv"]:
                continue
            words = words[2:]
        if words and words[0] in _OTHER_TABLES:
            continue
        if any(_looks_here(string, folder, bare=True) for string in _strings(body)):
            return True
    return False
