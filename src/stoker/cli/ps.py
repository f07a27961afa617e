"""`stoker ps`: active jobs and those that ended last, from the index alone."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import click

from stoker.cli.options import json_option, opened_store, store_option

if TYPE_CHECKING:
    from stoker.store import Meta, Store
    from stoker.summary import Summary

RECENT = 20
# Governors pass every 15 seconds at the slowest.
UNGOVERNED_AFTER = timedelta(minutes=5)


@click.command("ps")
@click.option("--all", "everything", is_flag=True, help=f"Every ended job, not only the last {RECENT}.")
@click.option("--phase", "phases", multiple=True, metavar="PHASE", help="Only jobs in this phase.")
@json_option
@store_option
def command(everything: bool, phases: tuple[str, ...], as_json: bool) -> None:
    """List active jobs and the latest that ended, newest first."""
    from stoker.cli.foreign import recent
    from stoker.cli.printing import print_json, warn, whole
    from stoker.governor.clock import last_pass

    _check_phases(phases)
    store = opened_store()
    unread: dict[str, str] = {}
    active, summaries = job_summaries(store, None if everything else RECENT, unread)
    summaries = sorted([*summaries, *recent(store, None if everything else RECENT)], key=_age, reverse=True)
    shown = [summary for summary in summaries if not phases or summary.phase in phases]
    for job, why in sorted(unread.items()):
        warn(f"{job} cannot be read: {why}; `stoker rm {job}` removes it, once it has no machines")
    if as_json:
        print_json([whole(summary) for summary in shown])
        return
    # An ended job keeps its marker until none of its machines can show up any more.
    ended = {summary.id for summary in summaries if summary.ended_at is not None}
    passed = last_pass(store)
    _print_governor(passed, len(active - ended), len(active & ended))
    _print_channels(store, governed=not _is_long_ago(passed))
    if shown:
        click.echo(_table(shown, active))
    elif not summaries:
        click.echo("no jobs yet; `stoker run` starts one")


def _age(summary: Summary) -> datetime:
    return summary.submitted_at


def job_summaries(
    store: Store, recent: int | None, unread: dict[str, str] | None = None
) -> tuple[set[str], list[Summary]]:
    """The active jobs, and the summaries of these and of the `recent` that ended last, newest first.

    Why of some there is none, is in `unread`.
    """
    from stoker import index, layout

    active = {meta.key.split("/")[1] for meta in store.list(layout.ACTIVE)}
    listed = {index.job_of(meta): meta for meta in index.list_index(store)}
    ended = [(meta.modified, job) for job, meta in listed.items()]
    # The record of an ended job was last written at its end.
    ended = sorted((pair for pair in ended if pair[1] not in active), reverse=True)[:recent]
    lost: dict[str, str] = {} if unread is None else unread
    found = [_summary(store, job, listed.get(job), lost) for job in (*active, *(job for _, job in ended))]
    summaries = [summary for summary in found if summary is not None]
    return active, sorted(summaries, key=lambda summary: summary.submitted_at, reverse=True)


def _summary(store: Store, job: str, listed: Meta | None, unread: dict[str, str]) -> Summary | None:
    from stoker import index, log
    from stoker.errors import StoreDenied, StoreError, StoreUnavailable
    from stoker.summary import summarize

    found = index.read_summary(store, job, listed)
    if found is not None:
        return found
    # Not indexed yet: submitted moments ago.
    try:
        state = log.read(store, job)
        if state is None:
            return None
        return summarize(state, index.read_submission(store, state), {}, datetime.now(timezone.utc))
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError as error:
        unread[job] = str(error)
        return None


def _check_phases(phases: tuple[str, ...]) -> None:
    from typing import get_args

    from stoker.errors import UserError
    from stoker.model import Phase

    known = get_args(Phase)
    for phase in phases:
        if phase not in known:
            raise UserError(f"--phase {phase}: there is no such phase; choose one of: {', '.join(known)}")


def _print_governor(passed: datetime | None, active: int, watched: int) -> None:
    from stoker.cli.printing import ago, counted

    now = datetime.now(timezone.utc)
    told = "no governor has looked yet" if passed is None else f"a governor last looked {ago(passed, now)}"
    whose = "its" if watched == 1 else "their"
    also = f" ({counted(watched, 'ended job')} watched until {whose} machines are surely gone)" if watched else ""
    click.secho(f"{counted(active, 'active job')}{also}; {told}", dim=True)
    if active + watched and _is_long_ago(passed):
        what = "nobody governs these jobs: until somebody does, no machine is launched or replaced"
        click.secho(f"{what}; `stoker govern --watch` does it, on any computer", fg="yellow")


def _is_long_ago(passed: datetime | None) -> bool:
    return passed is None or datetime.now(timezone.utc) - passed > UNGOVERNED_AFTER


def _print_channels(store: Store, *, governed: bool) -> None:
    """What nobody can be told, since no message would tell that."""
    from stoker.cli.printing import legible
    from stoker.errors import StoreError
    from stoker.governor.mailbox import troubles

    try:
        for name, text in troubles(store, datetime.now(timezone.utc), governed=governed).items():
            click.secho(legible(f"notify {name}: {text}"), fg="yellow")
    except StoreError:
        pass  # The jobs are what was asked for.


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
    from stoker.cli.printing import as_of, clock, dollars

    held = summary.held
    # The record of a job is not written again when a hold is over: its marker, and the time, tell that.
    if held is not None and summary.id in active and now < held.until:
        price = "a price that is not known" if held.price is None else f"{dollars(held.price)}/h"
        return _cut(f"its machine is held until {clock(held.until)} at {price}; {summary.reason}", 80)
    told = _cut(summary.reason or _doing(summary), 60)
    return "; ".join(part for part in (told, as_of(summary.heard_at, now)) if part)


def _cut(text: str, most: int) -> str:
    """One line that a terminal has room for; all of it where a program or a file reads it."""
    import sys

    from stoker.cli.printing import one_line

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
    from stoker.cli.printing import ago, dollars, duration, legible, phase, table

    now = datetime.now(timezone.utc)
    rows = [
        [
            summary.id,
            phase(summary.phase),
            str(len(summary.attempts)),
            "–" if summary.step is None else str(summary.step),
            duration(summary.trained_s),
            dollars(summary.cost),
            ago(summary.submitted_at, now),
            legible(note(summary, active, now)),
        ]
        for summary in summaries
    ]
    return table(("JOB", "PHASE", "ATTEMPTS", "STEP", "TRAINED", "COST", "SUBMITTED", "NOTE"), rows)
