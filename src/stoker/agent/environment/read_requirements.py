"""Files that name Python packages: their kinds, their includes, and if they install parts of the code itself.

Needs the standard library alone, because it runs at submission and on machines.
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

# `environment.requirements: none` installs nothing, whatever files are in the folder.
NOTHING = "none"
# Used by default if it is at the root of the code.
DEFAULT_FILE = "requirements.txt"
FIELD = "environment.requirements"

UV_SETTINGS = {
    # A Python that was not chosen must not be downloaded.
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_NO_PROGRESS": "1",
    "NO_COLOR": "1",
}
# How uv exports a lock without its project, which is imported from the code: that changes more often.
EXPORT_LOCK = ("export", "--frozen", "--offline", "--quiet", "--no-header", "--no-emit-project", "--no-editable")

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
# Addresses that certainly do not name a local file.
_REMOTE = re.compile(r"(?!(?:[a-z0-9.-]+\+)?file:)(?:[a-z][a-z0-9+.-]*://[^/]|git\+)", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(?:whl|zip|tgz|tar)\b", re.IGNORECASE)
# Options without a value, and options whose value is not a location. The value of any other option may be a location.
_FLAGS = frozenset({"--no-index", "--pre", "--prefer-binary", "--require-hashes", "--no-deps"})
_OTHER_OPTIONS = frozenset({"--only-binary", "--no-binary", "--trusted-host", "--use-feature", "--hash"})
_DYNAMIC = re.compile(r"^dynamic\s*=\s*\[[^\]]*[\"'](?:optional-)?dependencies[\"']", re.MULTILINE)
_PATH_SOURCE = re.compile(r"\b(?:path|workspace)\s*=\s*(?:[\"']|true)")
_NAMED = re.compile(r"[A-Za-z0-9._-]+\s*(?:\[[^\]]*\])?\s*@\s*(?P<what>\S+)")
# The source of a package in a uv.lock or a pylock.
_LOCKED_FROM = re.compile(
    r"\b(?P<key>path|directory|editable|virtual|registry|url|git)\s*=\s*[\"'](?P<what>[^\"']*)[\"']"
    r"|(?:\[packages\.directory\]|\bdirectory\s*=\s*\{)"
)
_TOML_STRING = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'")
_TOML_TABLE = re.compile(r"^[ \t]*\[+[ \t]*([^\[\]\n]+?)[ \t]*\]+[ \t]*(?:#.*)?$", re.MULTILINE)
_TOML_REMARK = re.compile(r"^\s*#.*$", re.MULTILINE)
# Tables of uv's settings that do not affect where `uv pip install` finds packages: it reads sources only for a project.
_OTHER_TABLES = ("sources", "workspace", "build-backend")


@dataclass(frozen=True)
class Requirements:
    """A file that names packages, with everything that decides its meaning."""

    # Relative to the code.
    name: str
    kind: Kind
    # Every file that it needs, by path relative to the code: itself and its includes.
    files: dict[str, bytes]
    # Files with settings that uv reads if they exist.
    settings: dict[str, bytes]
    # The file may install parts of the code: any change of the code may change the environment.
    local: bool
    # uv's settings may lead it to packages in the code, with the same consequence.
    local_settings: bool = False

    @property
    def is_lock(self) -> bool:
        """It names every package with its version, so that none is taken from elsewhere."""
        return is_lock(self.kind)


def is_lock(kind: Kind) -> bool:
    return kind in ("uv-lock", "pylock")


def kind_of(name: str) -> Kind:
    """Return the kind of the file, by its name. Raises UserError for a file that cannot be installed from."""
    last = posixpath.basename(name)
    if last in _EXPORTS:
        raise UserError(f"{FIELD}: {last} cannot be read; run `{_EXPORTS[last]}`, and name that file")
    if last.endswith((".yml", ".yaml")):
        raise UserError(f"{FIELD}: {last} is not a requirements file; for conda, set environment.conda: {name}")
    for pattern, kind in _PATTERNS:
        if fnmatch.fnmatchcase(last, pattern):
            return kind
    raise UserError(f"{FIELD}: {name} is not a kind of requirements file that Stoker knows; give {_KINDS}")


def read(code: Path, name: str) -> Requirements:
    """Read the file and its includes. Raises UserError, naming the file, if one is missing or outside the code."""
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
            local = _project_needs_code(text, folder)
        case "uv-lock":
            _add(code, posixpath.join(posixpath.dirname(name), "pyproject.toml"), files, f", the project of {name}")
            local = _lock_needs_code(text)
        case "pylock":
            local = _lock_needs_code(text)
    settings = _settings(code)
    settings_lead_to_code = any(
        _settings_lead_to_code(word, data.decode(errors="replace"), code) for word, data in settings.items()
    )
    return Requirements(name, kind, files, settings, local, settings_lead_to_code)


def _add(code: Path, name: str, files: dict[str, bytes], why: str) -> None:
    try:
        files[name] = (code / name).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{FIELD}: there is no {name} in the code folder{why}") from None
    except OSError as error:
        raise UserError(f"{FIELD}: {name} cannot be read ({error.strerror}){why}") from None


def _settings(code: Path) -> dict[str, bytes]:
    """Return the files with settings that uv reads from its working folder."""
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
    """Add the includes of a requirements file, recursively. Returns True if they install parts of the code."""
    folder = posixpath.dirname(name)
    local = False
    for line in _lines(files[name].decode(errors="replace")):
        include = _INCLUDE.match(line)
        words = line[include.end() :].split() if include is not None else line.split()
        local = local or any_local(words, code / folder)
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
    """Yield requirements and options, with continued lines joined and without comments."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        bare = re.sub(r"(^|\s)#.*$", "", line).strip()
        if bare:
            yield bare


