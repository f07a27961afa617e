"""`stoker ps`: list active jobs and those that ended last, from the index alone."""

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
# Governors pass at least every 15 seconds.
UNGOVERNED_AFTER = timedelta(minutes=5)
# How often `--watch` refreshes, with a local and with a remote store.
_WATCH_NEAR_S, _WATCH_FAR_S = 1.0, 5.0


@click.command("ps")
@click.option("--all", "everything", is_flag=True, help=f"List every ended job, not only the last {RECENT}.")
@click.option(
    "--phase", "phases", multiple=True, metavar="PHASE", shell_complete=complete_phase, help="Only jobs in this phase."
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_name,
    help="Only jobs with this name or id, or with names that match a pattern such as 'gpt*'.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="NAME=VALUE",
    shell_complete=complete_tag,
    help="Only jobs with this tag, such as team=nlp; NAME alone for any value.",
)
@click.option("--watch", is_flag=True, help="Refresh the list until Ctrl-C.")
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
    """List active jobs and those that ended last, newest first."""
    from stoker.read.job_list import Filter

    wanted = Filter(phases, names, tags)
    wanted.check("--")
    store = opened_store()
    if watch:
        _watch(store, None if everything else RECENT, wanted, as_json=as_json)
        return
    view = _read_view(store, None if everything else RECENT, wanted)
    _warn_unreadable(view)
    click.echo(_json(view) if as_json else "\n".join(view.lines()))


@dataclass(frozen=True)
class JobListView:
    """The list at one moment."""

    store: Store
    active: frozenset[str]
    shown: tuple[Summary, ...]
    passed: datetime | None
    unreadable: dict[str, str]
    filtered: bool

    def lines(self) -> list[str]:
        from stoker.store.base import place_text

        # An ended job stays marked as active until none of its machines can appear any more.
        ended = {summary.id for summary in self.shown if summary.ended_at is not None}
        counted = self.active & {summary.id for summary in self.shown} if self.filtered else self.active
        found = _governor_lines(self.passed, len(counted - ended), len(counted & ended))
        found += _channel_lines(self.store, governed=not _is_long_ago(self.passed))
        if not (self.shown or self.active or self.filtered):
            return [*found[1:], f"no jobs yet in {place_text(self.store)}; `stoker run` starts one"]
        if self.shown:
            return [*found, *_table(list(self.shown), set(self.active)).splitlines()]
        return [*found, "no job fits" if self.filtered else "no job can be read"]

    @property
    def gist(self) -> object:
        """The part of the view that, when it changes, is worth printing again where the screen cannot be redrawn."""
        return [(each.id, each.phase, len(each.attempts), each.step, each.reason) for each in self.shown]


def _read_view(store: Store, recent: int | None, wanted: Filter) -> JobListView:
    from stoker.cli.external_jobs import recent as recent_of_others
    from stoker.governor.pass_record import last_pass
    from stoker.read.job_list import ALL, list_jobs

    found = list_jobs(store, recent, wanted)
    others = [each for each in recent_of_others(store, recent) if wanted.fits(each)]
    shown = sorted([*found.summaries, *others], key=lambda summary: summary.submitted_at, reverse=True)
    return JobListView(store, found.active, tuple(shown), last_pass(store), found.unreadable, wanted != ALL)


def _json(view: JobListView, indent: int | None = 2) -> str:
    import json

    from stoker.cli.format import to_json

    return json.dumps([to_json(summary) for summary in view.shown], indent=indent, ensure_ascii=False)


def _warn_unreadable(view: JobListView) -> None:
    from stoker.cli.format import warn

    for job, why in sorted(view.unreadable.items()):
        warn(f"{job} cannot be read: {why}; `stoker rm {job}` removes it, once it has no machines")


def _watch(store: Store, recent: int | None, wanted: Filter, *, as_json: bool) -> None:
    """Redraw the list on a terminal; elsewhere print it again when it changes. JSON is one list on one line."""
    import sys
    import time

    from stoker.cli.safe_terminal import SafeTerminal
    from stoker.model.errors import StoreUnavailable

    drawn = sys.stdout.isatty() and not as_json
    last: object = None
    try:
        while True:
            try:
                view = _read_view(store, recent, wanted)
                lines, gist = [_json(view, indent=None)] if as_json else view.lines(), view.gist
            except StoreUnavailable as error:
                lines, gist = [] if as_json else [f"the store does not answer: {error}"], str(error)
            if drawn:
                SafeTerminal.of(sys.stdout).draw_page(_fitting(lines))
            elif gist != last and lines:
                click.echo("\n".join(lines if last is None or as_json else ["", *lines]))
            last = gist
            time.sleep(_WATCH_NEAR_S if store.is_local else _WATCH_FAR_S)
    except KeyboardInterrupt:
        if drawn:
            click.echo()


