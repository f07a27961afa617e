"""Find the git commit of a folder, and the files that git tracks in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Enough for a repository on a slow network disk. The revision is optional, and must not delay a submission for long.
TIMEOUT_S = 20


@dataclass(frozen=True)
class Revision:
    """The commit (None before the first one), and whether the folder differs from it. Untracked files count."""

    commit: str | None
    dirty: bool | None


def revision(folder: Path, *, exclude: Sequence[str] = ()) -> Revision | None:
    """The folder's revision; None where there is no git, no repository, or no answer."""
    inside = _git(folder, "rev-parse", "--is-inside-work-tree")
    if inside is None or inside.strip() != "true":
        return None
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    paths = [".", ":(exclude).stoker", *(f":(exclude,literal){path}" for path in exclude)]
    status = _git(folder, "status", "--porcelain", "--untracked-files=normal", "--", *paths)
    return Revision(commit.strip() if commit else None, None if status is None else bool(status.strip()))


def tracked_files(folder: Path, below: str) -> frozenset[str]:
    """The files below a path in the folder that git tracks, relative to the folder; empty where there is no answer."""
    found = _git(folder, "ls-files", "-z", "--", f":(literal){below}")
    return frozenset((found or "").split("\0")) - {""}


def _git(folder: Path, *words: str) -> str | None:
    # A hook's environment names its own repository, which need not be this folder's.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            # Reading must not take the index lock from a person who works in the folder.
            ["git", "--no-optional-locks", "-C", str(folder), *words],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
