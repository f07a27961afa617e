"""`stoker prices`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.completers import complete_provider
from stoker.cli.options import json_option

if TYPE_CHECKING:
    from stoker.providers.price_table import PriceTable, RegionPrices

# Shown of each region without --json.
_SHOWN = 20


@click.command("prices")
@click.option(
    "--provider",
    metavar="P",
    shell_complete=complete_provider,
    help="Whose prices. [default: of all that keep a table]",
)
@click.option("--region", "regions", metavar="R", multiple=True, help="Only this region; may be repeated.")
@click.option("--refresh", is_flag=True, help="Ask the provider's price list, and keep the answer on this computer.")
@json_option
def command(provider: str | None, regions: tuple[str, ...], refresh: bool, as_json: bool) -> None:
    """Show the tables of prices, with their sources and dates.

    On EC2, spot prices are asked for when they are needed, and on-demand prices come from this table; on Compute
    Engine both do. `--refresh` needs credentials: on AWS for pricing:GetProducts, on Google for the billing catalog.
    Without --provider, those whose extras are installed are asked.
    """
    tables = _tables(provider, regions, refresh)
    if refresh:
        _refresh(tables, regions)
    _show(tables, regions, as_json)


def _tables(provider: str | None, regions: tuple[str, ...], refresh: bool) -> dict[str, PriceTable]:
    """By the name of the provider. Where none is named, those that have prices, of the regions which are."""
    from stoker.model.errors import UserError
    from stoker.providers import registry

    if provider is not None:
        return {provider: registry.prices(provider)}
    found = {}
    for name in registry.names():
        with suppress(UserError):  # It keeps none.
            table = registry.prices(name)
            # One that comes without prices is filled, and asked for, by its name.
            if table.tables():
                found[name] = table
    for region in regions:
        if not any(region in table.tables() for table in found.values()):
            way = "name its --provider" if refresh else f"`stoker prices --provider P --refresh --region {region}`"
            raise UserError(f"--region: no table has prices for {region}; {way}")
    wanted = set(regions)
    return {name: table for name, table in found.items() if not regions or wanted & table.tables().keys()}


def _refresh(tables: Mapping[str, PriceTable], regions: tuple[str, ...]) -> None:
    """Ask each of them. Of several, what is not installed is left out, and who cannot be asked is told.

    Raises what was wrong, in one line, where nobody could be asked.
    """
    from stoker.cli.format import counted, say, warn
    from stoker.model.errors import NotInstalled, StokerError, UserError

    failed: dict[str, StokerError] = {}
    for name, table in tables.items():
        asked = regions if len(tables) == 1 else tuple(region for region in regions if region in table.tables())
        try:
            brought = table.refresh_now(asked)
        except StokerError as error:
            failed[name] = error
            continue
        total = counted(sum(brought.counts.values()), "price")
        say(f"{total} for {counted(len(brought.counts), 'region')} kept in {brought.path}")
    if len(failed) == len(tables) == 1:
        raise next(iter(failed.values()))
    if len(failed) == len(tables):
        kind = UserError if all(isinstance(why, UserError) for why in failed.values()) else StokerError
        raise kind("; ".join(f"{name}: {why}" for name, why in failed.items()))
    for name, why in failed.items():
        if not isinstance(why, NotInstalled):
            warn(f"{name} is not refreshed: {why}")


def _show(tables: Mapping[str, PriceTable], regions: tuple[str, ...], as_json: bool) -> None:
    from stoker.cli.format import print_json, say
    from stoker.model.errors import UserError

    for region in regions:
        if not any(region in table.tables() for table in tables.values()):
            name = next(iter(tables))
            again = f"`stoker prices --provider {name} --refresh --region {region}`"
            raise UserError(f"--region: no table has prices for {region}; {again}")
    shown = [
        (name, region, found)
        for name, table in tables.items()
        for region, found in sorted(table.tables().items())
        if not regions or region in regions
    ]
    if as_json:
        told: dict[str, Any] = {}
        for name, region, found in shown:
            # No two clouds call a region the same; two providers of one cloud do.
            told[region if region not in told else f"{name}/{region}"] = _told(name, found)
        print_json(told)
        return
    for name, table in tables.items():
        if not table.tables():
            cloud = "Google" if name == "gce" else "AWS"
            say(f"no prices of {name} are kept here; `stoker prices --provider {name} --refresh` asks {cloud}")
    for place, (name, region, found) in enumerate(shown):
        if place:
            click.echo()
        _print(name, region, found, tables[name].featured(found.prices)[:_SHOWN])
    _print_ages([(name, found) for name, _, found in shown])


def _told(provider: str, found: RegionPrices) -> dict[str, Any]:
    return {
        "provider": provider,
        "source": found.source,
        "date": found.date.isoformat(),
        "prices": dict(found.prices),
        **({"spot": dict(found.spot)} if found.spot else {}),
    }


def _print(provider: str, region: str, found: RegionPrices, names: list[str]) -> None:
    from stoker.cli.format import counted, dollars
    from stoker.cli.format import table as columns

    click.echo(f"{click.style(region, bold=True)}  {provider}, {found.date.isoformat()}")
    click.echo(f"  {found.source}; {counted(len(found.prices), 'price')}")
    rows = []
    for name in names:
        spot = f"spot {dollars(found.spot[name])}/h" if name in found.spot else ""
        rows.append([f"  {name}", f"{dollars(found.prices[name])}/h", spot])
    click.echo(columns((), rows))


def _print_ages(shown: Sequence[tuple[str, RegionPrices]]) -> None:
    """How old the oldest of each provider are, where that is old: once, however many regions were shown."""
    from stoker.cli.format import counted
    from stoker.providers.price_table import OLD_DAYS

    today = datetime.now(timezone.utc).date()
    oldest: dict[str, int] = {}
    for name, found in shown:
        oldest[name] = max((today - found.date).days, oldest.get(name, 0))
    for name, days in oldest.items():
        if days > OLD_DAYS:
            asks = f"`stoker prices --provider {name} --refresh` asks for today's"
            click.secho(f"\nprices of {name} are up to {counted(days, 'day')} old; {asks}", fg="yellow")
