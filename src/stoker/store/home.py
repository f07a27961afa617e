"""Stoker's home folder on this computer, and the default store."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

# Files that this computer packed, and can pack again, are kept in the home for so long after their last use.
CACHE_FOR_S = 30 * 86400.0


def home() -> Path:
    """`STOKER_HOME`, else `~/.stoker`. Not created here."""
    return Path(os.environ.get("STOKER_HOME") or Path.home() / ".stoker").absolute()


def make_home() -> Path:
    """Return the home, which is created if absent, for this user alone.

    Specs hold the content of `--env-file`, and logs hold anything. An existing home keeps its permissions. Never
    raises: users of the home report what is wrong with it.
    """
    folder = home()
    with suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def own_folders(store_url: str) -> tuple[Path, ...]:
    """The folders of this computer that are Stoker's own: the home, and the store where it is a folder."""
    if not store_url.startswith("file://"):
        return (home(),)
    return home(), Path(unquote(store_url.removeprefix("file://")))


def default_store_url() -> str:
    """`STOKER_STORE`, else a folder under the home."""
    return os.environ.get("STOKER_STORE") or (home() / "store").as_uri()


def is_unnamed_store(url: str) -> bool:
    """Return whether it is the default store under the home, and `STOKER_STORE` names no other."""
    own = home() / "store"
    return not os.environ.get("STOKER_STORE") and url in (own.as_uri(), Path(os.path.realpath(own)).as_uri())
