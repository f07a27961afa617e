"""`stoker deploy`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from stoker.cli.deploy_options import (
    KeptValues,
    agree,
    aws_region,
    check_clone_limits,
    check_emails,
    check_region,
    check_roles_and_keys,
    common_options,
    google_project,
    google_region,
    granted_channels,
    kept_option,
    print_deployed,
    print_dry_run_limits,
    print_given_up,
    print_requests,
    print_steps,
    read_policy,
    warn_missing_parts,
)
from stoker.cli.options import help_alone, json_option, opened_store, store_option

if TYPE_CHECKING:
    from stoker.deploy.gcp_plan import GcpPlan
    from stoker.deploy.package import Package
    from stoker.governor.deployment_record import DeploymentRecord
    from stoker.store.base import Store

_IN_POLICY = "Channels of the policy need not be named."
_REMOVED = "the deployment is removed; active jobs need another governor: `stoker govern --watch`"


@click.group("deploy", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Deploy a serverless governor to a cloud: events wake it, and a clock does once a minute while a job is active."""
    help_alone(ctx)


@command.command()
@click.option(
    "--region", metavar="REGION", help="The governor's region. It must be the bucket's, which is the default."
)
@kept_option("--events-from", "elsewhere", "REGION", "Pass events on from another region in which jobs have machines.")
@click.option(
    "--sagemaker/--no-sagemaker",
    default=None,
    help="Let the governor watch, stop and clone SageMaker training jobs that Stoker did not start.",
)
@kept_option(
    "--notify",
    "notify",
    "TO",
    f"Let the governor publish to this topic (sns:ARN), or read this secret address (aws-sm:NAME). {_IN_POLICY}",
)
@kept_option(
    "--pass-role",
    "roles",
    "ROLE",
    "A role that jobs give their machines, by name or ARN. The roles of `stoker iam` need not be named.",
)
@kept_option("--kms-key", "keys", "ARN", "A KMS key of yours that encrypts the bucket, a topic, a secret or volumes.")
@kept_option(
    "--clone-role",
    "clone_roles",
    "ROLE",
    "With --sagemaker: clones may have these roles alone, by name or ARN, with * for any text. Default: any role.",
)
@kept_option(
    "--clone-machine",
    "clone_machines",
    "TYPE",
    "With --sagemaker: clones may have these machine types alone, such as ml.g5.*. Default: any type.",
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
    clone_roles: tuple[str, ...],
    no_clone_roles: bool,
    clone_machines: tuple[str, ...],
    no_clone_machines: bool,
    sagemaker: bool | None,
    dry_run: bool,
    remove: bool,
    forget: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Deploy the governor to AWS: a Lambda, its events, its clock and its role, as one CloudFormation stack."""
    from stoker.deploy import aws as aws_deployment
    from stoker.deploy import aws_remove
    from stoker.governor import deployment_record
    from stoker.model.errors import UserError
    from stoker.notifications import check_channels

    store = opened_store()
    for flag, named in (("--region", region), *(("--events-from", each) for each in elsewhere)):
        check_region(flag, named)
    check_channels.check_grantable(notify, "AWS")
    check_roles_and_keys(roles, keys)
    check_clone_limits(clone_roles, clone_machines)
    where = aws_region(store, region, offline=dry_run)
    if where in forget:
        raise UserError(f"--forget {where}: this is the governor's own region")
    if remove and dry_run:
        print_requests(list(aws_remove.requests(store.url, where, elsewhere)), as_json=as_json)
        print_dry_run_limits(remove=True)
        return
    if remove:
        _remove_from_aws(store, where, elsewhere, forget, yes=yes)
        return
    wanted = _AwsOptions(
        region=where,
        elsewhere=KeptValues(elsewhere, no_elsewhere),
        notify=KeptValues(notify, no_notify),
        roles=KeptValues(roles, no_roles),
        keys=KeptValues(keys, no_keys),
        clone_roles=KeptValues(clone_roles, no_clone_roles),
        clone_machines=KeptValues(clone_machines, no_clone_machines),
        sagemaker=sagemaker,
        forget=forget,
    )
    recorded = None if dry_run and not store.is_local else deployment_record.read(store, aws_deployment.CLOUD)
    _deploy_to_aws(store, wanted, recorded, dry_run=dry_run, yes=yes, as_json=as_json)


@dataclass(frozen=True)
class _AwsOptions:
    """The options of `stoker deploy aws`, for the governor's region."""

    region: str
    elsewhere: KeptValues
    notify: KeptValues
    roles: KeptValues
    keys: KeptValues
    clone_roles: KeptValues
    clone_machines: KeptValues
    # None keeps the setting of the last deployment.
    sagemaker: bool | None
    forget: tuple[str, ...]


def _deploy_to_aws(
    store: Store, wanted: _AwsOptions, recorded: DeploymentRecord | None, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Plan the deployment, show what it gives up, ask, and deploy. A dry run prints the requests instead."""
    from stoker.cli.format import say
    from stoker.deploy import aws as aws_deployment
    from stoker.deploy import package
    from stoker.governor import deployment_record
    from stoker.governor.deployment_record import DeploymentRecord
    from stoker.submit.identity import user_at_host

    region, forget = wanted.region, wanted.forget
    built = package.for_lambda(offline=dry_run)
    blank = DeploymentRecord(aws_deployment.CLOUD, "", region, "", "", "")
    before = deployment_record.without_regions(recorded or blank, forget)
    training = before.sagemaker if wanted.sagemaker is None else wanted.sagemaker
    regions, notify = wanted.elsewhere.after(before.elsewhere), wanted.notify.named
    if not dry_run:
        regions = _event_regions(store, regions, wanted, training=training)
        notify = granted_channels(store, "AWS", wanted.notify, before.notify)
    roles, kms_keys = wanted.roles.after(before.identities), wanted.keys.after(before.keys)
    clone_roles = wanted.clone_roles.after(before.clone_roles)
    clone_machines = wanted.clone_machines.after(before.clone_machines)
    plan = aws_deployment.plan_deployment(
        store,
        built,
        region,
        regions,
        training=training,
        notify=notify,
        roles=roles,
        kms_keys=kms_keys,
        forgotten=forget,
        clone_roles=clone_roles,
        clone_machines=clone_machines,
    )
    if dry_run:
        print_requests(list(aws_deployment.requests(plan, built)), as_json=as_json)
        print_dry_run_limits(remove=False)
        return
    warn_missing_parts(built)
    if before.sagemaker and not training:
        say("dropped: external training jobs")
    print_given_up(before.elsewhere, (region, *regions))
    print_given_up(before.notify, notify)
    print_given_up((*before.identities, *before.keys), (*roles, *kms_keys))
    print_given_up((*before.clone_roles, *before.clone_machines), (*clone_roles, *clone_machines))
    agree(f"Deploy the governor of {store.url} to {region}, as {plan.name}?", yes=yes)
    print_deployed(aws_deployment.deploy(store, plan, built, user_at_host(), say), as_json=as_json)


def _event_regions(store: Store, regions: tuple[str, ...], wanted: _AwsOptions, *, training: bool) -> tuple[str, ...]:
    """These regions, and those in which the policy covers external training jobs.

    Without events from there the governor would not look at them. Prints which regions are added, and warns of those
    that --no-events-from leaves out.
    """
    from stoker.cli.format import say

    covered = read_policy(store).sagemaker
    if covered is None:
        return regions
    if not training:
        warning = "the policy covers external training jobs, which the governor may not touch without --sagemaker"
        click.secho(warning, fg="yellow", err=True)
        return regions
    more = tuple(each for each in covered.regions if each not in (wanted.region, *regions, *wanted.forget))
    if more and wanted.elsewhere.give_up:
        warning = f"the policy covers training jobs in {', '.join(more)}, from which no events will come"
        click.secho(warning, fg="yellow", err=True)
    elif more:
        say(f"events come from {', '.join(more)}, too: the policy covers training jobs there")
    return regions if wanted.elsewhere.give_up else (*regions, *more)


@command.command()
@click.option(
    "--region", metavar="REGION", help="The governor's region, such as us-central1. Choose one near the bucket."
)
@click.option("--project", metavar="PROJECT", help="The project of the governor; by default that of your credentials.")
@kept_option("--notify", "notify", "TO", f"Let the governor read this secret address (gcp-sm:NAME). {_IN_POLICY}")
@kept_option(
    "--alert", "alerts", "EMAIL", "The address to mail when the governor itself fails, or is not called any more."
)
@kept_option(
    "--service-account",
    "accounts",
    "EMAIL",
    "A service account that jobs give their machines, besides that of `stoker iam`.",
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
    from stoker.deploy import gcp as gcp_deployment
    from stoker.deploy import gcp_resources, package
    from stoker.governor import deployment_record
    from stoker.governor.deployment_record import DeploymentRecord
    from stoker.notifications import check_channels
    from stoker.providers.gce import identity
    from stoker.submit.local_environment import store_environ

    store = opened_store()
    check_channels.check_grantable(notify, "Google Cloud")
    on_google = store.url.startswith("gs://")
    recorded = deployment_record.read(store, gcp_resources.CLOUD) if on_google and not dry_run else None
    owner = project or (recorded.project if recorded else None) or google_project(offline=dry_run)
    where = google_region(region or (recorded.region if recorded else None))
    built = package.for_cloud_run()
    before = recorded or DeploymentRecord(gcp_resources.CLOUD, "", where, "", "", "")
    channels = notify
    if on_google and not dry_run and not remove:
        channels = granted_channels(store, "Google Cloud", KeptValues(notify, no_notify), before.notify)
    named = tuple(identity.checked(owner, each, "--service-account") for each in accounts)
    identities = KeptValues(named, no_accounts).after(before.identities)
    emails = KeptValues(check_emails(alerts), no_alerts).after(before.alerts)
    plan = gcp_resources.plan_deployment(
        store.url, owner, where, built.digest, store_environ(store.url), channels, identities, emails
    )
    if not remove:
        _deploy_to_gcp(store, plan, built, before, forget, dry_run=dry_run, yes=yes, as_json=as_json)
    elif dry_run:
        print_steps(gcp_resources.all_removals(plan, (plan.region,)), "remove", as_json=as_json)
        print_dry_run_limits(remove=True)
    else:
        agree(f"Remove {plan.name} from {owner}?", yes=yes)
        gcp_deployment.remove(store, plan, say, forgotten=forget)
        say(_REMOVED)


def _deploy_to_gcp(
    store: Store,
    plan: GcpPlan,
    built: Package,
    before: DeploymentRecord,
    forget: tuple[str, ...],
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show what the plan gives up, ask, and deploy. A dry run prints the requests instead."""
    from stoker.cli.format import say
    from stoker.deploy import gcp as gcp_deployment
    from stoker.deploy import gcp_resources
    from stoker.model.errors import UserError
    from stoker.submit.identity import user_at_host

    if plan.region in forget:
        raise UserError(f"--forget {plan.region}: this is the governor's own region")
    if dry_run:
        print_steps(gcp_resources.all_steps(plan, built), "add", as_json=as_json)
        print_dry_run_limits(remove=False)
        return
    warn_missing_parts(built)
    print_given_up(before.notify, plan.notify)
    print_given_up((*before.identities, *before.alerts), (*plan.accounts, *plan.alerts))
    agree(f"Deploy the governor of {store.url} to {plan.region} of {plan.project}, as {plan.name}?", yes=yes)
    deployed = gcp_deployment.deploy(store, plan, built, user_at_host(), say, forgotten=forget)
    print_deployed(deployed, as_json=as_json)


def _remove_from_aws(store: Store, where: str, others: tuple[str, ...], forget: tuple[str, ...], *, yes: bool) -> None:
    from stoker.cli.format import say
    from stoker.deploy import aws_remove
    from stoker.model import keys

    name = keys.deployment_name(store.url)
    agree(f"Remove {name} from {where}?", yes=yes)
    if not aws_remove.remove(store, where, others, say, forgotten=forget):
        say(f"there is no stack {name} in {where}; nothing to remove")
        return
    say(_REMOVED)


@command.command("status")
@json_option
@store_option
def status(as_json: bool) -> int:
    """Show whether the deployed governor is alive, when its last pass was, and whether undelivered events wait.

    Exits with 0 when everything is well, else with 1.
    """
    from stoker.cli.format import print_json, table, to_json
    from stoker.deploy import status as looking
    from stoker.model.errors import UserError
    from stoker.read.format import duration
    from stoker.read.safe_text import legible

    found = looking.check_deployments(opened_store())
    if not found:
        raise UserError(
            "no governor is deployed for this store; `stoker deploy aws` or `stoker deploy gcp` deploys one"
        )
    if as_json:
        print_json([{**to_json(each), "alive": each.alive, "well": each.well} for each in found])
        return 0 if all(each.well for each in found) else 1
    colours = {"good": "green", "bad": "red", "unknown": "yellow"}
    for health in found:
        deployed = health.deployed
        ago = "no pass yet" if health.passed_ago_s is None else f"passed {duration(health.passed_ago_s)} ago"
        word = click.style("alive", fg="green") if health.alive else click.style("silent", fg="red")
        if deployed.state != "there":
            word = click.style(f"{deployed.state}, not relied on", fg="red")
        click.echo(f"{click.style(deployed.name, bold=True)} on {deployed.cloud} in {deployed.region}: {word}, {ago}")
        rows = [
            [f"  {check.what}", click.style(legible(check.text), fg=colours[check.state])] for check in health.checks
        ]
        click.echo(table((), rows))
    return 0 if all(each.well for each in found) else 1
