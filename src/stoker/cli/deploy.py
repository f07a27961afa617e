"""`stoker deploy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stoker.cli.deploy_options import (
    agree,
    channels,
    common_options,
    house_of,
    kept,
    kept_option,
    print_requests,
    print_steps,
    tell_deployed,
    tell_given_up,
    tell_lacking,
    tell_unasked,
)
from stoker.cli.options import help_alone, json_option, opened_store, store_option

if TYPE_CHECKING:
    from stoker.store.base import Store

_POLICYS = "Those of the policy need no naming."


@click.group("deploy", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """A governor in a cloud, without a machine: woken by events, and once a minute while a job is active."""
    help_alone(ctx)


@command.command()
@click.option("--region", metavar="REGION", help="Where it runs: the bucket's region, which is also the default.")
@kept_option(
    "--events-from", "elsewhere", "REGION", "Another region in which jobs have machines, whose events are passed on."
)
@click.option(
    "--sagemaker/--no-sagemaker",
    default=None,
    help="Let it stop, clone and watch training jobs that others started on SageMaker.",
)
@kept_option(
    "--notify",
    "notify",
    "TO",
    f"Let it tell through this topic, as sns:ARN, or read this secret that is an address, as aws-sm:NAME. {_POLICYS}",
)
@kept_option(
    "--pass-role",
    "roles",
    "ROLE",
    "A role that jobs give their machines, by its name or ARN. Those of `stoker iam` need no naming.",
)
@kept_option(
    "--kms-key", "keys", "ARN", "A key of your own that the bucket, a topic, a secret or volumes are encrypted with."
)
@common_options
def aws(
    region: str | None,
    elsewhere: tuple[str, ...],
    no_elsewhere: bool,
    notify: tuple[str, ...],
    no_notify: bool,
    roles: tuple[str, ...],
    no_roles: bool,
    keys: tuple[str, ...],
    no_keys: bool,
    sagemaker: bool | None,
    dry_run: bool,
    remove: bool,
    forget: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Deploy the governor to AWS: a Lambda, its events, its clock and its role, as one CloudFormation stack."""
    from stoker.cli.format import say
    from stoker.deploy import aws as deploying
    from stoker.deploy import aws_remove, package
    from stoker.governor import deployment_record
    from stoker.governor.deployment_record import Deployed
    from stoker.model.errors import UserError
    from stoker.notifications import check_channels
    from stoker.submit.prepare import submitter

    store = opened_store()
    for flag, named in (("--region", region), *(("--events-from", each) for each in elsewhere)):
        _check_region(flag, named)
    check_channels.check_granted(notify, "--notify", "AWS")
    _check_named(roles, keys)
    where = _region(store, region, offline=dry_run)
    there = None if dry_run and not store.near else deployment_record.read(store, deploying.CLOUD)
    if where in forget:
        raise UserError(f"--forget {where}: the governor itself is there")
    if remove:
        if dry_run:
            print_requests(list(aws_remove.requests(store.url, where, elsewhere)), as_json=as_json)
            tell_unasked(remove=True)
            return
        _remove_from_aws(store, where, elsewhere, forget, yes=yes)
        return
    built = package.for_lambda(offline=dry_run)
    before = deployment_record.forgetting(there or Deployed(deploying.CLOUD, "", where, "", "", ""), forget)
    training = before.sagemaker if sagemaker is None else sagemaker
    regions = kept(elsewhere, before.elsewhere, give_up=no_elsewhere)
    if not dry_run:
        regions = _heard(store, regions, where, forget, training=training, only_named=no_elsewhere)
    told = notify if dry_run else channels(store, "AWS", kept(notify, before.notify, give_up=no_notify), no_notify)
    passed = kept(roles, before.identities, give_up=no_roles)
    used = kept(keys, before.keys, give_up=no_keys)
    planned = deploying.planned(
        store, built, where, regions, training=training, notify=told, roles=passed, kms_keys=used, forgotten=forget
    )
    if dry_run:
        print_requests(list(deploying.requests(planned, built)), as_json=as_json)
        tell_unasked(remove=False)
        return
    tell_lacking(built)
    if before.sagemaker and not training:
        say("given up: training jobs of others")
    tell_given_up(before.elsewhere, (where, *regions))
    tell_given_up(before.notify, told)
    tell_given_up((*before.identities, *before.keys), (*passed, *used))
    agree(f"Deploy the governor of {store.url} to {where}, as {planned.name}?", yes=yes)
    tell_deployed(deploying.deploy(store, planned, built, submitter(), say), as_json=as_json)


