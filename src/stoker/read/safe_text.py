"""Keep text of jobs, machines and clouds from steering a terminal, or from reading otherwise than it is written."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from typing import TypeVar, cast

T = TypeVar("T")

# String sequences (titles, the clipboard, device answers), control sequences, other escapes, bare control characters.
_STEERING = (
    r"\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-?]*[ -/]*[@-~]?|\x1b[ -~]?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
# Invisible characters that change how others are shown: soft hyphens, marks and overrides of direction, joiners, line
# separators, fillers, variants (but for those of emoji), byte order marks, annotations, tags. Halves of characters
# (surrogates) cannot be printed at all.
_INVISIBLE = (
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0d"
    "\ufeff\uffa0\ufff0-\ufffb\U00013430-\U00013455\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ud800-\udfff]"
)
ESCAPE = re.compile(f"{_STEERING}|{_INVISIBLE}")
# Sequences that draw within the current line: colours, movement to the left and right, erasing in the line, carriage
# return. A progress bar needs no more. All others could change what Stoker or another node has printed: cursor up and
# down, positions, erasing the screen, scrolling, the alternate screen, titles, links, the clipboard.
DRAWING = re.compile(r"\x1b\[[0-9;:]*m|\x1b\[[0-9]*[CDGK]|\r")
# Marks that are drawn onto the character before them. No script puts more on one; hundreds would cover other lines.
_MOST_MARKS = 5
_PARTS = re.compile(f"({DRAWING.pattern})")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_RESETS = ("\x1b[m", "\x1b[0m")


def harmless(line: str) -> str:
    """A log line for a terminal: with its colours, without sequences that do more than draw in this line.

    Its colours end with it: text of others below it must stay readable.
    """
    kept = with_few_marks(ESCAPE.sub(lambda found: found[0] if DRAWING.fullmatch(found[0]) else "", line))
    colours = _COLOUR.findall(kept)
    return kept if not colours or colours[-1] in _RESETS else f"{kept}{_RESETS[1]}"


def with_few_marks(text: str) -> str:
    """The text without more combining marks on one character than any script uses."""
    if text.isascii():
        return text
    kept, marks = [], 0
    for place, part in enumerate(_PARTS.split(text)):
        if place % 2:
            kept.append(part)  # A colour between two marks does not part them.
            continue
        for char in part:
            marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
            if marks <= _MOST_MARKS:
                kept.append(char)
    return "".join(kept)


def legible(value: T) -> T:
    """Text from outside (a script's last lines, a cloud's answer) as one plain line; also inside dataclasses.

    Without what would steer a terminal, and without line breaks: a second line could pass for Stoker's own. For output
    to people only: Stoker adds its own colours afterwards.
    """
    if isinstance(value, str):
        return cast("T", with_few_marks(ESCAPE.sub("", value)).replace("\n", " "))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: legible(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return cast("T", dataclasses.replace(value, **parts))
    if isinstance(value, tuple):
        return cast("T", tuple(legible(part) for part in value))
    if isinstance(value, dict):
        return cast("T", {legible(key): legible(part) for key, part in value.items()})
    return value
