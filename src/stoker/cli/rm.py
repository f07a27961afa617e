"""`stoker rm`."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from stoker.cli import EXIT_INTERRUPTED
from stoker.cli.completers import complete_jobs_that, has_ended
from stoker.cli.options import DURATION_WITH_UNIT, jobs_argument, named_job, opened_store, store_option, yes_option

if TYPE_CHECKING:
    from stoker.store.base import Store

_MOST_SHOWN = 5
# The most objects of a job that are listed before the question: listing more takes too long.
_MOST_COUNTED = 20_000


@click.command("rm")
@jobs_argument(required=False, complete=complete_jobs_that(has_ended))
@click.option(
    "--older-than",
    "older_s",
    type=DURATION_WITH_UNIT,
    metavar="TIME",
    help="Every job that ended longer ago, such as 30d; with JOB, only those of them.",
)
@yes_option
@store_option
def command(jobs: tuple[str, ...], older_s: float | None, yes: bool) -> None:
    """Delete ended jobs with their logs, checkpoints and outputs, and code that no other job uses.

    Asks for confirmation on a terminal. Without a terminal, named jobs are deleted, and --older-than alone needs -y.
    """
    from stoker import client
    from stoker.cli.format import counted, say, warn
    from stoker.jobfile.value_forms import write_duration
    from stoker.maintenance.delete import (
        collect_environments,
        collect_shared,
        ended_before,
        finish_removals,
    )
    from stoker.model import keys
    from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable, UserError
    from stoker.submit import uploads

    if not jobs and older_s is None:
        raise UserError("name the jobs to delete, or give --older-than, such as --older-than 30d")
    if older_s == 0:
        raise UserError("--older-than 0 selects every ended job; give a time such as 30d, or name the jobs")
    store = opened_store()
    found = list(dict.fromkeys(named_job(store, job) for job in jobs))
    if older_s is not None:
        old = ended_before(store, timedelta(seconds=older_s))
        for job in found:
            if job not in old:
                say(f"{job} is kept: it did not end more than {write_duration(older_s)} ago")
        found = [job for job in found if job in old] if jobs else old
        if not found:
            say("nothing is deleted" if jobs else "no job ended so long ago; nothing is deleted")
    _agree(store, found, yes=yes, named=bool(jobs))
    for job in found:
        client.remove(job, store)
        say(f"{job} is deleted")
    finish_removals(store)
    try:
        for kind, noun in (
            (keys.CODE, "code archive"),
            (keys.BUNDLES, "packed agent"),
            (keys.TOOLS, "program"),
            (keys.WHEELS, "wheel"),
        ):
            if collected := collect_shared(store, kind):
                say(f"{counted(collected, noun)} deleted that no job uses")
        if collected := uploads.collect_uploads(store):
            say(f"{counted(collected, 'uploaded input')} deleted that no job uses")
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError as error:
        # The spec of another job, which may use any of them.
        warn(str(error))
    if collected := collect_environments(store):
        say(f"{counted(collected, 'environment')} deleted that no machine used for 30 days")


def _agree(store: Store, jobs: list[str], *, yes: bool, named: bool) -> None:
    """Ask on a terminal. Without one, named jobs are deleted without a question: a script that names them means it.

    Where only stderr is redirected, a person sits at the terminal but cannot see the question: that is an error.
    """
    from stoker.cli.format import counted, say
    from stoker.model.errors import UserError

    if not jobs or yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        if sys.stdin.isatty():
            raise UserError("the question cannot be shown: stderr is not a terminal; -y agrees to delete")
        if named:
            return
        raise UserError(
            f"--older-than would delete {counted(len(jobs), 'job')} and there is no terminal to ask on; -y agrees to it"
        )
    for job in jobs[:_MOST_SHOWN]:
        say(f"  {job}  {_contents(store, job)}")
    if len(jobs) > _MOST_SHOWN:
        say(f"  and {len(jobs) - _MOST_SHOWN} more")
    if not click.confirm(f"Delete {counted(len(jobs), 'job')} for good?", err=True):
        say("nothing is deleted")
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


def _contents(store: Store, job: str) -> str:
    """`2 checkpoints and 14 output files, 1.2 GB in all; …`, as far as the objects were counted."""
    from stoker.cli.format import counted, size
    from stoker.model import keys

    work = f"{keys.WORK}{job}/"
    checkpoints, outputs, total, seen = 0, 0, 0, 0
    for meta in store.list(work):
        seen += 1
        if seen > _MOST_COUNTED:
            break
        total += meta.size
        checkpoints += meta.key.startswith(keys.checkpoints(job)) and "@" not in meta.key
        outputs += meta.key.startswith(f"{work}outputs/")
    least = "at least " if seen > _MOST_COUNTED else ""
    what = f"{counted(checkpoints, 'checkpoint')} and {counted(outputs, 'output file')}"
    return f"{least}{what}, {size(total)} in all; logs and metrics go, too"
