"""`stoker rm`."""

from __future__ import annotations

import sys
from datetime import timedelta

import click

from stoker.cli.completing import complete_jobs_that, has_ended
from stoker.cli.options import DURATION, jobs_argument, opened_store, store_option, yes_option


@click.command("rm")
@jobs_argument(required=False, complete=complete_jobs_that(has_ended))
@click.option("--older-than", "older_s", type=DURATION, metavar="TIME", help="Every job that ended so long ago: 30d.")
@yes_option
@store_option
def command(jobs: tuple[str, ...], older_s: float | None, yes: bool) -> None:
    """Delete ended jobs with their logs, checkpoints and outputs, and code that no other job uses."""
    from stoker import client, uploads
    from stoker.cli.printing import counted, say
    from stoker.errors import UserError
    from stoker.finding import find_job
    from stoker.removing import (
        collect_bundles,
        collect_code,
        collect_environments,
        collect_tools,
        collect_wheels,
        ended_before,
        finish_removals,
    )

    if not jobs and older_s is None:
        raise UserError("name the jobs to delete, or give --older-than, such as --older-than 30d")
    store = opened_store()
    found = [find_job(store, job) for job in jobs]
    if older_s is not None:
        old = ended_before(store, timedelta(seconds=older_s))
        if not old and not jobs:
            say("no job ended so long ago; nothing is deleted")
        _agree(old, yes=yes)
        found += old
    for job in dict.fromkeys(found):
        client.remove(job, store)
        say(f"{job} is deleted")
    finish_removals(store)
    if collected := collect_code(store):
        say(f"{counted(collected, 'code archive')} deleted that no job uses")
    if collected := collect_bundles(store):
        say(f"{counted(collected, 'packed agent')} deleted that no job uses")
    if collected := collect_tools(store):
        say(f"{counted(collected, 'program')} deleted that no job uses")
    if collected := collect_wheels(store):
        say(f"{counted(collected, 'wheel')} deleted that no job uses")
    if collected := uploads.collect(store):
        say(f"{counted(collected, 'uploaded input')} deleted that no job uses")
    if collected := collect_environments(store):
        say(f"{counted(collected, 'environment')} deleted that no machine used for 30 days")


def _agree(jobs: list[str], *, yes: bool) -> None:
    from stoker.cli.printing import counted, one_line
    from stoker.errors import UserError

    if not jobs or yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError(
            f"--older-than would delete {counted(len(jobs), 'job')} and there is no terminal to ask on; -y agrees to it"
        )
    click.confirm(f"Delete {counted(len(jobs), 'job')} ({one_line(', '.join(jobs), 60)})?", abort=True, err=True)
