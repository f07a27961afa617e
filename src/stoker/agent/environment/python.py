"""The Python that an environment is made on: the image's own, or the one that `environment.python` names.

It is looked for, and asked about itself, where the training will run: a container has other Pythons than its machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.environment.steps import Steps
from stoker.agent.runtime import Command
from stoker.model.errors import SetupFailed

# Makes a command out of an argv, with everything else that the training will see.
MakeCommand = Callable[[tuple[str, ...]], Command]

_FIELD = "environment.python"
# No environment can be made on an older one.
_OLDEST = (3, 8)

# $1: what is wanted, or nothing; $2: what to ask, and $3 of what. Ends with 9 when there is no such Python, and lists
# those there are.
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
  # The whole path as it is: two names of one program are two answers to people.
  for one in python3 python3.8 python3.9 python3.10 python3.11 python3.12 python3.13 python3.14 python3.15; do
    command -v "$one"
  done
  exit 9
fi
exec "$found" -I -c "$2" "$3"
"""

# Printed on one line behind a mark: a Python may greet before it does what it is told.
_MARK = "stoker-python "
# Looking into every package takes a while: only where it is asked for.
_ASK = """\
import glob, importlib.util, json, os, platform, site, sys, sysconfig
scripts = {}
if "scripts" in sys.argv:
    from importlib import metadata
    for each in metadata.distributions():
        scripts.update({one.name: one.value for one in each.entry_points if one.group == "console_scripts"})
# By the names of their folders: `importlib.metadata` takes longer to import than all else here.
frameworks = {}
for name in ("torch", "tensorflow", "jax"):
    for folder in filter(os.path.isdir, sys.path):
        found = sorted(one for one in os.listdir(folder) if one.lower().startswith(name + "-"))
        found = [one for one in found if one.endswith((".dist-info", ".egg-info"))]
        if found and name not in frameworks:
            frameworks[name] = found[0].rpartition(".")[0].split("-")[1]
named = os.path.join(os.path.dirname(sys.executable), "python")
# A Python without pip has mostly one packed away, to be run out of its wheel.
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
}))
"""


@dataclass(frozen=True)
class Python:
    """A Python, as it tells of itself."""

    path: str
    version: str
    abi: str
    # Operating system and architecture; and the C library with its version.
    platform: str
    libc: str
    # It is a virtual environment itself.
    environment: bool
    # `python` in its folder is this one.
    plain: bool
    # Where its packages are.
    sites: tuple[str, ...]
    # PyTorch and the like, with their versions.
    frameworks: dict[str, str]
    # The commands that its packages bring, each with its entry point, where they were asked for.
    scripts: dict[str, str]
    # With what arguments it runs pip; none where it has no pip.
    pip: tuple[str, ...]
    # PATH as it was there.
    search: str

    @property
    def folder(self) -> str:
        """Where it lies. The link itself counts: a virtual environment's Python is a link."""
        return os.path.dirname(self.path)  # noqa: PTH120


def find(steps: Steps, command: MakeCommand, wanted: str | None, *, scripts: bool = False) -> Python:
    """The Python that is meant: the first on the PATH, a path, a version, or a conda environment by its name.

    `scripts`: it is asked for the commands of its packages as well.

    Raises SetupFailed, in one line, when there is none.
    """
    answer = steps.ask(_FIELD, command(("sh", "-c", _FIND, "sh", wanted or "", _ASK, "scripts" if scripts else "")))
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
    tree = json.loads(text)
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
    )


def is_plain(path: str) -> bool:
    """Whether `python` in its folder is this one, as far as this machine can tell without asking it."""
    named = Path(path).with_name("python")
    try:
        return os.access(path, os.X_OK) and named.samefile(path)
    except OSError:
        return False


def put_first(python: Python, links: Path) -> dict[str, str]:
    """The variables with which `python` is this one.

    Where its folder has another `python` than this, or none (`/usr/bin/python3.11`), `links` is made, with names that
    lead to it.
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
