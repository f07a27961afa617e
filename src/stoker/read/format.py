"""How values look in text: times, money, sizes, counts."""

from __future__ import annotations

import math
import re
import unicodedata
from datetime import datetime, timezone

from stoker.core.costs import in_dollars

# With a remote store, nodes that train steadily send a heartbeat once a minute.
_FRESH_S = 90.0
_STYLE = re.compile(r"\x1b\[[;?0-9]*[a-zA-Z]")


def duration(seconds: float | None) -> str:
    """`0.2 s`, `42 s`, `3m 05s`, `2h 10m`, `3d 4h`; `–` where it is not known."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


def ago(moment: datetime | None, now: datetime | None = None) -> str:
    """`2m 10s ago`; `–` where it is not known."""
    if moment is None:
        return "–"
    return f"{duration(((now or datetime.now(timezone.utc)) - moment).total_seconds())} ago"


def as_of(heard_at: datetime | None, now: datetime | None = None) -> str:
    """`as of 2m 10s ago`: the age of the values beside it. Empty where they are as fresh as they can be."""
    now = now or datetime.now(timezone.utc)
    if heard_at is None or (now - heard_at).total_seconds() < _FRESH_S:
        return ""
    return f"as of {ago(heard_at, now)}"


def dollars(amount: float | None) -> str:
    """`$1.20`; `–` where it is not known."""
    return "–" if amount is None else in_dollars(amount)


def number(value: float) -> str:
    """A metric's value in four digits."""
    return f"{value:.4g}"


def one_line(text: str, most: int) -> str:
    """The text on one line, cut to `most` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"


def width(text: str) -> int:
    """The number of terminal columns that the text takes; its colours take none."""
    plain = _STYLE.sub("", text)
    if plain.isascii():
        return len(plain)
    return sum(map(_columns, plain))


def cut(text: str, columns: int) -> str:
    """The beginning of a plain text that fits into so many columns."""
    taken = 0
    for place, char in enumerate(text):
        taken += _columns(char)
        if taken > columns:
            return text[:place]
    return text


def _columns(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
