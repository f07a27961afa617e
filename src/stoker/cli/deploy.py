"""`stoker deploy`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from stoker.cli.options import help_alone, json_option, opened_store, store_option, yes_option

if TYPE_CHECKING:
    from stoker.deploying.package import Package
    from stoker.rules import House
    from stoker.store import Store

F = TypeVar("F", bound=Callable[..., Any])


@click.group("deploy", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """A governor in a cloud, without a machine: woken by events, and once a minute while a job is active."""
    help_alone(ctx)


def _notify_option(about: str) -> Callable[[F], F]:
    def both(function: F) -> F:
        named = click.option(
            "--notify", metavar="TO", multiple=True, help=f"{about} Those of the policy need no naming."
        )
        none = click.option("--no-notify", is_flag=True, help="Give up all that this command does not name.")
        return named(none(function))

    return both


def _common(function: F) -> F:
    for option in (
        click.option("--dry-run", is_flag=True, help="Print everything that would be made or removed; ask nobody."),
        click.option("--remove", is_flag=True, help="Remove it with all that belongs to it."),
        yes_option,
        json_option,
        store_option,
    ):
        function = option(function)
    return function


@command.command()
@click.option("--region", metavar="REGION", help="Where it runs: the bucket's region, which is also the default.")
@click.option(
    "--events-from",
    "elsewhere",
    metavar="REGION",
    multiple=True,
    help="Another region in which jobs have machines, whose events are passed on.",
)
@click.option("--no-events-from", is_flag=True, help="Give up all regions that this command does not name.")
@click.option(
    "--sagemaker/--no-sagemaker",
    default=None,
    help="Let it stop, clone and watch training jobs that others started on SageMaker.",
)
@_notify_option("Let it tell through this topic, as sns:ARN, or read this secret that is an address, as aws-sm:NAME.")
@_common
def aws(
    region: str | None,
    elsewhere: tuple[str, ...],
    no_events_from: bool,
    notify: tuple[str, ...],
    no_notify: bool,
    sagemaker: bool | None,
    dry_run: bool,
    remove: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Deploy the governor to AWS: a Lambda, its events, its clock and its role, as one CloudFormation stack."""
    from stoker.cli.printing import say
    from stoker.deploying import aws as deploying
    from stoker.deploying import package, record
    from stoker.deploying.record import Deployed
    from stoker.notify import checking
    from stoker.submitting import submitter

    store = opened_store()
    for flag, named in (("--region", region), *(("--events-from", each) for each in elsewhere)):
        _check_region(flag, named)
    checking.check_granted(notify, "--notify", "AWS")
    where = _region(store, region, offline=dry_run)
    there = None if dry_run and not store.near else record.read(store, deploying.CLOUD)
    if remove:
        others = _kept(elsewhere, there.elsewhere if there else (), give_up=False)
        _remove_from_aws(store, where, others, dry_run=dry_run, yes=yes)
        return
    built = package.for_lambda(offline=dry_run)
    kept = there or Deployed(deploying.CLOUD, "", where, "", "", "")
    regions = _kept(elsewhere, kept.elsewhere, give_up=no_events_from)
    training = kept.sagemaker if sagemaker is None else sagemaker
    channels = notify if dry_run else _channels(store, "AWS", _kept(notify, kept.notify, give_up=no_notify), no_notify)
    planned = deploying.planned(store, built, where, regions, training=training, notify=channels)
    if dry_run:
        _print_requests(list(deploying.requests(planned, built)), as_json=as_json)
        return
    _tell_lacking(built)
    if kept.sagemaker and not training:
        say("given up: training jobs of others")
    _tell_given_up(kept.elsewhere, (where, *regions))
    _tell_given_up(kept.notify, channels)
    if not training and _governs_others(store):
        told = "the policy is about training jobs of others, which it may not touch without --sagemaker"
        click.secho(told, fg="yellow", err=True)
    _agree(f"Deploy the governor of {store.url} to {where}, as {planned.name}?", yes=yes)
    deployed = deploying.deploy(store, planned, built, submitter(), say)
    _told(deployed, as_json=as_json)


