"""Keep text of jobs, machines and clouds from steering a terminal, or from reading otherwise than it is written."""

from __future__ import annotations

import re
from typing import Any, TextIO, cast

# String sequences (titles, the clipboard, device answers), control sequences, other escapes, bare control characters.
_STEERING = (
    r"\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-?]*[ -/]*[@-~]?|\x1b[ -~]?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
# Characters that are not seen and change what is: soft hyphens, marks and overrides of direction, joiners, line
# separators, fillers, variants (but for those of emoji), byte order marks, annotations, tags. Halves of characters
# cannot be printed at all.
_INVISIBLE = (
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d"
    "\ufeff\uffa0\ufff0-\ufffb\U00013430-\U00013455\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ud800-\udfff]"
)
ESCAPE = re.compile(f"{_STEERING}|{_INVISIBLE}")
# Colours, moving about and erasing: what a progress bar needs, and nothing that a terminal would answer to.
_DRAWING = re.compile(r"\x1b\[[0-9;]*[mA-HJK]|\r")
# Beside these, Stoker itself hides the cursor while a bar moves.
_OWN = re.compile(r"\x1b\[[0-9;]*[mA-HJK]|\x1b\[\?25[hl]|\r")


def harmless(line: str) -> str:
    """A line of a log for a terminal: with its colours, without what could do more than draw."""
    return ESCAPE.sub(lambda found: found[0] if _DRAWING.fullmatch(found[0]) else "", line)


class SafeTerminal:
    """A terminal that takes nothing but text, colours and moves of the cursor, whatever command writes to it.

    Commands remove the rest from what is not theirs where they print it. This is for the one that forgets.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(ESCAPE.sub(lambda found: found[0] if _OWN.fullmatch(found[0]) else "", text))
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
