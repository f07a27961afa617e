"""`stoker checkpoints`."""

from __future__ import annotations

import click

from stoker.cli.options import job_argument, json_option, opened_store, store_option


@click.command("checkpoints")
@job_argument
@json_option
@store_option
def command(job: str, as_json: bool) -> None:
    """List a job's checkpoints, newest first.

    REF names one of them, where names repeat: `stoker pull JOB --checkpoint REF` fetches it, `stoker resume JOB
    --checkpoint REF` goes on from it, and so does another job with `resume_from: JOB:REF`.
    """
    from stoker import codec, log
    from stoker.checkpoint_refs import attempt_of, reference
    from stoker.checkpoints import is_poisoned, list_checkpoints
    from stoker.cli.printing import ago, print_json, size, table
    from stoker.core import retry
    from stoker.core.policy import DEFAULT
    from stoker.finding import find_job

    store = opened_store()
    found = find_job(store, job)
    state = log.read(store, found)
    poisoned = retry.poisoned(state, DEFAULT) if state is not None else frozenset()
    chosen = state.choice.key if state is not None and state.choice is not None else None
    listed = list_checkpoints(store, found)[::-1]
    if as_json:
        print_json(
            [
                {
                    "ref": reference(one.place, state),
                    "name": one.name,
                    "key": one.key,
                    "step": one.step,
                    "attempt": attempt_of(one.place, state),
                    "committed_at": codec.dump(one.committed_at),
                    "complete": one.complete,
                    "poisoned": is_poisoned(one, poisoned),
                    "chosen": one.key == chosen,
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
    rows = []
    for one in listed:
        remarks = [] if one.complete else ["not all ranks have it"]
        remarks += ["poisoned: attempts failed on it"] if is_poisoned(one, poisoned) else []
        told = click.style("; ".join(remarks), fg="yellow")
        told += f"{'; ' if remarks else ''}chosen by `resume`" if one.key == chosen else ""
        attempt = attempt_of(one.place, state)
        rows.append(
            [
                reference(one.place, state),
                one.name,
                "–" if one.step is None else str(one.step),
                "imported" if attempt == 0 else "–" if attempt is None else str(attempt),
                ago(one.committed_at),
                str(one.files),
                size(one.size),
                told,
            ]
        )
    click.echo(table(("REF", "CHECKPOINT", "STEP", "ATTEMPT", "COMMITTED", "FILES", "SIZE", ""), rows))
