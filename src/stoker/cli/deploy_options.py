"""Options, checks, questions and output that `stoker deploy aws` and `stoker deploy gcp` share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from stoker.cli import EXIT_INTERRUPTED
from stoker.cli.options import json_option, store_option, yes_option

if TYPE_CHECKING:
    from stoker.deploy.package import Package
    from stoker.model.policy import Policy
    from stoker.store.base import Store

F = TypeVar("F", bound=Callable[..., Any])


# ── Options ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def kept_option(flag: str, name: str, metavar: str, about: str) -> Callable[[F], F]:
    """An option whose values the next deployment keeps, with a `--no-…` flag that gives them up."""

    def both(function: F) -> F:
        named = click.option(flag, name, metavar=metavar, multiple=True, help=about)
        about_none = f"Forget the values of {flag} from earlier deployments, which are kept otherwise."
        none = click.option(flag.replace("--", "--no-", 1), f"no_{name}", is_flag=True, help=about_none)
        return named(none(function))

    return both


def common_options(function: F) -> F:
    """The options of both clouds."""
    for option in (
        click.option(
            "--dry-run",
            is_flag=True,
            help="Print every resource that would be created or removed, without asking the cloud.",
        ),
        click.option("--remove", is_flag=True, help="Remove the deployed governor and all its resources."),
        click.option(
            "--forget",
            metavar="REGION",
            multiple=True,
            help="Ignore a region that does not answer; resources there are left alone.",
        ),
        yes_option,
        json_option,
        store_option,
    ):
        function = option(function)
    return function


@dataclass(frozen=True)
class KeptValues:
    """The values that a `kept_option` names. `give_up`: values of earlier deployments are not kept."""

    named: tuple[str, ...]
    give_up: bool

    def after(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """The named values and, unless they are given up, those of the deployment before."""
        return tuple(dict.fromkeys((*self.named, *(() if self.give_up else before))))


# ── Checks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def aws_region(store: Store, named: str | None, *, offline: bool) -> str:
    """The bucket's region. Lambda loads its code only from a bucket in its own region.

    Raises UserError where the region is unknown, or another one was named.
    """
    import os

    from stoker.model.errors import UserError
    from stoker.providers import registry
    from stoker.store.s3 import bucket_region

    registry.check_store("ec2", store.url)
    found = named or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not offline:
        there = bucket_region(store.url.removeprefix("s3://").partition("/")[0])
        if named and there and there != named:
            raise UserError(
                f"--region {named}: the bucket is in {there}, and Lambda runs only code from its own region"
            )
        found = there or found
    if not found:
        raise UserError("--region: the region is not known; give it, or set AWS_REGION")
    return found


def google_project(*, offline: bool) -> str:
    """The project of the environment, the settings or the credentials. Raises UserError where none is known."""
    from stoker.model.errors import UserError
    from stoker.providers.gce import places, settings
    from stoker.providers.gce.client import Api

    found = places.environment_project() or settings.project() or (None if offline else Api().default_project())
    if not found:
        raise UserError("--project: the project is not known; give it, or set GOOGLE_CLOUD_PROJECT")
    return found


def google_region(named: str | None) -> str:
    """The named region, or that of the environment. Raises UserError where none is known."""
    import os

    from stoker.model.errors import UserError

    found = named or os.environ.get("CLOUDSDK_COMPUTE_REGION")
    if not found:
        raise UserError("--region: the region is not known; give one near the bucket, such as us-central1")
    return found


def check_roles_and_keys(roles: tuple[str, ...], keys: tuple[str, ...]) -> None:
    """Raise UserError for a role or a key in a wrong form."""
    import re

    from stoker.model.errors import UserError
    from stoker.providers.ec2 import kms

    for each in roles:
        if re.fullmatch(r"(arn:aws[a-z-]*:iam::[0-9]{12}:role/)?[\w+=,.@/-]{1,576}", each) is None:
            raise UserError(f"--pass-role: {each!r} is no role; give its name, or its ARN")
    kms.check_keys(keys)


def check_clone_limits(roles: tuple[str, ...], machines: tuple[str, ...]) -> None:
    """Raise UserError for a role or a machine type, or a pattern of them, in a wrong form."""
    import re

    from stoker.model.errors import UserError

    for each in roles:
        if re.fullmatch(r"(arn:aws[a-z-]*:iam::[0-9]{12}:role/)?[\w+=,.@/*-]{1,576}", each) is None:
            raise UserError(f"--clone-role: {each!r} is no role; give its name or its ARN, with * for any text")
    for each in machines:
        if re.fullmatch(r"ml\.[a-z0-9.*-]{1,40}", each) is None:
            raise UserError(f"--clone-machine: {each!r} is no machine type; write one such as ml.g5.xlarge or ml.g5.*")


def check_emails(named: tuple[str, ...]) -> tuple[str, ...]:
    """The addresses. Raises UserError for one in a wrong form."""
    import re

    from stoker.model.errors import UserError

    for each in named:
        if re.fullmatch(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+", each) is None:
            raise UserError(f"--alert: {each!r} is no address; write one such as me@example.com")
    return named


def check_region(flag: str, named: str | None) -> None:
    """Raise UserError for a region that does not exist. `flag` named it."""
    from stoker.model.errors import UserError
    from stoker.policy.policy_file import REGION
    from stoker.providers.ec2 import places

    if named is None:
        return
    if REGION.fullmatch(named) is None:
        raise UserError(f"{flag}: {named} is no region; write one such as us-east-1")
    places.check_region(named, flag)


# ── Warnings and questions ────────────────────────────────────────────────────────────────────────────────────────────


def print_given_up(before: tuple[str, ...], kept: tuple[str, ...]) -> None:
    """Print the values of the deployment before that this one gives up."""
    from stoker.cli.format import say
    from stoker.model import channel_address

    for each in before:
        if each not in kept:
            # An address may hold a key; regions, roles and accounts hold none.
            secret = ":" in each and not each.startswith("arn:")
            say(f"dropped: {channel_address.masked(each) if secret else each}")


def warn_missing_parts(built: Package) -> None:
    """Warn of the parts that the package lacks."""
    for line in built.lacking:
        click.secho(line, fg="yellow", err=True)


def granted_channels(
    store: Store, cloud: Literal["AWS", "Google Cloud"], notify: KeptValues, before: tuple[str, ...]
) -> tuple[str, ...]:
    """The channels that need a grant of this cloud: the named ones, those before, and those of the policy.

    Warns of channels of the policy that a governor in this cloud cannot read.
    """
    from stoker.notifications import check_channels

    of_policy, unreadable = check_channels.grantable_addresses([each.to for each in read_policy(store).notify], cloud)
    for each in unreadable:
        warning = f"the policy notifies {each}, which a governor on {cloud} cannot read; store it as a secret there"
        click.secho(warning, fg="yellow", err=True)
    named = notify.after(before)
    return named if notify.give_up else tuple(dict.fromkeys((*named, *of_policy)))


def read_policy(store: Store) -> Policy:
    """The policy as a governor reads it: a newest version that is invalid does not count."""
    from stoker.core.governor_settings import DEFAULT
    from stoker.policy.reader import PolicyReader

    return PolicyReader(store, DEFAULT).read().policy


def agree(question: str, *, yes: bool) -> None:
    """Ask before the cloud account changes. Raises UserError without a terminal, Exit when the answer is no."""
    from stoker.cli.format import say
    from stoker.model.errors import UserError

    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError("this changes your cloud account and there is no terminal to ask on; -y agrees to it")
    if not click.confirm(question, err=True):
        say("nothing was done")
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


def print_dry_run_limits(*, remove: bool) -> None:
    """Print what a dry run leaves out, because it asks neither the cloud nor the store."""
    from stoker.cli.format import say

    if remove:
        say("the cloud was not asked: regions, secrets and accounts on record that are not named here are not shown")
        return
    say(
        "the cloud was not asked: values of earlier deployments (--events-from, --sagemaker, --notify), and the topics,"
    )
    say("secrets and regions of the policy are not shown; the clock is switched on where a job is active, else off")


# ── Output ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def print_steps(steps: Any, change: str, *, as_json: bool) -> None:
    """Print every request in order.

    Of an IAM policy only the changed bindings are shown: they are added to the policy that is read then, or removed
    from it, and its other bindings stay.
    """
    from stoker.deploy.gcp_resources import GcpResource, RoleBindings
    from stoker.providers.base import HttpRequest

    shown = []
    for step in steps:
        if isinstance(step, RoleBindings):
            bindings = {f"{change} these bindings": list(step.bindings)}
            shown.append(HttpRequest(step.put.service, step.put.method, step.put.path, bindings))
        else:
            shown.append(step.make if isinstance(step, GcpResource) else step)
    print_requests(shown, as_json=as_json)


def print_requests(requests: list[Any], *, as_json: bool) -> None:
    """Print every request in order; a template as JSON."""
    import json

    from stoker.cli.format import print_json, to_json

    documents = [to_json(each) for each in requests]
    for each in documents:
        body = each.get("params", {}).get("TemplateBody")
        if body:
            each["params"]["TemplateBody"] = json.loads(body)
    if as_json:
        print_json(documents)
        return
    for each in documents:
        what = f"{each['operation']} in {each['region']}" if "operation" in each else f"{each['method']} {each['path']}"
        click.secho(f"{each['service']} {what}", bold=True)
        body = each.get("params", each.get("body"))
        if body:
            print_json(body)


def print_deployed(deployed: Any, *, as_json: bool) -> None:
    """Print the name, the place and the cost of the deployed governor."""
    from stoker.cli.format import print_json, say, to_json
    from stoker.governor.deployment_record import CLOUDS

    if as_json:
        print_json(to_json(deployed))
        return
    say(f"{deployed.name} governs from now on, in {deployed.region}: woken by events, and once a minute while a job is")
    cost = CLOUDS[deployed.cloud].monthly_cost
    say(f"active. At rest it costs {cost} a month. `stoker deploy {deployed.cloud} --remove` takes it away")
