"""`stoker checkpoints`."""

from __future__ import annotations

import click

from stoker.cli.options import job_argument, json_option, opened_store, store_option


@click.command("checkpoints")
@job_argument
@json_option
@store_option
def command(job: str, as_json: bool) -> None:
    """List a job's checkpoints, newest first. `stoker pull` fetches one."""
    from stoker import codec
    from stoker.checkpoints import list_checkpoints
    from stoker.cli.printing import ago, print_json, size, table
    from stoker.finding import find_job

    store = opened_store()
    found = find_job(store, job)
    listed = list_checkpoints(store, found)[::-1]
    if as_json:
        print_json(
            [
                {
                    "name": one.name,
                    "key": one.key,
                    "step": one.step,
                    "committed_at": codec.dump(one.committed_at),
                    "complete": one.complete,
                    "files": one.files,
                    "size": one.size,
                    "ranks": sorted(one.manifests),
                }
                for one in listed
            ]
        )
        return
    if not listed:
        click.echo(f"{found} has no checkpoint")
        return
    rows = [
        [
            one.name,
            "–" if one.step is None else str(one.step),
            ago(one.committed_at),
            str(one.files),
            size(one.size),
            "" if one.complete else click.style("not all ranks have it", fg="yellow"),
        ]
        for one in listed
    ]
    click.echo(table(("CHECKPOINT", "STEP", "COMMITTED", "FILES", "SIZE", ""), rows))
