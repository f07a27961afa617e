"""`stoker costs`."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.completers import complete_grouping
from stoker.cli.options import NamedPath, json_option, opened_store, store_option

if TYPE_CHECKING:
    from stoker.read.costs import Amount, CostReport, CostRow
    from stoker.store.base import Store

_TITLES = ("SPENT", "ON-DEMAND", "SAVED", "IDLE", "LOST", "START-UP", "WAITING")


@click.command("costs")
@click.option(
    "--by",
    metavar="WHAT",
    shell_complete=complete_grouping,
    default="day",
    show_default=True,
    help="Group by day, job, provider, machine, the values of a tag (NAME or tags.NAME), or of several (team,project).",
)
@click.option(
    "--since",
    metavar="WHEN",
    default="30d",
    show_default=True,
    help="Count only costs since then: 7d, a date (in UTC), or all.",
)
@click.option(
    "--csv",
    "csv_file",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    type=NamedPath(dir_okay=False, allow_dash=True, path_type=Path),
    help="Write the rows as a table for spreadsheets, to FILE or to stdout.",
)
@json_option
@store_option
def command(by: str, since: str, csv_file: Path | None, as_json: bool) -> None:
    """Show what jobs cost, what they saved against on-demand, and what was wasted.

    IDLE: all accelerators were idle during the training. LOST: training after the last checkpoint that the next attempt
    could continue from. START-UP: machines that were there but did not train: boot, set-up, restoring, last uploads.
    WAITING: a replacement that was ready, until the previous attempt had left.
    """
    from stoker.cli.format import counted, print_json, say, warn
    from stoker.model.errors import UserError
    from stoker.read.cost_records import read_accounts
    from stoker.read.costs import report, whole_days
    from stoker.store.base import place_text

    if as_json and csv_file is not None:
        raise UserError("--csv and --json: give one of them")
    _check_grouping(by)
    now = datetime.now(timezone.utc)
    start, store = _since(since, now), opened_store()
    accounts = read_accounts(store, now, start)
    standings, unknown = _budgets(store, now)
    found = report(accounts.records, accounts.removed, by, now, start)
    whole = whole_days(accounts.removed, start)
    if as_json:
        print_json(
            {
                "by": by,
                "since": start.isoformat() if start else None,
                "rows": [_row_fields(row) for row in found.rows],
                "total": _row_fields(found.total),
                "unreadable": list(accounts.unreadable),
                # Removed jobs that count with the whole first day, although the span begins later that day.
                "whole_day": whole,
                # Their state now, whatever the span; null where it is unknown.
                "budgets": None if unknown else standings,
            }
        )
        return
    for job in accounts.unreadable:
        warn(f"{job} cannot be read, and is not counted; `stoker reindex` shows why")
    for line in _unused_tags(found, by):
        say(line)
    if csv_file is not None:
        _write_csv(found, by, csv_file)
        return
    if found.rows:
        click.echo(_table(found, by))
    else:
        say(f"nothing was spent in {place_text(store)}" + (f" since {start:%Y-%m-%d %H:%M} UTC" if start else ""))
    for standing in standings:
        click.echo(_budget_line(standing))
    if unknown:
        warn(f"the state of the budgets is not known: {unknown}")
    if not found.rows:
        return
    if whole and start is not None:
        jobs = counted(len(whole), "removed job")
        say(f"{jobs} counted with all of {start:%Y-%m-%d}: costs of removed jobs are recorded by the day")
    if not found.total.spent.known and not any(record.summary.priced for record in accounts.records):
        say("no price is set for the machines of these jobs")
    if not all(getattr(found.total, name).complete for name in _names()):
        say("≥: a part is unknown; –: all of it is unknown")


def _check_grouping(by: str) -> None:
    """Raise UserError for several names of which one is no tag."""
    from stoker.model.errors import UserError
    from stoker.read.costs import KINDS

    kind = next((part for part in by.split(",") if part.strip() in KINDS), None) if "," in by else None
    if kind is not None:
        raise UserError(f"--by {by}: several names are tags, and {kind} stands alone; the tag is tags.{kind.strip()}")


def _unused_tags(found: CostReport, by: str) -> list[str]:
    """A line for each tag of `--by` that no job has."""
    from stoker.read.costs import KINDS, NONE, tags_of

    tags = [] if by in KINDS or not found.rows else tags_of(by)
    return [
        f"--by {by}: no job has a tag {'of that name' if len(tags) == 1 else tag}{_meant(by)}"
        for number, tag in enumerate(tags)
        if all(row.parts[number] == NONE for row in found.rows)
    ]


def _write_csv(found: CostReport, by: str, path: Path) -> None:
    """Write the rows to a file, or to stdout for `-`. Raises UserError where the file cannot be written."""
    from stoker.cli.format import counted, say
    from stoker.model.errors import UserError
    from stoker.read.costs import write_csv

    if str(path) == "-":
        write_csv(sys.stdout, found, by)
        return
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            say(f"{counted(write_csv(file, found, by), 'row')} in {path}")
    except OSError as error:
        raise UserError(f"--csv {path}: cannot be written: {error.strerror}") from None


def _meant(by: str) -> str:
    from difflib import get_close_matches

    from stoker.read.costs import KINDS

    close = get_close_matches(by, KINDS, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _budgets(store: Store, now: datetime) -> tuple[list[dict[str, Any]], str]:
    """The budgets of the policy in their present periods; and why they are unknown, where they are.

    Of a budget for each value of a tag, the values with spending or running jobs.
    """
    from stoker.core.budget_state import BudgetStatus, period_of
    from stoker.core.tag_groups import NO_VALUE, values_of_group
    from stoker.model.errors import SpecError
    from stoker.model.observed import Known
    from stoker.submit.policy_check import read_budget_state, read_policy

    try:
        policy = read_policy(store)
    except SpecError as error:
        return [], str(error)
    rules = policy.about("budget")
    books = read_budget_state(store, policy, now) if rules else None
    if books is None or not isinstance(books, Known):
        return [], "" if books is None else books.error
    found = []
    for rule in rules:
        assert rule.budget is not None
        values = sorted(value for name, value in books.value.statuses if name == rule.name)
        for value in values or ([NO_VALUE] if rule.budget.by is None else []):
            standing = books.value.statuses.get((rule.name, value), BudgetStatus())
            tags = values_of_group(rule.budget.by, value)
            found.append(
                {
                    "rule": rule.name,
                    # Both are lists where several tags make the groups.
                    "by": rule.budget.by,
                    "value": _values(rule.budget.by, tags),
                    "spent": standing.spent,
                    "reserved": standing.set_aside,
                    "left": standing.left_of(rule.budget),
                    "forecast": standing.forecast,
                    "dollars": rule.budget.dollars,
                    "period": rule.budget.period,
                    "until": period_of(rule.budget, now).end.isoformat(),
                    "incomplete": bool(standing.unpriced) or books.value.unreadable_of(rule, tags) is not None,
                }
            )
    return found, ""


def _values(by: str | tuple[str, ...] | None, tags: dict[str, str]) -> str | list[str | None] | None:
    """The values of the tags that make the groups; None where a job has no such tag."""
    if by is None or isinstance(by, str):
        return tags.get(by) if by is not None else None
    return [tags.get(name) for name in by]


def _budget_line(budget: dict[str, Any]) -> str:
    """`budget each-team, team=vision: $11.58 of $20.00 (58%), $5.00 reserved, $3.42 left, until 2026-11-17`."""
    from stoker.read.format import dollars
    from stoker.read.safe_text import legible

    by, values = budget["by"], budget["value"]
    names, found = ((by,), (values,)) if isinstance(by, str) else (by or (), values or ())
    parts = [f"{name}={value}" if value else f"jobs without {name}" for name, value in zip(names, found, strict=True)]
    whose = "".join(f", {part}" for part in parts)
    spent = f"{'≥' if budget['incomplete'] else ''}{dollars(budget['spent'])}"
    share = budget["spent"] / budget["dollars"]
    rest = f"{dollars(budget['reserved'])} reserved, {dollars(budget['left'])} left"
    if budget["spent"] < budget["dollars"] < budget["forecast"]:
        rest += f", {dollars(budget['forecast'])} by its end at this pace"
    balance = f"{spent} of {dollars(budget['dollars'])} ({share:.0%}), {rest}, until {budget['until']}"
    return legible(f"budget {budget['rule']}{whose}: {balance}")


def _since(text: str, now: datetime) -> datetime | None:
    from stoker.jobfile.value_forms import read_duration
    from stoker.model.errors import UserError

    if text == "all":
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc)
    except ValueError:
        pass
    try:
        if text.strip().replace(".", "", 1).isdigit():
            raise ValueError("no unit")  # In a job file this means seconds; here it is a mistake.
        return now - timedelta(seconds=read_duration(text))
    except (ValueError, OverflowError):
        raise UserError(f"--since {text}: expected a span such as 7d, a date such as 2026-11-01, or all") from None


def _names() -> tuple[str, ...]:
    from stoker.read.costs import AMOUNTS

    return AMOUNTS


def _row_fields(row: CostRow) -> dict[str, Any]:
    amounts: dict[str, Amount] = {name: getattr(row, name) for name in _names()}
    return {
        "name": row.name,
        "jobs": len(row.jobs),
        **{name: amount.known for name, amount in amounts.items()},
        "saved_share": row.saved_share,
        # Amounts that are a lower bound, or unknown.
        "incomplete": [name for name, amount in amounts.items() if not amount.complete],
    }


def _table(found: CostReport, by: str) -> str:
    from stoker.cli.format import table
    from stoker.read.safe_text import legible

    rows = [[legible(row.name), *_cells(row)] for row in found.rows]
    rows.append([click.style(cell, bold=True) for cell in ("total", *_cells(found.total))])
    return table((by.upper(), "JOBS", *_TITLES), rows)


def _cells(row: CostRow) -> list[str]:
    cells = [str(len(row.jobs)), *(_dollars(getattr(row, name)) for name in _names())]
    if row.saved_share is not None:
        cells[3] += f" ({row.saved_share:.0%})"
    return cells


def _dollars(amount: Amount) -> str:
    from stoker.read.format import dollars

    if amount.known is None:
        return "–"
    return dollars(amount.known) if amount.complete else f"≥{dollars(amount.known)}"
