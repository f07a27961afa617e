"""Where Stoker keeps things on this computer, and which store is meant when nobody says."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def home() -> Path:
    """`STOKER_HOME`, else `~/.stoker`. Not made here."""
    return Path(os.environ.get("STOKER_HOME") or Path.home() / ".stoker").absolute()


def make_home() -> None:
    """Make the home if it is not there, for this user alone: specs hold what `--env-file` says, logs hold anything.

    One that is there keeps its permissions. Never raises: what needs the home says what is wrong with it.
    """
    with suppress(OSError):
        home().parent.mkdir(parents=True, exist_ok=True)
        home().mkdir(mode=0o700, exist_ok=True)


def default_store_url() -> str:
    """`STOKER_STORE`, else a folder under the home."""
    return os.environ.get("STOKER_STORE") or (home() / "store").as_uri()


def is_unnamed_store(url: str) -> bool:
    """Whether it is the folder under the home, which is meant where nobody names a store."""
    own = home() / "store"
    return not os.environ.get("STOKER_STORE") and url in (own.as_uri(), Path(os.path.realpath(own)).as_uri())
