"""`stoker govern`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stoker.cli.options import opened_store, store_option

if TYPE_CHECKING:
    from stoker.core.snapshot import Action
    from stoker.governor.loop import Pass
    from stoker.model.errors import StokerError


@click.command("govern")
@click.option("--watch", is_flag=True, help="Repeat passes until interrupted.")
@click.option("--until-idle", is_flag=True, help="Repeat passes until no job is active.")
@click.option("--dry-run", is_flag=True, help="Print what a pass would do, without doing it.")
@store_option
def command(watch: bool, until_idle: bool, dry_run: bool) -> None:
    """Run one pass of the governor over every active job. Any number of governors may run at once."""
    from stoker.cli.external_jobs import ExternalJobWatcher
    from stoker.governor.loop import Governor

    store = opened_store()
    governor, others = Governor(store), ExternalJobWatcher(store)
    if dry_run:
        plan, observation = governor.plan()
        _print(plan.actions, plan.waiting, observation.problems | plan.problems)
        if not others.plan() and not plan.actions:
            click.echo("nothing to do")
        return
    if not (watch or until_idle):
        governor.dispatcher.retry_now = True
        _print_pass(governor.run_pass())
        others.look()
        return

    def after_pass(done: Pass) -> None:
        _print_changes(done)
        others.look()

    governor.watch(until=lambda done: until_idle and done.idle, on_pass=after_pass, on_error=_complain)


def _print_pass(done: Pass) -> None:
    from stoker.cli.format import counted

    _print(done.actions, done.waiting, done.problems)
    click.echo(f"{counted(done.active, 'active job')}, {counted(len(done.actions), 'action')}")


def _print_changes(done: Pass) -> None:
    _print(done.actions, {}, done.problems)


def _print(actions: tuple[Action, ...], waiting: dict[str, str], problems: dict[str, str]) -> None:
    from stoker.core.snapshot import Append
    from stoker.read.decision_text import describe
    from stoker.read.safe_text import legible

    for action in actions:
        what = describe(action.event, None) if isinstance(action, Append) else type(action).__name__.lower()
        click.echo(legible(f"{action.job}: {what}: {action.reason}"))
    for job, text in waiting.items():
        click.echo(legible(f"{job}: waiting: {text}"))
    for job, text in problems.items():
        click.secho(legible(f"{job}: {text}"), fg="yellow", err=True)


def _complain(error: StokerError) -> None:
    click.secho(str(error), fg="yellow", err=True)