def any_local(words: Iterable[str], folder: Path) -> bool:
    """Tell if words of a requirements file may name something on this computer.

    In doubt they do: there are many ways to write a path, so only addresses that are certainly remote are ruled out.
    """
    # The next word is a location: local unless it is an address.
    expects_location = False
    for word in words:
        option, value = _option(word)
        if option:
            expects_location = option not in _FLAGS and option not in _OTHER_OPTIONS
            if value and expects_location and not _REMOTE.match(value):
                return True
            expects_location = expects_location and not value
            continue
        if _REMOTE.match(word):
            expects_location = False
            continue
        _, at, after = word.partition("@")
        is_local = not _REMOTE.match(after) if after else _looks_local(re.split(r"[;\[]", word)[0], folder)
        if expects_location or is_local:
            return True
        expects_location = bool(at) and not after
    return False


def _option(word: str) -> tuple[str, str]:
    """Split `--find-links=wheels` or `-fwheels` into option and value. Both are empty for any other word."""
    if word.startswith("--"):
        name, _, value = word.partition("=")
        return name, value
    return (word[:2], word[2:].removeprefix("=")) if word.startswith("-") else ("", "")


def _looks_local(word: str, folder: Path, *, bare: bool = False) -> bool:
    """Tell if a word is a local path. `bare`: a name without a slash counts too, if such a file exists."""
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
        return False  # The word cannot be the name of a file.


def _strings(toml: str) -> Iterator[str]:
    for found in _TOML_STRING.finditer(_TOML_REMARK.sub("", toml)):
        yield found[1] if found[1] is not None else found[2]


def _project_needs_code(text: str, folder: Path) -> bool:
    """Tell if a project may need parts of the code.

    Most strings in it are not requirements, such as e-mail addresses.
    """
    if _DYNAMIC.search(text) or _PATH_SOURCE.search(_TOML_REMARK.sub("", text)):
        return True
    for string in _strings(text):
        named = _NAMED.match(string)
        if "file:" in string or (named is not None and _looks_local(named["what"], folder, bare=True)):
            return True
    return False


def _lock_needs_code(text: str) -> bool:
    """Tell if a lock may name parts of the code. The project itself is not installed: it is imported from the code."""
    for found in _LOCKED_FROM.finditer(text):
        itself = found["key"] in ("editable", "virtual") and found["what"] == "."
        if not itself and (found["what"] is None or not _REMOTE.match(found["what"])):
            return True
    return False


def _settings_lead_to_code(name: str, text: str, folder: Path) -> bool:
    """Tell if uv's settings may lead to packages in the code: by `find-links`, or by an index that is a folder."""
    texts = _TOML_TABLE.split(text)
    for table, body in zip(["", *texts[1::2]], texts[::2], strict=True):
        words = re.split(r"\s*\.\s*", table.replace('"', ""))
        if name == "pyproject.toml":
            if words[:2] != ["tool", "uv"]:
                continue
            words = words[2:]
        if words and words[0] in _OTHER_TABLES:
            continue
        if any(_looks_local(string, folder, bare=True) for string in _strings(body)):
            return True
    return False
