"""`stoker reindex`."""

from __future__ import annotations

import click

from stoker.cli.options import opened_store, store_option


@click.command("reindex")
@store_option
def command() -> None:
    """Rebuild the index of jobs, and the markers of active jobs, from their logs. Safe at any time."""
    from stoker.cli.format import counted
    from stoker.cli.progress import progress_bar
    from stoker.maintenance.reindex import reindex

    store = opened_store()
    with progress_bar("reading logs", of_bytes=False) as progress:
        done = reindex(store, progress)
    for job, text in done.problems.items():
        click.secho(f"{job}: {text}", fg="yellow", err=True)
    click.echo(
        f"{counted(done.jobs, 'job')} indexed, {done.marked} newly marked as active, "
        f"{counted(done.forgotten, 'leftover')} dropped"
    )
