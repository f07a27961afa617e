"""Every relative link leads somewhere, to the heading it names; every page can be reached from the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import DOCS, ROOT, name_of, page_files, prose

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


def links(path: Path) -> list[str]:
    return [first or second for first, second in _LINK.findall(prose(path))]


def anchors(path: Path) -> set[str]:
    """Headings as they are named in links: lower case, dashes for spaces, no punctuation."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*$", prose(path), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found.add(name if name not in found else f"{name}-{sum(one.startswith(name) for one in found)}")
    return found


def broken(path: Path, link: str) -> str | None:
    if re.match(r"[a-z][a-z0-9+.-]*:", link):
        return None  # Somebody else's; tests reach nothing outside.
    file, _, anchor = link.partition("#")
    target = (path.parent / file).resolve() if file else path
    if not target.is_relative_to(ROOT) or not target.exists():
        return f"{name_of(path)}: there is no {link}"
    if anchor and target.suffix == ".md" and anchor not in anchors(target):
        return f"{name_of(path)}: {link}: there is no such heading"
    return None


@pytest.mark.parametrize("path", page_files(), ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    assert [problem for link in links(path) if (problem := broken(path, link))] == []


def test_what_is_broken_is_found() -> None:
    page = DOCS / "README.md"
    assert broken(page, "nowhere.md") and broken(page, "bounds.md#nothing") and broken(page, "../../etc")
    assert broken(page, "bounds.md#storage") is None


def test_the_index_has_every_page() -> None:
    listed = {link.partition("#")[0] for link in links(DOCS / "README.md")}
    assert sorted({path.name for path in DOCS.glob("*.md")} - listed - {"README.md"}) == []
