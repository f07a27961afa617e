"""`stoker iam`."""

from __future__ import annotations

import json

import click

from stoker.cli.completers import complete_provider
from stoker.cli.options import json_option, store_option

# Ends the script; nothing in a policy looks like it.
_END = "END-OF-STOKER-IAM"


@click.command("iam")
@click.argument("provider", shell_complete=complete_provider)
@click.option(
    "--bucket",
    metavar="URL",
    help="The store's bucket, as s3://BUCKET/PREFIX or gs://BUCKET/PREFIX; the store by default.",
)
@click.option(
    "--job", metavar="NAME", help="Machines that reach jobs of this name alone, by a profile or account of their own."
)
@click.option("--input", "inputs", metavar="URL", multiple=True, help="A bucket or folder that jobs read.")
@click.option("--logs", metavar="NAME", help="What jobs name as logs.cloudwatch, or logs.cloud_logging, where they do.")
@click.option(
    "--secret",
    "secrets",
    metavar="REFERENCE",
    multiple=True,
    help="What jobs refer to in `secrets`, such as aws-sm:NAME or gcp-sm:NAME; aws-ecr, gcp-token for private images.",
)
@click.option(
    "--notify",
    metavar="TO",
    multiple=True,
    help="Where governors tell: a topic, as sns:ARN, or a secret that is an address, as aws-sm:NAME or gcp-sm:NAME.",
)
@click.option("--policy", metavar="NAME", help="Print this policy alone, for the cloud's own command line.")
@json_option
@store_option
def command(
    provider: str,
    bucket: str | None,
    job: str | None,
    inputs: tuple[str, ...],
    logs: str | None,
    secrets: tuple[str, ...],
    notify: tuple[str, ...],
    policy: str | None,
    as_json: bool,
) -> None:
    """Print what PROVIDER's cloud has to allow the person, the governor and the machines.

    As a shell script that makes it so, and says what that cannot separate. Printing asks nobody, and changes nothing.
    """
    from stoker.cli.format import print_json, whole
    from stoker.model.errors import UserError
    from stoker.notifications import check_channels
    from stoker.providers import registry
    from stoker.store.base import open_store
    from stoker.store.home import default_store_url

    # Opening asks nobody, and gives the one spelling that tags are made of.
    named = bucket or click.get_current_context().find_root().obj
    check_channels.check_written(notify, "--notify")
    granting, url = registry.iam(provider), open_store(named or default_store_url()).url
    registry.check_store(provider, url, "--bucket" if bucket else "--store")
    check_channels.check_granted(notify, "--notify", "Google Cloud" if url.startswith("gs://") else "AWS")
    found = granting.grants(url, job=job, inputs=inputs, logs=logs, secrets=secrets, notify=notify)
    if policy is not None:
        chosen = [grant for grant in found.grants if grant.name == policy]
        if not chosen:
            raise UserError(f"--policy {policy}: there are {', '.join(grant.name for grant in found.grants)}")
        click.echo(json.dumps(chosen[0].policy, indent=None if as_json else 2))
        return
    if as_json:
        print_json(whole(found))
        return
    # Quoted whole: what is pasted stops at the first failure, and leaves the person's own shell as it was.
    click.echo(f"sh -eu <<'{_END}'")
    click.echo(f"# For the store {url}. Read it, then paste it or pipe it to sh; running it again does no harm.\n")
    for grant in found.grants:
        click.secho(f"# {grant.name}: {grant.about}", bold=True)
        for line in grant.commands:
            click.secho(line, fg="cyan")
        click.echo()
    for note in found.notes:
        click.echo(f"# {note}")
    click.echo(_END)
