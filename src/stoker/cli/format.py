"""How things look: tables, times, money. Plain text; click drops the colours where there is no terminal."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stoker.cli.safe_terminal import ESCAPE

if TYPE_CHECKING:
    from stoker.governor.background import Governed

T = TypeVar("T")

PHASE_COLOURS = {
    "queued": "yellow",
    "launching": "yellow",
    "running": "cyan",
    "stopping": "yellow",
    "succeeded": "green",
    "failed": "red",
    "stopped": "magenta",
}


# Nodes that train steadily tell how they are once a minute where the store is far.
_FRESH_S = 90.0


def legible(value: T) -> T:
    """Text of others (a script's last words, a cloud's answer) without what would steer a terminal, and all in it.

    In one line: a second one could pass for Stoker's own. For what is shown to people only: Stoker's own colours come
    after this.
    """
    if isinstance(value, str):
        return cast("T", ESCAPE.sub("", value).replace("\n", " "))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: legible(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return cast("T", dataclasses.replace(value, **parts))
    if isinstance(value, tuple):
        return cast("T", tuple(legible(part) for part in value))
    if isinstance(value, dict):
        return cast("T", {legible(key): legible(part) for key, part in value.items()})
    return value


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns, each as wide as it needs. Cells may be coloured."""
    lines = [[click.style(cell, dim=True) if cell else "" for cell in header], *rows] if header else list(rows)
    if not lines:
        return ""
    widths = [max(width(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell + " " * (widths[column] - width(cell)) for column, cell in enumerate(line)).rstrip()
        for line in lines
    )


def width(text: str) -> int:
    """How many columns a terminal needs for it."""
    plain = click.unstyle(text)
    if plain.isascii():
        return len(plain)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in plain
    )


def phase(name: str) -> str:
    return click.style(name, fg=PHASE_COLOURS.get(name))


def duration(seconds: float | None) -> str:
    """`0.2 s`, `42 s`, `3m 05s`, `2h 10m`, `3d 4h`."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


def ago(moment: datetime | None, now: datetime | None = None) -> str:
    if moment is None:
        return "–"
    return f"{duration(((now or datetime.now(timezone.utc)) - moment).total_seconds())} ago"


def as_of(heard_at: datetime | None, now: datetime | None = None) -> str:
    """`as of 2m 10s ago`: how old is what stands beside it. Empty where it is as new as it ever is."""
    now = now or datetime.now(timezone.utc)
    if heard_at is None or (now - heard_at).total_seconds() < _FRESH_S:
        return ""
    return f"as of {ago(heard_at, now)}"


def dollars(amount: float | None) -> str:
    """As messages have it; `–` where it is not known."""
    from stoker.core.costs import in_dollars

    return "–" if amount is None else in_dollars(amount)


def counted(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def zone_text(zone: str | None) -> str:
    """The zone, or that the cloud chooses it."""
    return zone or "any zone"


def price_source(source: str) -> str:
    """Where a price is from, in short. The whole of it, in brackets, is for --json and `stoker prices`."""
    return source.partition(" (")[0]


def number(value: float) -> str:
    return f"{value:.4g}"


def size(count: int) -> str:
    """`512 B`, `1.2 kB`, `3.4 GB`."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def clock(moment: datetime, now: datetime | None = None) -> str:
    """The time of day where the reader is, with the date unless it is today's."""
    here, today = moment.astimezone(), (now or datetime.now(timezone.utc)).astimezone()
    return here.strftime("%H:%M:%S" if here.date() == today.date() else "%Y-%m-%d %H:%M:%S")


def one_line(text: str, most: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def whole(value: Any) -> Any:
    """Like `codec.dump`, but with every field there is: what is not known is null."""
    from stoker.model import codec

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: whole(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [whole(part) for part in value]
    if isinstance(value, dict):
        return {str(key): whole(part) for key, part in value.items()}
    return codec.dump(value)


def say(text: str = "") -> None:
    """A word of Stoker's own: on stderr, so that stdout holds what was asked for."""
    click.echo(text, err=True)


def give_up_lost_streams() -> None:
    """Send to nowhere what a stream cannot write any more: a closed terminal, a pipe without a reader, a full disk.

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


def tell_problem(governed: Governed) -> None:
    """Why a governor that is deployed does not see to it, and one on this computer does; or what it may not do."""
    if governed.problem is not None:
        say(governed.problem)
    if governed.remark is not None:
        warn(governed.remark)


def warn(text: str) -> None:
    say(click.style(f"warning: {text}", fg="yellow"))