def _fitting(lines: list[str]) -> list[str]:
    """The lines that fit on the screen, and the number of those that do not."""
    import shutil

    wide, high = shutil.get_terminal_size()
    room = max(high - 2, 1)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"… and {len(lines) - room + 1} more"]
    # Long notes must not wrap: each line is one line of the screen.
    return [_cropped(line, wide) for line in lines]


def _cropped(line: str, wide: int) -> str:
    from stoker.read.format import width

    if width(line) <= wide:
        return line
    plain = click.unstyle(line)[: max(wide - 1, 0)]
    # Some characters take two columns.
    while width(plain) > wide - 1 and plain:
        plain = plain[:-1]
    return f"{plain}…"


def _governor_lines(passed: datetime | None, active: int, watched: int) -> list[str]:
    from stoker.cli.format import counted
    from stoker.read.format import ago

    now = datetime.now(timezone.utc)
    last_pass = "no governor has looked yet" if passed is None else f"a governor last looked {ago(passed, now)}"
    whose = "its" if watched == 1 else "their"
    also = f" ({counted(watched, 'ended job')} watched until {whose} machines are certainly gone)" if watched else ""
    found = [click.style(f"{counted(active, 'active job')}{also}; {last_pass}", dim=True)]
    if active + watched and _is_long_ago(passed):
        what = "no governor drives these jobs, so no machine is launched or replaced"
        found.append(click.style(f"{what}; run `stoker govern --watch`, on any computer", fg="yellow"))
    return found


def _is_long_ago(passed: datetime | None) -> bool:
    return passed is None or datetime.now(timezone.utc) - passed > UNGOVERNED_AFTER


def _channel_lines(store: Store, *, governed: bool) -> list[str]:
    """A line for each notification channel that fails: no notification could report that."""
    from stoker.model.errors import StoreError
    from stoker.notifications.outbox_store import channel_problems
    from stoker.read.safe_text import legible

    try:
        found = channel_problems(store, datetime.now(timezone.utc), governed=governed)
    except StoreError:
        return []  # The list of jobs matters more.
    return [click.style(legible(f"notify {name}: {text}"), fg="yellow") for name, text in found.items()]


# Activities of a node before and after its training. The first phase that a node of the attempt is in is shown.
_ACTIVITIES = {
    "booting": "its machine boots",
    "setup": "fetches code and inputs, runs `setup`",
    "waiting": "is ready, and waits until the attempt before has left",
    "restoring": "fetches the checkpoint to continue from",
    "saving": "saves, and leaves",
    "flushing": "sends the rest to the store, and leaves",
}


def note(summary: Summary, active: set[str], now: datetime) -> str:
    """The note about a job: first of all that its machine is still paid for, else why it is in its phase."""
    from stoker.cli.format import clock
    from stoker.core.saved_work import is_about_missing_checkpoint
    from stoker.read.format import as_of, dollars

    held = summary.held
    # The record of a job is not written again when a hold ends: the marker and the time show that.
    if held is not None and summary.id in active and now < held.until:
        price = "a price that is not known" if held.price is None else f"{dollars(held.price)}/h"
        return _cut(f"its machine is held until {clock(held.until)} at {price}; {summary.reason}", 80)
    ended = summary.ended_at is not None
    warnings = [each for each in summary.warnings if not ended or is_about_missing_checkpoint(each)]
    warning = f"warning: {warnings[0]}" if warnings else ""
    # Why a job failed or was stopped says more than a warning; that it finished says less.
    reason = summary.reason if summary.outcome != "succeeded" or not warning else ""
    text = _cut(reason or warning or _activity(summary), 60)
    return "; ".join(part for part in (text, as_of(summary.heard_at, now)) if part)


def _cut(text: str, most: int) -> str:
    """One line, cut on a terminal, and whole in a file or a pipe."""
    import sys

    from stoker.read.format import one_line

    return one_line(text, most if sys.stdout.isatty() else len(text))


def _activity(summary: Summary) -> str:
    """The activity of the job now, where its phase does not say it."""
    if summary.ended_at is not None:
        return ""
    if summary.phase == "queued":
        return "waits for a governor"
    attempt = summary.attempts[-1] if summary.attempts else None
    if attempt is None or attempt.outcome is not None:
        return "asks for machines" if summary.phase == "launching" else ""
    phases = {node.phase or "booting" for node in attempt.nodes}
    return next((text for phase, text in _ACTIVITIES.items() if phase in phases), "")


def _table(summaries: list[Summary], active: set[str]) -> str:
    from stoker.cli.format import phase, table
    from stoker.read.format import ago, dollars, duration
    from stoker.read.safe_text import legible

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
