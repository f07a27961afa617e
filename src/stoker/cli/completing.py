"""What a shell offers to complete: jobs that a command can work on, phases, tags, checkpoints, metrics.

A shell that completes has no place for errors: whatever goes wrong, nothing is offered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from stoker.store import Store
    from stoker.summary import Summary

Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]

# Ended jobs that are looked at where only some can be offered: a shell does not wait for more.
_RECENT = 50


def complete_job(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Every job."""
    from stoker.finding import all_jobs

    return _offered(lambda: all_jobs(_store(ctx)), incomplete)


def complete_jobs_that(can: Callable[[Summary], bool]) -> Complete:
    """Only the jobs for which the command can do something now; each with its phase beside it."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from stoker.reading.jobs import list_jobs

        def names() -> list[tuple[str, str]]:
            typed = ctx.params.get("jobs") or ()
            found = [each for each in list_jobs(_store(ctx), _RECENT).summaries if can(each)]
            return [(each.id, each.phase) for each in found if each.id not in typed]

        return _offered(names, incomplete)

    return complete


def is_stoppable(summary: Summary) -> bool:
    """It has not ended, or a machine of it is held."""
    return (summary.ended_at is None and summary.phase != "stopping") or summary.held is not None


def is_resumable(summary: Summary) -> bool:
    return summary.ended_at is not None and summary.phase != "succeeded"


def can_be_visited(summary: Summary) -> bool:
    return has_machine(summary) or summary.held is not None


def has_machine(summary: Summary) -> bool:
    """It can be interrupted."""
    return summary.ended_at is None and any(attempt.outcome is None for attempt in summary.attempts)


def has_ended(summary: Summary) -> bool:
    return summary.ended_at is not None


def complete_phase(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from typing import get_args

    from stoker.model import Phase

    return _offered(lambda: get_args(Phase), incomplete)


def complete_tag(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`team=nlp` of the jobs that `ps` would list."""
    from stoker.reading.jobs import list_jobs, tags_of

    return _offered(lambda: tags_of(list_jobs(_store(ctx), _RECENT).summaries), incomplete)


def complete_name(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names that jobs have."""
    from stoker.finding import all_jobs, name_of

    return _offered(lambda: sorted({name_of(job) for job in all_jobs(_store(ctx))}), incomplete)


def complete_checkpoint(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The checkpoints of the job that was typed before: references, newest first, then names."""
    from stoker import log
    from stoker.checkpoint_refs import describe, words
    from stoker.checkpoints import list_checkpoints
    from stoker.finding import find_job

    def names() -> list[tuple[str, str]]:
        store = _store(ctx)
        job = find_job(store, str(ctx.params["job"]))
        state = log.read(store, job)
        known = words([one for one in list_checkpoints(store, job) if one.complete], state)
        return [(word, describe(one, state)) for word, one in known.items()]

    return _offered(names, incomplete)


def complete_metric(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The metrics of the jobs that were typed before."""
    from stoker.finding import find_jobs
    from stoker.index import read_summary

    def names() -> list[str]:
        store = _store(ctx)
        found = [read_summary(store, job) for text in ctx.params.get("jobs") or () for job in find_jobs(store, text)]
        return sorted({name for summary in found if summary is not None for name in summary.metrics})

    return _offered(names, incomplete)


def _store(ctx: click.Context) -> Store:
    from stoker.home import default_store_url
    from stoker.store import open_store

    root = ctx.find_root()
    return open_store(root.obj or root.params.get("store") or default_store_url())


def _offered(names: Callable[[], Iterable[str | tuple[str, str]]], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    try:
        pairs = [(each, None) if isinstance(each, str) else each for each in names()]
    except Exception:  # noqa: BLE001 - the edge: a traceback in the middle of a command line helps nobody
        return []
    return [CompletionItem(value, help=told) for value, told in pairs if value.startswith(incomplete)]
