"""`stoker checkpoints`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stoker.cli.options import job_argument, json_option, named_job, opened_store, store_option
from stoker.core.poisoned_checkpoints import NONE_POISONED, PoisonedCheckpoints, poisoned_checkpoints

if TYPE_CHECKING:
    from stoker.model.job_state import JobState
    from stoker.store.checkpoints import Checkpoint


@click.command("checkpoints")
@job_argument
@json_option
@store_option
def command(job: str, as_json: bool) -> None:
    """List a job's checkpoints, newest first.

    REF identifies a checkpoint even where names repeat. `stoker pull JOB --checkpoint REF` fetches it, `stoker resume
    JOB --checkpoint REF` continues from it, and so does another job with `resume_from: JOB:REF`.
    """
    from stoker.cli.format import print_json, table
    from stoker.core.governor_settings import DEFAULT
    from stoker.store import job_log
    from stoker.store.checkpoints import list_checkpoints

    store = opened_store()
    found = named_job(store, job)
    state = job_log.read(store, found)
    poisoned = poisoned_checkpoints(state, DEFAULT) if state is not None else NONE_POISONED
    listed = list_checkpoints(store, found)[::-1]
    if as_json:
        print_json([_fields(one, state, poisoned) for one in listed])
    elif not listed:
        click.echo(f"{found} has no checkpoint")
    else:
        rows = [_row(one, state, poisoned) for one in listed]
        click.echo(table(("REF", "CHECKPOINT", "STEP", "ATTEMPT", "COMMITTED", "FILES", "SIZE", ""), rows))


def _fields(one: Checkpoint, state: JobState | None, poisoned: PoisonedCheckpoints) -> dict[str, object]:
    from stoker.model import codec
    from stoker.store.checkpoint_refs import attempt_of, reference

    return {
        "ref": reference(one.place, state),
        "name": one.name,
        "key": one.key,
        "step": one.step,
        "attempt": attempt_of(one.place, state),
        "committed_at": codec.dump(one.committed_at),
        "complete": one.complete,
        "poisoned": poisoned.covers(one.key),
        "chosen": _is_chosen(one, state),
        "files": one.files,
        "size": one.size,
        "ranks": sorted(one.manifests),
    }


def _row(one: Checkpoint, state: JobState | None, poisoned: PoisonedCheckpoints) -> list[str]:
    from stoker.cli.format import size
    from stoker.read.format import ago
    from stoker.store.checkpoint_refs import attempt_of, reference

    remarks = [] if one.complete else ["not all ranks have it"]
    remarks += ["poisoned: attempts failed on it before any progress"] if poisoned.covers(one.key) else []
    note = click.style("; ".join(remarks), fg="yellow") if remarks else ""
    note += f"{'; ' if remarks else ''}chosen by `resume`" if _is_chosen(one, state) else ""
    attempt = attempt_of(one.place, state)
    return [
        reference(one.place, state),
        one.name,
        "–" if one.step is None else str(one.step),
        "imported" if attempt == 0 else "–" if attempt is None else str(attempt),
        ago(one.committed_at),
        str(one.files),
        size(one.size),
        note,
    ]


def _is_chosen(one: Checkpoint, state: JobState | None) -> bool:
    return state is not None and state.chosen_checkpoint is not None and one.key == state.chosen_checkpoint.key
