"""The reference of the command line is generated, and says what the commands say."""

from __future__ import annotations

from pathlib import Path

from stoker.cli import COMMANDS
from stoker.cli.reference import PAGE, reference_markdown

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_would_be_generated_now() -> None:
    """Write it anew with `python -m stoker.cli.reference docs`."""
    assert (DOCS / PAGE).read_text(encoding="utf-8") == reference_markdown()


def test_every_command_has_its_part() -> None:
    page = reference_markdown()
    assert [name for name in COMMANDS if f"\n### stoker {name}\n" not in page] == []
