"""Keep commands from writing anything to a terminal that steers it."""

from __future__ import annotations

import re
from typing import Any, TextIO, cast

from stoker.read.safe_text import ESCAPE

# Colours, cursor movement and erasing; and hiding the cursor, which Stoker itself does while a progress bar moves.
_ALLOWED = re.compile(r"\x1b\[[0-9;]*[mA-HJK]|\x1b\[\?25[hl]|\r")


class SafeTerminal:
    """A terminal that passes only text, colours and cursor movement on.

    Every command removes the rest from text that is not its own before it prints it. This is the second line of
    defence, for a command that forgets.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(ESCAPE.sub(lambda found: found[0] if _ALLOWED.fullmatch(found[0]) else "", text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard(stream: TextIO) -> TextIO:
    """The stream itself, or a guarded one where it is a terminal."""
    if stream is None or not stream.isatty():
        return stream
    guarded: Any = SafeTerminal(stream)
    return cast("TextIO", guarded)
