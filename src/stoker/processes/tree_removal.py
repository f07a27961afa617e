"""Remove a folder that an untrusted program filled, however deep it is."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Remove a folder with all contents; files that cannot be removed stay. Follows no link. Never raises OSError."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        # `rmtree` is recursive before Python 3.13.
        _flatten(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _flatten(folder: Path) -> None:
    """Move all nested folders up to the first level, so that no path is long or deep."""
    waiting = [entry.path for entry in _folders(folder)]
    while waiting:
        place = waiting.pop()
        for inner in _folders(Path(place)):
            moved = str(folder / f".{secrets.token_hex(8)}")
            with suppress(OSError):
                Path(inner.path).rename(moved)
                waiting.append(moved)


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
