"""Prices of SageMaker's machines for training: see `stoker.providers.price_book`.

SageMaker has a price list of its own: a machine costs more than EC2's of the same name. No table is packaged;
`stoker prices --provider sagemaker --refresh` asks AWS. Until then prices are unknown. AWS publishes no price for
managed spot: its savings appear on the bill.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any

from stoker.model.errors import UserError
from stoker.providers import machine_types
from stoker.providers.ec2.errors import call_aws
from stoker.providers.ec2.prices import API_REGION
from stoker.providers.price_book import PriceBook, parse, price
from stoker.providers.price_table import PriceRefresh, RegionPrices
from stoker.providers.sagemaker import catalog

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
    "tables",
]

_SERVICE = "AmazonSageMaker"
_API_SOURCE = "AWS price list API, SageMaker training"
# The attributes that select machines for training from SageMaker's price list.
_TRAINING = {"productFamily": "ML Instance", "component": "Training"}
# The regions to refresh where neither the person nor a table names one.
_FIRST_REGIONS = ("us-east-1",)


def _family(machine: str) -> str:
    return ".".join(machine.split(".")[:2])


_BOOK = PriceBook("sagemaker", "USD per hour, on demand, training", _family)
on_demand = _BOOK.on_demand
tables = _BOOK.tables
packaged = _BOOK.packaged
refreshed_tables = _BOOK.refreshed_tables
refreshed_path = _BOOK.refreshed_path
render = _BOOK.render


def featured(names: Iterable[str]) -> list[str]:
    """The most wanted machines: the smallest of each family with accelerators."""
    return machine_types.featured(map(catalog.facts, names), _family)


def refresh(client: PricingClient, regions: Iterable[str], *, today: date | None = None) -> PriceRefresh:
    """Read AWS's price list of these regions, and store it beside the prices stored of others.

    Raises the errors of `ProviderError`, and UserError for a region that AWS has no prices of or a home that cannot be
    written. Nothing is stored unless all was read.
    """
    day = today or datetime.now(timezone.utc).date()
    refreshed: dict[str, RegionPrices] = {}
    for region in regions:
        found = _asked(client, region)
        if not found:
            raise UserError(f"--region: AWS has no prices of SageMaker for {region}; name a region such as us-east-1")
        refreshed[region] = RegionPrices(_API_SOURCE, day, found)
    return _BOOK.save_refreshed(refreshed)


def refresh_now(regions: Iterable[str] = ()) -> PriceRefresh:
    """Refresh with this computer's own AWS settings; without regions, all that a table has.

    Raises UserError without boto3.
    """
    from stoker.providers.ec2.client import Clients

    return refresh(Clients().get("pricing", API_REGION), tuple(regions) or tuple(tables()) or _FIRST_REGIONS)


def _asked(client: PricingClient, region: str) -> dict[str, float]:
    """The machines of a region with their prices. Reads all pages."""
    wanted = {**_TRAINING, "regionCode": region}
    filters: list[FilterTypeDef] = [
        {"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()
    ]
    found: dict[str, float] = {}
    token = ""
    while True:
        more: dict[str, Any] = {"NextToken": token} if token else {}

        def ask(more: dict[str, Any] = more) -> Any:
            return client.get_products(ServiceCode=_SERVICE, Filters=filters, **more)

        answer = call_aws("pricing:GetProducts", ask)
        for text in answer["PriceList"]:
            name, amount = _offered(json.loads(text))
            if amount is not None:
                # Where AWS lists a machine twice, the higher price counts, to avoid an estimate that is too low.
                found[name] = max(amount, found.get(name, 0.0))
        token = answer.get("NextToken") or ""
        if not token:
            return found


def _offered(product: Mapping[str, Any]) -> tuple[str, float | None]:
    """The machine and its price on demand; None for any other product."""
    attributes = product.get("product", {}).get("attributes", {})
    name = str(attributes.get("instanceName") or attributes.get("instanceType") or "").removesuffix("-Training")
    if not name.startswith(catalog.PREFIX) or attributes.get("component", "Training") != "Training":
        return name, None
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            if dimension.get("unit") in ("Hrs", "Hour", "Hours"):
                with suppress(ValueError, TypeError):
                    return name, price(dimension.get("pricePerUnit", {}).get("USD"))
    return name, None
