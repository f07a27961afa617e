"""The map of the package names files that exist, and every room is on it."""

from __future__ import annotations

import re

from pages import DOCS

PACKAGE = DOCS.parent / "src" / "stoker"
PAGE = (DOCS / "architecture.md").read_text()
NAMED = re.findall(r"`([a-z_]+(?:/[a-z0-9_]+)*(?:/|\.py))`", PAGE)


def test_every_file_and_folder_on_the_map_exists() -> None:
    elsewhere = {"src/stoker/", "docs/", "tests/support/"}
    missing = [name for name in NAMED if name not in elsewhere and not (PACKAGE / name).exists()]
    assert len(NAMED) > 50 and not missing


def test_every_room_is_on_the_map_once_in_the_order_of_the_layers() -> None:
    rooms = {f"{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    table = PAGE.split("## The rooms", 1)[1].split("Beside them", 1)[0]
    listed = re.findall(r"^\| `([a-z_]+/|client\.py)` \|", table, re.MULTILINE)
    assert set(listed) | {"testing/"} == rooms | {"client.py"}
    assert len(listed) == len(set(listed))
    contract = re.search(r"^layers = \[(.*?)\]", (DOCS.parent / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    assert contract is not None
    layers = re.findall(r"stoker\.([a-z_]+)", contract[1].replace("(stoker.web)", ""))
    assert [name.rstrip("/").removesuffix(".py") for name in reversed(listed)] == layers
