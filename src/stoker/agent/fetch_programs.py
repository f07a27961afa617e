"""Fetch programs from the store when a machine needs them, by the digests that were frozen with the job."""

from __future__ import annotations

import gzip
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

from stoker.model import keys
from stoker.model.errors import SetupFailed
from stoker.store.base import Store
from stoker.store.safe_extraction import Extraction


def tool_name(program: str) -> str:
    """Return the name of the program for this machine among a submission's tools."""
    machine = platform.machine()
    return f"{program}-{'arm64' if machine in ('aarch64', 'arm64') else machine}"


def fetch_program(store: Store, tools: Mapping[str, str], name: str, folder: Path) -> Path | None:
    """Return the program in `folder`, fetched now if it is missing; None if the job brought none. May be repeated.

    Raises SetupFailed, StoreError.
    """
    stored = tools.get(tool_name(name))
    if stored is None:
        return None
    digest = keys.digest_of(stored)
    if not set(digest) <= set("0123456789abcdef"):
        raise SetupFailed(f"{name}: {digest!r} is no digest; submit the job again", user=False)
    program = folder / "tools" / digest[:32] / name
    if not program.exists():
        # A container may write to the folder: its links are not followed.
        with (
            Extraction(program.parent, follow=False) as tools_folder,
            tools_folder.staging() as staging,
            staging.new_file(name) as archive,
        ):
            found = store.get_file(keys.tool(stored), archive)
            if found is None:
                raise SetupFailed(f"{name} is not in the store any more; submit the job again", user=False)
            if found != digest:
                raise SetupFailed(f"{name} in the store is not what was submitted (its digest is {found})", user=False)
            with gzip.open(archive) as source:
                place_program(cast("IO[bytes]", source), program)
    return program


def place_program(source: IO[bytes], program: Path) -> None:
    """Write the program. It appears as a whole, even if several processes do this at once. Follows no link."""
    with Extraction(program.parent, follow=False) as folder, folder.staging() as staging:
        with staging.new_file(program.name) as draft, draft.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        staging.place(program.name, program.name, mode=0o755)
