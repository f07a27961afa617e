"""Lists of names in messages. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def first_names(names: Iterable[str], most: int = 3) -> str:
    """Name the first few, so that a message stays one line however many there are: `a, b, c and 4 more`."""
    known = list(names)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more
