"""uv, the program that installs packages: where it is on this machine, and what it says.

A machine of a cloud fetches it from the store, by the digest that was frozen when the job was submitted. On the
submitter's own computer it is the one that Stoker was installed with.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.fetch_programs import fetch_program, place_program
from stoker.model.errors import SetupFailed
from stoker.store.base import Store

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


def find_program(store: Store, tools: Mapping[str, str], shelf: Path, *, copied: bool) -> Path:
    """uv, fetched now where it is not here yet. May be repeated.

    `copied`: it has to lie in `shelf`, which a container sees. Raises SetupFailed, StoreError.
    """
    return fetch_program(store, tools, "uv", shelf) or _installed(shelf if copied else None)


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
            place_program(source, copy)
    return copy
