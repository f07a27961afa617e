"""Every row of the compatibility page is about something of its own, and linked to a test."""

from __future__ import annotations

import re
from collections import Counter

from pages import DOCS

_CELL = re.compile(r"(?<!\\)\|")


def rows() -> list[list[str]]:
    lines = (DOCS / "compatibility.md").read_text(encoding="utf-8").splitlines()
    tables = [line for line in lines if line.startswith("|") and not re.match(r"\|[-|]+$|\| call or program ", line)]
    return [[cell.strip() for cell in _CELL.split(line)[1:-1]] for line in tables]


def test_each_row_is_linked_to_a_test() -> None:
    found = rows()
    assert len(found) > 50
    assert [row for row in found if len(row) != 4 or "](../tests/" not in row[3]] == []


def test_no_call_has_two_rows() -> None:
    assert [call for call, count in Counter(row[0] for row in rows()).items() if count > 1] == []
