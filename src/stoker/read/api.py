"""Read jobs from Python: lists, logs, metrics, checkpoints and comparisons. `stoker` and `stoker.client` export it.

for summary in stoker.jobs(tags=["team=nlp"]):
    print(summary.id, summary.phase, stoker.metrics(summary.id).series["loss"].last)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.model.job_state import JobState
from stoker.model.keywords import checks_keywords
from stoker.read.curves import ComparedJob, Comparison
from stoker.read.job_list import Filter, list_jobs
from stoker.read.job_status import summary
from stoker.read.logs import LogLine, NodeLog, Watch, follow, read_lines, read_tail
from stoker.read.metrics import Metrics, read_metrics
from stoker.read.node_chunks import check_selection, node_logs
from stoker.read.pull_folder import pull_folder
from stoker.store import job_index, job_log
from stoker.store.base import Store, open_any
from stoker.store.checkpoint_refs import reference
from stoker.store.checkpoints import Checkpoint, list_checkpoints
from stoker.store.find_job import find_job, find_jobs
from stoker.submit.submitted_state import require_state

if TYPE_CHECKING:
    from stoker.core.summary import Summary


@checks_keywords
def jobs(
    *,
    phases: Sequence[str] = (),
    names: Sequence[str] = (),
    tags: Sequence[str] = (),
    recent: int | None = None,
    store: str | Store | None = None,
) -> list[Summary]:
    """The jobs of a store, newest first, as governors last recorded them.

    The filters are those of `stoker ps`: `names` and values of `tags` may be patterns. `recent` limits the number of
    ended jobs. Raises UserError for an unknown phase.
    """
    wanted = Filter(_words(phases), _words(names), _words(tags))
    wanted.check()
    return list(list_jobs(open_any(store), recent, wanted).summaries)


@checks_keywords
def logs(
    job: str,
    *,
    attempt: int | None = None,
    node: int | None = None,
    tail: int | None = None,
    following: bool = False,
    store: str | Store | None = None,
) -> Iterator[LogLine]:
    """The lines that a job printed, in order: all of them, or those of one attempt or node, or the last `tail`.

    `following` continues until the job has ended. It does not govern: a governor has to drive the job. Raises UserError
    for a node or an attempt that the job does not have.
    """
    opened = open_any(store)
    found = find_job(opened, job)
    state = _state(opened, found)
    count = job_index.read_submission(opened, state).spec.nodes
    check_selection(state, count, rank=node, attempt=attempt, tail=tail, following=following)
    nodes = node_logs(state, node, attempt)
    if following:
        return follow(opened, found, _watching(opened, found, node, attempt), tail=tail)
    return iter(read_tail(opened, found, nodes, tail)) if tail is not None else read_lines(opened, found, nodes)


@checks_keywords
def metrics(job: str, store: str | Store | None = None) -> Metrics:
    """All measurements of a job's nodes: `.series` by metric, each with its points, and `.usage`."""
    opened = open_any(store)
    found = find_job(opened, job)
    return read_metrics(opened, found, node_logs(_state(opened, found)))


@checks_keywords
def checkpoints(job: str, store: str | Store | None = None) -> list[Checkpoint]:
    """A job's checkpoints, newest first. A checkpoint that not all ranks have committed is not `complete`.

    `ref` (`2.3`) identifies a checkpoint even where names repeat: `pull` and `resume` take it.
    """
    opened = open_any(store)
    found = find_job(opened, job)
    state = job_log.read(opened, found)
    return [replace(one, ref=reference(one.place, state)) for one in list_checkpoints(opened, found)[::-1]]


@checks_keywords
def compare(jobs: Sequence[str] | str, store: str | Store | None = None) -> Comparison:
    """Jobs side by side with all their measurements. A name or a pattern stands for all jobs that match."""
    opened = open_any(store)
    found = dict.fromkeys(job for text in _words(jobs) for job in find_jobs(opened, text))
    return Comparison(
        tuple(
            ComparedJob(summary(job, opened), read_metrics(opened, job, node_logs(_state(opened, job))))
            for job in found
        )
    )


@checks_keywords
def pull(
    job: str, folder: str | Path | None = None, *, checkpoint: str | None = None, store: str | Store | None = None
) -> Path:
    """Fetch a checkpoint as plain files: the newest complete one, or the one that `checkpoint` names.

    `checkpoint` is a reference or a name as `stoker checkpoints` lists them. Returns the folder; without `folder` it is
    one with the name of the job, in the current folder. Raises UserError when there is no such checkpoint.
    """
    from stoker.store.checkpoint_refs import resolve
    from stoker.store.checkpoints import fetch_checkpoint as pull_checkpoint

    opened = open_any(store)
    found = find_job(opened, job)
    chosen = resolve(list_checkpoints(opened, found), checkpoint, job_log.read(opened, found), found)
    with pull_folder(found, folder) as target:
        pull_checkpoint(opened, found, chosen.checkpoint, target)
    return target


@checks_keywords
def pull_outputs(
    job: str, folder: str | Path | None = None, *, attempt: int | None = None, store: str | Store | None = None
) -> Path:
    """Fetch a job's outputs as plain files. Returns the folder; without `folder` it has the name of the job.

    The outputs of all attempts are merged as the script would have found them on one disk: of a path that several
    attempts wrote, the last version counts. `attempt` selects one attempt. Raises UserError where there are none.
    """
    from stoker.read import outputs

    opened = open_any(store)
    found = find_job(opened, job)
    files = outputs.list_outputs(opened, found, attempt).files
    with pull_folder(found, folder) as target:
        outputs.pull_outputs(opened, files, target)
    return target


def _words(texts: Sequence[str] | str) -> tuple[str, ...]:
    """The texts as a tuple; a single text is one element, not its letters."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


def _state(store: Store, job: str) -> JobState:
    return require_state(job, job_log.read(store, job))


def _watching(store: Store, job: str, node: int | None, attempt: int | None) -> Watch:
    """A function that returns the nodes of a job as its log grows, and whether the job has ended."""
    newest: list[JobState | None] = [None]

    def watch() -> tuple[Sequence[NodeLog], bool]:
        state = newest[0] = job_log.read(store, job, newest[0])
        if state is None:
            return [], True  # The job was removed meanwhile.
        return node_logs(state, node, attempt), state.ended is not None

    return watch


__all__ = ["checkpoints", "compare", "jobs", "logs", "metrics", "pull", "pull_outputs"]
