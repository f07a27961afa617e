"""Format time spans for people, the same in every message. Pure."""

from __future__ import annotations

import math

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
# Below these the smaller unit is easier to read: `90 s`, `72 h`.
_MOST_SECONDS_S = 2 * _MINUTE_S
_MOST_HOURS_S = 4 * _DAY_S


def span_text(seconds: float) -> str:
    """`10 s`, `2 min 30 s`, `1 h 30 min`, `72 h`, `14 d`: two units at most."""
    if not math.isfinite(seconds) or seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < _MOST_SECONDS_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return _two(whole, _MINUTE_S, "min", 1, "s")
    if whole < _MOST_HOURS_S:
        return _two(whole, _HOUR_S, "h", _MINUTE_S, "min")
    return _two(whole, _DAY_S, "d", _HOUR_S, "h")


def _two(whole: int, large_s: int, large: str, small_s: int, small: str) -> str:
    count, left = divmod(whole, large_s)
    rest = left // small_s
    return f"{count} {large} {rest} {small}" if rest else f"{count} {large}"
