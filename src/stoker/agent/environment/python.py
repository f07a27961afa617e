"""The Python that an environment is built on: the image's own, or the one that `environment.python` names.

It is searched and queried where the training will run: a container has other Pythons than its machine.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.environment.steps import SetupSteps
from stoker.agent.runtime import Command
from stoker.model import codec
from stoker.model.errors import SetupFailed

# Builds a command from an argv, with everything else that the training will see.
MakeCommand = Callable[[tuple[str, ...]], Command]

_FIELD = "environment.python"
# uv refuses Pythons before 3.6, and is tested with those from 3.6 on: https://docs.astral.sh/uv/reference/policies/python/
_OLDEST = (3, 6)
# Where a distribution has its own Python, which is not meant for training.
_DISTRIBUTION = ("/usr/", "/bin/")

# $1: the wanted Python, or empty; $2: the script to run with it; $3: that script's argument. Exits with 9 when there is
# no such Python, and lists the existing ones.
_FIND = r"""
wanted=$1
case $wanted in
  '') found=$(command -v python || command -v python3) ;;
  */*) found=$wanted; if [ -d "$found" ]; then found=$found/bin/python; fi ;;
  [0-9]*) found=$(command -v "python$wanted") ;;
  *)
    found=$(command -v "$wanted")
    for conda in "${CONDA_PREFIX:-}" "${CONDA_EXE:+${CONDA_EXE%/bin/conda}}" "$(command -v conda)" /opt/conda \
        "$HOME/miniconda3" "$HOME/miniforge3" "$HOME/anaconda3" "$HOME/micromamba" "$HOME/.conda"; do
      conda=${conda%/bin/conda}; conda=${conda%/condabin/conda}; conda=${conda%/envs/*}
      if [ -z "$found" ] && [ -n "$conda" ] && [ -x "$conda/envs/$wanted/bin/python" ]; then
        found=$conda/envs/$wanted/bin/python
      fi
    done ;;
esac
if [ -z "$found" ] || [ ! -x "$found" ]; then
  # Full paths, links included: the user may know one program by two names.
  for version in 3 3.6 3.7 3.8 3.9 3.10 3.11 3.12 3.13 3.14 3.15; do
    command -v "python$version"
  done
  exit 9
fi
exec "$found" -I -c "$2" "$3"
"""

# Printed on one line behind a marker, because a Python may print other text at its start.
_MARK = "stoker-python "
# Reading the metadata of all packages is slow, so it is done only on request. Before 3.8 there is no
# `importlib.metadata`.
_ASK = """\
import glob, importlib.util, json, os, platform, site, sys, sysconfig
scripts = {}
builds = []
if "scripts" in sys.argv:
    import configparser
    for pattern in [os.path.join(glob.escape(path), "*-info", "entry_points.txt") for path in sys.path]:
        for file in sorted(glob.glob(pattern)):
            found = configparser.ConfigParser(delimiters="=", strict=False, interpolation=None)
            found.optionxform = str
            try:
                found.read(file, encoding="utf-8")
            except (configparser.Error, OSError, UnicodeError):
                continue
            for name, value in found.items("console_scripts") if found.has_section("console_scripts") else ():
                scripts.setdefault(name, value)
    conda = os.path.join(sys.prefix, "conda-meta")
    builds = sorted(os.listdir(conda)) if os.path.isdir(conda) else []
# By the names of their folders: importing `importlib.metadata` takes longer than all the rest.
frameworks = {}
for name in ("torch", "tensorflow", "jax"):
    for folder in filter(os.path.isdir, sys.path):
        found = sorted(one for one in os.listdir(folder) if one.lower().startswith(name + "-"))
        found = [one for one in found if one.endswith((".dist-info", ".egg-info"))]
        if found and name not in frameworks:
            frameworks[name] = found[0].rpartition(".")[0].split("-")[1]
named = os.path.join(os.path.dirname(sys.executable), "python")
# A Python without pip usually has a bundled wheel, from which pip can be run.
pip = ["-m", "pip"] if importlib.util.find_spec("pip") else []
for folder in (os.path.join(sysconfig.get_path("stdlib"), "ensurepip", "_bundled"), "/usr/share/python-wheels"):
    pip = pip or [os.path.join(wheel, "pip") for wheel in sorted(glob.glob(os.path.join(folder, "pip-*.whl")))[-1:]]
print("\\nstoker-python " + json.dumps({
    "path": sys.executable,
    "version": platform.python_version(),
    "abi": sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag,
    "platform": sysconfig.get_platform(),
    "libc": "-".join(platform.libc_ver()),
    "environment": sys.prefix != sys.base_prefix,
    "plain": os.path.exists(named) and os.path.samefile(named, sys.executable),
    "sites": [path for path in site.getsitepackages() if os.path.isdir(path)],
    "frameworks": frameworks,
    "scripts": scripts,
    "pip": pip,
    "search": os.environ.get("PATH", ""),
    "builds": [name for name in builds if name.endswith(".json")],
}))
"""


@dataclass(frozen=True)
class Python:
    """A Python, as it reports itself."""

    path: str
    version: str
    abi: str
    # Operating system and architecture; C library and its version.
    platform: str
    libc: str
    # It is itself a virtual environment.
    environment: bool
    # The file `python` in its folder is this Python.
    plain: bool
    # Folders of its packages.
    sites: tuple[str, ...]
    # PyTorch and other frameworks, with their versions.
    frameworks: dict[str, str]
    # The console commands of its packages, each with its entry point; empty unless requested.
    scripts: dict[str, str]
    # The arguments with which it runs pip; empty if it has no pip.
    pip: tuple[str, ...]
    # PATH where it runs.
    search: str
    # The names of conda's packages with their builds: one version may be built for several CUDAs. Read with `scripts`.
    builds: tuple[str, ...] = ()

    @property
    def is_of_image(self) -> bool:
        """It is no distribution's Python, or has a framework: an image for training brings it, with packages to use."""
        return bool(self.frameworks) or not self.path.startswith(_DISTRIBUTION)

    @property
    def title(self) -> str:
        """Text for people: `Python 3.12.4 with torch 2.9.0 (/opt/pytorch/bin/python)`."""
        frameworks = " and ".join(f"{name} {version}" for name, version in self.frameworks.items())
        return f"Python {self.version}{f' with {frameworks}' if frameworks else ''} ({self.path})"

    @property
    def folder(self) -> str:
        """The folder of the program. Links are not resolved: the Python of a virtual environment is a link."""
        return os.path.dirname(self.path)  # noqa: PTH120


def find(steps: SetupSteps, command: MakeCommand, wanted: str | None, *, scripts: bool = False) -> Python:
    """Find the wanted Python: the first on the PATH, a path, a version, or a conda environment by its name.

    `scripts`: also read the console commands of its packages.

    Raises SetupFailed with a message of one line if there is none.
    """
    answer = steps.capture(_FIELD, command(("sh", "-c", _FIND, "sh", wanted or "", _ASK, "scripts" if scripts else "")))
    line = next((line for line in reversed(answer.text.splitlines()) if line.startswith(_MARK)), None)
    if answer.code == 9:
        raise SetupFailed(_missing(wanted, answer.text.split()), user=True)
    if answer.code or line is None:
        first = answer.text.strip().splitlines()[:1] or ["it printed nothing"]
        raise SetupFailed(f"{_FIELD}: {wanted or 'python'} does not run on this machine: {first[0]}", user=True)
    found = _read(line.removeprefix(_MARK))
    if tuple(map(int, found.version.split(".")[:2])) < _OLDEST:
        need = ".".join(map(str, _OLDEST))
        problem = f"{found.path} is Python {found.version}, and packages need {need} or newer"
        raise SetupFailed(f"{_FIELD}: {problem}; name another one, or choose another image", user=True)
    return found


def _missing(wanted: str | None, there: list[str]) -> str:
    others = f"there are {', '.join(dict.fromkeys(there))}; name one of them" if there else "there is none at all"
    what = f"there is no Python {wanted!r} on this machine" if wanted else "there is no python on this machine's PATH"
    return f"{_FIELD}: {what}; {others}, or choose another image"


def _read(text: str) -> Python:
    tree = codec.parse(text)
    return Python(
        path=tree["path"],
        version=tree["version"],
        abi=tree["abi"],
        platform=tree["platform"],
        libc=tree["libc"],
        environment=tree["environment"],
        plain=tree["plain"],
        sites=tuple(tree["sites"]),
        frameworks=dict(tree["frameworks"]),
        scripts=dict(tree["scripts"]),
        pip=tuple(tree["pip"]),
        search=tree["search"],
        builds=tuple(tree.get("builds", ())),
    )


def is_plain_python(path: str) -> bool:
    """Tell if the file `python` in the folder of this path is the same program, without running it."""
    named = Path(path).with_name("python")
    try:
        return os.access(path, os.X_OK) and named.samefile(path)
    except OSError:
        return False


def put_first(python: Python, links: Path) -> dict[str, str]:
    """Return the variables that make this Python the command `python`.

    If its folder has another `python` or none (`/usr/bin/python3.11`), the folder `links` is created with links to this
    Python.
    """
    folder = python.folder
    if not python.plain and not python.environment:
        links.mkdir(parents=True, exist_ok=True)
        for name in ("python", "python3"):
            link = links / name
            link.unlink(missing_ok=True)
            link.symlink_to(python.path)
        folder = str(links)
    return {"PATH": f"{folder}{os.pathsep}{python.search}" if python.search else folder}


def activate(python: Python, links: Path) -> dict[str, str]:
    """Return the variables that activate the environment of this Python, which is the first on the PATH already.

    Of an environment without pip, another environment's pip would be next on the PATH: the folder `links` gets one.
    """
    environ = {}
    prefix = os.path.dirname(python.folder)  # noqa: PTH120 - textual: see `folder`
    if python.environment:
        environ["VIRTUAL_ENV"] = prefix
    elif os.path.isdir(f"{prefix}/conda-meta"):  # noqa: PTH112
        environ |= {"CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": os.path.basename(prefix)}  # noqa: PTH119
    if python.pip and not os.path.exists(f"{python.folder}/pip"):  # noqa: PTH110
        links.mkdir(parents=True, exist_ok=True)
        for name in ("pip", "pip3"):
            program = links / name
            program.write_text(f'#!/bin/sh\nexec {shlex.join([python.path, *python.pip])} "$@"\n', encoding="utf-8")
            program.chmod(0o755)
        environ["PATH"] = os.pathsep.join((str(links), python.folder, python.search))
    return environ
