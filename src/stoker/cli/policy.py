"""`stoker policy`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.cli.completers import complete_file
from stoker.cli.options import NamedPath, help_alone, json_option, opened_store, set_option, store_option
from stoker.cli.policy_approve import approve, list_approvals, withdraw

if TYPE_CHECKING:
    from stoker.governor.deployment_record import DeploymentRecord
    from stoker.jobfile import ResolvedJob
    from stoker.model.policy import Policy
    from stoker.policy.versions import PolicyVersion
    from stoker.store.base import Store


_NONE = "there is no policy; `stoker policy set FILE` makes one"


class _PolicyGroup(click.Group):
    """Shows the table of rules below the help."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        from stoker.policy.rule_table import rules_help

        with formatter.section("Rules (then: what happens; the first is the default)"):
            formatter.write_dl(list(rules_help()), col_max=44)


@click.group("policy", cls=_PolicyGroup, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Manage the policy of a store: the rules for all its jobs, which every governor enforces."""
    help_alone(ctx)


@command.command("set")
@click.argument("file", metavar="FILE", type=NamedPath(dir_okay=False, allow_dash=True))
@click.option("--note", metavar="TEXT", default="", help="A note on the change, for the history.")
@store_option
def set_(file: str, note: str) -> None:
    """Make FILE (- for standard input) the policy, as a new version. Earlier versions stay in the store."""
    from stoker.cli.format import counted, say
    from stoker.notifications import check_channels
    from stoker.policy import versions
    from stoker.policy.approver_warnings import approver_warnings
    from stoker.policy.policy_file import places_of_channels
    from stoker.policy.price_warnings import price_warnings
    from stoker.submit.identity import user_at_host

    text, source = _read(file)
    policy, store = _parsed(text, source), opened_store()
    channels = check_channels.address_warnings((each.to for each in policy.notify), places_of_channels(text, source))
    approvers = approver_warnings(policy, text, source)
    for line in (*channels, *_checked_names(policy), *_expired_exemptions(policy), *approvers, *price_warnings(policy)):
        say(line)
    try:
        kept = versions.write(store, text, user_at_host(), note)
    except versions.Unchanged as same:
        say(str(same))
        return
    rules, before = len(policy.rules), _rules_before(store, kept.version)
    fewer = f" ({before} before)" if before > rules else ""
    say(f"policy version {kept.version}: {counted(rules, 'rule')}{fewer}, from now on, for all jobs")
    _wake_deployed(store, policy)


@command.command()
@click.option("--version", metavar="N", type=click.IntRange(min=1), help="Show this version instead of the newest.")
@json_option
@store_option
def show(version: int | None, as_json: bool) -> None:
    """Print the policy as it was written."""
    from stoker.cli.format import print_json, say, warn
    from stoker.model.errors import SpecError
    from stoker.policy import versions

    store = opened_store()
    kept = _find_version(store, version)
    if as_json:
        print_json(_version_fields(kept) | {"text": kept.written.text} if kept else None)
        return
    if kept is None:
        say(_NONE)
        return
    click.echo(kept.written.text, nl=not kept.written.text.endswith("\n"))
    try:
        versions.parsed_policy(kept)
    except SpecError as error:
        warn(str(error))


@command.command()
@json_option
@store_option
def history(as_json: bool) -> None:
    """List the versions of the policy, with their dates, authors and notes."""
    from stoker.cli.format import clock, print_json, say, table
    from stoker.policy import versions
    from stoker.read.safe_text import legible

    found = versions.history(opened_store())
    if as_json:
        print_json([_version_fields(kept) for kept in found])
        return
    if not found:
        say(_NONE)
        return
    rows = [
        [str(kept.version), clock(kept.at), legible(kept.written.author), " ".join(legible(kept.written.note).split())]
        for kept in found
    ]
    click.echo(table(("VERSION", "SET", "BY", "NOTE"), rows))


@command.command(short_help="Test a job file against the policy.")
@click.argument("job_file", metavar="[JOB.yaml]", required=False, type=NamedPath(dir_okay=False, path_type=Path))
@click.option(
    "--policy",
    "policy_file",
    type=NamedPath(),
    metavar="FILE",
    shell_complete=complete_file,
    help="Test against this file instead of the store's policy.",
)
@set_option
@json_option
@store_option
def test(job_file: Path | None, policy_file: str | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Test a job file against the policy, without submitting it. Exits with 1 if the policy refuses the job.

    No cloud is asked: the machines and prices are those of the tables that come with Stoker, and of newer ones of
    `stoker prices --refresh`.
    """
    from stoker.cli.format import print_json, say, warn
    from stoker.cli.policy_verdict import judge_job
    from stoker.governor.price_keeper import bring_prices

    store = opened_store()
    if policy_file is not None:
        policy = _parsed(*_read(policy_file))
    else:
        from stoker.policy import versions

        policy = versions.current_policy(store)
    for line in _warnings_of_names(policy):
        say(line)
    resolved = _resolved(store, job_file, sets)
    for line in bring_prices(store, resolved.spec.resources.provider):
        warn(line)
    found = judge_job(policy, store, resolved)
    if as_json:
        print_json(found.to_json())
    else:
        for line in found.lines():
            click.echo(line)
    sys.exit(1 if found.refused else 0)


command.add_command(approve)
command.add_command(withdraw)
command.add_command(list_approvals)


def _warnings_of_names(policy: Policy) -> list[str]:
    """A warning for each name in the rules that matches nothing known here. Other computers may know more."""
    from stoker.policy.known_names import unknown_names

    return [f"warning: {each}" for each in unknown_names(policy)]


def _checked_names(policy: Policy) -> list[str]:
    """As `_warnings_of_names`. Raises PolicyRefused for names that almost are known ones: they would lock people out,
    or forbid nothing."""
    from stoker.model.errors import PolicyRefused
    from stoker.policy.known_names import unknown_names

    found = unknown_names(policy)
    misspelt = tuple(str(each) for each in found if each.misspelt)
    if misspelt:
        raise PolicyRefused(misspelt)
    return [f"warning: {each}" for each in found]


def _wake_deployed(store: Store, policy: Policy) -> None:
    """Wake the deployed governor, which then looks at all jobs by the new rules.

    A governor that cannot be called is only reported, and is no error: the policy is set.
    """
    from stoker.cli.format import say, warn
    from stoker.governor import deployment_record
    from stoker.model.errors import StokerError

    try:
        deployed = deployment_record.find(store)
        if deployed is None:
            return
        for line in _uncovered_jobs(deployed, policy):
            warn(line)
        deployment_record.wake(store, ())
    except StokerError as error:
        say(str(error))


def _uncovered_jobs(deployed: DeploymentRecord, policy: Policy) -> list[str]:
    """A line about external training jobs that the policy covers, and the deployed governor does not."""
    from stoker.governor.deployment_record import CLOUDS

    if policy.sagemaker is None or not CLOUDS[deployed.cloud].external_jobs:
        return []
    silent = [each for each in policy.sagemaker.regions if each not in (deployed.region, *deployed.elsewhere)]
    found = []
    if not deployed.sagemaker:
        found.append(f"sagemaker: the governor {deployed.name} may not touch external training jobs")
    elif silent:
        found.append(f"sagemaker.regions: the governor {deployed.name} gets no events from {', '.join(silent)}")
    return [f"{each}; `stoker deploy {deployed.cloud} --sagemaker` corrects that" for each in found]


def _rules_before(store: Store, version: int) -> int:
    """The number of rules in the version before; 0 where it cannot be read."""
    from stoker.model.errors import StokerError
    from stoker.policy import versions

    try:
        return len(versions.parsed_policy(versions.read(store, version - 1)).rules) if version > 1 else 0
    except StokerError:
        return 0


def _expired_exemptions(policy: Policy) -> list[str]:
    """A line for each exemption that has expired."""
    from datetime import datetime, timezone

    today = datetime.now(timezone.utc).date()
    return [
        f"rule {rule.name}: its exemption of {each.exempted} expired on {each.until} ({each.why})"
        for rule in policy.rules
        for each in rule.exempt
        if each.until < today
    ]


def _resolved(store: Store, job_file: Path | None, sets: tuple[str, ...]) -> ResolvedJob:
    from stoker.jobfile import own_layers, resolve, shared_layers
    from stoker.providers import registry

    layers = (*shared_layers(store), *own_layers(job_file, sets, advice="name a job file"))
    return resolve(layers, registry.capabilities)


def _read(file: str) -> tuple[str, str]:
    """The text of a file and its name. Raises UserError for a file that cannot be read."""
    from stoker.jobfile.named_file import read_named_file
    from stoker.model.errors import UserError

    try:
        if file == "-":
            return sys.stdin.buffer.read().decode(), "standard input"
        return read_named_file(Path(file), "the file with rules", open_files=True).decode(), file
    except UnicodeDecodeError:
        raise UserError(f"{file}: is not text in UTF-8") from None


def _parsed(text: str, source: str) -> Policy:
    from stoker.policy.policy_file import parse_policy

    return parse_policy(text.encode(), source)


def _find_version(store: Store, version: int | None) -> PolicyVersion | None:
    from stoker.model.errors import UserError
    from stoker.policy import versions

    if version is None:
        return versions.current(store)
    found = versions.read(store, version)
    if found is None:
        raise UserError(f"--version: there is no version {version}; `stoker policy history` lists them")
    return found


def _version_fields(kept: PolicyVersion) -> dict[str, object]:
    from stoker.model import codec
    from stoker.policy import versions

    return {
        "version": kept.version,
        "at": codec.dump(kept.at),
        "author": kept.written.author,
        "note": kept.written.note,
        "digest": versions.policy_digest(kept),
    }
