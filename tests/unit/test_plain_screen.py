"""The screen that is a file or a pipe: log lines on it, messages beside it."""

from __future__ import annotations

import io

import pytest

from stoker.read.format import ago
from stoker.read.screens import PlainScreen


class Buffered(io.StringIO):
    """Counts how often it is flushed."""

    flushes = 0

    def flush(self) -> None:
        self.flushes += 1


def test_messages_are_on_stderr_after_the_lines_before_them(capsys: pytest.CaptureFixture[str]) -> None:
    out = Buffered()
    screen = PlainScreen(out, prefix=False)
    screen.event("attempt 1 \x1b[2Jhas its machine")
    assert out.flushes == 1, "lines that were printed before come first"
    assert (out.getvalue(), capsys.readouterr()) == ("", ("", "[stoker] attempt 1 has its machine\n"))
    screen.flush()
    assert out.flushes == 2


def test_a_moment_that_is_not_known_is_a_dash() -> None:
    assert ago(None) == "–"
