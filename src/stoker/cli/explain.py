"""`stoker explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from stoker.cli.options import job_argument, json_option, named_job, opened_store, store_option

if TYPE_CHECKING:
    from stoker.model.log_entries import Entry
    from stoker.store.base import Store


@click.command("explain")
@job_argument
@json_option
@store_option
def command(job: str, as_json: bool) -> None:
    """Print every entry of a job's log with its reason, then what a governor would do now and what the job waits for.

    Terminations of machines are not entries: the entry before one says why.
    """
    from stoker import client
    from stoker.cli.external_jobs import print_clone_chain
    from stoker.cli.format import clock, print_json, table
    from stoker.model import codec
    from stoker.model.errors import UserError
    from stoker.model.job_state import JobState, fold
    from stoker.read.decision_text import describe
    from stoker.read.safe_text import legible
    from stoker.store import job_log

    store = opened_store()
    try:
        found = named_job(store, job)
    except UserError:
        if not print_clone_chain(store, job, as_json):
            raise
        return
    state: JobState | None = None
    decided = []
    for entry in job_log.entries(store, found):
        state = fold(found, [entry], state)
        decided.append((entry, describe(entry.event, state)))
    actions, waiting = client.planned_actions(found, store) if state is not None else ((), "")
    coming = [f"{type(action).__name__.lower()}: {action.reason}" for action in actions]
    if as_json:
        decisions = [
            {"seq": entry.seq, "at": codec.dump(entry.at), "what": what, "reason": entry.reason, "by": entry.by}
            | {"rule": _rule(entry), "policy": entry.policy or None}
            for entry, what in decided
        ]
        print_json({"id": found, "decisions": decisions, "next": coming, "waiting": waiting})
        return
    click.echo(table((), [[clock(entry.at), legible(what), legible(entry.reason)] for entry, what in decided]))
    for text in _policies(store, [entry for entry, _ in decided]):
        click.echo(text)
    for text in coming:
        click.echo(f"next: {legible(text)}")
    if waiting:
        click.echo(f"waiting: {legible(waiting)}")
    elif not coming:
        click.echo("nothing is left to decide" if state is not None and state.ended else "nothing to decide now")


def _rule(entry: Entry) -> str | None:
    """The rule of a decision or a warning."""
    return getattr(entry.event, "rule", None) or getattr(entry.event, "code", None)


def _policies(store: Store, entries: Sequence[Entry]) -> list[str]:
    """The versions of the policy behind the decisions, one line each."""
    from stoker.model.errors import StoreError
    from stoker.policy import versions
    from stoker.read.safe_text import legible

    used = list(dict.fromkeys(entry.policy for entry in entries if entry.policy))
    if not used:
        return []
    try:
        found_versions = {versions.policy_digest(kept): f"version {kept.version}" for kept in versions.history(store)}
    except StoreError:
        found_versions = {}  # The digest alone will do.
    found = []
    for digest in used:
        by = [entry.seq for entry in entries if entry.policy == digest]
        which = f"{by[0]}" if by[0] == by[-1] else f"{by[0]} to {by[-1]}"
        found.append(
            f"policy: {found_versions.get(digest, 'unknown version')} ({legible(digest[:12])}), entries {which}"
        )
    return found
