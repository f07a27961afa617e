"""Training jobs of others, for `ps`, `show`, `explain`, `govern` and `reap`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from stoker.core.summary import Summary
    from stoker.external_jobs.clone_chain import FamilyEvent
    from stoker.external_jobs.govern import ForeignGovernor
    from stoker.governor.serverless.external_jobs import Looked
    from stoker.store.base import Store

# Events wake the deployed governor at once; who watches from a desk looks this often.
EVERY_S = 60.0


def recent(store: Store, most: int | None) -> list[Summary]:
    """Those in progress, and the `most` that ended last."""
    from stoker.external_jobs.index import summaries

    found = summaries(store)
    ended = sorted((each for each in found if each.ended_at), key=lambda each: str(each.ended_at), reverse=True)
    return [*(each for each in found if not each.ended_at), *ended[:most]]


def tell_family(store: Store, name: str, as_json: bool) -> bool:
    """Print what was done about the training job of that name, and about its clones. False: nobody knows of one."""
    from stoker.cli.format import clock, legible, phase, print_json, table
    from stoker.external_jobs import chain_log
    from stoker.model import codec
    from stoker.store import external_job_index
    from stoker.store.base import can_be_key

    found = chain_log.find(store, name) if can_be_key(name) and "/" not in name else []
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


def whose(store: Store, name: str, command: str) -> str | None:
    """That `name` is a training job of others, and what does there what `command` does here. None: it is none."""
    from stoker.external_jobs.index import summaries
    from stoker.model.errors import StoreError

    try:
        rows = [each for each in summaries(store) if each.id == name]
    except StoreError:
        return None
    if not rows:
        return None
    region = rows[0].attempts[0].zone
    told = f"{name} is a training job of others, on SageMaker in {region}"
    where = f"--region {region}"
    if command == "logs":
        group = f"`aws logs tail /aws/sagemaker/TrainingJobs --log-stream-name-prefix {name}/ {where}`"
        return f"{told}; its log is CloudWatch's: {group}"
    if command == "stop":
        return f"{told}; `aws sagemaker stop-training-job --training-job-name {name} {where}` stops it"
    look = f"`aws sagemaker describe-training-job --training-job-name {name} {where}`"
    return f"{told}, which `stoker {command}` is not for; `stoker show {name}` and {look} tell about it"


def describe(event: FamilyEvent) -> str:
    """An entry of a family's log in words."""
    from stoker.external_jobs.clone_chain import (
        Cloned,
        Cloning,
        GaveUp,
        Heard,
        Over,
        Relented,
        Seen,
        Stopping,
        Told,
        Unheard,
    )

    match event:
        case Seen():
            return f"{event.job}: seen"
        case Told():
            return f"{event.job}: warned, {event.rule}"
        case Stopping():
            then = {"": "", "restart": ", to go on as a clone", "on-demand": ", to go on without spot"}[event.after]
            return f"{event.job}: stopped, {event.rule}{then}"
        case Heard():
            return f"{event.job}: SageMaker stops it"
        case Unheard():
            return f"{event.job}: SageMaker did not answer"
        case Relented():
            return f"{event.job}: goes on, not stopped"
        case Cloning():
            return f"{event.of}: goes on as {event.name}, {event.rule}"
        case Cloned():
            return f"{event.of}: {event.name} is made"
        case GaveUp():
            return f"{event.job}: does not go on, {event.rule}"
        case Over():
            return f"{event.job}: {event.status.lower()}"


class Others:
    """Looks at training jobs of others now and then, for whoever watches."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._governor: ForeignGovernor | None = None
        self._looked_s: float | None = None

    def look(self) -> None:
        """If it is time. What goes wrong is told, and ends nothing."""
        from stoker.cli.format import legible
        from stoker.external_jobs.govern import ForeignGovernor
        from stoker.model.errors import StokerError

        if self._looked_s is not None and time.monotonic() - self._looked_s < EVERY_S:
            return
        self._looked_s = time.monotonic()
        self._governor = self._governor or ForeignGovernor(self._store)
        try:
            _print(self._governor.tick())
        except StokerError as error:
            click.secho(legible(str(error)), fg="yellow", err=True)

    def plan(self) -> bool:
        """Print what a look would do now, and do nothing. False: nothing."""
        from stoker.external_jobs.govern import ForeignGovernor

        looked = ForeignGovernor(self._store).plan()
        _print(looked)
        return bool(looked.done)


def _print(looked: Looked) -> None:
    from stoker.cli.format import legible

    for line in looked.done:
        click.echo(legible(line))
    for name, text in looked.problems.items():
        # What is wrong with the policy was told of all jobs.
        if name != "policy":
            click.secho(legible(f"{name}: {text}"), fg="yellow", err=True)
