"""`stoker pull`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.cli.options import (
    NamedPath,
    attempt_option,
    checkpoint_option,
    job_argument,
    named_job,
    opened_store,
    store_option,
)
from stoker.model.keys import UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.read.outputs import OutputFile
    from stoker.store.base import Store
    from stoker.store.checkpoints import Checkpoint


_MOST_NAMED = 3


@click.command("pull")
@job_argument
@click.argument("folder", required=False, type=NamedPath(path_type=Path))
@checkpoint_option("The checkpoint, by its REF in `stoker checkpoints` or its name; default: the newest.")
@click.option("--outputs", is_flag=True, help="Fetch the outputs instead, of all attempts in one folder.")
@attempt_option("Fetch the outputs of this attempt alone.")
@store_option
def command(job: str, folder: Path | None, checkpoint: str | None, outputs: bool, attempt: int | None) -> None:
    """Fetch a checkpoint or the outputs as plain files into FOLDER, by default one with the name of the job.

    Without an option, fetch the newest checkpoint, or the outputs of a job without checkpoints. Of a file that several
    attempts wrote, the last version counts; `--attempt` fetches the files of one attempt.
    """
    from stoker.model.errors import UserError
    from stoker.read.pull_folder import pull_folder
    from stoker.store.checkpoints import list_checkpoints

    store = opened_store()
    found = named_job(store, job)
    if (outputs or attempt is not None) and checkpoint is not None:
        raise UserError(f"--checkpoint and {'--outputs' if outputs else '--attempt'}: give one of them")
    listed = [] if outputs or attempt is not None else list_checkpoints(store, found)
    with pull_folder(found, folder) as target:
        if checkpoint is not None or any(one.complete for one in listed):
            _pull_checkpoint(store, found, listed, checkpoint, target)
            return
        try:
            _pull_outputs(store, found, target, attempt)
        except UserError as error:
            if outputs or attempt is not None:
                raise
            raise UserError(f"{found} has no checkpoint yet, and {str(error).partition(f'{found} ')[2]}") from None


def _pull_checkpoint(store: Store, job: str, listed: list[Checkpoint], text: str | None, target: Path) -> None:
    from stoker.cli.format import counted, say, size
    from stoker.cli.progress import progress_bar
    from stoker.model.errors import UserError
    from stoker.store import job_log
    from stoker.store.checkpoint_refs import resolve
    from stoker.store.checkpoints import fetch_checkpoint

    if not any(one.complete for one in listed):
        raise UserError(f"{job} has no checkpoint yet; --outputs pulls its outputs")
    chosen = resolve(listed, text, job_log.read(store, job), job)
    if chosen.note:
        say(chosen.note)
    found, replaced = chosen.checkpoint, list[str]()
    with progress_bar(f"pulling {found.name}") as progress:
        fetch_checkpoint(store, job, found, target, progress, replaced)
    say(f"{chosen.reference} {found.name}: {counted(found.files, 'file')}, {size(found.size)} in {target}")
    _say_replaced(replaced)


def _unfinished_lines(pulled: Sequence[OutputFile], passed: Sequence[OutputFile], target: Path) -> list[str]:
    """Return a line for each attempt with perhaps unfinished saves: those that were pulled, and those left out."""
    from stoker.cli.format import counted

    lines = []
    for number in sorted({file.attempt for file in pulled if file.unfinished}):
        files = [file for file in pulled if file.unfinished and file.attempt == number]
        verb = "is" if len(files) == 1 else "are"
        lines.append(
            f"{counted(len(files), 'file')} of attempt {number} {verb} perhaps unfinished, since no checkpoint has "
            f"{'it' if len(files) == 1 else 'them'}: {target}/{UNFINISHED}"
        )
    for number in sorted({file.attempt for file in passed}):
        files = [file for file in passed if file.attempt == number]
        lines.append(
            f"{counted(len(files), 'file')} of attempt {number}, perhaps unfinished, left out because a later attempt "
            f"went further; --attempt {number} gives {'it' if len(files) == 1 else 'them'}"
        )
    return lines


def _pull_outputs(store: Store, job: str, target: Path, attempt: int | None) -> None:
    from stoker.cli.format import counted, say, size
    from stoker.cli.progress import progress_bar
    from stoker.read.outputs import list_outputs, pull_outputs
    from stoker.read.safe_text import legible

    outputs, replaced = list_outputs(store, job, attempt), list[str]()
    files = outputs.files
    with progress_bar("pulling outputs") as progress:
        number, total = pull_outputs(store, files, target, progress, replaced)
    attempts = {file.attempt for file in files}
    of = f" of {len(attempts)} attempts" if len(attempts) > 1 else ""
    say(f"outputs{of}: {counted(number, 'file')}, {size(total)} in {target}")
    _say_replaced(replaced)
    for text in _unfinished_lines(outputs.files, outputs.passed, target):
        say(text)
    several = [file for file in files if file.replaces]
    if several:
        others = ", ".join(f"--attempt {n}" for n in sorted({n for file in several for n in file.replaces})[:3])
        what = f"{counted(len(several), 'file')}, such as {legible(several[0].path)},"
        verb = "was" if len(several) == 1 else "were"
        say(f"{what} {verb} written by several attempts: the last one's is taken; {others} gives the others")


def _say_replaced(paths: list[str]) -> None:
    """Say which files had other contents before, such as an older version or changes by hand."""
    from stoker.cli.format import counted, say
    from stoker.read.safe_text import legible

    if paths:
        named = ", ".join(legible(path) for path in sorted(paths)[:_MOST_NAMED])
        more = ", …" if len(paths) > _MOST_NAMED else ""
        say(f"{counted(len(paths), 'file')} of other contents replaced: {named}{more}; another folder keeps both")
