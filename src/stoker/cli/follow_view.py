"""The terminal on which a job is followed: its log, messages of Stoker, and a status in the last line."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

import click

from stoker.read.follow import PlainScreen
from stoker.read.logs import LogLine
from stoker.read.safe_text import legible

_CLEAR = "\r\x1b[K"
# The least columns that a progress bar leaves to the status.
_LEAST_ROOM = 40


class TerminalScreen(PlainScreen):
    """Log lines with a status below them where the screen is live; elsewhere there is no status, and no colour."""

    def __init__(self, out: TextIO, *, prefix: bool, live: bool) -> None:
        super().__init__(out, prefix=prefix)
        self.shows_status = live
        # The text in the last line now.
        self._shown = ""
        # The last line that ended with a carriage return: a progress bar, shown with the status.
        self._bar = ""

    def line(self, line: LogLine) -> None:
        if self.shows_status and line.end == "\r":
            self._bar = legible(line.text).strip()
            return
        self._bar = ""
        self.clear()
        super().line(line)

    def event(self, text: str) -> None:
        self.clear()
        self.out.flush()
        click.secho(f"[stoker] {legible(text)}", dim=True, err=True)

    @property
    def room(self) -> int:  # type: ignore[override]
        """The number of columns for the status."""
        columns = _columns()
        return max(columns - len(self._bar) - 3, min(columns, _LEAST_ROOM)) if self._bar else columns

    def status(self, text: str) -> None:
        flat = f"{text} │ {self._bar}" if self._bar else text
        if not self.shows_status or flat == self._shown:
            return
        fitting = flat[: _columns()]
        # Not through click, which cannot overwrite a line: so NO_COLOR is honoured here.
        sys.stderr.write(_CLEAR + (fitting if os.environ.get("NO_COLOR") else click.style(fitting, dim=True)))
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
