"""`stoker pull`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.cli.options import checkpoint_option, job_argument, opened_store, store_option

if TYPE_CHECKING:
    from stoker.store import Store
    from stoker.stores.extraction import Extraction


@click.command("pull")
@job_argument
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@checkpoint_option("Which one, by its REF of `stoker checkpoints` or its name; the newest by default.")
@click.option("--outputs", is_flag=True, help="The job's outputs instead.")
@store_option
def command(job: str, folder: Path | None, checkpoint: str | None, outputs: bool) -> None:
    """Fetch a checkpoint, or the outputs, as plain files into FOLDER (by default one called as the job)."""
    from stoker.errors import UserError
    from stoker.finding import find_job

    store = opened_store()
    found = find_job(store, job)
    target = folder if folder is not None else Path(found)
    if target.exists() and not target.is_dir():
        raise UserError(f"{target}: is a file; name a folder")
    if folder is None and target.is_symlink():
        # Nobody named it: an earlier pull may have left the link.
        raise UserError(f"{target}: is a link; name the folder to pull into")
    if outputs and checkpoint is not None:
        raise UserError("--checkpoint and --outputs: give one of them")
    if outputs:
        _pull_outputs(store, found, target)
    else:
        _pull_checkpoint(store, found, checkpoint, target)
    if folder is None:
        from stoker.stores.extraction import Extraction

        # It lies where jobs are submitted from: the next one must not pack it.
        with Extraction(target, follow=False) as extraction:
            extraction.write(".stokerignore", b"*\n")


def _pull_checkpoint(store: Store, job: str, text: str | None, target: Path) -> None:
    from stoker import log
    from stoker.checkpoint_refs import resolve
    from stoker.checkpoints import list_checkpoints, pull
    from stoker.cli.printing import counted, say, size
    from stoker.cli.progress import progress_bar
    from stoker.errors import UserError

    listed = list_checkpoints(store, job)
    if not any(one.complete for one in listed):
        raise UserError(f"{job} has no checkpoint yet; --outputs pulls its outputs")
    chosen = resolve(listed, text, log.read(store, job), job)
    if chosen.note:
        say(chosen.note)
    found = chosen.checkpoint
    with progress_bar(f"pulling {found.name}") as progress:
        pull(store, job, found, target, progress)
    say(f"{chosen.reference} {found.name}: {counted(found.files, 'file')}, {size(found.size)} in {target}")


def _pull_outputs(store: Store, job: str, target: Path) -> None:
    from stoker import layout
    from stoker.cli.printing import counted, say, size
    from stoker.cli.progress import progress_bar
    from stoker.errors import UserError
    from stoker.stores.extraction import Extraction

    prefix = layout.outputs(job, _claim_that_counts(store, job))
    metas = list(store.list(prefix))
    if not metas:
        raise UserError(f"{job} has no outputs yet; `outputs` in the job file names the folder to keep")
    total, done = sum(meta.size for meta in metas), 0
    with progress_bar("pulling outputs") as progress, Extraction(target) as extraction:
        for meta in metas:
            _fetch(store, meta.key, meta.key[len(prefix) :], extraction)
            done += meta.size
            if progress is not None:
                progress(done, total)
    say(f"outputs: {counted(len(metas), 'file')}, {size(total)} in {target}")


def _claim_that_counts(store: Store, job: str) -> int:
    """The claim that the end names, else the newest attempt's."""
    from stoker import log
    from stoker.errors import UserError

    state = log.read(store, job)
    if state is not None and state.ended is not None and state.ended.claim is not None:
        return state.ended.claim
    if state is None or not state.attempts:
        raise UserError(f"{job} has no outputs yet; it has not started")
    return state.attempts[-1].number


def _fetch(store: Store, key: str, path: str, extraction: Extraction) -> None:
    """Fetch one file. Its name comes from a machine that runs other people's code."""
    with extraction.staging() as staging:
        with staging.new_file("0") as file:
            found = store.get_file(key, file)
        if found is not None:
            staging.place("0", path)
