"""On-demand prices of EC2's machines: see `stoker.providers.price_book`.

Prices differ by region and change seldom. `stoker prices --refresh` asks AWS's price list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from stoker.model import codec
from stoker.providers.ec2 import catalog
from stoker.providers.ec2.client import Clients, pages
from stoker.providers.ec2.errors import call_aws
from stoker.providers.price_book import PriceBook, PriceRefresh, price

if TYPE_CHECKING:
    from mypy_boto3_pricing import PricingClient
    from mypy_boto3_pricing.type_defs import FilterTypeDef

# The price list is served from a few regions, this one among them, for all regions.
API_REGION = "us-east-1"

BOOK = PriceBook("ec2", "USD per hour, on demand, Linux", lambda machine: machine.partition(".")[0], catalog.facts)
on_demand = BOOK.on_demand
tables = BOOK.tables
featured = BOOK.featured


@dataclass(frozen=True)
class AwsPriceList:
    """A service in AWS's price list, whose prices a book keeps."""

    book: PriceBook
    service: str
    source: str
    # The message about a region without prices: see `PriceBook.refresh`.
    unknown: str
    # The attributes that select machines from the service's products.
    attributes: Mapping[str, str]
    # Returns the machine that attributes of a product name; empty for a product that is no machine.
    machine_of: Callable[[Mapping[str, Any]], str]
    # The regions to refresh where neither the person nor a table names one.
    first_regions: tuple[str, ...] = ()

    def refresh(self, client: PricingClient, regions: Iterable[str], *, today: date | None = None) -> PriceRefresh:
        """Ask AWS's price list about these regions: see `PriceBook.refresh`."""

        def ask(region: str) -> tuple[Mapping[str, float], Mapping[str, float]]:
            return self._ask(client, region), {}

        return self.book.refresh(regions, ask, self.source, self.unknown, today)

    def refresh_now(self, regions: Iterable[str] = ()) -> PriceRefresh:
        """Refresh with this computer's AWS settings; without regions, all regions of the tables.

        Raises UserError without boto3.
        """
        client = Clients().get("pricing", API_REGION)
        return self.refresh(client, tuple(regions) or tuple(self.book.tables()) or self.first_regions)

    def _ask(self, client: PricingClient, region: str) -> dict[str, float]:
        """The machines among the service's products in a region, and their on-demand prices."""
        wanted = {**self.attributes, "regionCode": region}
        filters: list[FilterTypeDef] = [
            {"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()
        ]
        products = pages(client.get_products, "PriceList", ServiceCode=self.service, Filters=filters)
        found: dict[str, float] = {}
        for product in map(codec.parse_object, call_aws("pricing:GetProducts", lambda: list(products))):
            attributes = product.get("product", {}).get("attributes", {})
            name = self.machine_of(attributes)
            amount = _amount(product)
            if name and amount and all(attributes.get(key, value) == value for key, value in wanted.items()):
                # If AWS lists a machine twice, it must not look cheaper than it may turn out to be.
                found[name] = max(amount, found.get(name, 0.0))
        return found


def _machine(attributes: Mapping[str, Any]) -> str:
    # Capacity blocks are paid in advance and listed with a price of 0; no machine is free.
    on_demand = attributes.get("marketoption", "OnDemand") == "OnDemand"
    return str(attributes.get("instanceType", "")) if on_demand else ""


def _amount(product: Mapping[str, Any]) -> float | None:
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            if dimension.get("unit") in ("Hrs", "Hour", "Hours"):
                with suppress(ValueError, TypeError):
                    return price(dimension.get("pricePerUnit", {}).get("USD"))
    return None


_LIST = AwsPriceList(
    BOOK,
    "AmazonEC2",
    "AWS price list API",
    "AWS has no prices for {region}; name a region such as us-east-1",
    # Plain Linux on shared hardware, paid by the hour while it runs.
    {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"},
    _machine,
)
refresh = _LIST.refresh
refresh_now = _LIST.refresh_now
