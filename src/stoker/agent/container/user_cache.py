"""Where users of containers keep environments: each in a folder of its own, beside those of everybody else."""

from __future__ import annotations

import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from stoker.agent.environment.local_cache import UNUSED_FOR_S, Shelf


def open_shelf(environments: Path, uid: int, gid: int) -> Path:
    """The user's own: those of others are neither to be changed by it nor, where it makes them, to be used by others.

    Raises OSError.
    """
    shelf = environments / f"of-{uid}"
    shelf.mkdir(exist_ok=True)
    os.chown(shelf, uid, gid)
    # It is in use, also where nothing is added to it.
    os.utime(shelf)
    environments.chmod(stat.S_IMODE(environments.stat().st_mode) | 0o111)
    return shelf


def prune(environments: Path, unused_for_s: float = UNUSED_FOR_S) -> None:
    """Remove what no user used for long, whoever it is: it may never train here again. What cannot be removed stays.

    A user without any environment loses its copy of uv, too, once that is as old.
    """
    for folder in environments.glob("of-*"):
        with suppress(OSError):
            # Before the environments: to remove those is to change the folder.
            idle_s = time.time() - folder.stat().st_mtime
            Shelf(folder).prune(unused_for_s)
            if idle_s >= unused_for_s and not any(folder.glob("*.lock")):
                shutil.rmtree(folder)
