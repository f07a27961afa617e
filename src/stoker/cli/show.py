"""`stoker show`."""

from __future__ import annotations

import click

from stoker.cli.options import job_argument, json_option, opened_store, store_option


@click.command("show")
@job_argument
@json_option
@store_option
def command(job: str, as_json: bool) -> None:
    """Show one job: attempts, checkpoints, cost.

    Tells the last durable checkpoint, its age, and what a reclaim now would cost.
    """
    from stoker import client, log
    from stoker.cli.printing import print_json, whole
    from stoker.cli.report import job_text, last_words

    store = opened_store()
    summary = client.summary(job, store)
    if as_json:
        print_json(whole(summary))
        return
    state = log.read(store, summary.id)
    click.echo(job_text(summary, last_words(state) if state is not None else ()))
