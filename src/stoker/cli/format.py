"""Print tables, JSON and messages. Click drops the colours where there is no terminal."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from stoker.read.format import width

if TYPE_CHECKING:
    from stoker.governor.background import GovernorChoice

PHASE_COLOURS = {
    "queued": "yellow",
    "launching": "yellow",
    "running": "cyan",
    "stopping": "yellow",
    "succeeded": "green",
    "failed": "red",
    "stopped": "magenta",
}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows in columns, each as wide as its widest cell. Cells may be coloured."""
    lines = [[click.style(cell, dim=True) if cell else "" for cell in header], *rows] if header else list(rows)
    if not lines:
        return ""
    widths = [max(width(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell + " " * (widths[column] - width(cell)) for column, cell in enumerate(line)).rstrip()
        for line in lines
    )


def phase(name: str) -> str:
    """The phase of a job in its colour."""
    return click.style(name, fg=PHASE_COLOURS.get(name))


def clock(moment: datetime, now: datetime | None = None) -> str:
    """The time of day in the reader's time zone, with the date unless it is today's."""
    local, today = moment.astimezone(), (now or datetime.now(timezone.utc)).astimezone()
    return local.strftime("%H:%M:%S" if local.date() == today.date() else "%Y-%m-%d %H:%M:%S")


def counted(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(count: int) -> str:
    """`512 B`, `1.2 kB`, `3.4 GB`."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def price_source(source: str) -> str:
    """The source of a price, without the details in brackets, which --json and `stoker prices` show."""
    return source.partition(" (")[0]


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def to_json(value: Any) -> Any:
    """Like `codec.dump`, but with every field: an unknown value is null."""
    from stoker.model import codec

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_json(part) for part in value]
    if isinstance(value, dict):
        return {str(key): to_json(part) for key, part in value.items()}
    return codec.dump(value)


def say(text: str = "") -> None:
    """Print a message to stderr, so that stdout holds nothing but the requested output.

    Where the reader of stderr is gone, the message is dropped: it ends no command halfway.
    """
    try:
        click.echo(text, err=True)
    except BrokenPipeError:
        discard_lost_output()


def discard_lost_output() -> None:
    """Redirect streams that cannot be written any more to /dev/null: a closed terminal or pipe, a full disk.

    Python would fail again when it flushes at exit.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            with suppress(OSError, ValueError, AttributeError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def report_governor(governed: GovernorChoice) -> None:
    """Print that no governor runs, or why this computer governs instead of the deployed governor, or what the governor
    cannot do."""
    if not governed.is_governed:
        warn(governed.problem or "no governor runs")
    elif governed.problem is not None:
        say(governed.problem)
    if governed.warning is not None:
        warn(governed.warning)


def warn(text: str) -> None:
    """Print a warning to stderr."""
    say(click.style(f"warning: {text}", fg="yellow"))
