"""What uv, pip, conda and compilers are told beside the job's files: by variables, and by settings of the user's own.

They decide what is installed as much as a requirements file does. Only a digest of them is ever made.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from stoker.agent.runtime import Command

# Read on the machine itself, from these folders; a container's own come with its image.
UV_FILES = ("{config}/uv/uv.toml", "{system}/uv/uv.toml", "/etc/uv/uv.toml")
_PIP_FILES = ("{config}/pip/pip.conf", "{home}/.pip/pip.conf", "{system}/pip/pip.conf", "/etc/pip.conf")
_CONDA_PLACES = ("{home}", "{home}/.conda", "{config}/conda", "/etc/conda", "/opt/conda")
CONDA_FILES = (*_PIP_FILES, *(f"{place}/{name}" for place in _CONDA_PLACES for name in (".condarc", "condarc")))

_TOOLS = ("UV_", "PIP_", "CONDA_", "CONDARC", "MAMBA_", "MAMBARC")
# What packages are built with, where there is no wheel of them.
_BUILDING = re.compile(
    r"CC|CXX|CPP|FC|(?:C|CXX|CPP|F|LD|ARCH|RUST)FLAGS|CMAKE_(?:ARGS|PREFIX_PATH)|CUDA_(?:HOME|PATH)|CUDACXX"
    r"|NVCC_(?:PREPEND|APPEND)_FLAGS|TORCH_CUDA_ARCH_LIST|FORCE_CUDA"
)
# They do not change what is installed: who asks, how long, how much at once, what is printed, and where else files lie.
_IDLE = re.compile(
    r"PASSWORD|PASSWD|TOKEN|SECRET|USERNAME|CREDENTIAL|API_?KEY|KEYRING|CERT|TLS|SSL|PROXY"
    r"|TIMEOUT|RETRIES|CONCURREN|THREADS|STACK_SIZE|OFFLINE"
    r"|CACHE|PROGRESS|COLOR|QUIET|VERBOSE|VERBOSITY|DEBUG|_LOG(?:_|$)|VERSION_CHECK|NO_INPUT|ALWAYS_YES|ROOT_USER|WARN"
    r"|_(?:BIN|TOOL|INSTALL|PKGS|ENVS)_(?:DIRS?|PATH)$|^UV_(?:PUBLISH|TOOL|PYTHON_DOWNLOADS|RUN_|INTERNAL)"
    # What activating an environment sets, of whatever name it is.
    r"|^(?:CONDA|MAMBA)_(?:PREFIX|SHLVL|PROMPT|DEFAULT_ENV|EXE|PYTHON_EXE|ROOT)"
)
# Who asks an index, in its address.
_USER = re.compile(r"(?<=://)[^/@\s\"']*@")
_PACKAGES = (".whl", ".tar.gz", ".zip", ".conda", ".tar.bz2")
_PATHS = re.compile(r"[^\s\"',;=\[\]]+")


def digest_settings(command: Command, code_digest: str, files: Iterable[str], *, here: bool) -> str:
    """Of what a command of the set-up is told by its variables and, where it runs `here`, by these files.

    Files that are named there count with what is in them, folders with what there is in them. Values of secrets do not
    count, nor do users and passwords in addresses.
    """
    settings = dict(_counting(command.env))
    told: dict[str, object] = {name: _plain(value) for name, value in settings.items()}
    told |= {name: "secret" for name, _ in _counting(command.secrets)}
    named = [value for name, value in settings.items() if name.startswith(_TOOLS)]
    for path in _own_files(command.env, command.cwd, files) if here else ():
        text = _read(path)
        if text is not None:
            told[str(path)] = _plain(text)
            named.append(text)
    for text in named:
        for word in _PATHS.findall(text):
            told |= _look_at(word, command.cwd, code_digest)
    return hashlib.sha256(repr(sorted(told.items())).encode("utf-8", "surrogateescape")).hexdigest()


def _counting(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in variables.items():
        if _BUILDING.fullmatch(name) or (name.startswith(_TOOLS) and not _IDLE.search(name)):
            yield name, value


def _plain(text: str) -> str:
    return hashlib.sha256(_USER.sub("", text).encode("utf-8", "surrogateescape")).hexdigest()


def _own_files(env: Mapping[str, str], cwd: Path, files: Iterable[str]) -> Iterator[Path]:
    """Where settings may lie. Those of uv are looked for in all folders above the code, too."""
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


def _look_at(word: str, cwd: Path, code_digest: str) -> dict[str, object]:
    """What is in the file of this name, or which packages are in the folder; nothing where there is neither."""
    path = cwd / word.removeprefix("file://")
    try:
        if path.is_file():
            return {word: [_of(path)]}
        if not path.is_dir():
            return {}
        if path.resolve().is_relative_to(cwd.resolve()):
            return {word: code_digest}
        # Other files may come and go: it may be any folder.
        return {word: sorted(_of(each) for each in path.iterdir() if each.name.endswith(_PACKAGES))}
    except (OSError, ValueError):
        return {}


def _of(path: Path) -> tuple[str, ...]:
    """What tells a file from another of this name. Packages are large, and are not read."""
    if path.name.endswith(_PACKAGES):
        status = path.stat()
        return path.name, str(status.st_size), str(status.st_mtime_ns)
    return path.name, _plain(path.read_text(encoding="utf-8", errors="surrogateescape"))
