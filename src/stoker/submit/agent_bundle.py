"""Pack the agent as an archive that a machine installs without a package index, one for each Python and architecture.

    __main__.py      `python <folder> NODE_DIR` is the agent
    stoker/          the agent's part of this package
    obstore/         from this computer's installation, or from a wheel for the other machine
    pynvml.py        to read the state of GPUs

A tag names the machines that an archive serves: `cp311-x86_64` those with Python 3.11 or newer (obstore's wheel uses
the stable ABI from there on), `cp310-x86_64` those with Python 3.10. Archives are cached under the home, and stored in
the store by digest.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import stoker
from stoker.model import keys
from stoker.model.errors import UserError
from stoker.providers.image_info import SERVED, Python, newer_image, version_text
from stoker.store.base import Store
from stoker.store.home import CACHE_FOR_S, home
from stoker.submit import shared_objects
from stoker.submit.pip_download import WHEEL_ARCHITECTURES, download_wheel, local_architecture, write_cached

# As the project itself requires it.
OBSTORE = "obstore>=0.11,<0.13"
# One archive serves this version and all newer ones.
_STABLE: Python = max(SERVED.values())
# Platform names that obstore's wheels for Linux have had, or may get: pip compares them to the letter.
_PLATFORMS = ("manylinux_2_17", "manylinux2014", "manylinux_2_24", "manylinux_2_28", "manylinux_2_31", "manylinux_2_34")
# A wheel that could not be fetched is not requested again for so long.
_MISSING_FOR_S = 600.0

# The rooms that a node needs: `agent` and all below it. A test compares them with the layers of import-linter.
_NODE_ROOMS = ("agent", "cloudapi", "core", "model", "processes", "providers", "secrets", "store")
_NODE_MODULES = ("__init__.py", "train.py")
# Of the folder of one provider a node needs these alone. Nodes of the local provider run this computer's own Stoker.
_NODE_SIDE = ("__init__.py", "capabilities.py", "machine.py")
# The modules that start the agent on a new machine; the rest of the boot came with the machine's boot script.
_START = ("agent_service.py", "install_paths.py", "local_disks.py", "start.py")
_NOT_ON_NODES = "providers/local/"
_MAIN = b'''"""`python <this folder> NODE_DIR`: the agent of a node."""

import sys

from stoker.agent.__main__ import main

sys.exit(main())
'''


class NoAgentAvailable(UserError):
    """No agent can be packed for these machines now; the message says why."""


@dataclass(frozen=True)
class AgentArchive:
    """An archive on this computer. `digest` is its SHA-256 and its name in the store."""

    tag: str
    digest: str
    path: Path
    size: int


def tags_for(arch: str) -> tuple[str, ...]:
    """The tags that together serve every Python of this architecture (`x86_64`, `arm64`)."""
    return tuple(f"{python}-{arch}" for python in SERVED)


def build_archives(
    architectures: Iterable[str], *, offline: bool = False, oldest: Python | None = None
) -> tuple[tuple[AgentArchive, ...], tuple[str, ...]]:
    """Build the archives for these machines, and a line for each kind of machine without an agent.

    No machine has a Python older than `oldest`, where that is known. Raises NoAgentAvailable when no machine of an
    architecture can be served; `offline` that is only a line, because the run itself may fetch the missing wheel.
    """
    built: list[AgentArchive] = []
    problems: list[str] = []
    for arch in sorted(architectures):
        missing: dict[str, NoAgentAvailable] = {}
        for tag in tags_for(arch):
            try:
                built.append(build_archive(tag, offline=offline))
            except NoAgentAvailable as error:
                missing[tag] = error
        if len(missing) < len(SERVED):
            needless = "cp310-" if oldest is not None and oldest >= _STABLE else None
            problems += [str(error) for tag, error in missing.items() if needless is None or needless not in tag]
        elif offline:
            problems.append(
                f"resources.machine: the agent for {arch} machines was not built here yet, so its digest is not known "
                "and not in the request; the run itself fetches obstore for them, or says that it cannot"
            )
        else:
            raise missing[tags_for(arch)[-1]]
    return tuple(built), tuple(problems)


def build_archive(tag: str, *, offline: bool = False) -> AgentArchive:
    """Build the archive of one tag. The same sources give the same bytes. `offline` asks no package index.

    Touches no store. Raises NoAgentAvailable when there is no obstore for that Python.
    """
    files = _stoker_files() | _module_files("nvidia-ml-py", ("pynvml.py",)) | obstore_files(tag, offline)
    files["__main__.py"] = _MAIN
    signature = hashlib.sha256()
    for name, data in sorted(files.items()):
        signature.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    path = _folder() / f"{tag}-{signature.hexdigest()[:32]}.tar.gz"
    if path.exists():
        # Compressing takes half a second; reading it again does not.
        path.touch()
        archive = path.read_bytes()
    else:
        archive = _pack(files)
        _cache(path, archive)
    return AgentArchive(tag, hashlib.sha256(archive).hexdigest(), path, len(archive))


def send(store: Store, built: AgentArchive) -> str:
    """Put the archive into the store, once, and return its name there. Idempotent."""
    return shared_objects.store_once(store, keys.BUNDLES, built.digest, keys.bundle, built.path.read_bytes)


# ── Contents ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _stoker_files() -> dict[str, bytes]:
    root = Path(stoker.__file__).parent
    names = (path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    return {f"stoker/{name}": (root / name).read_bytes() for name in names if _is_for_nodes(name)}


def _is_for_nodes(name: str) -> bool:
    *folders, file = name.split("/")
    if not folders:
        return file in _NODE_MODULES
    if folders[0] == "providers" and len(folders) > 1:
        side = (*_NODE_SIDE, *_START) if folders[1] == "boot" else _NODE_SIDE
        return file in side and not name.startswith(_NOT_ON_NODES)
    return folders[0] in _NODE_ROOMS


def _module_files(distribution: str, names: tuple[str, ...]) -> dict[str, bytes]:
    installed = metadata.distribution(distribution)
    return {name: Path(str(installed.locate_file(name))).read_bytes() for name in names}


def obstore_files(tag: str, offline: bool) -> dict[str, bytes]:
    """The files of obstore for one tag, from this computer or the package index. Raises NoAgentAvailable."""
    installed = metadata.distribution("obstore")
    if _serves(_wheel_tags(installed.read_text("WHEEL") or ""), tag):
        named = [file for file in installed.files or () if _is_wanted(file.as_posix())]
        return {file.as_posix(): Path(str(file.locate())).read_bytes() for file in named}
    with zipfile.ZipFile(_wheel(tag, offline)) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist() if _is_wanted(name)}


def _is_wanted(name: str) -> bool:
    """True for files of the package that are not only for editors, and for the metadata that its licence demands."""
    if name.startswith("obstore/"):
        return name.endswith((".py", ".so"))
    return name.startswith("obstore-") and (name.endswith("/METADATA") or "licen" in name.lower())


def _wheel_tags(text: str) -> list[str]:
    return [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Tag:")]


def _serves(wheel_tags: Iterable[str], tag: str) -> bool:
    """True if a wheel with these tags works on every machine of `tag`."""
    python, _, arch = tag.partition("-")
    abi = "abi3" if python == "cp311" else python
    return any(
        one.startswith(f"{python}-{abi}-manylinux") and one.endswith(f"_{WHEEL_ARCHITECTURES[arch]}")
        for one in wheel_tags
    )


# ── Wheels for other machines ─────────────────────────────────────────────────────────────────────────────────────────


def _wheel(tag: str, offline: bool) -> Path:
    """The obstore wheel for another machine, from the cache or from the package index that pip uses."""
    folder = _folder() / "wheels"
    found = _find_wheel(folder, tag)
    if found is not None:
        return found
    problem = "" if offline else _fetch_wheel(folder, tag)
    found = _find_wheel(folder, tag)
    if found is None:
        python, _, arch = tag.partition("-")
        version, old = version_text(SERVED[python]), SERVED[python] < _STABLE
        which = f"that have only Python {version}" if old else f"with Python {version} or newer"
        # The advice of a boot that finds no newer Python: the other tag is served, or none is.
        rest = [f"{other}-{arch}" for other in SERVED if other != python]
        advice = newer_image(rest) if old else "choose another resources.machine"
        lacking = f"cannot be served: there is no obstore for them ({problem})"
        if offline:
            lacking = "cannot be served yet: obstore for them was not fetched, which the run itself tries"
        raise NoAgentAvailable(f"{arch} machines {which} {lacking}; {advice}")
    return found


def _find_wheel(folder: Path, tag: str) -> Path | None:
    fitting = []
    for path in folder.glob("obstore-*.whl"):
        _, version, python, abi, platforms = path.stem.split("-", 4)
        if _serves([f"{python}-{abi}-{one}" for one in platforms.split(".")], tag):
            fitting.append(([int(part) if part.isdigit() else -1 for part in version.split(".")], path))
    return max(fitting)[1] if fitting else None


def _fetch_wheel(folder: Path, tag: str) -> str:
    """Fetch the wheel, as far as possible. Returns the error message, or an empty text."""
    python, _, arch = tag.partition("-")
    missing = folder / f"missing-{tag}"
    with suppress(OSError):
        if time.time() - missing.stat().st_mtime < _MISSING_FOR_S:
            return missing.read_text(encoding="utf-8")
    options = ("--implementation=cp", f"--python-version={version_text(SERVED[python])}")
    problem = download_wheel(OBSTORE, arch, _PLATFORMS, folder, options)
    if problem:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            missing.write_text(problem, encoding="utf-8")
    return problem


# ── The cache ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _folder() -> Path:
    return home() / "bundles"


def _pack(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=buffer, mode="wb", compresslevel=6, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _cache(path: Path, archive: bytes) -> None:
    """Write the archive to the cache, and delete archives that were not used for long."""
    write_cached(path, archive)
    with suppress(OSError):
        for other in path.parent.glob("*-*.tar.gz"):
            if time.time() - other.stat().st_mtime > CACHE_FOR_S:
                other.unlink(missing_ok=True)


def local_tag() -> str:
    """The tag of the Python that runs this code."""
    return f"cp{sys.version_info[0]}{min(sys.version_info[1], 11)}-{local_architecture()}"
