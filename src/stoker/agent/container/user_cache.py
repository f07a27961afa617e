"""Environments of the users that containers run as: each user has its own folder beside the shared environments."""

from __future__ import annotations

import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from stoker.agent.environment.local_cache import UNUSED_FOR_S, LocalCache


def create_user_cache(environments: Path, uid: int, gid: int) -> Path:
    """Create the user's own folder: the user must not modify shared environments, nor may others use the user's.

    Raises OSError.
    """
    folder = environments / f"of-{uid}"
    folder.mkdir(exist_ok=True)
    os.chown(folder, uid, gid)
    # Marks the folder as used, even if nothing is added to it.
    os.utime(folder)
    environments.chmod(stat.S_IMODE(environments.stat().st_mode) | 0o111)
    return folder


def prune(environments: Path, unused_for_s: float = UNUSED_FOR_S) -> None:
    """Remove environments of all users that were unused for this long. Those that cannot be removed stay.

    A user without environments also loses its copy of uv, once that is as old.
    """
    for folder in environments.glob("of-*"):
        with suppress(OSError):
            # Read before the pruning, which changes the folder's time.
            idle_s = time.time() - folder.stat().st_mtime
            LocalCache(folder).prune(unused_for_s)
            if idle_s >= unused_for_s and not any(folder.glob("*.lock")):
                shutil.rmtree(folder)
