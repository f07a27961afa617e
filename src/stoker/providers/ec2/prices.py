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
from stoker.providers.ec2.errors import calling
from stoker.providers.price_book import PriceBook, parse, price
from stoker.providers.price_table import Refreshed, RegionPrices

if TYPE_CHECKING:
    from mypy_boto3_pricing import PricingClient
    from mypy_boto3_pricing.type_defs import FilterTypeDef

__all__ = [
    "featured",
    "kept",
    "kept_path",
    "on_demand",
    "packaged",
    "parse",
    "refresh",
    "refresh_now",
    "render",
    "tables",
]

# The price list is served from few regions, this one among them, whichever region is asked about.
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
kept = _BOOK.kept
kept_path = _BOOK.kept_path
render = _BOOK.render


def featured(names: Iterable[str]) -> list[str]:
    """The machines that people ask for first: of each family with accelerators, the smallest."""
    return machine_types.featured(map(catalog.facts, names), _family)


def refresh(client: PricingClient, regions: Iterable[str], *, today: date | None = None) -> Refreshed:
    """Ask AWS's price list about these regions, and keep the answer beside what is kept of others.

    Raises the errors of `ProviderError`, and UserError for a region that AWS has no prices of or a home that cannot be
    written. Nothing is kept unless all was read.
    """
    day = today or datetime.now(timezone.utc).date()
    brought: dict[str, RegionPrices] = {}
    for region in regions:
        found = dict(_asked(client, region))
        if not found:
            raise UserError(f"--region: AWS has no prices for {region}; name a region such as us-east-1")
        brought[region] = RegionPrices(_API_SOURCE, day, found)
    return _BOOK.keep(brought)


def refresh_now(regions: Iterable[str] = ()) -> Refreshed:
    """Refresh with this computer's own AWS settings; without regions, all that a table has.

    Raises UserError without boto3.
    """
    from stoker.providers.ec2.client import Clients

    return refresh(Clients().get("pricing", API_REGION), tuple(regions) or tuple(tables()))


# ── AWS's price list ──────────────────────────────────────────────────────────────────────────────────────────────────


def _asked(client: PricingClient, region: str) -> Iterable[tuple[str, float]]:
    """The machines of a region with their prices, page by page."""
    wanted = {**_PLAIN, "regionCode": region}
    filters: list[FilterTypeDef] = [
        {"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()
    ]
    found: dict[str, float] = {}
    token = ""
    while True:
        more: dict[str, Any] = {"NextToken": token} if token else {}

        def ask(more: dict[str, Any] = more) -> Any:
            return client.get_products(ServiceCode=_SERVICE, Filters=filters, **more)

        answer = calling("pricing:GetProducts", ask)
        for text in answer["PriceList"]:
            product = json.loads(text)
            name, amount = _offered(product, wanted)
            if amount is not None:
                # Should AWS list one machine twice, it must not look cheaper than it may turn out.
                found[name] = max(amount, found.get(name, 0.0))
        token = answer.get("NextToken") or ""
        if not token:
            return found.items()


def _offered(product: Mapping[str, Any], wanted: Mapping[str, str]) -> tuple[str, float | None]:
    """The machine, and what it costs on demand; None for anything else that the list sells."""
    attributes = product.get("product", {}).get("attributes", {})
    name = attributes.get("instanceType", "")
    if not name or any(attributes.get(key, value) != value for key, value in wanted.items()):
        return name, None
    # Capacity blocks are paid ahead and listed at nothing; a machine is never free.
    if attributes.get("marketoption", "OnDemand") != "OnDemand":
        return name, None
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            if dimension.get("unit") == "Hrs":
                with suppress(ValueError, TypeError):
                    return name, price(dimension.get("pricePerUnit", {}).get("USD"))
    return name, None
