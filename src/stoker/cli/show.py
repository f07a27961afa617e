"""`stoker show`."""

from __future__ import annotations

import click

from stoker.cli.options import job_argument, json_option, named_job, opened_store, store_option


@click.command("show")
@job_argument
@json_option
@store_option
def command(job: str, as_json: bool) -> None:
    """Show one job: attempts, checkpoints, cost.

    Includes the last checkpoint in the store, its age, and what a reclaim now would lose.
    """
    from stoker.cli.external_jobs import print_clone_chain
    from stoker.cli.format import print_json, to_json
    from stoker.cli.job_report import job_text, last_words, merged_outputs
    from stoker.model.errors import UserError
    from stoker.read.job_status import read_record

    store = opened_store()
    try:
        record = read_record(named_job(store, job), store)
    except UserError:
        if not print_clone_chain(store, job, as_json):
            raise
        return
    if as_json:
        print_json(to_json(record.summary))
        return
    merged = merged_outputs(store, record.summary)
    dumps = bool(record.state.evidence_codes)
    click.echo(job_text(record.summary, last_words(record.state), has_stack_dumps=dumps, merged=merged))
