"""`stoker policy`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.cli.completers import complete_file
from stoker.cli.options import help_alone, json_option, opened_store, set_option, store_option

if TYPE_CHECKING:
    from stoker.governor.deployment_record import Deployed
    from stoker.model.policy import House
    from stoker.model.spec import Spec
    from stoker.policy.versions import Kept
    from stoker.store.base import Store


_NONE = "there is no policy; `stoker policy set FILE` makes one"


@click.group("policy", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """The rules that every job of the store obeys: kept in it, and held against each job by whoever governs it."""
    help_alone(ctx)


@command.command("set")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--note", metavar="TEXT", default="", help="What changed, for readers of the history.")
@store_option
def set_(file: str, note: str) -> None:
    """Make FILE (- for standard input) the policy. It is a new version; the ones before are kept."""
    from stoker.cli.format import counted, say
    from stoker.notifications import check_channels
    from stoker.policy import versions
    from stoker.policy.policy_file import places_of_channels
    from stoker.submit.prepare import submitter

    text, source = _read(file)
    house, store = _parsed(text, source), opened_store()
    channels = check_channels.remarks((each.to for each in house.notify), places_of_channels(text, source))
    for line in (*channels, *_unknown_providers(house), *_over(house)):
        say(line)
    try:
        kept = versions.write(store, text, submitter(), note)
    except versions.Unchanged as same:
        say(str(same))
        return
    rules, before = len(house.rules), _rules_before(store, kept.version)
    fewer = f" ({before} before)" if before > rules else ""
    say(f"policy version {kept.version}: {counted(rules, 'rule')}{fewer}, from now on, for all jobs")
    _tell_deployed(store, house)


@command.command()
@click.option("--version", metavar="N", type=click.IntRange(min=1), help="Not the newest, but this one.")
@json_option
@store_option
def show(version: int | None, as_json: bool) -> None:
    """Print the policy as it was written."""
    from stoker.cli.format import print_json, say, warn
    from stoker.model.errors import SpecError
    from stoker.policy import versions

    store = opened_store()
    kept = _kept(store, version)
    if as_json:
        print_json(_told(kept) | {"text": kept.written.text} if kept else None)
        return
    if kept is None:
        say(_NONE)
        return
    click.echo(kept.written.text, nl=not kept.written.text.endswith("\n"))
    try:
        versions.house(kept)
    except SpecError as error:
        warn(str(error))


@command.command()
@json_option
@store_option
def history(as_json: bool) -> None:
    """List the versions of the policy: when, by whom, and what for."""
    from stoker.cli.format import clock, legible, print_json, say, table
    from stoker.policy import versions

    found = versions.history(opened_store())
    if as_json:
        print_json([_told(kept) for kept in found])
        return
    if not found:
        say(_NONE)
        return
    rows = [
        [str(kept.version), clock(kept.at), legible(kept.written.author), " ".join(legible(kept.written.note).split())]
        for kept in found
    ]
    click.echo(table(("VERSION", "SET", "BY", "NOTE"), rows))


@command.command(short_help="Tell what the policy would say to a job file.")
@click.argument("job_file", metavar="[JOB.yaml]", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--policy",
    metavar="FILE",
    shell_complete=complete_file,
    help="Not the store's policy, but this one, before it is set.",
)
@set_option
@json_option
@store_option
def test(job_file: Path | None, policy: str | None, sets: tuple[str, ...], as_json: bool) -> None:
    """Tell what the policy would say to a job file, without submitting it. Exits with 1 if it is refused.

    No cloud is asked: machines are those of the tables that come with Stoker.
    """
    from stoker.cli.format import print_json, say
    from stoker.cli.policy_verdict import verdict

    store = opened_store()
    if policy is not None:
        house = _parsed(*_read(policy))
    else:
        from stoker.policy import versions

        house = versions.house(versions.current(store))
    for line in _unknown_providers(house):
        say(line)
    spec = _spec(store, job_file, sets)
    found = verdict(house, store, spec)
    if as_json:
        print_json(found.told())
    else:
        for line in found.lines():
            click.echo(line)
    sys.exit(1 if found.refused else 0)


def _unknown_providers(house: House) -> list[str]:
    """A warning for each name that no provider here has. Other computers may have more of them."""
    from difflib import get_close_matches
    from fnmatch import fnmatchcase

    from stoker.providers import registry

    known = registry.names()
    found = []
    for rule in house.about("providers"):
        for pattern in rule.providers or ():
            if not any(fnmatchcase(name, pattern) for name in known):
                close = get_close_matches(pattern, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"
                found.append(f"warning: policy {rule.name}: no provider here is called {pattern}; {hint}")
    return found


def _tell_deployed(store: Store, house: House) -> None:
    """A governor that is deployed looks at everything anew, by the new rules. That it cannot be called is a word and no
    error: the policy is set."""
    from stoker.cli.format import say, warn
    from stoker.governor import deployment_record
    from stoker.model.errors import StokerError

    try:
        deployed = deployment_record.find(store)
        if deployed is None:
            return
        for line in _unheard(deployed, house):
            warn(line)
        deployment_record.wake(store, ())
    except StokerError as error:
        say(str(error))


def _unheard(deployed: Deployed, house: House) -> list[str]:
    """A line about training jobs that the policy is about, and the deployed governor is not."""
    if house.sagemaker is None or deployed.cloud != "aws":
        return []
    silent = [each for each in house.sagemaker.regions if each not in (deployed.region, *deployed.elsewhere)]
    found = []
    if not deployed.sagemaker:
        found.append(f"sagemaker: the governor {deployed.name} may not touch training jobs of others")
    elif silent:
        found.append(f"sagemaker.regions: the governor {deployed.name} hears nothing of {', '.join(silent)}")
    return [f"{each}; `stoker deploy aws --sagemaker` puts that right" for each in found]


def _rules_before(store: Store, version: int) -> int:
    """How many rules the version before had, as far as that can be told."""
    from stoker.model.errors import StokerError
    from stoker.policy import versions

    try:
        return len(versions.house(versions.read(store, version - 1)).rules) if version > 1 else 0
    except StokerError:
        return 0


def _over(house: House) -> list[str]:
    """A line for each exemption that is over."""
    from datetime import datetime, timezone

    today = datetime.now(timezone.utc).date()
    return [
        f"rule {rule.name}: its exemption of {each.whose} is over since {each.until} ({each.why})"
        for rule in house.rules
        for each in rule.exempt
        if each.until < today
    ]


def _spec(store: Store, job_file: Path | None, sets: tuple[str, ...]) -> Spec:
    from stoker.jobfile import find_job_file, gather, resolve
    from stoker.model import keys
    from stoker.model.errors import UserError
    from stoker.providers import registry

    job_file = job_file or find_job_file()
    if job_file is None:
        raise UserError("there is no stoker.yaml here; name a job file")
    defaults = store.get(keys.DEFAULTS)
    layers = gather(job_file=job_file, house=defaults.data if defaults else None, sets=sets, flags={})
    return resolve(layers, registry.capabilities).spec


def _read(file: str) -> tuple[str, str]:
    """A text and what it is called. Raises UserError for what cannot be read."""
    from stoker.model.errors import UserError

    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode(), "standard input" if file == "-" else file
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; name a file with rules") from None
    except UnicodeDecodeError:
        raise UserError(f"{file}: is no text in UTF-8") from None


def _parsed(text: str, source: str) -> House:
    from stoker.policy.policy_file import parse_policy

    return parse_policy(text.encode(), source)


def _kept(store: Store, version: int | None) -> Kept | None:
    from stoker.model.errors import UserError
    from stoker.policy import versions

    if version is None:
        return versions.current(store)
    found = versions.read(store, version)
    if found is None:
        raise UserError(f"--version: there is no version {version}; `stoker policy history` lists them")
    return found


def _told(kept: Kept) -> dict[str, object]:
    from stoker.model import codec
    from stoker.policy import versions

    return {
        "version": kept.version,
        "at": codec.dump(kept.at),
        "author": kept.written.author,
        "note": kept.written.note,
        "digest": versions.digest(kept),
    }
