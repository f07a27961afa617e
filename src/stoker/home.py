"""Where Stoker keeps things on this computer, and which store is meant when nobody says."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """`STOKER_HOME`, else `~/.stoker`. Not made here."""
    return Path(os.environ.get("STOKER_HOME") or Path.home() / ".stoker").absolute()


def default_store_url() -> str:
    """`STOKER_STORE`, else a folder under the home."""
    return os.environ.get("STOKER_STORE") or (home() / "store").as_uri()
