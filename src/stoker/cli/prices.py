"""`stoker prices`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.options import json_option, opened_store, provider_option, store_option

if TYPE_CHECKING:
    from stoker.providers.price_book import PricesModule, RegionPrices
    from stoker.store.base import Store

# The most prices of a region without --json.
_SHOWN = 20


@click.command("prices")
@provider_option("The provider whose prices to show. [default: all with a price table]")
@click.option("--region", "regions", metavar="R", multiple=True, help="Only this region; may be repeated.")
@click.option("--refresh", is_flag=True, help="Fetch the provider's price list, and keep it here and in the store.")
@json_option
@store_option
def command(provider: str | None, regions: tuple[str, ...], refresh: bool, as_json: bool) -> None:
    """Show the price tables, with their sources and dates.

    On-demand prices come from these tables. So do spot prices on Compute Engine; on EC2 they are fetched when they are
    needed. `--refresh` needs credentials: for pricing:GetProducts on AWS, for the billing catalog on Google. Without
    --provider it refreshes every provider whose extras are installed. The tables are kept on this computer and, where
    --store or STOKER_STORE names a store that you may write prices to, there, for all its users and governors.
    """
    store = _named_store()
    if store is not None:
        _bring(store)
    tables = _tables(provider, regions, refresh)
    if refresh:
        _refresh(tables, regions, store)
    _show(tables, regions, as_json)


def _named_store() -> Store | None:
    """The store that the command line or STOKER_STORE names; None for the default one, which is on this computer."""
    from stoker.store.home import is_unnamed_store

    store = opened_store()
    return None if is_unnamed_store(store.url) else store


def _bring(store: Store) -> None:
    """Bring the store's newer tables here. A store that does not give them is only reported."""
    from stoker.cli.format import warn
    from stoker.governor.price_keeper import PriceKeeper
    from stoker.model.errors import StoreError

    try:
        for what, why in PriceKeeper(store).read().items():
            warn(f"{what} in {store.url}: {why}")
    except StoreError as error:
        warn(f"prices in {store.url}: {error}")


def _tables(provider: str | None, regions: tuple[str, ...], refresh: bool) -> dict[str, PricesModule]:
    """The price tables by provider: the named one, else every provider with prices for one of the named regions."""
    from stoker.model.errors import NoSuchProvider, UserError
    from stoker.providers import registry

    if provider is not None:
        try:
            return {provider: registry.prices(provider)}
        except NoSuchProvider as error:
            raise UserError(f"--provider: {error}") from None
    found = {}
    for name in registry.names():
        with suppress(UserError):  # The provider has no price table.
            table = registry.prices(name)
            # A table without prices counts only when its provider is named: then it can be refreshed.
            if table.tables():
                found[name] = table
    for region in regions:
        if not any(region in table.tables() for table in found.values()):
            way = "name its --provider" if refresh else f"`stoker prices --provider P --refresh --region {region}`"
            raise UserError(f"--region: no table has prices for {region}; {way}")
    wanted = set(regions)
    return {name: table for name, table in found.items() if not regions or wanted & table.tables().keys()}


def _refresh(tables: Mapping[str, PricesModule], regions: tuple[str, ...], store: Store | None) -> None:
    """Refresh each table, and publish it in the store. Of several tables, those whose extras are missing are skipped,
    and a failure is a warning.

    Raises an error with all reasons, in one line, where every table failed.
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
        where = "" if store is None else _published(store, name, table)
        say(f"{total} for {counted(len(brought.counts), 'region')} kept in {brought.path}{where}")
    if len(failed) == len(tables) == 1:
        raise next(iter(failed.values()))
    if len(failed) == len(tables):
        kind = UserError if all(isinstance(why, UserError) for why in failed.values()) else StokerError
        raise kind("; ".join(f"{name}: {why}" for name, why in failed.items()))
    for name, why in failed.items():
        if not isinstance(why, NotInstalled):
            warn(f"{name} is not refreshed: {why}")


def _published(store: Store, name: str, table: PricesModule) -> str:
    """Publish a refreshed table in the store, and say so, or why it is not there."""
    from stoker.governor.price_keeper import publish
    from stoker.model import keys
    from stoker.model.errors import StoreError

    try:
        publish(store, name, table)
    except StoreError as error:
        return f", and not in {store.url}: {error}"
    return f" and in {store.url.rstrip('/')}/{keys.prices(name)}"


def _show(tables: Mapping[str, PricesModule], regions: tuple[str, ...], as_json: bool) -> None:
    from stoker.cli.format import print_json, say
    from stoker.model.errors import UserError
    from stoker.providers import registry

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
        document: dict[str, Any] = {}
        for name, region, found in shown:
            # No two clouds share a name of a region; two providers of one cloud do.
            document[region if region not in document else f"{name}/{region}"] = _region_fields(name, found)
        print_json(document)
        return
    for name, table in tables.items():
        if not table.tables():
            cloud = registry.capabilities(name).price_list
            say(f"no prices of {name} yet; `stoker prices --provider {name} --refresh` fetches them from {cloud}")
    for place, (name, region, found) in enumerate(shown):
        if place:
            click.echo()
        _print(name, region, found, tables[name].featured(found.prices)[:_SHOWN])
    _print_ages([(name, found) for name, _, found in shown])


def _region_fields(provider: str, found: RegionPrices) -> dict[str, Any]:
    return {
        "provider": provider,
        "source": found.source,
        "date": found.date.isoformat(),
        "prices": dict(found.prices),
        **({"spot": dict(found.spot)} if found.spot else {}),
    }


def _print(provider: str, region: str, found: RegionPrices, names: list[str]) -> None:
    from stoker.cli.format import counted
    from stoker.cli.format import table as columns
    from stoker.read.format import dollars

    click.echo(f"{click.style(region, bold=True)}  {provider}, {found.date.isoformat()}")
    click.echo(f"  {found.source}; {counted(len(found.prices), 'price')}")
    rows = []
    for name in names:
        spot = f"spot {dollars(found.spot[name])}/h" if name in found.spot else ""
        rows.append([f"  {name}", f"{dollars(found.prices[name])}/h", spot])
    click.echo(columns((), rows))


def _print_ages(shown: Sequence[tuple[str, RegionPrices]]) -> None:
    """Print the age of each provider's oldest table where it is old: once, however many regions were shown."""
    from stoker.cli.format import counted
    from stoker.providers.price_book import OLD_DAYS

    today = datetime.now(timezone.utc).date()
    oldest: dict[str, int] = {}
    for name, found in shown:
        oldest[name] = max((today - found.date).days, oldest.get(name, 0))
    for name, days in oldest.items():
        if days > OLD_DAYS:
            asks = f"`stoker prices --provider {name} --refresh` fetches today's"
            click.secho(f"\nprices of {name} are up to {counted(days, 'day')} old; {asks}", fg="yellow")
