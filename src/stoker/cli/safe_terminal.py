"""Keep commands from writing anything to a terminal that steers it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TextIO, cast

from stoker.read.safe_text import DRAWING, ESCAPE, with_few_marks

# Hiding the cursor, which Stoker itself does while a progress bar moves.
_CURSOR = re.compile(r"\x1b\[\?25[hl]")


class SafeTerminal:
    """A terminal that passes on only text, and what draws within a line.

    Every command removes the rest from text that is not its own before it prints it. This is the second line of
    defence, for a command that forgets.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @classmethod
    def of(cls, stream: TextIO) -> SafeTerminal:
        """The terminal behind this stream, which may be guarded already."""
        return stream if isinstance(stream, SafeTerminal) else cls(stream)

    def write(self, text: str) -> int:
        self._stream.write(_without_steering(text))
        return len(text)

    def draw_page(self, rows: Iterable[str]) -> None:
        """Draw these rows from the top of the screen, and erase the rest of it."""
        drawn = "".join(f"{_without_steering(row)}\x1b[K\n" for row in rows)
        self._stream.write(f"\x1b[H{drawn}\x1b[J")
        self._stream.flush()

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _without_steering(text: str) -> str:
    def passed(found: re.Match[str]) -> str:
        return found[0] if DRAWING.fullmatch(found[0]) or _CURSOR.fullmatch(found[0]) else ""

    return with_few_marks(ESCAPE.sub(passed, text))


def guard(stream: TextIO) -> TextIO:
    """The stream itself, or a guarded one where it is a terminal."""
    if stream is None or not stream.isatty():
        return stream
    guarded: Any = SafeTerminal.of(stream)
    return cast("TextIO", guarded)
