"""How long something took, in words."""

from __future__ import annotations

import math

import pytest

from stoker.model.durations import span_text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (2.73, "2.7 s"),
        (10, "10 s"),
        (90, "90 s"),
        (150, "2 min 30 s"),
        (900, "15 min"),
        (5400, "1 h 30 min"),
        (7200.4, "2 h"),
        (72 * 3600, "72 h"),
        (14 * 86400, "14 d"),
        (5 * 86400 + 7200, "5 d 2 h"),
        (math.inf, "inf s"),
        (math.nan, "nan s"),
    ],
)
def test_two_units_at_most(seconds: float, words: str) -> None:
    assert span_text(seconds) == words
