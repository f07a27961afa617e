"""The tables that are packaged with a provider: JSON files in the folder `data` of its package."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources as package
from typing import Any


@lru_cache(maxsize=16)
def read_table(provider: str, name: str) -> Any:
    """Read `data/PROVIDER_NAME.json` of the provider's package, once. The result must not be changed."""
    return json.loads(read_text(provider, name))


def read_text(provider: str, name: str) -> str:
    """The text of the same file."""
    folder = package.files(f"stoker.providers.{provider}").joinpath("data")
    return folder.joinpath(f"{provider}_{name}.json").read_text("utf-8")
