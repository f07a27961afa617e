"""Gather wheels at submission for machines that reach no package index. Machines install them from the store alone.

uv resolves the job's requirements for the Python and the processor of the machines, not for this computer's. The wheels
are fetched into the home, and sent to the store by digest, once for all jobs.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from stoker.agent.environment.read_requirements import EXPORT_LOCK, UV_SETTINGS, Requirements
from stoker.model import keys
from stoker.model.errors import UserError
from stoker.model.spec import PackageIndex
from stoker.model.submission import Wheel, wheels_target
from stoker.store.base import ANY_SIZE, Store
from stoker.store.home import CACHE_FOR_S, home, make_home
from stoker.store.parallel import run_all
from stoker.submit import shared_objects
from stoker.submit.wheel_targets import FIELD

# uv's names of the machines, with the C library of every image since 2018.
_PLATFORMS = {"x86_64": "x86_64-manylinux_2_28", "arm64": "aarch64-manylinux_2_28"}
_COMPILE = ("--format=pylock.toml", "--only-binary=:all:", "--no-header", "--no-annotate", "--quiet")
# uv's messages about a package without a wheel, or without one that fits.
_NO_WHEEL = re.compile(r"\b([a-z0-9][a-z0-9._-]*)(?:[=<>]=?[^ ]*)? ha(?:s|ve) no (?:usable )?wheels")
_HINTED = re.compile(r"(?:Wheels are (?:required|available)|found wheels) for `([^`]+)`")
_PASSWORD = re.compile(r"(://[^:/@\s]+):[^'\"`;]*@")
_WORKERS = 8


@dataclass(frozen=True)
class WheelTarget:
    """The machines that wheels are for. `python` is the program itself, where it is on this computer."""

    version: str
    arch: str
    python: str | None = None

    @property
    def name(self) -> str:
        return wheels_target(self.version, self.arch)


@dataclass(frozen=True)
class WheelSet:
    """Wheels by target, and their files by digest. The wheels that a clone reuses have no files here."""

    wheels: dict[str, tuple[Wheel, ...]] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum({wheel.digest: wheel.size for wheels in self.wheels.values() for wheel in wheels}.values())

    @property
    def digests(self) -> set[str]:
        return {wheel.digest for wheels in self.wheels.values() for wheel in wheels}


@dataclass(frozen=True)
class _IndexedWheel:
    """A wheel in an index. `digest` is None where the index does not state it."""

    name: str
    url: str
    digest: str | None


def gather_wheels(
    code: Path, requirements: Requirements, targets: Iterable[WheelTarget], index: PackageIndex | None = None
) -> WheelSet:
    """Resolve the requirements for these machines and fetch the wheels. Raises UserError in one line."""
    if requirements.local:
        raise UserError(
            f"{FIELD}: {requirements.name} installs a part of the code itself, of which no index has a wheel; leave "
            "that line out (the training runs in the code folder and imports from it), or leave `wheels` out"
        )
    access = _Access(index)
    wheels: dict[str, tuple[Wheel, ...]] = {}
    files: dict[str, Path] = {}
    for target in sorted(targets, key=lambda each: each.name):
        found = _resolve(code, requirements, target, access)
        fetched = run_all([partial(_fetch, access, each) for each in found], _WORKERS)
        wheels[target.name] = tuple(wheel for wheel, _ in fetched)
        files |= {wheel.digest: path for wheel, path in fetched}
    _prune()
    return WheelSet(wheels, files)


def send(store: Store, gathered: WheelSet) -> dict[str, tuple[Wheel, ...]]:
    """Put the wheels into the store, each once, and return them with their generations. Idempotent.

    Raises UserError where a reused wheel is not in the store any more.
    """
    each = {wheel.digest: wheel for wheels in gathered.wheels.values() for wheel in wheels}
    sent = run_all(
        [partial(_send, store, wheel, gathered.files.get(digest)) for digest, wheel in each.items()], _WORKERS
    )
    generation = {wheel.digest: wheel.generation for wheel in sent}
    return {
        target: tuple(replace(wheel, generation=generation[wheel.digest]) for wheel in wheels)
        for target, wheels in gathered.wheels.items()
    }


def _send(store: Store, wheel: Wheel, path: Path | None) -> Wheel:
    def read() -> bytes:
        found = store.get(keys.wheel(keys.shared_name(wheel.digest, wheel.generation)), limit=ANY_SIZE)
        if found is None:
            raise UserError("its wheels are not in the store any more; submit it again from the folder")
        return found.data

    if path is None:
        name = shared_objects.store_once(store, keys.WHEELS, wheel.digest, keys.wheel, read)
        return replace(wheel, generation=keys.generation_of(name))
    name = shared_objects.usable_name(store, keys.WHEELS, wheel.digest)
    generation = keys.generation_of(name)
    if store.head(keys.wheel(name)) is None:
        store.put_file(path, lambda digest: keys.wheel(keys.shared_name(digest, generation)))
    return replace(wheel, generation=generation)


# ── Resolving ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _resolve(code: Path, requirements: Requirements, target: WheelTarget, access: _Access) -> list[_IndexedWheel]:
    with tempfile.TemporaryDirectory(prefix="stoker-wheels-") as folder:
        source, locked = _source(code, requirements, Path(folder), access)
        options = ["--no-deps"] if locked is not None else []
        if target.python is not None:
            options.append(f"--python={target.python}")
        else:
            options += [f"--python-version={target.version}", f"--python-platform={_PLATFORMS[target.arch]}"]
        answer = access.uv("pip", "compile", str(source), *_COMPILE, *options, cwd=code)
    if answer.returncode:
        raise _unresolved(requirements.name, target, answer.stderr)
    found: list[_IndexedWheel] = []
    lacking: list[str] = []
    for package in _toml(answer.stdout).get("packages", []):
        of_this = _wheels_of(package)
        if not of_this:
            lacking.append(str(package.get("name")))
        found += of_this
    if lacking:
        raise _no_wheel(lacking, target)
    for each in found:
        if locked and each.digest not in locked:
            raise UserError(f"{FIELD}: {each.name} is not what {requirements.name} was locked with; lock it again")
    return found


def _source(code: Path, requirements: Requirements, folder: Path, access: _Access) -> tuple[Path, set[str] | None]:
    """The file for uv to read; and for a lock file, the digests that it allows."""
    path = code / requirements.name
    match requirements.kind:
        case "uv-lock":
            answer = access.uv(*EXPORT_LOCK, f"--project={path.parent}", "--format=requirements.txt", cwd=code)
            if answer.returncode:
                raise UserError(f"{requirements.name}: {_one_line(answer.stderr)}")
            text = answer.stdout
        case "pylock":
            text = "".join(_locked_lines(_toml(path.read_text(encoding="utf-8"))))
        case _:
            return path, None
    target = folder / "locked.txt"
    target.write_text(text, encoding="utf-8")
    return target, set(re.findall(r"--hash=sha256:([0-9a-f]{64})", text))


def _locked_lines(lock: Mapping[str, Any]) -> Iterable[str]:
    for package in lock.get("packages", []):
        if "version" not in package:
            continue
        marker = f" ; {package['marker']}" if package.get("marker") else ""
        digests = [each.digest for each in _wheels_of(package) if each.digest]
        yield f"{package['name']}=={package['version']}{marker}" + "".join(f" --hash=sha256:{d}" for d in digests)
        yield "\n"


def _wheels_of(package: Mapping[str, Any]) -> list[_IndexedWheel]:
    """The wheels of a package in a pylock. A wheel that is named by URL is listed as an archive there."""
    entries = [*package.get("wheels", []), *([package["archive"]] if "archive" in package else [])]
    found = []
    for entry in entries:
        url = str(entry.get("url") or Path(str(entry.get("path", ""))).absolute().as_uri())
        name = unquote(urlsplit(url).path.rpartition("/")[2])
        if name.endswith(".whl") and name.count("-") >= 4:
            found.append(_IndexedWheel(name, url, (entry.get("hashes") or {}).get("sha256")))
    return found


def _unresolved(name: str, target: WheelTarget, text: str) -> UserError:
    plain = " ".join(text.split())
    lacking = [each.split("==")[0] for each in (*_NO_WHEEL.findall(plain), *_HINTED.findall(plain))]
    if lacking:
        return _no_wheel(lacking, target)
    return UserError(f"{FIELD}: {name} cannot be resolved for {_target_text(target)}: {_one_line(text)}")


def _no_wheel(names: Sequence[str], target: WheelTarget) -> UserError:
    return UserError(
        f"{FIELD}: there is no wheel of {', '.join(dict.fromkeys(names))} for {_target_text(target)}; name a version "
        "that has one, or build one (`pip wheel`) and give its folder in UV_FIND_LINKS"
    )


def _target_text(target: WheelTarget) -> str:
    return f"Python {'.'.join(target.version.split('.')[:2])} on {target.arch}"


def _one_line(text: str) -> str:
    lines = [line.strip().removeprefix("error: ").removeprefix("cause: ") for line in text.splitlines()]
    joined = "; ".join(line for line in lines if line and not line.startswith("warning:"))
    # uv hides the passwords of addresses that it can read, and quotes the others.
    joined = _PASSWORD.sub(r"\1:****@", joined)
    return joined if len(joined) <= 400 else joined[:397] + "..."


def _toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    found: dict[str, Any] = tomllib.loads(text)
    return found


# ── Fetching ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Access:
    """Access to uv and the index, with credentials. Passwords stay in the environment of processes."""

    def __init__(self, index: PackageIndex | None) -> None:
        self._env = {**os.environ, **UV_SETTINGS}
        self._known: dict[str, tuple[str, str]] = {}
        for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"):
            for word in os.environ.get(name, "").split():
                self._learn(word.partition("=")[2] if re.match(r"[\w.-]+=", word) else word)
        if index is not None:
            self._open(index)

    def _open(self, index: PackageIndex) -> None:
        from stoker.agent.environment.package_sources import PrivateIndex
        from stoker.model.errors import SetupFailed
        from stoker.secrets.fetch_secrets import fetch

        try:
            opened = PrivateIndex(index, lambda path, ref: fetch(path, ref, os.environ)).for_commands()
        except SetupFailed as error:
            raise UserError(str(error)) from None
        given = {**opened.env, **opened.secrets}
        self._learn(given.pop("PIP_INDEX_URL"))
        self._env |= given

    def _learn(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.hostname and parts.username:
            self._known[_place(url)] = (unquote(parts.username), unquote(parts.password or ""))

    def uv(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        from uv import find_uv_bin

        command = [find_uv_bin(), *arguments]
        return subprocess.run(command, cwd=cwd, env=self._env, capture_output=True, text=True, check=False)

    def fetch(self, url: str, target: Path) -> str:
        """Fetch a URL into a file, and return its SHA-256. Raises OSError."""
        import base64
        import urllib.request

        request = urllib.request.Request(url, headers={"User-Agent": "stoker"})
        who = self._known.get(_place(url)) or _netrc(urlsplit(url).hostname or "")
        if who is not None:
            encoded = base64.b64encode(":".join(who).encode()).decode()
            # Unredirected: many indexes redirect to a store of another owner, which must not get the password.
            request.add_unredirected_header("Authorization", f"Basic {encoded}")
        digest = hashlib.sha256()
        with urllib.request.urlopen(request, timeout=60) as answer, target.open("wb") as file:
            for chunk in iter(lambda: answer.read(1 << 20), b""):
                digest.update(chunk)
                file.write(chunk)
            size = answer.headers.get("Content-Length")
            # `read` reports a connection that breaks off like the end of the file.
            if size is not None and file.tell() != int(size):
                raise ConnectionError(f"the connection ended after {file.tell()} of {size} bytes")
        return digest.hexdigest()


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _netrc(host: str) -> tuple[str, str] | None:
    import netrc

    try:
        found = netrc.netrc(os.environ.get("NETRC")).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return None
    return (found[0] or "", found[2] or "") if found is not None else None


def _fetch(access: _Access, found: _IndexedWheel) -> tuple[Wheel, Path]:
    """The wheel in the cache, fetched if it is missing. Raises UserError."""
    folder = home() / "wheels"
    kept = folder / (found.digest or "-") / found.name
    if not kept.exists():
        make_home()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, draft = tempfile.mkstemp(dir=folder, suffix=".part")
            os.close(handle)
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error}; set STOKER_HOME to a folder of yours") from None
        try:
            digest = access.fetch(found.url, Path(draft))
            if found.digest is not None and digest != found.digest:
                raise UserError(f"{FIELD}: {found.name} is not what its index says it is; try again")
            kept = folder / digest / found.name
            kept.parent.mkdir(exist_ok=True)
            Path(draft).replace(kept)
        except OSError as error:
            raise UserError(f"{FIELD}: {found.name} cannot be fetched from {_place(found.url)}: {error}") from None
        finally:
            Path(draft).unlink(missing_ok=True)
    os.utime(kept.parent)
    return Wheel(found.name, kept.parent.name, kept.stat().st_size), kept


def _prune() -> None:
    """Delete cached wheels that were not used for long."""
    with suppress(OSError):
        for folder in (home() / "wheels").iterdir():
            if time.time() - folder.stat().st_mtime > CACHE_FOR_S:
                shutil.rmtree(folder, ignore_errors=True) if folder.is_dir() else folder.unlink()
