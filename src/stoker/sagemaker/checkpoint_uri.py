"""`checkpoint_s3_uri`: go on from what is there, and become the job whose checkpoints are copied there."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.model.errors import StoreError
from stoker.sagemaker.arguments import BadArgument
from stoker.store import job_log
from stoker.store.base import Store, open_store
from stoker.store.checkpoint_copy import RECORD, CopyRecord, claim, list_files, read_record
from stoker.store.checkpoints import list_checkpoints


@dataclass(frozen=True)
class Resume:
    """The `resume_from` of a job, None to start from the beginning, and a line about it for its submitter."""

    source: str | None = None
    note: str | None = None


def find_resume(url: str, store: Store) -> Resume:
    """Decide what a job with this `checkpoint_s3_uri` goes on from, as SageMaker fetches it before the script starts.

    The newest checkpoint of the job that copied its checkpoints there, if that job is in this store: it is whole, and
    may be newer than the copy. Plain files if something else changed them since, or if no such job is known. Raises
    UserError where they cannot be listed, and for files that were half copied by a job of another store: a job that
    starts anew, or with a mixture, would not be the requested one.
    """
    target = open_store(url)
    listed, record = list_files(target), read_record(target)
    plain = Resume(target.url, "going on from the files there") if listed else Resume()
    if record is None:
        return plain
    if not listed and record.has_copies:
        # A person has emptied it, to start anew.
        return plain
    if record.complete and not record.matches(listed):
        why = f"something else than {record.job} has changed them"
        return Resume(plain.source, f"{plain.note}: {why}") if listed else plain
    if record.store == store.url:
        if _has_checkpoint(store, record.job):
            return Resume(record.job, _describe(store, record.job))
        if record.resumed_from is not None and _has_checkpoint(store, record.resumed_from):
            return Resume(record.resumed_from, _describe(store, record.resumed_from))
    if record.complete:
        return plain
    advice = f"remove {RECORD} there to take the files as they are"
    if record.store != store.url:
        advice = f"give stoker={{'store': {record.store!r}}} to go on from that job, or {advice}"
    raise BadArgument(
        f"checkpoint_s3_uri: the files at {url} are of two checkpoints: {record.job} has not copied all of "
        f"{record.checkpoint}; {advice}"
    )


def announce(url: str, job: str, store: Store, resumed_from: str | None) -> str | None:
    """Record that this job copies its checkpoints to the URL from now on; return a line if that cannot be written.

    The next job with this URL then goes on from this one, also if its machine could copy nothing.
    """
    state = job_log.read(store, job)
    if state is None:
        return None
    try:
        claim(open_store(url), CopyRecord(job, store.url, state.submitted_at, resumed_from))
    except StoreError as error:
        return f"checkpoint_s3_uri: {url} cannot be written from here: {error}; the machines try it, too"
    return None


def _has_checkpoint(store: Store, source: str) -> bool:
    """Return whether a `resume_from` is a job of this store, with or without a reference, that has a checkpoint."""
    job = source.partition(":")[0]
    if "/" in source or job_log.read(store, job) is None:
        return False
    return any(one.complete for one in list_checkpoints(store, job))


def _describe(store: Store, source: str) -> str:
    job = source.partition(":")[0]
    state = job_log.read(store, job)
    running = state is not None and state.ended is None
    more = "; it has not ended, and its further checkpoints stay in the store" if running else ""
    return f"going on from the newest checkpoint of {job}, which copied its checkpoints there{more}"
