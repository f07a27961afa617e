"""Check, before a job is submitted, the absolute folders of checkpoints and outputs on this computer."""

from __future__ import annotations

import os
from pathlib import Path

from stoker.jobfile.result_paths import dangerous_folder
from stoker.model.errors import UserError
from stoker.model.offerings import Capabilities
from stoker.model.path_patterns import base_of, entries_of
from stoker.model.spec import Spec
from stoker.store.base import Store
from stoker.store.home import own_folders


def check_result_folders(spec: Spec, capabilities: Capabilities, code: Path | None, store: Store) -> None:
    """Raise UserError for a folder that several nodes would share, or that holds other files than the job's own.

    Only folders of this computer outlive a node and hold files of people, so only local jobs are checked.
    """
    if not capabilities.runs_locally or spec.environment.contract is not None:
        return
    written = (("checkpoints.dir", spec.checkpoints.dir), ("outputs", spec.outputs))
    folders = [
        (field, base_of(entry)) for field, value in written for entry in entries_of(value) if entry.startswith("/")
    ]
    for field, folder in folders:
        if spec.nodes > 1:
            raise UserError(
                f"{field}: {folder}: {spec.nodes} nodes on this computer would all write there; "
                "name a folder relative to the code, which each node has for itself"
            )
        problem = _problem(Path(os.path.realpath(folder)), code, store)
        if problem is not None:
            raise UserError(f"{field}: {folder}: {problem}")


def _problem(folder: Path, code: Path | None, store: Store) -> str | None:
    """The problem with this folder, links resolved; None where there is none."""
    if folder.exists() and not folder.is_dir():
        return "is a file; name a folder"
    found = dangerous_folder(str(folder))
    if found is not None:
        return found
    user = Path(os.path.realpath(Path("~").expanduser()))
    if user.is_relative_to(folder):
        return "holds your home; name a folder of the job's own"
    for taken in map(Path, map(os.path.realpath, own_folders(store.url))):
        if taken.is_relative_to(folder) or folder.is_relative_to(taken):
            return f"and {taken}, where Stoker keeps its own files, must be apart from each other"
    if code is not None and Path(os.path.realpath(code)).is_relative_to(folder):
        return "holds the code; name a folder of the job's own, or `.` for files beside the code"
    return None
