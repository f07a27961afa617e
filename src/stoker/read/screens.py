"""The screens on which a job is followed: its log, messages of Stoker, and on a terminal a status in the last line."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Protocol, TextIO

from stoker.read.format import cut, width
from stoker.read.logs import LogLine
from stoker.read.progress_rows import ProgressRows
from stoker.read.safe_text import harmless, legible

_CLEAR = "\r\x1b[K"
# The least columns that a progress bar leaves to the status.
_LEAST_ROOM = 40


class Screen(Protocol):
    """Where a followed job is shown."""

    @property
    def shows_status(self) -> bool:
        """True if `status` is shown; otherwise it is not even read."""

    @property
    def room(self) -> int:
        """The number of columns for the status."""

    def line(self, line: LogLine) -> None:
        """Show a line of the log."""

    def event(self, text: str) -> None:
        """Show a message of Stoker itself."""

    def status(self, text: str) -> None:
        """Show the status below the lines."""

    def clear(self) -> None:
        """Remove the status."""

    def flush(self) -> None: ...


class PlainScreen:
    """Log lines on one stream, messages on stderr, and no status."""

    shows_status = False
    room = 0

    def __init__(self, out: TextIO, *, prefix: bool) -> None:
        """`prefix` puts the node's rank before each line."""
        self.out = out
        self._prefix = prefix
        # A file gets the log to the byte; a terminal would obey control sequences in it.
        self._is_terminal = out.isatty()
        self._rows = ProgressRows()

    def line(self, line: LogLine) -> None:
        self._show(self._rows.flatten(line) if self._is_terminal else line)

    def _show(self, line: LogLine) -> None:
        prefix = f"[{line.rank}] " if self._prefix else ""
        text = harmless(line.text) if self._is_terminal else line.text
        # A line without an end would run into the status, or into the next node's line.
        self.out.write(f"{prefix}{text}{line.end or chr(10)}")

    def event(self, text: str) -> None:
        self.out.flush()
        print(f"[stoker] {legible(text)}", file=sys.stderr, flush=True)

    def status(self, text: str) -> None:
        pass

    def clear(self) -> None:
        pass

    def flush(self) -> None:
        self.out.flush()


class TerminalScreen(PlainScreen):
    """Log lines with a status below them where the screen is live; elsewhere there is no status, and no colour."""

    def __init__(self, out: TextIO, *, prefix: bool, live: bool) -> None:
        super().__init__(out, prefix=prefix)
        self.shows_status = live
        # The text in the last line now.
        self._shown = ""
        # The last line that ended with a carriage return: a progress bar, shown with the status.
        self._bar = ""

    def _show(self, line: LogLine) -> None:
        if self.shows_status and line.end == "\r":
            # An empty text erases nothing: the cursor only goes back to the beginning of the bar.
            self._bar = legible(line.text).strip() if line.text else self._bar
            return
        self._bar = ""
        self.clear()
        super()._show(line)

    def event(self, text: str) -> None:
        self.clear()
        self.out.flush()
        print(_dim(f"[stoker] {legible(text)}"), file=sys.stderr, flush=True)

    @property
    def room(self) -> int:  # type: ignore[override]
        """The number of columns for the status."""
        columns = _columns()
        return max(columns - width(self._bar) - 3, min(columns, _LEAST_ROOM)) if self._bar else columns

    def status(self, text: str) -> None:
        flat = f"{text} │ {self._bar}" if self._bar else text
        if not self.shows_status or flat == self._shown:
            return
        sys.stderr.write(_CLEAR + _dim(cut(flat, _columns())))
        sys.stderr.flush()
        self._shown = flat

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._shown = ""


def _columns() -> int:
    """All columns but the last, in which a terminal would begin another line."""
    return shutil.get_terminal_size().columns - 1


def _dim(text: str) -> str:
    """The text in a faint colour, where stderr is a terminal that shows colours."""
    plain = os.environ.get("NO_COLOR") or not sys.stderr.isatty()
    return text if plain else f"\x1b[2m{text}\x1b[0m"
