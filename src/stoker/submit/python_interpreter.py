"""Find the Python on this computer that a job names, and check its version, before anything is submitted."""

# Links are not resolved: a virtual environment's python is a link, and the link is the environment.
# ruff: noqa: PTH100

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from stoker.model.errors import UserError

_FIELD = "environment.python"
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")
_USUAL = ("python3", *(f"python3.{minor}" for minor in range(8, 16)))
# On a line of its own: a Python may print a greeting first.
_ASK = "import json, platform, sys; print(); print(json.dumps([platform.python_version(), sys.executable]))"
_ASK_S = 10.0


@dataclass(frozen=True)
class _Interpreter:
    """A Python's version and path, as it reports them."""

    version: str
    executable: str


class _NoPython(Exception):
    """The program does not run, or is no Python. The message continues a sentence that begins with its path."""


def find_python(wanted: str | None, folder: Path) -> str:
    """The absolute path of the wanted Python: the active one, a path, a version, or a conda environment.

    Raises UserError for a Python that is missing, is none, or has another version than the wanted one.
    """
    if wanted is None:
        # Not checked: it is what `python` means in the person's shell, whatever that is.
        found = shutil.which("python") or shutil.which("python3")
        if found is None:
            raise UserError(f"{_FIELD}: there is no python on your PATH; give the path of one")
        return os.path.abspath(found)
    path = _locate(wanted, folder)
    try:
        interpreter = _ask(path)
    except _NoPython as problem:
        raise UserError(f"{_FIELD}: {path} {problem}; {_others()}") from None
    if _VERSION.fullmatch(wanted) and not f"{interpreter.version}.".startswith(f"{wanted}."):
        raise UserError(f"{_FIELD}: {path} is Python {interpreter.version}, and {wanted} is wanted; {_others()}")
    # Under another name it may be a program that chooses a Python, as pyenv's shims do: take the one it chose.
    return path if Path(path).name == "python" else interpreter.executable or path


def _locate(wanted: str, folder: Path) -> str:
    if "/" in wanted or wanted.startswith("~"):
        path = Path(os.path.abspath(folder / Path(wanted).expanduser()))
        path = path / "bin" / "python" if path.is_dir() else path
        if not os.access(path, os.X_OK):
            raise UserError(f"{_FIELD}: {path} is not a program; {_others()}")
        return str(path)
    if _VERSION.fullmatch(wanted):
        found = shutil.which(f"python{wanted}")
    else:
        found = shutil.which(wanted) or _conda_python(wanted)
    if found is None:
        raise UserError(f"{_FIELD}: there is no Python {wanted!r} here; {_others()}")
    return os.path.abspath(found)


def _conda_python(name: str) -> str | None:
    prefix, program = os.environ.get("CONDA_PREFIX"), os.environ.get("CONDA_EXE")
    roots = [Path(prefix), *Path(prefix).parents[:2]] if prefix else []
    roots += [Path(program).parents[1]] if program else []
    for root in roots:
        python = root / "envs" / name / "bin" / "python"
        if python.exists():
            return str(python)
    return None


def _ask(path: str) -> _Interpreter:
    """Ask the program for its version and path. Raises _NoPython."""
    try:
        # The code goes to stdin: another program would repeat an argument in its error message.
        answer = subprocess.run(
            [path, "-I", "-"], input=_ASK, capture_output=True, timeout=_ASK_S, check=False, encoding="utf-8"
        )
    except subprocess.TimeoutExpired:
        raise _NoPython(f"does not answer within {_ASK_S:g} s") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _NoPython(f"does not run: {getattr(error, 'strerror', None) or error}") from None
    if answer.returncode:
        first = (answer.stderr.strip() or answer.stdout.strip() or "it printed nothing").splitlines()[0]
        raise _NoPython(f"does not run as a Python: {first}")
    try:
        version, executable = json.loads(answer.stdout.strip().splitlines()[-1])
    except (ValueError, TypeError, IndexError):
        raise _NoPython("is no Python") from None
    return _Interpreter(str(version), str(executable))


def _others() -> str:
    """Advice that lists the Pythons that run here."""
    # Each Python once, under one of its names.
    running: dict[str, str] = {}
    for path in filter(None, map(shutil.which, _USUAL)):
        try:
            executable = _ask(path).executable
        except _NoPython:
            continue
        running[os.path.realpath(executable)] = executable
    return (
        f"those that run here: {', '.join(running.values())}; name one of them" if running else "give the path of one"
    )
