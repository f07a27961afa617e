"""`stoker offers`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.cli.options import json_option, opened_store, set_option, store_option

if TYPE_CHECKING:
    from stoker.model import Offering


@click.command("offers")
@click.argument("job_file", metavar="[JOB.yaml]", required=False, type=click.Path(path_type=Path))
@set_option
@click.option("--provider", metavar="P", help="Who lends the machines.")
@json_option
@store_option
def command(job_file: Path | None, sets: tuple[str, ...], provider: str | None, as_json: bool) -> None:
    """Show what the machines that a job asks for would cost, spot against on-demand."""
    from stoker import layout
    from stoker.cli.printing import print_json, table, whole
    from stoker.errors import UserError
    from stoker.jobfile import find_job_file, gather, layer_of, resolve
    from stoker.providers import registry
    from stoker.submitting import ExplainsNone, connect

    store = opened_store()
    # What is run does not matter here, so that a folder without a job file can be asked about as well.
    flags = {"resources": {"provider": provider}} if provider is not None else {}
    house = store.get(layout.DEFAULTS)
    settings = gather(
        job_file=job_file or find_job_file(), house=house.data if house is not None else None, sets=sets, flags=flags
    )
    layers = (layer_of({"run": "true"}, "offers"), *settings)
    spec = resolve(layers, registry.capabilities).spec
    connected = connect(spec, store)
    found = connected.offerings(spec.resources)
    if as_json:
        print_json([whole(offering) for offering in found])
        return
    if not found:
        why = connected.why_none(spec.resources) if isinstance(connected, ExplainsNone) else ""
        raise UserError(why or f"{spec.resources.provider} offers nothing that fits the resources asked for")
    click.echo(table(("MACHINE", "ZONE", "KIND", "PRICE", "CPUS", "MEMORY", "GPUS"), [_row(one) for one in found]))


def _row(offering: Offering) -> list[str]:
    from stoker.cli.printing import size
    from stoker.cli.timeline import rate

    return [
        offering.machine,
        offering.zone,
        "spot" if offering.spot else "on-demand",
        rate(offering.price),
        "–" if offering.cpus is None else str(offering.cpus),
        "–" if offering.memory_bytes is None else size(offering.memory_bytes),
        f"{offering.gpus} × {offering.gpu}" if offering.gpus else "–",
    ]
