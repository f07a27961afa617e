"""`stoker prices`."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from stoker.cli.options import json_option

if TYPE_CHECKING:
    from stoker.providers.pricing import PriceTable, RegionPrices

# Shown of each region without --json.
_SHOWN = 20


@click.command("prices")
@click.option("--provider", metavar="P", default="ec2", show_default=True, help="Whose prices.")
@click.option("--region", "regions", metavar="R", multiple=True, help="Only this region; may be repeated.")
@click.option("--refresh", is_flag=True, help="Ask the provider's price list, and keep the answer on this computer.")
@json_option
def command(provider: str, regions: tuple[str, ...], refresh: bool, as_json: bool) -> None:
    """Show the table of prices, with its source and date.

    On EC2, spot prices are asked for when they are needed, and on-demand prices come from this table; on Compute
    Engine both do. `--refresh` needs credentials: on AWS for pricing:GetProducts, on Google for the billing catalog.
    """
    from stoker.cli.printing import counted, say
    from stoker.providers import registry

    table = registry.prices(provider)
    if refresh:
        brought = table.refresh_now(regions)
        total = counted(sum(brought.counts.values()), "price")
        say(f"{total} for {counted(len(brought.counts), 'region')} kept in {brought.path}")
    _show(table, regions, as_json)


def _show(table: PriceTable, regions: tuple[str, ...], as_json: bool) -> None:
    from stoker.cli.printing import print_json
    from stoker.errors import UserError

    tables = table.tables()
    for region in regions:
        if region not in tables:
            raise UserError(f"--region: no table has prices for {region}; `stoker prices --refresh --region {region}`")
    shown = {region: found for region, found in sorted(tables.items()) if not regions or region in regions}
    if as_json:
        print_json(
            {
                region: {
                    "source": found.source,
                    "date": found.date.isoformat(),
                    "prices": dict(found.prices),
                    **({"spot": dict(found.spot)} if found.spot else {}),
                }
                for region, found in shown.items()
            }
        )
        return
    for place, (region, found) in enumerate(shown.items()):
        if place:
            click.echo()
        _print(region, found, table.featured(found.prices)[:_SHOWN])


def _print(region: str, found: RegionPrices, names: list[str]) -> None:
    from stoker.cli.printing import counted, dollars
    from stoker.cli.printing import table as columns
    from stoker.providers.pricing import OLD_DAYS

    days = (datetime.now(timezone.utc).date() - found.date).days
    age = counted(days, "day") + " old"
    if days > OLD_DAYS:
        age = click.style(age + "; --refresh asks for today's", fg="yellow")
    click.echo(f"{click.style(region, bold=True)}  {found.date.isoformat()}, {age}")
    click.echo(f"  {found.source}; {counted(len(found.prices), 'price')}")
    rows = []
    for name in names:
        spot = f"spot {dollars(found.spot[name])}/h" if name in found.spot else ""
        rows.append([f"  {name}", f"{dollars(found.prices[name])}/h", spot])
    click.echo(columns((), rows))
