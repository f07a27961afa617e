"""External SageMaker training jobs, for `ps`, `show`, `explain`, `govern` and `reap`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from stoker.core.summary import Summary
    from stoker.external_jobs.clone_chain import ChainEvent
    from stoker.external_jobs.govern import ExternalJobGovernor
    from stoker.governor.serverless.external_jobs import ExternalJobsResult
    from stoker.store.base import Store

# How often `govern --watch` looks at external jobs. A deployed governor is woken by events at once.
EVERY_S = 60.0


def recent(store: Store, most: int | None) -> list[Summary]:
    """The external jobs in progress, and the `most` that ended last."""
    from stoker.external_jobs.index_rows import summaries

    found = summaries(store)
    ended = sorted((each for each in found if each.ended_at), key=lambda each: str(each.ended_at), reverse=True)
    return [*(each for each in found if not each.ended_at), *ended[:most]]


def print_clone_chain(store: Store, name: str, as_json: bool) -> bool:
    """Print the decisions about the external job of that name and its clones. False: there is no such job."""
    from stoker.cli.format import clock, phase, print_json, table
    from stoker.external_jobs import chain_log
    from stoker.model import codec
    from stoker.read.safe_text import legible
    from stoker.store import external_job_index
    from stoker.store.base import is_valid_key

    found = chain_log.find(store, name) if is_valid_key(name) and "/" not in name else []
    if not found:
        return False
    documents = []
    for region, origin in found:
        entries = list(chain_log.entries(store, region, origin))
        rows = external_job_index.read(store, region).rows
        members = [row for row in rows.values() if row.origin == origin]
        if as_json:
            decisions = [
                {"seq": entry.seq, "at": codec.dump(entry.at), "by": entry.record.by, "reason": entry.record.reason}
                | {"what": describe(entry.record.event), "event": codec.dump(entry.record.event)}
                for entry in entries
            ]
            documents.append(
                {"id": origin, "region": region, "jobs": [codec.dump(row) for row in members], "decisions": decisions}
            )
            continue
        click.echo(f"{click.style(legible(origin), bold=True)}  SageMaker {legible(region)}")
        for row in sorted(members, key=lambda row: row.created_at):
            machine = f"{row.nodes} × {row.machine}{' spot' if row.spot else ''}"
            click.echo(f"  {legible(row.name)}  {phase(row.phase)}  {legible(machine)}  {legible(row.note)}".rstrip())
        lines = [
            [clock(entry.at), legible(describe(entry.record.event)), legible(entry.record.reason)] for entry in entries
        ]
        click.echo(table((), lines))
    if as_json:
        print_json(documents[0] if len(documents) == 1 else documents)
    return True


def external_job_hint(store: Store, name: str, command: str) -> str | None:
    """The message that `name` is an external job, with the AWS command that replaces `command`. None: it is not."""
    from stoker.external_jobs.index_rows import summaries
    from stoker.model.errors import StoreError

    try:
        rows = [each for each in summaries(store) if each.id == name]
    except StoreError:
        return None
    if not rows:
        return None
    region = rows[0].attempts[0].zone
    what = f"{name} is an external training job, on SageMaker in {region}"
    where = f"--region {region}"
    if command == "logs":
        group = f"`aws logs tail /aws/sagemaker/TrainingJobs --log-stream-name-prefix {name}/ {where}`"
        return f"{what}; its log is in CloudWatch: {group}"
    if command == "stop":
        return f"{what}; `aws sagemaker stop-training-job --training-job-name {name} {where}` stops it"
    look = f"`aws sagemaker describe-training-job --training-job-name {name} {where}`"
    return f"{what}, and `stoker {command}` is not for those; `stoker show {name}` and {look} show it"


def describe(event: ChainEvent) -> str:
    """An entry of a clone chain's log in words."""
    from stoker.external_jobs.clone_chain import (
        Cloned,
        Cloning,
        GaveUp,
        JobEnded,
        JobSeen,
        RuleWarning,
        StopAccepted,
        StopCancelled,
        Stopping,
        StopUnanswered,
    )

    match event:
        case JobSeen():
            return f"{event.job}: seen"
        case RuleWarning():
            return f"{event.job}: warned, {event.rule}"
        case Stopping():
            then = {"": "", "restart": ", to go on as a clone", "on-demand": ", to go on without spot"}[event.after]
            return f"{event.job}: stopped, {event.rule}{then}"
        case StopAccepted():
            return f"{event.job}: SageMaker stops it"
        case StopUnanswered():
            return f"{event.job}: SageMaker did not answer"
        case StopCancelled():
            return f"{event.job}: goes on, not stopped"
        case Cloning():
            return f"{event.of}: goes on as {event.name}, {event.rule}"
        case Cloned():
            return f"{event.of}: {event.name} is made"
        case GaveUp():
            return f"{event.job}: does not go on, {event.rule}"
        case JobEnded():
            return f"{event.job}: {event.status.lower()}"


class ExternalJobWatcher:
    """Looks at external jobs from time to time while `stoker govern` runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._governor: ExternalJobGovernor | None = None
        self._looked_s: float | None = None

    def look(self) -> None:
        """Look at external jobs if it is time to. An error is printed, and ends nothing."""
        from stoker.external_jobs.govern import ExternalJobGovernor
        from stoker.model.errors import StokerError
        from stoker.read.safe_text import legible

        if self._looked_s is not None and time.monotonic() - self._looked_s < EVERY_S:
            return
        self._looked_s = time.monotonic()
        self._governor = self._governor or ExternalJobGovernor(self._store)
        try:
            _print(self._governor.tick())
        except StokerError as error:
            click.secho(legible(str(error)), fg="yellow", err=True)

    def plan(self) -> bool:
        """Print what `look` would do now, without doing it. False: nothing."""
        from stoker.external_jobs.govern import ExternalJobGovernor

        result = ExternalJobGovernor(self._store).plan()
        _print(result)
        return bool(result.done)


def _print(result: ExternalJobsResult) -> None:
    from stoker.read.safe_text import legible

    for line in result.done:
        click.echo(legible(line))
    for name, text in result.problems.items():
        # The governor already printed the policy's problem, for all jobs.
        if name != "policy":
            click.secho(legible(f"{name}: {text}"), fg="yellow", err=True)
