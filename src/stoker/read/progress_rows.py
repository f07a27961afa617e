"""Fit progress bars that a script draws in rows below each other into one line.

Such a script (tqdm with `position=1`, or one bar inside another) moves the cursor up to draw a row again. A followed
log has no rows of its own: above a line are other lines, of Stoker or of other nodes, which a script must not
overwrite. So the cursor stays in its line. A row that is drawn again replaces the bar that is shown; any other text
stays a line.
"""

from __future__ import annotations

import re

from stoker.read.logs import LogLine

# Cursor up and down; E and F go to the beginning of the line as well.
_VERTICAL = re.compile(r"\x1b\[([0-9]{0,3})([ABEF])")
# A bar of tqdm: `40%|████` or `[00:03<00:12`.
_BAR = re.compile(r"\d%\||\[(?:\d+:)?\d\d:\d\d[<,]")
_ERASE_REST = "\x1b[K"
# No script draws more rows. Bounds what a script can pretend.
_MOST_ROWS = 20


class ProgressRows:
    """Keeps for each node how many rows its cursor is above the lowest one."""

    def __init__(self) -> None:
        self._above: dict[tuple[int, int], int] = {}

    def flatten(self, line: LogLine) -> LogLine:
        """Return the line without movement between rows. A row that is drawn again ends with a carriage return."""
        node = (line.attempt, line.rank)
        above = self._above.get(node, 0)
        moves = _VERTICAL.findall(line.text) if "\x1b" in line.text else []
        if not above and not moves:
            return line
        for count, letter in moves:
            rows = int(count or 1) or 1
            above = max(0, min(above + (rows if letter in "AF" else -rows), _MOST_ROWS))
        line = line._replace(text=_VERTICAL.sub("", line.text))
        if above and line.end.endswith("\n"):
            # The cursor goes down to a row that is there already.
            above -= 1
            # A bar that is done stays, unless the script goes on to another row.
            done = "100%" in line.text and not moves
            if not line.text.strip() or (_BAR.search(line.text) and not done):
                # The bar before it, of another row, may have been longer.
                line = line._replace(text=f"{line.text}{_ERASE_REST}" if line.text else "", end="\r")
        self._above[node] = above
        return line
