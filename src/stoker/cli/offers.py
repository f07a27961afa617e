"""`stoker offers`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.cli.completers import complete_provider
from stoker.cli.options import json_option, opened_store, set_option, store_option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stoker.core.market import Tally
    from stoker.model.offerings import Offering
    from stoker.model.spec import Spec

# A page of a terminal.
_LIMIT = 20


@click.command("offers")
@click.argument("job_file", metavar="[JOB.yaml]", required=False, type=click.Path(path_type=Path))
@set_option
@click.option(
    "--provider",
    metavar="P",
    shell_complete=complete_provider,
    help="Where the machines come from: local, ec2, gce, sagemaker.",
)
@click.option("--zones", is_flag=True, help="A line for each zone, instead of the best zone of each machine.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=0), default=_LIMIT, help="Most lines; 0 shows all. [default: 20]"
)
@json_option
@store_option
def command(
    job_file: Path | None, sets: tuple[str, ...], provider: str | None, zones: bool, limit: int, as_json: bool
) -> None:
    """Show what the machines that a job asks for would cost, spot against on-demand.

    Those that resources.spot and resources.max_price allow, in the order in which they would be tried. `--json` has
    every machine in every zone, with the source of its price. LAST 24 H is how many of all jobs of the store were
    taken back there, and how often there was none.
    """
    from datetime import datetime, timezone

    from stoker.cli.format import print_json, say, table, whole
    from stoker.core.market import ordered
    from stoker.core.placement import acceptable
    from stoker.governor.market_records import MarketReader
    from stoker.jobfile import find_job_file, gather, layer_of, resolve
    from stoker.model import keys
    from stoker.model.errors import UserError
    from stoker.providers import registry
    from stoker.submit.policy_check import as_housed, cost_bound, house_of
    from stoker.submit.prepare import ExplainsNone, connect

    store = opened_store()
    # What is run does not matter here, so that a folder without a job file can be asked about as well.
    flags = {"resources": {"provider": provider}} if provider is not None else {}
    defaults, house = store.get(keys.DEFAULTS), house_of(store)
    settings = gather(
        job_file=job_file or find_job_file(),
        house=defaults.data if defaults is not None else None,
        sets=sets,
        flags=flags,
    )
    layers = (layer_of({"run": "true"}, "offers"), *settings)
    spec = resolve(layers, registry.capabilities).spec
    connected = connect(spec, store)
    offered = connected.offerings(spec.resources)
    found, reason = acceptable(as_housed(house, spec), offered, cost_bound=cost_bound(house, spec))
    # For people: a clock that goes wrong by minutes does no harm here.
    now = datetime.now(timezone.utc)
    seen = MarketReader(store, now, house).of(spec.resources.provider)
    found = ordered(found, seen, now, spec.resources.machine)
    tallies = {offering.key: seen.lately(offering, now) for offering in found}
    if as_json:
        print_json([{**whole(offering), "last_24h": whole(tallies[offering.key])} for offering in found])
        return
    if not found:
        why = connected.why_none(spec.resources) if not offered and isinstance(connected, ExplainsNone) else ""
        raise UserError(why or reason)
    header, rows = listing(found, by_zone=zones, tallies=tallies)
    click.echo(table(header, rows[: limit or None]))
    if limit and len(rows) > limit:
        say(f"… and {len(rows) - limit} more; --limit 0 shows all")
    unknown = sum(1 for offering in found if offering.price is None)
    if unknown:
        say(f"{unknown} of {len(found)} prices are not known{_refreshing(spec.resources.provider)}")
    if len(found) < len(offered):
        left_out = _bounds(as_housed(house, spec), cost_bound(house, spec))
        say(f"{len(offered) - len(found)} of {len(offered)} are left out: {left_out}")


def _refreshing(provider: str) -> str:
    """What may bring a price that is not known."""
    from stoker.model.errors import UserError
    from stoker.providers import registry

    try:
        registry.prices(provider)
    except UserError:
        return ""  # It keeps no table.
    return f"; `stoker prices --provider {provider} --refresh` may bring some"


def _bounds(spec: Spec, whose_cost: str) -> str:
    """What the job and the house allow, where they do not allow everything."""
    spot = {"never": "resources.spot is false", "only": "resources.spot is true"}.get(spec.resources.spot)
    most = spec.resources.max_price
    price = f"resources.max_price is ${most:g}/h" if most is not None else None
    cost = f"{whose_cost} needs a known price" if spec.limits.max_cost is not None else None
    return ", ".join(bound for bound in (spot, price, cost) if bound)


def listing(
    found: Sequence[Offering], *, by_zone: bool = False, tallies: Mapping[str, Tally] | None = None
) -> tuple[list[str], list[list[str]]]:
    """The table's header and rows, best first: one for each machine and kind in its best zone, or for every zone.

    `tallies` by the offering's key: what jobs saw of it lately, a column where they saw anything.
    """
    from stoker.cli.format import price_source

    groups: dict[tuple[str, bool, str], list[Offering]] = {}
    for offering in found:
        groups.setdefault((offering.machine, offering.spot, offering.zone if by_zone else ""), []).append(offering)
    header = ["MACHINE", "ZONE", "KIND", "PRICE", "CPUS", "MEMORY", "GPUS"]
    rows = [_row(group[0], len(group) - 1) for group in groups.values()]
    seen = [tallies.get(group[0].key) if tallies else None for group in groups.values()]
    if any(tally is not None and (tally.launches or tally.dry) for tally in seen):
        header.append("LAST 24 H")
        rows = [[*row, _lately(tally)] for row, tally in zip(rows, seen, strict=True)]
    # Where prices are from matters where they were looked up; the job file's own need no column.
    sources = [group[0].price_source for group in groups.values()]
    if len(set(sources)) > 1:
        header.append("SOURCE")
        rows = [[*row, price_source(source) or "–"] for row, source in zip(rows, sources, strict=True)]
    return header, rows


def _lately(tally: Tally | None) -> str:
    if tally is None or not (tally.launches or tally.dry):
        return "–"
    return f"{tally.reclaims} of {tally.launches} reclaimed" + (f", {tally.dry} × none" if tally.dry else "")


def _row(offering: Offering, others: int) -> list[str]:
    from stoker.cli.format import size
    from stoker.cli.timeline import rate

    zone = offering.zone or "any"
    return [
        offering.machine,
        f"{zone} +{others}" if others else zone,
        "spot" if offering.spot else "on-demand",
        "unknown" if offering.price is None else rate(offering.price),
        "–" if offering.cpus is None else str(offering.cpus),
        "–" if offering.memory_bytes is None else size(offering.memory_bytes),
        f"{offering.gpus} × {offering.gpu}" if offering.gpus else "–",
    ]
