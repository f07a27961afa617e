"""`stoker stop`."""

from __future__ import annotations

import click

from stoker.cli.completers import complete_jobs_that, is_stoppable
from stoker.cli.options import jobs_argument, named_job, opened_store, store_option


@click.command("stop")
@jobs_argument(complete=complete_jobs_that(is_stoppable))
@click.option("--wait", "waiting", is_flag=True, help="Wait until the jobs have ended.")
@store_option
def command(jobs: tuple[str, ...], waiting: bool) -> None:
    """Let jobs save, then end them. For a failed job, give back the machine that is held."""
    from stoker import client
    from stoker.cli.format import report_governor, say
    from stoker.governor.background import ensure_governed
    from stoker.read.decision_text import outcome_text
    from stoker.read.safe_text import legible
    from stoker.store import job_log
    from stoker.submit.stop import ask_to_stop

    store = opened_store()
    # All names are looked up first: a wrong one must not leave half of the jobs stopped.
    found = [named_job(store, job) for job in jobs]
    asked = []
    for job in found:
        if ask_to_stop(job, store):
            asked.append(job)
            state = job_log.read(store, job)
            ended = state is not None and state.ended is not None
            say(f"{job} had ended already; its machine is given back" if ended else f"{job} is asked to save and stop")
        else:
            say(f"{job} had ended already")
    if asked:
        report_governor(ensure_governed(store, asked))
    for job in asked if waiting else ():
        summary = client.wait(job, store)
        say(legible(f"{job} {outcome_text(summary.phase, summary.reason)}"))