@command.command()
@click.option("--region", metavar="REGION", help="Where it runs, such as us-central1: near the bucket.")
@click.option("--project", metavar="PROJECT", help="Whose it is; by default that of your credentials.")
@kept_option("--notify", "notify", "TO", f"Let it read this secret that is an address, as gcp-sm:NAME. {_POLICYS}")
@kept_option(
    "--alert", "alerts", "EMAIL", "The address to mail when the governor itself fails, or is not called any more."
)
@kept_option(
    "--service-account", "accounts", "EMAIL", "An account that jobs give their machines, beside that of `stoker iam`."
)
@common_options
def gcp(
    region: str | None,
    project: str | None,
    notify: tuple[str, ...],
    no_notify: bool,
    alerts: tuple[str, ...],
    no_alerts: bool,
    accounts: tuple[str, ...],
    no_accounts: bool,
    dry_run: bool,
    remove: bool,
    forget: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Deploy the governor to Google Cloud: a Cloud Run function, a topic for its messages, and its clock."""
    from stoker.cli.format import say
    from stoker.deploy import gcp as deploying
    from stoker.deploy import gcp_resources as planning
    from stoker.deploy import package
    from stoker.governor import deployment_record
    from stoker.governor.deployment_record import Deployed
    from stoker.model.errors import UserError
    from stoker.notifications import check_channels
    from stoker.providers.gce import identity
    from stoker.submit.local_environment import store_environ
    from stoker.submit.prepare import submitter

    store = opened_store()
    check_channels.check_granted(notify, "--notify", "Google Cloud")
    there = None if dry_run or not store.url.startswith("gs://") else deployment_record.read(store, planning.CLOUD)
    whose = project or (there.project if there else None) or _project(offline=dry_run)
    where = _google_region(region or (there.region if there else None))
    built = package.for_cloud_run()
    before = there or Deployed(planning.CLOUD, "", where, "", "", "")
    told = notify
    if not dry_run and not remove and store.url.startswith("gs://"):
        told = channels(store, "Google Cloud", kept(notify, before.notify, give_up=no_notify), no_notify)
    named = tuple(identity.checked(whose, each, "--service-account") for each in accounts)
    acted = kept(named, before.identities, give_up=no_accounts)
    mailed = kept(_checked_mails(alerts), before.alerts, give_up=no_alerts)
    plan = planning.planned(store.url, whose, where, built.digest, store_environ(store.url), told, acted, mailed)
    if remove:
        if dry_run:
            print_steps(planning.all_removals(plan, (plan.region,)), "remove", as_json=as_json)
            tell_unasked(remove=True)
            return
        agree(f"Remove {plan.name} from {whose}?", yes=yes)
        deploying.remove(store, plan, say, forgotten=forget)
        say("nothing is left of it; jobs that are active need another governor: `stoker govern --watch`")
        return
    if where in forget:
        raise UserError(f"--forget {where}: the governor itself is to be there")
    if dry_run:
        print_steps(planning.everything(plan, built), "add", as_json=as_json)
        tell_unasked(remove=False)
        return
    tell_lacking(built)
    tell_given_up(before.notify, told)
    tell_given_up((*before.identities, *before.alerts), (*acted, *mailed))
    agree(f"Deploy the governor of {store.url} to {where} of {whose}, as {plan.name}?", yes=yes)
    deployed = deploying.deploy(store, plan, built, submitter(), say, forgotten=forget)
    tell_deployed(deployed, as_json=as_json)


def _heard(
    store: Store, regions: tuple[str, ...], where: str, forget: tuple[str, ...], *, training: bool, only_named: bool
) -> tuple[str, ...]:
    """These regions, and those whose training jobs the policy is about: without their events nobody would look at them.
    Says so, and warns where it is not to be."""
    from stoker.cli.format import say

    governed = house_of(store).sagemaker
    if governed is None:
        return regions
    if not training:
        told = "the policy is about training jobs of others, which it may not touch without --sagemaker"
        click.secho(told, fg="yellow", err=True)
        return regions
    more = tuple(each for each in governed.regions if each not in (where, *regions, *forget))
    if more and only_named:
        told = f"the policy is about training jobs in {', '.join(more)}, of which it will hear nothing"
        click.secho(told, fg="yellow", err=True)
    elif more:
        say(f"events come from {', '.join(more)}, too: the policy is about training jobs there")
    return regions if only_named else (*regions, *more)


def _remove_from_aws(store: Store, where: str, others: tuple[str, ...], forget: tuple[str, ...], *, yes: bool) -> None:
    from stoker.cli.format import say
    from stoker.deploy import aws_remove
    from stoker.model import keys

    name = keys.deployment(store.url)
    agree(f"Remove {name} from {where}?", yes=yes)
    if not aws_remove.remove(store, where, others, say, forgotten=forget):
        say(f"there is no stack {name} in {where}; nothing to remove")
        return
    say("nothing is left of it; jobs that are active need another governor: `stoker govern --watch`")


def _project(*, offline: bool) -> str:
    from stoker.model.errors import UserError
    from stoker.providers.gce import places, settings
    from stoker.providers.gce.client import Api

    found = places.environment_project() or settings.project() or (None if offline else Api().default_project())
    if not found:
        raise UserError("--project: is not known; give it, or set GOOGLE_CLOUD_PROJECT")
    return found


def _google_region(named: str | None) -> str:
    import os

    from stoker.model.errors import UserError

    found = named or os.environ.get("CLOUDSDK_COMPUTE_REGION")
    if not found:
        raise UserError("--region: is not known; give one near the bucket, such as us-central1")
    return found


def _check_named(roles: tuple[str, ...], keys: tuple[str, ...]) -> None:
    import re

    from stoker.model.errors import UserError

    for each in roles:
        if re.fullmatch(r"(arn:aws[a-z-]*:iam::[0-9]{12}:role/)?[\w+=,.@/-]{1,576}", each) is None:
            raise UserError(f"--pass-role: {each!r} is no role; give its name, or its ARN")
    for each in keys:
        # An alias may stand for another key tomorrow, so that no policy goes by one.
        if re.fullmatch(r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+", each) is None:
            raise UserError(f"--kms-key: {each!r} is no key; give its ARN, as arn:aws:kms:REGION:ACCOUNT:key/ID")


@command.command("status")
@json_option
@store_option
def status(as_json: bool) -> int:
    """Tell whether the deployed governor is alive, when it last passed, and whether undelivered events wait.

    The exit code is 0 where all is well, and 1 where something is not.
    """
    from stoker.cli.format import duration, legible, print_json, table, whole
    from stoker.deploy import status as looking
    from stoker.model.errors import UserError

    found = looking.look(opened_store())
    if not found:
        raise UserError(
            "no governor is deployed for this store; `stoker deploy aws` or `stoker deploy gcp` puts one up"
        )
    if as_json:
        print_json([{**whole(each), "alive": each.alive, "well": each.well} for each in found])
        return 0 if all(each.well for each in found) else 1
    colours = {"good": "green", "bad": "red", "unknown": "yellow"}
    for health in found:
        deployed = health.deployed
        ago = "it has never passed" if health.passed_ago_s is None else f"passed {duration(health.passed_ago_s)} ago"
        word = click.style("alive", fg="green") if health.alive else click.style("silent", fg="red")
        if deployed.state != "there":
            word = click.style(f"{deployed.state}, not relied on", fg="red")
        click.echo(f"{click.style(deployed.name, bold=True)} on {deployed.cloud} in {deployed.region}: {word}, {ago}")
        rows = [
            [f"  {check.what}", click.style(legible(check.text), fg=colours[check.state])] for check in health.checks
        ]
        click.echo(table((), rows))
    return 0 if all(each.well for each in found) else 1


def _checked_mails(named: tuple[str, ...]) -> tuple[str, ...]:
    import re

    from stoker.model.errors import UserError

    for each in named:
        if re.fullmatch(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+", each) is None:
            raise UserError(f"--alert: {each!r} is no address; write one such as me@example.com")
    return named


def _check_region(flag: str, named: str | None) -> None:
    from stoker.model.errors import UserError
    from stoker.policy.policy_file import REGION
    from stoker.providers.ec2 import places

    if named is None:
        return
    if REGION.fullmatch(named) is None:
        raise UserError(f"{flag}: {named} is no region; write one such as us-east-1")
    places.check_region(named, flag)


def _region(store: Store, named: str | None, *, offline: bool) -> str:
    """The bucket's region: Lambda takes what it runs from a bucket of its own region, and from no other."""
    import os

    from stoker.model.errors import UserError
    from stoker.providers import registry
    from stoker.store.s3 import bucket_region

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
