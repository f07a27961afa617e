"""`stoker costs`."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.options import json_option, opened_store, store_option

if TYPE_CHECKING:
    from stoker.reading.costs import Amount, Report, Row

_TITLES = ("SPENT", "ON-DEMAND", "SAVED", "IDLE", "LOST", "START-UP", "WAITING")


@click.command("costs")
@click.option(
    "--by",
    metavar="WHAT",
    default="day",
    show_default=True,
    help="A row for each day, job, provider, machine, or value of the tag of this name.",
)
@click.option(
    "--since",
    metavar="WHEN",
    default="30d",
    show_default=True,
    help="Only what was spent since then: 7d, a date (in UTC), or all.",
)
@json_option
@store_option
def command(by: str, since: str, as_json: bool) -> None:
    """Show what jobs cost, what they saved against on-demand, and what was wasted.

    Idle: all accelerators did nothing during the training. Lost: trained after the last checkpoint that the next
    attempt could go on from. Start-up: before and after the training. Waiting: until the attempt before it had left.
    """
    from stoker.cli.printing import counted, print_json, say, warn
    from stoker.reading.accounts import read_accounts
    from stoker.reading.costs import report, whole_days

    now = datetime.now(timezone.utc)
    start = _since(since, now)
    accounts = read_accounts(opened_store(), now, start)
    found = report(accounts.records, accounts.removed, by, now, start)
    whole = whole_days(accounts.removed, start)
    if as_json:
        print_json(
            {
                "by": by,
                "since": start.isoformat() if start else None,
                "rows": [_told(row) for row in found.rows],
                "total": _told(found.total),
                "unread": list(accounts.unread),
                # Removed jobs that are counted with all of the first day, though the span begins later on it.
                "whole_day": whole,
            }
        )
        return
    for job in accounts.unread:
        warn(f"{job} cannot be read, and is not counted; `stoker reindex` tells why")
    if not found.rows:
        say("nothing was spent" + (f" since {start:%Y-%m-%d %H:%M} UTC" if start else ""))
        return
    click.echo(_table(found, by))
    if whole and start is not None:
        told = f"of {counted(len(whole), 'removed job')} all of {start:%Y-%m-%d} is counted"
        say(f"{told}: what they spent is kept by the day")
    if not all(getattr(found.total, name).complete for name in _names()):
        say("≥: some of it is not known; –: nothing of it is")


def _since(text: str, now: datetime) -> datetime | None:
    from stoker.errors import UserError
    from stoker.jobfile.forms import read_duration

    if text == "all":
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc)
    except ValueError:
        pass
    try:
        return now - timedelta(seconds=read_duration(text))
    except (ValueError, OverflowError):
        raise UserError(f"--since {text}: expected a span such as 7d, a date such as 2026-11-01, or all") from None


def _names() -> tuple[str, ...]:
    from stoker.reading.costs import AMOUNTS

    return AMOUNTS


def _told(row: Row) -> dict[str, Any]:
    amounts: dict[str, Amount] = {name: getattr(row, name) for name in _names()}
    return {
        "name": row.name,
        "jobs": len(row.jobs),
        **{name: amount.known for name, amount in amounts.items()},
        "saved_share": row.saved_share,
        # What is more than it says, or not known at all.
        "incomplete": [name for name, amount in amounts.items() if not amount.complete],
    }


def _table(found: Report, by: str) -> str:
    from stoker.cli.printing import legible, table

    rows = [[legible(row.name), *_cells(row)] for row in found.rows]
    rows.append([click.style(cell, bold=True) for cell in ("total", *_cells(found.total))])
    return table((by.upper(), "JOBS", *_TITLES), rows)


def _cells(row: Row) -> list[str]:
    cells = [str(len(row.jobs)), *(_dollars(getattr(row, name)) for name in _names())]
    if row.saved_share is not None:
        cells[3] += f" ({row.saved_share:.0%})"
    return cells


def _dollars(amount: Amount) -> str:
    from stoker.cli.printing import dollars

    if amount.known is None:
        return "–"
    return dollars(amount.known) if amount.complete else f"≥{dollars(amount.known)}"
