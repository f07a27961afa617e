"""The map of the package and the pages of decisions name files that exist; every room and every decision is listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import DOCS

PACKAGE = DOCS.parent / "src" / "stoker"
PAGE = (DOCS / "architecture.md").read_text()
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
_FILE = re.compile(r"`([a-z_]+(?:/[a-z0-9_]+)*(?:/|\.py))`")
NAMED = _FILE.findall(PAGE)
# Folders that pages name and that are not in the package: keys of the bucket, and folders of the project.
ELSEWHERE = {"src/stoker/", "docs/", "tests/support/", "work/", "jobs/", "docs/decisions/"}


def test_every_file_and_folder_on_the_map_exists() -> None:
    missing = [name for name in NAMED if name not in ELSEWHERE and not (PACKAGE / name).exists()]
    assert len(NAMED) > 50 and not missing


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_every_file_that_a_decision_names_exists(page: Path) -> None:
    named = _FILE.findall(page.read_text())
    assert [name for name in named if name not in ELSEWHERE and not (PACKAGE / name).exists()] == []
    assert named or page.name == "README.md"


def test_every_decision_is_listed_and_gives_its_counterexample() -> None:
    pages = {page.name: page.read_text() for page in DECISIONS}
    listed = re.findall(r"^\| \[[^]]+\]\(([a-z-]+\.md)\) \|", pages.pop("README.md"), re.MULTILINE)
    assert sorted(listed) == sorted(pages) and len(pages) > 10
    for text in pages.values():
        assert "**Decision.**" in text and "## What goes wrong otherwise" in text and "## Where" in text


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


@pytest.mark.parametrize("room", ["core", "agent/checkpoints", "agent/environment"])
def test_every_module_of_a_large_room_is_in_its_table(room: str) -> None:
    folder = PACKAGE / room
    named = re.findall(r"`([a-z_]+)`", "".join(re.findall(r"^\|(.*?)\|", (folder / "__init__.py").read_text(), re.M)))
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert sorted(named) == sorted(modules)
