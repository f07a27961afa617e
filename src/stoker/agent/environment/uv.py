"""uv, the program that installs packages: locate it on this machine, and parse its output.

A cloud machine fetches it from the store, by the digest that was fixed when the job was submitted. The submitter's own
computer uses the uv that was installed with Stoker.
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

# A change that uv made or would make: ` + numpy==2.1.0`, ` - torch==2.4.0 (from file:///…)`, ` + mine @ file:///…`.
_CHANGE = re.compile(r"^ (?P<sign>[+~-]) (?P<name>[A-Za-z0-9._-]+)(?:==(?P<version>\S+)| @ \S+)?", re.MULTILINE)


@dataclass(frozen=True)
class PackageChange:
    """A package that is added (`+`), removed (`-`) or installed again (`~`)."""

    sign: str
    name: str
    # None for a package that comes from an address or a folder.
    version: str | None


def parse_changes(text: str) -> tuple[PackageChange, ...]:
    """Parse the changes that uv made, or would make, from its output."""
    return tuple(PackageChange(found["sign"], found["name"], found["version"]) for found in _CHANGE.finditer(text))


def find_program(store: Store, tools: Mapping[str, str], cache: Path, *, copied: bool) -> Path:
    """Return the path of uv, and fetch it first if needed. May be repeated.

    `copied`: the program must be in `cache`, which a container can see. Raises SetupFailed, StoreError.
    """
    return fetch_program(store, tools, "uv", cache) or _installed(cache if copied else None)


def _installed(cache: Path | None) -> Path:
    try:
        from uv import find_uv_bin

        program = Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
        if found is None:
            reason = "uv, which installs packages, was not found; install Stoker again, or uv itself: pip install uv"
            raise SetupFailed(reason, user=False) from None
        program = Path(found)
    if cache is None:
        return program
    status = program.stat()
    copy = cache / "tools" / f"{status.st_size:x}-{status.st_mtime_ns:x}" / "uv"
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with program.open("rb") as source:
            place_program(source, copy)
    return copy
