"""`stoker schema`."""

from __future__ import annotations

import click


@click.command("schema")
def command() -> None:
    """Print the JSON schema of the job file, for editors."""
    from stoker.cli.format import print_json
    from stoker.jobfile.schema import json_schema

    print_json(json_schema())
