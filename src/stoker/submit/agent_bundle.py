"""The agent as an archive that a machine installs without a package index, one for each Python ABI and architecture.

    __main__.py      `python <folder> NODE_DIR` is the agent
    stoker/          the agent's part of this package
    obstore/         from this computer's installation, or from a wheel for the other machine
    pynvml.py        to see GPUs

A tag names whom it serves: `cp311-x86_64` every Python from 3.11 on (from there obstore's wheel keeps to the stable
ABI), `cp310-x86_64` Python 3.10. Archives are kept under the home, and in the store by their digest.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
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
from stoker.store.home import home, make_home
from stoker.submit import shared_objects

# As the project itself requires it.
OBSTORE = "obstore>=0.11,<0.13"
_WHEEL_ARCH = {"x86_64": "x86_64", "arm64": "aarch64"}
# From here on one archive serves all.
_STABLE: Python = max(SERVED.values())
# What obstore's wheels for Linux have been called, and may be: pip takes these names to the letter.
_PLATFORMS = ("manylinux_2_17", "manylinux2014", "manylinux_2_24", "manylinux_2_28", "manylinux_2_31", "manylinux_2_34")
_FETCH_LIMIT_S = 120
# What could not be fetched a moment ago is not asked for again at once.
_MISSING_FOR_S = 600.0
_KEPT_FOR_S = 30 * 86400.0

# The rooms that a node needs whole, and the modules at the top that it needs: see docs/architecture.md.
_NODE_ROOMS = ("agent", "cloudapi", "core", "model", "processes", "secrets", "store")
_NODE_MODULES = ("__init__.py", "train.py")
# Of each provider, the node's side. Nodes of the local provider run this computer's own Stoker.
_NODE_SIDE = ("__init__.py", "capabilities.py", "machine.py")
_NOT_ON_NODES = ("providers/boot/", "providers/local/")
_MAIN = b'''"""`python <this folder> NODE_DIR`: the agent of a node."""

import sys

from stoker.agent.__main__ import main

sys.exit(main())
'''


class NotServed(UserError):
    """No agent can be packed for such machines here and now; the message says why."""


@dataclass(frozen=True)
class Built:
    """An archive on this computer. `digest` is its SHA-256 and its name in the store."""

    tag: str
    digest: str
    path: Path
    size: int


def tags_for(arch: str) -> tuple[str, ...]:
    """The tags that together serve every Python of this architecture (`x86_64`, `arm64`)."""
    return tuple(f"{python}-{arch}" for python in SERVED)


def build_all(
    architectures: Iterable[str], *, offline: bool = False, oldest: Python | None = None
) -> tuple[tuple[Built, ...], tuple[str, ...]]:
    """The archives for these machines, and a line for each kind of machine that cannot be served.

    Every machine has a Python that is no older than `oldest`, where that is known. Raises NotServed when none of an
    architecture can be served; `offline` that is a line, too, for what was not fetched yet may well be there.
    """
    built: list[Built] = []
    problems: list[str] = []
    for arch in sorted(architectures):
        missing: dict[str, NotServed] = {}
        for tag in tags_for(arch):
            try:
                built.append(build(tag, offline=offline))
            except NotServed as error:
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


def build(tag: str, *, offline: bool = False) -> Built:
    """The archive for one tag. The same sources give the same bytes. `offline`: no package index is asked.

    Touches no store. Raises NotServed when obstore cannot be had for that Python.
    """
    files = _stoker_files() | _module_files("nvidia-ml-py", ("pynvml.py",)) | obstore_files(tag, offline)
    files["__main__.py"] = _MAIN
    signature = hashlib.sha256()
    for name, data in sorted(files.items()):
        signature.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    path = _folder() / f"{tag}-{signature.hexdigest()[:32]}.tar.gz"
    if path.exists():
        # Compressing takes seconds; reading it again does not.
        path.touch()
        archive = path.read_bytes()
    else:
        archive = _pack(files)
        _keep(path, archive)
    return Built(tag, hashlib.sha256(archive).hexdigest(), path, len(archive))


def send(store: Store, built: Built) -> str:
    """Put the archive into the store, once, and answer its name there. Idempotent."""
    return shared_objects.keep(store, keys.BUNDLES, built.digest, keys.bundle, built.path.read_bytes)


# ── What goes in ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _stoker_files() -> dict[str, bytes]:
    root = Path(stoker.__file__).parent
    names = (path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    return {f"stoker/{name}": (root / name).read_bytes() for name in names if _is_for_nodes(name)}


def _is_for_nodes(name: str) -> bool:
    room, _, inside = name.partition("/")
    if not inside:
        return name in _NODE_MODULES
    if room != "providers":
        return room in _NODE_ROOMS
    folder, _, file = inside.rpartition("/")
    return not folder or (file in _NODE_SIDE and not name.startswith(_NOT_ON_NODES))


def _module_files(distribution: str, names: tuple[str, ...]) -> dict[str, bytes]:
    installed = metadata.distribution(distribution)
    return {name: Path(str(installed.locate_file(name))).read_bytes() for name in names}


def obstore_files(tag: str, offline: bool) -> dict[str, bytes]:
    """obstore for one tag, from this computer or the package index. Raises NotServed when it cannot be had."""
    installed = metadata.distribution("obstore")
    if _serves(_wheel_tags(installed.read_text("WHEEL") or ""), tag):
        named = [file for file in installed.files or () if _is_wanted(file.as_posix())]
        return {file.as_posix(): Path(str(file.locate())).read_bytes() for file in named}
    with zipfile.ZipFile(_wheel(tag, offline)) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist() if _is_wanted(name)}


def _is_wanted(name: str) -> bool:
    """The package without what only editors read; of its metadata, what a licence asks for."""
    if name.startswith("obstore/"):
        return name.endswith((".py", ".so"))
    return name.startswith("obstore-") and (name.endswith("/METADATA") or "licen" in name.lower())


def _wheel_tags(text: str) -> list[str]:
    return [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Tag:")]


def _serves(wheel_tags: Iterable[str], tag: str) -> bool:
    """Whether a wheel of these tags works for every machine of `tag`."""
    python, _, arch = tag.partition("-")
    abi = "abi3" if python == "cp311" else python
    return any(
        one.startswith(f"{python}-{abi}-manylinux") and one.endswith(f"_{_WHEEL_ARCH[arch]}") for one in wheel_tags
    )


# ── Wheels for other machines ─────────────────────────────────────────────────────────────────────────────────────────


def _wheel(tag: str, offline: bool) -> Path:
    """obstore for another machine, from the home or from the package index that pip is set up for."""
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
        # The other one is served, or nothing is: what a boot would say that finds nothing newer.
        rest = [f"{other}-{arch}" for other in SERVED if other != python]
        advice = newer_image(rest) if old else "choose another resources.machine"
        lacking = f"cannot be served: there is no obstore for them ({problem})"
        if offline:
            lacking = "cannot be served yet: obstore for them was not fetched, which the run itself tries"
        raise NotServed(f"{arch} machines {which} {lacking}; {advice}")
    return found


def _find_wheel(folder: Path, tag: str) -> Path | None:
    fitting = []
    for path in folder.glob("obstore-*.whl"):
        _, version, python, abi, platforms = path.stem.split("-", 4)
        if _serves([f"{python}-{abi}-{one}" for one in platforms.split(".")], tag):
            fitting.append(([int(part) if part.isdigit() else -1 for part in version.split(".")], path))
    return max(fitting)[1] if fitting else None


def _fetch_wheel(folder: Path, tag: str) -> str:
    """Best effort. Answers what went wrong, or nothing."""
    python, _, arch = tag.partition("-")
    missing = folder / f"missing-{tag}"
    with suppress(OSError):
        if time.time() - missing.stat().st_mtime < _MISSING_FOR_S:
            return missing.read_text(encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += [
        "--no-deps",
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={version_text(SERVED[python])}",
    ]
    command += [f"--platform={name}_{_WHEEL_ARCH[arch]}" for name in _PLATFORMS]
    command += ["--retries=1", f"--dest={folder}", OBSTORE]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_LIMIT_S, check=False)
        lines = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or ran.stderr.splitlines()
        problem = lines[-1].removeprefix("ERROR: ") if ran.returncode and lines else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            missing.write_text(problem, encoding="utf-8")
    return problem


# ── Keeping ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _folder() -> Path:
    return home() / "bundles"


def _pack(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _keep(path: Path, archive: bytes) -> None:
    """Appears as a whole. Those that were not used for long go."""
    make_home()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(archive)
        Path(draft).replace(path)
        for other in path.parent.glob("*-*.tar.gz"):
            if time.time() - other.stat().st_mtime > _KEPT_FOR_S:
                other.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path.parent} cannot be written: {error}; set STOKER_HOME to a folder of yours") from None


def runs_here() -> str:
    """The tag of the Python that runs this."""
    arch = "arm64" if platform.machine() in ("aarch64", "arm64") else platform.machine()
    return f"cp{sys.version_info[0]}{min(sys.version_info[1], 11)}-{arch}"
