"""uv, the program that installs packages: where it is on this machine, and what it says.

A machine of a cloud fetches it from the store, by the digest that was frozen when the job was submitted. On the
submitter's own computer it is the one that Stoker was installed with.
"""

from __future__ import annotations

import gzip
import os
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from stoker import layout
from stoker.agent.prepare import SetupFailed
from stoker.store import Store

# A line of what it did, or would do: ` + numpy==2.1.0`, ` - torch==2.4.0 (from file:///…)`, ` + mine @ file:///…`.
_CHANGE = re.compile(r"^ (?P<sign>[+~-]) (?P<name>[A-Za-z0-9._-]+)(?:==(?P<version>\S+)| @ \S+)?", re.MULTILINE)


@dataclass(frozen=True)
class Change:
    """A package that is added (`+`), taken away (`-`) or installed again (`~`)."""

    sign: str
    name: str
    # None for one that comes from an address or a folder.
    version: str | None


def read_changes(text: str) -> tuple[Change, ...]:
    """What uv printed that it did, or would do."""
    return tuple(Change(found["sign"], found["name"], found["version"]) for found in _CHANGE.finditer(text))


def tool_name() -> str:
    """What the program for this machine is called among a submission's tools."""
    machine = platform.machine()
    return f"uv-{'arm64' if machine in ('aarch64', 'arm64') else machine}"


def find_program(store: Store, tools: Mapping[str, str], shelf: Path, *, copied: bool) -> Path:
    """The program, fetched now where it is not here yet. May be repeated.

    `copied`: it has to lie in `shelf`, which a container sees. Raises SetupFailed, StoreError.
    """
    digest = tools.get(tool_name())
    if digest is None:
        return _installed(shelf if copied else None)
    program = shelf / "tools" / digest[:32] / "uv"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        archive = program.with_name(f".uv-{os.getpid()}.gz")
        try:
            found = store.get_file(layout.tool(digest), archive)
            if found is None:
                raise SetupFailed("uv is not in the store any more; submit the job again", user=False)
            if found != digest:
                raise SetupFailed(f"uv in the store is not what was submitted (its digest is {found})", user=False)
            with gzip.open(archive) as source:
                _place(cast("IO[bytes]", source), program)
        finally:
            archive.unlink(missing_ok=True)
    return program


def _installed(shelf: Path | None) -> Path:
    try:
        from uv import find_uv_bin

        program = Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
        if found is None:
            reason = "uv, which installs packages, is not there; install Stoker again, or uv itself: pip install uv"
            raise SetupFailed(reason, user=False) from None
        program = Path(found)
    if shelf is None:
        return program
    status = program.stat()
    copy = shelf / "tools" / f"{status.st_size:x}-{status.st_mtime_ns:x}" / "uv"
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with program.open("rb") as source:
            _place(source, copy)
    return copy


def _place(source: IO[bytes], program: Path) -> None:
    """Appears as a whole, whoever else does the same."""
    draft = program.with_name(f".uv-{os.getpid()}")
    with draft.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
    draft.chmod(0o755)
    draft.replace(program)
