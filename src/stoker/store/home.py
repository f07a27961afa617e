"""Stoker's home folder on this computer, and the default store."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def home() -> Path:
    """`STOKER_HOME`, else `~/.stoker`. Not created here."""
    return Path(os.environ.get("STOKER_HOME") or Path.home() / ".stoker").absolute()


def make_home() -> None:
    """Create the home if absent, for this user alone: specs hold the content of `--env-file`, and logs hold anything.

    An existing home keeps its permissions. Never raises: users of the home report what is wrong with it.
    """
    with suppress(OSError):
        home().parent.mkdir(parents=True, exist_ok=True)
        home().mkdir(mode=0o700, exist_ok=True)


def default_store_url() -> str:
    """`STOKER_STORE`, else a folder under the home."""
    return os.environ.get("STOKER_STORE") or (home() / "store").as_uri()


def is_unnamed_store(url: str) -> bool:
    """Return whether it is the default store under the home, and `STOKER_STORE` names no other."""
    own = home() / "store"
    return not os.environ.get("STOKER_STORE") and url in (own.as_uri(), Path(os.path.realpath(own)).as_uri())
