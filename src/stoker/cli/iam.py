"""`stoker iam`."""

from __future__ import annotations

import json

import click

from stoker.cli.completers import complete_provider
from stoker.cli.options import json_option, store_option

# Ends the script's here-document; no policy contains it.
_END = "END-OF-STOKER-IAM"


@click.command("iam")
@click.argument("provider", shell_complete=complete_provider)
@click.option(
    "--bucket",
    metavar="URL",
    help="The store's bucket, such as s3://BUCKET/PREFIX or gs://BUCKET/PREFIX; default: the store.",
)
@click.option(
    "--job", metavar="NAME", help="Limit machines to jobs of this name, with a profile or account of their own."
)
@click.option("--input", "inputs", metavar="URL", multiple=True, help="A bucket or folder that jobs read.")
@click.option("--logs", metavar="NAME", help="The value of logs.cloudwatch or logs.cloud_logging in jobs.")
@click.option(
    "--secret",
    "secrets",
    metavar="REFERENCE",
    multiple=True,
    help="A reference in `secrets` of jobs, such as aws-sm:NAME or gcp-sm:NAME; aws-ecr, gcp-token for private images.",
)
@click.option(
    "--notify",
    metavar="TO",
    multiple=True,
    help="A channel for notifications: a topic (sns:ARN) or a secret address (aws-sm:NAME, gcp-sm:NAME).",
)
@click.option(
    "--kms-key",
    "kms_keys",
    metavar="ARN",
    multiple=True,
    help="A KMS key of yours that encrypts the bucket, an input, a secret or the volumes of machines.",
)
@click.option("--policy", metavar="NAME", help="Print only this policy, for the cloud's own command line.")
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
    kms_keys: tuple[str, ...],
    policy: str | None,
    as_json: bool,
) -> None:
    """Print the permissions that PROVIDER's cloud has to grant to people, the governor and machines.

    The output is a shell script that grants them, with notes on what the cloud cannot separate. Printing asks no server
    and changes nothing.
    """
    from stoker.cli.format import print_json, to_json
    from stoker.model.errors import UserError
    from stoker.notifications import check_channels
    from stoker.providers import registry
    from stoker.store.base import open_store

    # Opening a store asks no server, and gives the canonical URL that tags are derived from.
    named = bucket if bucket is not None else click.get_current_context().find_root().obj
    check_channels.check_addresses(notify, "--notify")
    granting, url = registry.iam(provider), open_store(named).url
    registry.check_store(provider, url, "--bucket" if bucket else "--store")
    check_channels.check_grantable(notify, "Google Cloud" if url.startswith("gs://") else "AWS")
    found = granting.grants(url, job=job, inputs=inputs, logs=logs, secrets=secrets, notify=notify, kms_keys=kms_keys)
    if policy is not None:
        chosen = [grant for grant in found.grants if grant.name == policy]
        if not chosen:
            raise UserError(f"--policy {policy}: there are {', '.join(grant.name for grant in found.grants)}")
        click.echo(json.dumps(chosen[0].policy, indent=None if as_json else 2))
        return
    if as_json:
        print_json(to_json(found))
        return
    # One here-document: a pasted script stops at the first failure, and leaves the person's own shell alone.
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
