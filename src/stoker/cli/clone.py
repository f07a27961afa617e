"""`stoker clone`."""

from __future__ import annotations

import click

from stoker.cli.options import job_argument, named_job, opened_store, set_option, store_option, yes_option


@click.command("clone")
@job_argument
@set_option
@yes_option
@store_option
def command(job: str, sets: tuple[str, ...], yes: bool) -> None:
    """Start a new job with the code and the spec of JOB, and the changes of --set. Prints its id."""
    from stoker import client
    from stoker.cli.format import report_governor
    from stoker.cli.plan_view import agree, show_plan
    from stoker.governor.background import ensure_governed
    from stoker.governor.handover_guard import guarding
    from stoker.submit.send import send

    store = opened_store()
    with client.prepare_clone(named_job(store, job), store, sets) as prepared:
        show_plan(prepared)
        agree(prepared, yes=yes)
        with guarding(store.url) as guard:
            submitted = send(prepared, store)
            guard.job(submitted)
            report_governor(ensure_governed(store, [submitted]))
    click.echo(submitted)
