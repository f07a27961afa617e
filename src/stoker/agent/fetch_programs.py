"""Programs that a machine fetches from the store when it needs them, by the digests that were frozen with the job."""

from __future__ import annotations

import gzip
import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

from stoker.model import keys
from stoker.model.errors import SetupFailed
from stoker.store.base import Store


def tool_name(program: str) -> str:
    """What the program for this machine is called among a submission's tools."""
    machine = platform.machine()
    return f"{program}-{'arm64' if machine in ('aarch64', 'arm64') else machine}"


def fetch_program(store: Store, tools: Mapping[str, str], name: str, shelf: Path) -> Path | None:
    """The program in `shelf`, fetched now where it is not there yet; None where the job brought none. May be repeated.

    Raises SetupFailed, StoreError.
    """
    stored = tools.get(tool_name(name))
    if stored is None:
        return None
    digest = keys.digest_of(stored)
    if not set(digest) <= set("0123456789abcdef"):
        raise SetupFailed(f"{name}: {digest!r} is no digest; submit the job again", user=False)
    program = shelf / "tools" / digest[:32] / name
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        archive = program.with_name(f".{name}-{os.getpid()}.gz")
        try:
            found = store.get_file(keys.tool(stored), archive)
            if found is None:
                raise SetupFailed(f"{name} is not in the store any more; submit the job again", user=False)
            if found != digest:
                raise SetupFailed(f"{name} in the store is not what was submitted (its digest is {found})", user=False)
            with gzip.open(archive) as source:
                place_program(cast("IO[bytes]", source), program)
        finally:
            archive.unlink(missing_ok=True)
    return program


def place_program(source: IO[bytes], program: Path) -> None:
    """Appears as a whole, whoever else does the same."""
    draft = program.with_name(f".{program.name}-{os.getpid()}")
    with draft.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
    draft.chmod(0o755)
    draft.replace(program)
