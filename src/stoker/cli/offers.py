"""`stoker offers`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stoker.cli.options import NamedPath, json_option, opened_store, provider_option, set_option, store_option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stoker.core.market import Tally
    from stoker.model.offerings import Offering
    from stoker.model.spec import Spec

# About one page of a terminal.
_LIMIT = 20


@click.command("offers")
@click.argument("job_file", metavar="[JOB.yaml]", required=False, type=NamedPath(path_type=Path))
@set_option
@provider_option()
@click.option("--zones", is_flag=True, help="Show every zone, not only the best zone of each machine.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=0),
    default=_LIMIT,
    help="Most lines to show; 0: all. [default: 20]",
)
@json_option
@store_option
def command(
    job_file: Path | None, sets: tuple[str, ...], provider: str | None, zones: bool, limit: int, as_json: bool
) -> None:
    """Show the machines that a job could get, with prices, spot against on-demand.

    Lists the machines that resources.spot and resources.max_price allow, in the order in which they would be tried.
    `--json` prints every machine in every zone, with the source of its price. LAST 24 H counts, over all jobs of the
    store, machines that were reclaimed, and launches that found no capacity.
    """
    from datetime import datetime, timezone

    from stoker.cli.format import print_json, say, table, to_json, warn
    from stoker.core.acceptable_offerings import acceptable
    from stoker.core.market import by_expected_cost
    from stoker.governor.market_records import MarketReader
    from stoker.governor.price_keeper import bring_prices
    from stoker.jobfile import find_job_file, job_layers, layer_of, resolve, shared_layers
    from stoker.model.errors import UserError
    from stoker.providers import registry
    from stoker.providers.regional_offerings import offerings_in_regions
    from stoker.submit.choose_offerings import ExplainsNoOffering, connect
    from stoker.submit.job_regions import regions_left_out
    from stoker.submit.policy_check import policy_limits, read_policy

    store = opened_store()
    # The command does not matter here, so a folder without a job file will do.
    flags = {"resources": {"provider": provider}} if provider is not None else {}
    policy = read_policy(store)
    own = job_layers(job_file or find_job_file(), sets, flags)
    layers = (layer_of({"run": "true"}, "offers"), *shared_layers(store), *own)
    spec = resolve(layers, registry.capabilities).spec
    for line in bring_prices(store, spec.resources.provider):
        warn(line)
    connected = connect(spec, store)
    in_regions = offerings_in_regions(connected, spec.resources)
    offered = in_regions.offerings
    limits = policy_limits(policy, spec)
    found, reason = acceptable(limits.spec, offered, cost_bound=limits.named("max_cost"))
    # Only people read this: a clock that is wrong by minutes does no harm here.
    now = datetime.now(timezone.utc)
    seen = MarketReader(store, now, policy).of(spec.resources.provider)
    found = by_expected_cost(found, seen, now, spec.resources.machine)
    tallies = {offering.key: seen.lately(offering, now) for offering in found}
    for line in regions_left_out(connected, spec.resources, in_regions):
        say(line)
    if as_json:
        print_json([{**to_json(offering), "last_24h": to_json(tallies[offering.key])} for offering in found])
        return
    if not found:
        why = connected.why_none(spec.resources) if not offered and isinstance(connected, ExplainsNoOffering) else ""
        raise UserError(why or reason)
    header, rows = listing(found, by_zone=zones, tallies=tallies)
    click.echo(table(header, rows[: limit or None]))
    if limit and len(rows) > limit:
        say(f"… and {len(rows) - limit} more; --limit 0 shows all")
    if unknown := sum(1 for offering in found if offering.price is None):
        say(f"{unknown} of {len(found)} prices are not known{_refreshing(spec.resources.provider)}")
    if len(found) < len(offered):
        left_out = _bounds(limits.spec, limits.named("max_cost"))
        say(f"{len(offered) - len(found)} of {len(offered)} are left out: {left_out}")


def _refreshing(provider: str) -> str:
    """Advice on how to fetch unknown prices, where the provider has a price table."""
    from stoker.model.errors import UserError
    from stoker.providers import registry

    try:
        registry.prices(provider)
    except UserError:
        return ""  # The provider has no price table.
    return f"; `stoker prices --provider {provider} --refresh` may fetch them"


def _bounds(spec: Spec, whose_cost: str) -> str:
    """The limits of job and policy that exclude offerings."""
    spot = {"never": "resources.spot is false", "only": "resources.spot is true"}.get(spec.resources.spot)
    most = spec.resources.max_price
    price = f"resources.max_price is ${most:g}/h" if most is not None else None
    cost = f"{whose_cost} needs a known price" if spec.limits.max_cost is not None else None
    return ", ".join(bound for bound in (spot, price, cost) if bound)


def listing(
    found: Sequence[Offering], *, by_zone: bool = False, tallies: Mapping[str, Tally] | None = None
) -> tuple[list[str], list[list[str]]]:
    """The table's header and rows, best first: one row for each machine and kind in its best zone, or for every zone.

    `tallies` are recent launches by the offering's key. They become a column where there were any.
    """
    from stoker.cli.format import price_source

    groups: dict[tuple[str, str, str], list[Offering]] = {}
    for offering in found:
        groups.setdefault((offering.machine, offering.kind, offering.zone if by_zone else ""), []).append(offering)
    header = ["MACHINE", "ZONE", "KIND", "PRICE", "CPUS", "MEMORY", "GPUS"]
    rows = [_row(group[0], len(group) - 1) for group in groups.values()]
    seen = [tallies.get(group[0].key) if tallies else None for group in groups.values()]
    if any(tally is not None and (tally.launches or tally.dry) for tally in seen):
        header.append("LAST 24 H")
        rows = [[*row, _lately(tally)] for row, tally in zip(rows, seen, strict=True)]
    # The source of prices needs a column only where there are several.
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
    from stoker.read.decision_text import rate

    zone = offering.zone or "any"
    return [
        offering.machine,
        f"{zone} +{others}" if others else zone,
        offering.kind,
        "unknown" if offering.price is None else rate(offering.price),
        "–" if offering.cpus is None else str(offering.cpus),
        "–" if offering.memory_bytes is None else size(offering.memory_bytes),
        f"{offering.gpus} × {offering.gpu}" if offering.gpus else "–",
    ]