@command.command()
@click.option("--region", metavar="REGION", help="Where it runs, such as us-central1: near the bucket.")
@click.option("--project", metavar="PROJECT", help="Whose it is; by default that of your credentials.")
@_notify_option("Let it read this secret that is an address, as gcp-sm:NAME.")
@_common
def gcp(
    region: str | None,
    project: str | None,
    notify: tuple[str, ...],
    no_notify: bool,
    dry_run: bool,
    remove: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Deploy the governor to Google Cloud: a Cloud Run function, a topic for its messages, and its clock."""
    from stoker.cli.printing import say
    from stoker.deploying import gcp as deploying
    from stoker.deploying import package, record
    from stoker.deploying import project as planning
    from stoker.notify import checking
    from stoker.submitting import submitter
    from stoker.surroundings import store_environ

    store = opened_store()
    checking.check_granted(notify, "--notify", "Google Cloud")
    there = None if dry_run or not store.url.startswith("gs://") else record.read(store, deploying.CLOUD)
    whose = project or (there.project if there else None) or _project(offline=dry_run)
    where = _google_region(region or (there.region if there else None))
    built = package.for_cloud_run()
    before = there.notify if there else ()
    channels = notify
    if not dry_run and not remove and store.url.startswith("gs://"):
        channels = _channels(store, "Google Cloud", _kept(notify, before, give_up=no_notify), no_notify)
    plan = planning.planned(store.url, whose, where, built.digest, store_environ(store.url), channels)
    if remove:
        if dry_run:
            _print_steps(planning.removals(plan), "remove", as_json=as_json)
            return
        _agree(f"Remove {plan.name} from {whose}?", yes=yes)
        deploying.remove(store, plan, say)
        say("nothing is left of it; jobs that are active need another governor: `stoker govern --watch`")
        return
    if dry_run:
        _print_steps(planning.steps(plan), "add", as_json=as_json)
        return
    _tell_lacking(built)
    _tell_given_up(before, channels)
    _agree(f"Deploy the governor of {store.url} to {where} of {whose}, as {plan.name}?", yes=yes)
    _told(deploying.deploy(store, plan, built, submitter(), say), as_json=as_json)


def _remove_from_aws(store: Store, where: str, others: tuple[str, ...], *, dry_run: bool, yes: bool) -> None:
    from stoker import layout
    from stoker.cli.printing import say
    from stoker.deploying import aws as deploying

    name = layout.deployment(store.url)
    if dry_run:
        for each in (where, *others):
            click.echo(f"cloudformation DeleteStack {name} in {each}, with all of its resources")
        click.echo(f"cloudwatch DeleteAlarms that it made, in {where} and wherever it governed training jobs of others")
        click.echo(f"logs DeleteLogGroup /aws/lambda/{name} in {where}")
        click.echo(f"s3 DeleteObject {store.url}/deployed/*")
        return
    _agree(f"Remove {name} from {where}?", yes=yes)
    if not deploying.remove(store, where, others, say):
        say(f"there is no stack {name} in {where}; nothing to remove")
        return
    say("nothing is left of it; jobs that are active need another governor: `stoker govern --watch`")


def _kept(named: tuple[str, ...], before: tuple[str, ...], *, give_up: bool) -> tuple[str, ...]:
    """What is named, and what was deployed before: deploying again takes nothing away that nobody gave up."""
    return tuple(dict.fromkeys((*named, *(() if give_up else before))))


def _tell_given_up(before: tuple[str, ...], kept: tuple[str, ...]) -> None:
    from stoker.cli.printing import say
    from stoker.notify import address

    for each in before:
        if each not in kept:
            say(f"given up: {address.masked(each) if ':' in each else each}")


def _channels(
    store: Store, cloud: Literal["AWS", "Google Cloud"], named: tuple[str, ...], only_named: bool
) -> tuple[str, ...]:
    """What is named, and what the policy tells through, as far as this cloud has to allow it; warns of the rest."""
    from stoker.notify import checking

    wanted, useless = checking.granted([each.to for each in _house(store).notify], cloud)
    for each in useless:
        told = f"the policy tells through {each}, which a governor on {cloud} cannot read; keep it as a secret there"
        click.secho(told, fg="yellow", err=True)
    return named if only_named else tuple(dict.fromkeys((*named, *wanted)))


def _project(*, offline: bool) -> str:
    from stoker.errors import UserError
    from stoker.providers.gce import places, settings
    from stoker.providers.gce.client import Api

    found = places.environment_project() or settings.project() or (None if offline else Api().default_project())
    if not found:
        raise UserError("--project: is not known; give it, or set GOOGLE_CLOUD_PROJECT")
    return found


def _google_region(named: str | None) -> str:
    import os

    from stoker.errors import UserError

    found = named or os.environ.get("CLOUDSDK_COMPUTE_REGION")
    if not found:
        raise UserError("--region: is not known; give one near the bucket, such as us-central1")
    return found


def _print_steps(steps: Any, change: str, *, as_json: bool) -> None:
    """Every request in order. Bindings are added to a policy that is read before, or removed from it: what else is in
    it stays, so only they are shown."""
    from stoker.deploying.project import Bound, Made
    from stoker.providers.base import HttpRequest

    shown = []
    for step in steps:
        if isinstance(step, Bound):
            bindings = {f"{change} these bindings": list(step.bindings)}
            shown.append(HttpRequest(step.put.service, step.put.method, step.put.path, bindings))
        else:
            shown.append(step.make if isinstance(step, Made) else step)
    _print_requests(shown, as_json=as_json)


def _check_region(flag: str, named: str | None) -> None:
    from stoker.errors import UserError
    from stoker.policyfile import REGION

    if named is not None and REGION.fullmatch(named) is None:
        raise UserError(f"{flag}: {named} is no region; write one such as us-east-1")


def _region(store: Store, named: str | None, *, offline: bool) -> str:
    """The bucket's region: Lambda takes what it runs from a bucket of its own region, and from no other."""
    import os

    from stoker.errors import UserError
    from stoker.providers import registry
    from stoker.stores.s3 import bucket_region

    registry.check_store("ec2", store.url)
    told = named or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not offline:
        there = bucket_region(store.url.removeprefix("s3://").partition("/")[0])
        if named and there and there != named:
            raise UserError(f"--region {named}: the bucket is in {there}, and Lambda runs nothing from elsewhere")
        told = there or told
    if not told:
        raise UserError("--region: is not known; give it, or set AWS_REGION")
    return told


def _governs_others(store: Store) -> bool:
    return _house(store).sagemaker is not None


def _house(store: Store) -> House:
    from stoker.core.policy import DEFAULT
    from stoker.governor.house import HouseReader

    return HouseReader(store, DEFAULT).read().house


def _tell_lacking(built: Package) -> None:
    for line in built.lacking:
        click.secho(line, fg="yellow", err=True)


def _agree(question: str, *, yes: bool) -> None:
    from stoker.cli.printing import say
    from stoker.errors import UserError

    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError("this changes your cloud account and there is no terminal to ask on; -y agrees to it")
    if not click.confirm(question, err=True):
        say("nothing was done")
        raise click.exceptions.Exit(130)


def _print_requests(requests: list[Any], *, as_json: bool) -> None:
    """Every request, in order; a template as the tree it is."""
    import json

    from stoker.cli.printing import print_json, whole

    told = [whole(each) for each in requests]
    for each in told:
        body = each.get("params", {}).get("TemplateBody")
        if body:
            each["params"]["TemplateBody"] = json.loads(body)
    if as_json:
        print_json(told)
        return
    for each in told:
        what = each["operation"] if "operation" in each else f"{each['method']} {each['path']}"
        click.secho(f"{each['service']} {what}", bold=True)
        print_json(each.get("params", each.get("body")))


def _told(deployed: Any, *, as_json: bool) -> None:
    from stoker.cli.printing import print_json, say, whole

    if as_json:
        print_json(whole(deployed))
        return
    say(f"{deployed.name} governs from now on, in {deployed.region}: woken by events, and once a minute while a job is")
    say("active. At rest it costs nothing. `stoker deploy … --remove` takes it away")
