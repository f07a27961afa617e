"""Shell completion: jobs that a command can work on, phases, tags, checkpoints, metrics, fields.

A completing shell has no place for error messages: after any error no completion is offered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from stoker.core.summary import Summary
    from stoker.model.job_state import JobState
    from stoker.store.base import Store

Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]

# The most ended jobs that are read to complete one word: a shell does not wait for more.
_RECENT = 50


def complete_job(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete any job."""
    from stoker.store.find_job import all_jobs

    return _offered(lambda: all_jobs(_store(ctx)), incomplete)


def complete_jobs_that(can: Callable[[Summary], bool]) -> Complete:
    """Complete only jobs that the command can work on now, each with its phase as help."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from stoker.read.job_list import list_jobs

        def names() -> list[tuple[str, str]]:
            typed = _typed_jobs(ctx)
            found = [each for each in list_jobs(_store(ctx), _RECENT).summaries if can(each)]
            return [(each.id, each.phase) for each in found if each.id not in typed]

        return _offered(names, incomplete)

    return complete


def is_stoppable(summary: Summary) -> bool:
    """True if the job has not ended, or a machine of it is held."""
    return (summary.ended_at is None and summary.phase != "stopping") or summary.held is not None


def is_resumable(summary: Summary) -> bool:
    """True if the job has ended without success."""
    return summary.ended_at is not None and summary.phase != "succeeded"


def has_shell(summary: Summary) -> bool:
    """True if a shell can be opened on a machine of the job."""
    return has_machine(summary) or summary.held is not None


def has_machine(summary: Summary) -> bool:
    """True if the job has a machine now, which can be interrupted."""
    return summary.ended_at is None and any(attempt.outcome is None for attempt in summary.attempts)


def has_ended(summary: Summary) -> bool:
    """True if the job has ended."""
    return summary.ended_at is not None


def complete_phase(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from typing import get_args

    from stoker.model.log_entries import Phase

    return _offered(lambda: get_args(Phase), incomplete)


def complete_tag(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete tags such as `team=nlp` of recent jobs."""
    from stoker.read.job_list import list_jobs, tags_of

    return _offered(lambda: tags_of(list_jobs(_store(ctx), _RECENT).summaries), incomplete)


def complete_name(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of jobs."""
    from stoker.store.find_job import all_jobs, name_of

    return _offered(lambda: sorted({name_of(job) for job in all_jobs(_store(ctx))}), incomplete)


def complete_checkpoint(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete checkpoints of the job on the command line: references, newest first, then names."""
    from stoker.store.checkpoint_refs import completions, describe
    from stoker.store.checkpoints import list_checkpoints

    def names() -> list[tuple[str, str]]:
        store, state = _typed(ctx)
        known = completions([one for one in list_checkpoints(store, state.job) if one.complete], state)
        return [(word, describe(one, state)) for word, one in known.items()]

    return _offered(names, incomplete)


def complete_attempt(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete attempts of the job on the command line, newest first, each with its outcome."""

    def names() -> list[tuple[str, str]]:
        attempts = _typed(ctx)[1].attempts[::-1]
        return [(str(one.attempt), one.closed.outcome if one.closed is not None else "") for one in attempts]

    return _offered(names, incomplete)


def complete_node(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete nodes of the job on the command line."""
    from stoker.store.job_index import read_submission

    return _offered(lambda: [str(rank) for rank in range(read_submission(*_typed(ctx)).spec.nodes)], incomplete)


def complete_rule(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the rules of the policy that have approvers."""
    from stoker.policy.versions import current_policy

    return _offered(lambda: [rule.name for rule in current_policy(_store(ctx)).rules if rule.approvers], incomplete)


def complete_provider(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from stoker.providers import registry

    return _offered(registry.names, incomplete)


def complete_grouping(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the groupings of `costs`: its own kinds, and tags of jobs."""
    from stoker.read.costs import KINDS
    from stoker.read.job_list import list_jobs

    def names() -> list[str]:
        tags = {name for summary in list_jobs(_store(ctx), _RECENT).summaries for name in summary.tags}
        return [*KINDS, *sorted(tags - set(KINDS))]

    return _offered(names, incomplete) or _offered(lambda: KINDS, incomplete)


def complete_field(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete fields of the job file, such as `resources.spot=`; those of a section once the section is typed."""
    from stoker.jobfile.field_table import walk

    def names() -> list[tuple[str, str]]:
        found = [(dotted, info) for dotted, info in walk() if dotted.count(".") <= incomplete.count(".")]
        return [(f"{dotted}{'=' if info.section is None else '.'}", info.doc) for dotted, info in found]

    return _offered(names, incomplete)


def complete_file(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete files, which the shell itself lists."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def complete_metric(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete metrics of the jobs on the command line."""
    from stoker.store.find_job import find_jobs
    from stoker.store.job_index import read_summary

    def names() -> list[str]:
        store = _store(ctx)
        found = [read_summary(store, job) for text in _typed_jobs(ctx) for job in find_jobs(store, text)]
        return sorted({name for summary in found if summary is not None for name in summary.metrics})

    return _offered(names, incomplete)


def _typed(ctx: click.Context) -> tuple[Store, JobState]:
    """The store, and the state of the job on the command line."""
    from stoker.store import job_log
    from stoker.store.find_job import find_job

    store = _store(ctx)
    state = job_log.read(store, find_job(store, _typed_jobs(ctx)[0]))
    assert state is not None
    return store, state


def _typed_jobs(ctx: click.Context) -> tuple[str, ...]:
    """The jobs on the command line so far.

    While the value of an option is incomplete, click has not assigned the arguments to parameters yet.
    """
    found = ctx.params.get("jobs") or ctx.params.get("job") or ctx.args
    return (found,) if isinstance(found, str) else tuple(found)


def _store(ctx: click.Context) -> Store:
    from stoker.store.base import open_store

    root = ctx.find_root()
    return open_store(root.obj or root.params.get("store") or None)


def _offered(names: Callable[[], Iterable[str | tuple[str, str]]], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    try:
        pairs = [(each, None) if isinstance(each, str) else each for each in names()]
    except Exception:  # noqa: BLE001 - the edge: a traceback must not appear in the middle of a command line
        return []
    return [CompletionItem(value, help=text) for value, text in pairs if value.startswith(incomplete)]
