"""On-demand prices of EC2's machines: see `stoker.providers.price_book`.

Prices differ by region and change seldom. `stoker prices --refresh` asks AWS's price list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any

from stoker.model.errors import UserError
from stoker.providers import machine_types
from stoker.providers.ec2 import catalog
from stoker.providers.ec2.client import Clients, pages
from stoker.providers.ec2.errors import call_aws
from stoker.providers.price_book import PriceBook, parse, price
from stoker.providers.price_table import PriceRefresh, RegionPrices

if TYPE_CHECKING:
    from mypy_boto3_pricing import PricingClient
    from mypy_boto3_pricing.type_defs import FilterTypeDef

__all__ = [
    "featured",
    "on_demand",
    "packaged",
    "parse",
    "refresh",
    "refresh_now",
    "refreshed_path",
    "refreshed_tables",
    "render",
    "tables",
]

# The price list is served from a few regions, this one among them, for all regions.
API_REGION = "us-east-1"
_SERVICE = "AmazonEC2"
_API_SOURCE = "AWS price list API"
# Plain Linux on shared hardware, paid by the hour while it runs.
_PLAIN = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}


def _family(machine: str) -> str:
    return machine.partition(".")[0]


_BOOK = PriceBook("ec2", "USD per hour, on demand, Linux", _family)
on_demand = _BOOK.on_demand
tables = _BOOK.tables
packaged = _BOOK.packaged
refreshed_tables = _BOOK.refreshed_tables
refreshed_path = _BOOK.refreshed_path
render = _BOOK.render


def featured(names: Iterable[str]) -> list[str]:
    """The machines that users request most often: the smallest of each family with accelerators."""
    return machine_types.featured(map(catalog.facts, names), _family)


def refresh(client: PricingClient, regions: Iterable[str], *, today: date | None = None) -> PriceRefresh:
    """Ask AWS's price list about these regions, and save the answer beside the saved prices of others.

    Raises the subclasses of `ProviderError`, and UserError for a region without prices or a home folder that is not
    writable. Saves nothing unless all regions were read.
    """
    day = today or datetime.now(timezone.utc).date()
    refreshed: dict[str, RegionPrices] = {}
    for region in regions:
        found = dict(_price_list(client, region))
        if not found:
            raise UserError(f"--region: AWS has no prices for {region}; name a region such as us-east-1")
        refreshed[region] = RegionPrices(_API_SOURCE, day, found)
    return _BOOK.save_refreshed(refreshed)


def refresh_now(regions: Iterable[str] = ()) -> PriceRefresh:
    """Refresh with this computer's AWS settings; without regions, all regions of the tables.

    Raises UserError without boto3.
    """
    return refresh(Clients().get("pricing", API_REGION), tuple(regions) or tuple(tables()))


# ── AWS's price list ──────────────────────────────────────────────────────────────────────────────────────────────────


def _price_list(client: PricingClient, region: str) -> Iterable[tuple[str, float]]:
    """The machines of a region with their prices."""
    wanted = {**_PLAIN, "regionCode": region}
    filters: list[FilterTypeDef] = [
        {"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()
    ]
    found: dict[str, float] = {}
    products = pages(client.get_products, "PriceList", ServiceCode=_SERVICE, Filters=filters)
    for text in call_aws("pricing:GetProducts", lambda: list(products)):
        name, amount = _parse_product(json.loads(text), wanted)
        if amount is not None:
            # If AWS lists a machine twice, it must not look cheaper than it may turn out to be.
            found[name] = max(amount, found.get(name, 0.0))
    return found.items()


def _parse_product(product: Mapping[str, Any], wanted: Mapping[str, str]) -> tuple[str, float | None]:
    """The machine and its on-demand price; None as the price for any other product."""
    attributes = product.get("product", {}).get("attributes", {})
    name = attributes.get("instanceType", "")
    if not name or any(attributes.get(key, value) != value for key, value in wanted.items()):
        return name, None
    # Capacity blocks are paid in advance and listed with a price of 0; no machine is free.
    if attributes.get("marketoption", "OnDemand") != "OnDemand":
        return name, None
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            if dimension.get("unit") == "Hrs":
                with suppress(ValueError, TypeError):
                    return name, price(dimension.get("pricePerUnit", {}).get("USD"))
    return name, None
