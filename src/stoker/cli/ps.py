"""`stoker ps`: active jobs and those that ended last, from the index alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import click

from stoker.cli.completers import complete_name, complete_phase, complete_tag
from stoker.cli.options import json_option, opened_store, store_option

if TYPE_CHECKING:
    from stoker.core.summary import Summary
    from stoker.read.job_list import Filter
    from stoker.store.base import Store

RECENT = 20
# Governors pass every 15 seconds at the slowest.
UNGOVERNED_AFTER = timedelta(minutes=5)
# How often `--watch` looks again.
_WATCH_NEAR_S, _WATCH_FAR_S = 1.0, 5.0


@click.command("ps")
@click.option("--all", "everything", is_flag=True, help=f"Every ended job, not only the last {RECENT}.")
@click.option(
    "--phase", "phases", multiple=True, metavar="PHASE", shell_complete=complete_phase, help="Only jobs in this phase."
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_name,
    help="Only jobs of this name or id, or of names that fit a pattern such as 'gpt*'.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="NAME=VALUE",
    shell_complete=complete_tag,
    help="Only jobs with this tag, such as team=nlp; NAME alone for any value.",
)
@click.option("--watch", is_flag=True, help="Show the list again and again until Ctrl-C.")
@json_option
@store_option
def command(
    everything: bool,
    phases: tuple[str, ...],
    names: tuple[str, ...],
    tags: tuple[str, ...],
    watch: bool,
    as_json: bool,
) -> None:
    """List active jobs and the latest that ended, newest first."""
    from stoker.read.job_list import Filter

    wanted = Filter(phases, names, tags)
    wanted.check()
    store = opened_store()
    if watch:
        _watch(store, None if everything else RECENT, wanted, as_json=as_json)
        return
    view = _look(store, None if everything else RECENT, wanted)
    _warn_unread(view)
    click.echo(_json(view) if as_json else "\n".join(view.lines()))


@dataclass(frozen=True)
class View:
    """The list at one moment."""

    store: Store
    active: frozenset[str]
    shown: tuple[Summary, ...]
    passed: datetime | None
    unread: dict[str, str]
    filtered: bool

    def lines(self) -> list[str]:
        # An ended job keeps its marker until none of its machines can show up any more.
        ended = {summary.id for summary in self.shown if summary.ended_at is not None}
        counted = self.active & {summary.id for summary in self.shown} if self.filtered else self.active
        found = _governor_lines(self.passed, len(counted - ended), len(counted & ended))
        found += _channel_lines(self.store, governed=not _is_long_ago(self.passed))
        if not (self.shown or self.active or self.filtered):
            return [*found[1:], "no jobs yet; `stoker run` starts one"]
        if self.shown:
            return [*found, *_table(list(self.shown), set(self.active)).splitlines()]
        return [*found, "no job fits" if self.filtered else "no job can be read"]

    @property
    def gist(self) -> object:
        """What makes it worth to be shown again where nothing can be drawn over."""
        return [(each.id, each.phase, len(each.attempts), each.step, each.reason) for each in self.shown]


def _look(store: Store, recent: int | None, wanted: Filter) -> View:
    from stoker.cli.external_jobs import recent as recent_of_others
    from stoker.governor.store_clock import last_pass
    from stoker.read.job_list import ALL, list_jobs

    found = list_jobs(store, recent, wanted)
    others = [each for each in recent_of_others(store, recent) if wanted.fits(each)]
    shown = sorted([*found.summaries, *others], key=lambda summary: summary.submitted_at, reverse=True)
    return View(store, found.active, tuple(shown), last_pass(store), found.unread, wanted != ALL)


def _json(view: View, indent: int | None = 2) -> str:
    import json

    from stoker.cli.format import whole

    return json.dumps([whole(summary) for summary in view.shown], indent=indent, ensure_ascii=False)


def _warn_unread(view: View) -> None:
    from stoker.cli.format import warn

    for job, why in sorted(view.unread.items()):
        warn(f"{job} cannot be read: {why}; `stoker rm {job}` removes it, once it has no machines")


def _watch(store: Store, recent: int | None, wanted: Filter, *, as_json: bool) -> None:
    """Redraw on a terminal; elsewhere print again what has changed. JSON is one list in a line each time."""
    import sys
    import time

    from stoker.model.errors import StoreUnavailable

    drawn = sys.stdout.isatty() and not as_json
    last: object = None
    try:
        while True:
            try:
                view = _look(store, recent, wanted)
                lines, gist = [_json(view, indent=None)] if as_json else view.lines(), view.gist
            except StoreUnavailable as error:
                lines, gist = [] if as_json else [f"the store does not answer: {error}"], str(error)
            if drawn:
                click.echo(_drawn(lines), nl=False, color=True)
            elif gist != last and lines:
                click.echo("\n".join(lines if last is None or as_json else ["", *lines]))
            last = gist
            time.sleep(_WATCH_NEAR_S if store.near else _WATCH_FAR_S)
    except KeyboardInterrupt:
        if drawn:
            click.echo()


def _drawn(lines: list[str]) -> str:
    """The screen, from its top: what fits, and how much does not."""
    import shutil

    wide, high = shutil.get_terminal_size()
    room = max(high - 2, 1)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"… and {len(lines) - room + 1} more"]
    # Long notes must not wrap: each line is one line of the screen.
    rows = "".join(f"{_cropped(line, wide)}\x1b[K\n" for line in lines)
    return f"\x1b[H{rows}\x1b[J"


def _cropped(line: str, wide: int) -> str:
    from stoker.cli.format import width

    if width(line) <= wide:
        return line
    plain = click.unstyle(line)[: max(wide - 1, 0)]
    # Some characters take two columns.
    while width(plain) > wide - 1 and plain:
        plain = plain[:-1]
    return f"{plain}…"


def _governor_lines(passed: datetime | None, active: int, watched: int) -> list[str]:
    from stoker.cli.format import ago, counted

    now = datetime.now(timezone.utc)
    told = "no governor has looked yet" if passed is None else f"a governor last looked {ago(passed, now)}"
    whose = "its" if watched == 1 else "their"
    also = f" ({counted(watched, 'ended job')} watched until {whose} machines are surely gone)" if watched else ""
    found = [click.style(f"{counted(active, 'active job')}{also}; {told}", dim=True)]
    if active + watched and _is_long_ago(passed):
        what = "no governor looks after these jobs, so no machine is launched or replaced"
        found.append(click.style(f"{what}; run `stoker govern --watch`, on any computer", fg="yellow"))
    return found


def _is_long_ago(passed: datetime | None) -> bool:
    return passed is None or datetime.now(timezone.utc) - passed > UNGOVERNED_AFTER


def _channel_lines(store: Store, *, governed: bool) -> list[str]:
    """What nobody can be told, since no message would tell that."""
    from stoker.cli.format import legible
    from stoker.model.errors import StoreError
    from stoker.notifications.outbox_store import troubles

    try:
        found = troubles(store, datetime.now(timezone.utc), governed=governed)
    except StoreError:
        return []  # The jobs are what was asked for.
    return [click.style(legible(f"notify {name}: {text}"), fg="yellow") for name, text in found.items()]


# What a node does before and after its training, in plain words; the first that fits any node of the attempt is told.
_DOING = {
    "booting": "its machine boots",
    "setup": "fetches code and inputs, runs `setup`",
    "waiting": "is ready, and waits until the attempt before it has left",
    "restoring": "fetches the checkpoint to go on from",
    "saving": "saves, and leaves",
    "flushing": "sends what is left to the store, and leaves",
}


def note(summary: Summary, active: set[str], now: datetime) -> str:
    """Why it is where it is; first of all, that its machine is still paid for."""
    from stoker.cli.format import as_of, clock, dollars

    held = summary.held
    # The record of a job is not written again when a hold is over: its marker, and the time, tell that.
    if held is not None and summary.id in active and now < held.until:
        price = "a price that is not known" if held.price is None else f"{dollars(held.price)}/h"
        return _cut(f"its machine is held until {clock(held.until)} at {price}; {summary.reason}", 80)
    warning = f"warning: {summary.warnings[0]}" if summary.warnings and summary.ended_at is None else ""
    told = _cut(summary.reason or warning or _doing(summary), 60)
    return "; ".join(part for part in (told, as_of(summary.heard_at, now)) if part)


def _cut(text: str, most: int) -> str:
    """One line that a terminal has room for; all of it where a program or a file reads it."""
    import sys

    from stoker.cli.format import one_line

    return one_line(text, most if sys.stdout.isatty() else len(text))


def _doing(summary: Summary) -> str:
    """What it does at this moment, as far as that is not plain from its phase."""
    if summary.ended_at is not None:
        return ""
    if summary.phase == "queued":
        return "waits for a governor"
    attempt = summary.attempts[-1] if summary.attempts else None
    if attempt is None or attempt.outcome is not None:
        return "asks for machines" if summary.phase == "launching" else ""
    phases = {node.phase or "booting" for node in attempt.nodes}
    return next((text for phase, text in _DOING.items() if phase in phases), "")


def _table(summaries: list[Summary], active: set[str]) -> str:
    from stoker.cli.format import ago, dollars, duration, legible, phase, table

    now = datetime.now(timezone.utc)
    rows = [
        [
            summary.id,
            phase(summary.phase),
            str(len(summary.attempts)),
            "–" if summary.step is None else str(summary.step),
            duration(summary.trained_s),
            dollars(summary.cost) if summary.priced else "–",
            ago(summary.submitted_at, now),
            legible(note(summary, active, now)),
        ]
        for summary in summaries
    ]
    return table(("JOB", "PHASE", "ATTEMPTS", "STEP", "TRAINED", "COST", "SUBMITTED", "NOTE"), rows)
