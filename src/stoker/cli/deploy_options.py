"""What `stoker deploy` does alike for every cloud: options that are kept, what is agreed to, and what is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from stoker.cli.options import json_option, store_option, yes_option

if TYPE_CHECKING:
    from stoker.deploy.package import Package
    from stoker.model.policy import House
    from stoker.store.base import Store

F = TypeVar("F", bound=Callable[..., Any])


# ── Options ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def kept_option(flag: str, name: str, metavar: str, about: str) -> Callable[[F], F]:
    """What deploying again keeps, and `--no-…` gives up."""

    def both(function: F) -> F:
        named = click.option(flag, name, metavar=metavar, multiple=True, help=about)
        about_none = "Give up all that this command does not name."
        none = click.option(flag.replace("--", "--no-", 1), f"no_{name}", is_flag=True, help=about_none)
        return named(none(function))

    return both


def common_options(function: F) -> F:
    for option in (
        click.option(
            "--dry-run", is_flag=True, help="Print everything that would be made or removed, without asking the cloud."
        ),
        click.option("--remove", is_flag=True, help="Remove it with all that belongs to it."),
        click.option(
            "--forget",
            metavar="REGION",
            multiple=True,
            help="Look no more into a region that does not answer; what may be there stays.",
        ),
        yes_option,
        json_option,
        store_option,
    ):
        function = option(function)
    return function


def kept(named: tuple[str, ...], before: tuple[str, ...], *, give_up: bool) -> tuple[str, ...]:
    """What is named, and what was deployed before: deploying again takes nothing away that nobody gave up."""
    return tuple(dict.fromkeys((*named, *(() if give_up else before))))


# ── What is told before, and agreed to ────────────────────────────────────────────────────────────────────────────────


def tell_given_up(before: tuple[str, ...], kept: tuple[str, ...]) -> None:
    from stoker.cli.format import say
    from stoker.model import channel_address

    for each in before:
        if each not in kept:
            # An address may hold a key; regions, roles and accounts hold none.
            secret = ":" in each and not each.startswith("arn:")
            say(f"given up: {channel_address.masked(each) if secret else each}")


def tell_lacking(built: Package) -> None:
    for line in built.lacking:
        click.secho(line, fg="yellow", err=True)


def channels(
    store: Store, cloud: Literal["AWS", "Google Cloud"], named: tuple[str, ...], only_named: bool
) -> tuple[str, ...]:
    """What is named, and what the policy tells through, as far as this cloud has to allow it; warns of the rest."""
    from stoker.notifications import check_channels

    wanted, useless = check_channels.granted([each.to for each in house_of(store).notify], cloud)
    for each in useless:
        told = f"the policy tells through {each}, which a governor on {cloud} cannot read; keep it as a secret there"
        click.secho(told, fg="yellow", err=True)
    return named if only_named else tuple(dict.fromkeys((*named, *wanted)))


def house_of(store: Store) -> House:
    from stoker.core.governor_settings import DEFAULT
    from stoker.policy.reader import HouseReader

    return HouseReader(store, DEFAULT).read().house


def agree(question: str, *, yes: bool) -> None:
    from stoker.cli.format import say
    from stoker.model.errors import UserError

    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError("this changes your cloud account and there is no terminal to ask on; -y agrees to it")
    if not click.confirm(question, err=True):
        say("nothing was done")
        raise click.exceptions.Exit(130)


def tell_unasked(*, remove: bool) -> None:
    """What a dry run cannot know, since it asks nobody: not even the store."""
    from stoker.cli.format import say

    if remove:
        say(
            "the cloud was not asked: regions, secrets and accounts that are on record and not named here are not shown"
        )
        return
    say("the cloud was not asked: what is kept from before (--events-from, --sagemaker, --notify), and the topics,")
    say("secrets and regions of the policy are not shown; the clock is switched on where a job is active, else off")


# ── What is shown ─────────────────────────────────────────────────────────────────────────────────────────────────────


def print_steps(steps: Any, change: str, *, as_json: bool) -> None:
    """Every request in order. Bindings are added to a policy that is read before, or removed from it: what else is in
    it stays, so only they are shown."""
    from stoker.deploy.gcp_resources import Bound, Made
    from stoker.providers.base import HttpRequest

    shown = []
    for step in steps:
        if isinstance(step, Bound):
            bindings = {f"{change} these bindings": list(step.bindings)}
            shown.append(HttpRequest(step.put.service, step.put.method, step.put.path, bindings))
        else:
            shown.append(step.make if isinstance(step, Made) else step)
    print_requests(shown, as_json=as_json)


def print_requests(requests: list[Any], *, as_json: bool) -> None:
    """Every request, in order; a template as the tree it is."""
    import json

    from stoker.cli.format import print_json, whole

    told = [whole(each) for each in requests]
    for each in told:
        body = each.get("params", {}).get("TemplateBody")
        if body:
            each["params"]["TemplateBody"] = json.loads(body)
    if as_json:
        print_json(told)
        return
    for each in told:
        what = f"{each['operation']} in {each['region']}" if "operation" in each else f"{each['method']} {each['path']}"
        click.secho(f"{each['service']} {what}", bold=True)
        body = each.get("params", each.get("body"))
        if body:
            print_json(body)


def tell_deployed(deployed: Any, *, as_json: bool) -> None:
    from stoker.cli.format import print_json, say, whole

    if as_json:
        print_json(whole(deployed))
        return
    say(f"{deployed.name} governs from now on, in {deployed.region}: woken by events, and once a minute while a job is")
    # As docs/serverless.md counts it: the slow tick, the alarms on AWS, and Cloud Scheduler's price for two clocks.
    cost = "about 30 cents" if deployed.cloud == "gcp" else "about 50 cents"
    say(f"active. At rest it costs {cost} a month. `stoker deploy {deployed.cloud} --remove` takes it away")
