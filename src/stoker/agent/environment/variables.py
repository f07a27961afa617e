"""Settings of uv, pip, conda and compilers outside the job's files: variables, and settings files of the user.

They decide what is installed as much as a requirements file does. Only their digest is used.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from stoker.agent.runtime import Command

# Read on the machine itself; those of a container come with its image.
UV_FILES = ("{config}/uv/uv.toml", "{system}/uv/uv.toml", "/etc/uv/uv.toml")
_PIP_FILES = ("{config}/pip/pip.conf", "{home}/.pip/pip.conf", "{system}/pip/pip.conf", "/etc/pip.conf")
_CONDA_PLACES = ("{home}", "{home}/.conda", "{config}/conda", "/etc/conda", "/opt/conda")
CONDA_FILES = (*_PIP_FILES, *(f"{place}/{name}" for place in _CONDA_PLACES for name in (".condarc", "condarc")))

_TOOLS = ("UV_", "PIP_", "CONDA_", "CONDARC", "MAMBA_", "MAMBARC")
# Variables that affect how packages without a wheel are built.
_BUILDING = re.compile(
    r"CC|CXX|CPP|FC|(?:C|CXX|CPP|F|LD|ARCH|RUST)FLAGS|CMAKE_(?:ARGS|PREFIX_PATH)|CUDA_(?:HOME|PATH)|CUDACXX"
    r"|NVCC_(?:PREPEND|APPEND)_FLAGS|TORCH_CUDA_ARCH_LIST|FORCE_CUDA"
)
# These do not change what is installed: credentials, timeouts, concurrency, output, and other locations of files.
_IRRELEVANT = re.compile(
    r"PASSWORD|PASSWD|TOKEN|SECRET|USERNAME|CREDENTIAL|API_?KEY|KEYRING|CERT|TLS|SSL|PROXY"
    r"|TIMEOUT|RETRIES|CONCURREN|THREADS|STACK_SIZE|OFFLINE"
    r"|CACHE|PROGRESS|COLOR|QUIET|VERBOSE|VERBOSITY|DEBUG|_LOG(?:_|$)|VERSION_CHECK|NO_INPUT|ALWAYS_YES|ROOT_USER|WARN"
    r"|_(?:BIN|TOOL|INSTALL|PKGS|ENVS)_(?:DIRS?|PATH)$|^UV_(?:PUBLISH|TOOL|PYTHON_DOWNLOADS|RUN_|INTERNAL)"
    # Set by activating an environment, whatever its name is.
    r"|^(?:CONDA|MAMBA)_(?:PREFIX|SHLVL|PROMPT|DEFAULT_ENV|EXE|PYTHON_EXE|ROOT)"
)
# User and password in an address.
_USER = re.compile(r"(?<=://)[^/@\s\"']*@")
_PACKAGES = (".whl", ".tar.gz", ".zip", ".conda", ".tar.bz2")
_PATHS = re.compile(r"[^\s\"',;=\[\]]+")


def digest_settings(command: Command, code_digest: str, files: Iterable[str], *, read_files: bool) -> str:
    """Return the digest of a command's settings: its variables and, with `read_files`, these settings files.

    Files that the settings name are included with their contents, folders with the packages in them. Values of secrets
    are not included, nor are users and passwords in addresses.
    """
    settings = dict(_relevant(command.env))
    facts: dict[str, object] = {name: _digest_text(value) for name, value in settings.items()}
    facts |= {name: "secret" for name, _ in _relevant(command.secrets)}
    named = [value for name, value in settings.items() if name.startswith(_TOOLS)]
    for path in _settings_files(command.env, command.cwd, files) if read_files else ():
        text = _read(path)
        if text is not None:
            facts[str(path)] = _digest_text(text)
            named.append(text)
    for text in named:
        for word in _PATHS.findall(text):
            facts |= _named_files(word, command.cwd, code_digest)
    return hashlib.sha256(repr(sorted(facts.items())).encode("utf-8", "surrogateescape")).hexdigest()


def _relevant(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in variables.items():
        if _BUILDING.fullmatch(name) or (name.startswith(_TOOLS) and not _IRRELEVANT.search(name)):
            yield name, value


def _digest_text(text: str) -> str:
    return hashlib.sha256(_USER.sub("", text).encode("utf-8", "surrogateescape")).hexdigest()


def _settings_files(env: Mapping[str, str], cwd: Path, files: Iterable[str]) -> Iterator[Path]:
    """Yield the possible settings files. uv's are also searched in all folders above the code."""
    home = env.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - the variable of the command
    config = env.get("XDG_CONFIG_HOME") or f"{home}/.config"
    for system in (env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep):
        for file in files:
            yield Path(file.format(home=home, config=config, system=system))
    for folder in cwd.parents:
        yield folder / "uv.toml"
        yield folder / "pyproject.toml"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
    except OSError:
        return None


def _named_files(word: str, cwd: Path, code_digest: str) -> dict[str, object]:
    """Return the contents of the file with this name, or the packages in the folder; empty if there is neither."""
    path = cwd / word.removeprefix("file://")
    try:
        if path.is_file():
            return {word: [_file_identity(path)]}
        if not path.is_dir():
            return {}
        if path.resolve().is_relative_to(cwd.resolve()):
            return {word: code_digest}
        # Other files are ignored: it may be any folder.
        return {word: sorted(_file_identity(each) for each in path.iterdir() if each.name.endswith(_PACKAGES))}
    except (OSError, ValueError):
        return {}


def _file_identity(path: Path) -> tuple[str, ...]:
    """Return what distinguishes a file from another of the same name. Packages are large and are not read."""
    if path.name.endswith(_PACKAGES):
        status = path.stat()
        return path.name, str(status.st_size), str(status.st_mtime_ns)
    return path.name, _digest_text(path.read_text(encoding="utf-8", errors="surrogateescape"))
