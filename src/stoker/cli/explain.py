"""`stoker explain`."""

from __future__ import annotations

import click

from stoker.cli.options import job_argument, json_option, opened_store, store_option


@click.command("explain")
@job_argument
@json_option
@store_option
def command(job: str, as_json: bool) -> None:
    """Tell every decision about a job and its reason, then what it waits for now."""
    from stoker import client, codec, log
    from stoker.cli.foreign import tell_family
    from stoker.cli.printing import clock, legible, print_json, table
    from stoker.cli.timeline import describe
    from stoker.errors import UserError
    from stoker.finding import find_job
    from stoker.fold import JobState, fold

    store = opened_store()
    try:
        found = find_job(store, job)
    except UserError:
        if not tell_family(store, job, as_json):
            raise
        return
    state: JobState | None = None
    told = []
    for entry in log.entries(store, found):
        state = fold(found, [entry], state)
        told.append((entry, describe(entry.event, state)))
    actions, waiting = client.planned(found, store) if state is not None else ((), "")
    coming = [f"{type(action).__name__.lower()}: {action.reason}" for action in actions]
    if as_json:
        decisions = [
            {"seq": entry.seq, "at": codec.dump(entry.at), "what": what, "reason": entry.reason, "by": entry.by}
            for entry, what in told
        ]
        print_json({"id": found, "decisions": decisions, "next": coming, "waiting": waiting})
        return
    click.echo(table((), [[clock(entry.at), legible(what), legible(entry.reason)] for entry, what in told]))
    for text in coming:
        click.echo(f"next: {legible(text)}")
    if waiting:
        click.echo(f"waiting: {legible(waiting)}")
    elif not coming:
        click.echo("nothing is left to decide" if state is not None and state.ended else "nothing to decide now")
