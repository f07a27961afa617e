"""Prices of SageMaker's machines for training: see `stoker.providers.price_book`.

SageMaker has a price list of its own: a machine costs more than EC2's of the same name. The project has no table of it;
`stoker prices --provider sagemaker --refresh` asks AWS. What was not asked for is unknown, and stays so. Nobody tells a
price for managed spot: what it saved is on the bill.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any

from stoker.model.errors import UserError
from stoker.providers import machine_types
from stoker.providers.ec2.errors import calling
from stoker.providers.ec2.prices import API_REGION
from stoker.providers.price_book import PriceBook, parse, price
from stoker.providers.price_table import Refreshed, RegionPrices
from stoker.providers.sagemaker import catalog

if TYPE_CHECKING:
    from mypy_boto3_pricing import PricingClient
    from mypy_boto3_pricing.type_defs import FilterTypeDef

__all__ = ["featured", "kept", "kept_path", "on_demand", "packaged", "parse", "refresh", "refresh_now", "tables"]

_SERVICE = "AmazonSageMaker"
_API_SOURCE = "AWS price list API, SageMaker training"
# Of all that SageMaker sells, its machines for training.
_TRAINING = {"productFamily": "ML Instance", "component": "Training"}
# Without a region and a table there is nothing to refresh.
_FIRST_REGIONS = ("us-east-1",)


def _family(machine: str) -> str:
    return ".".join(machine.split(".")[:2])


_BOOK = PriceBook("sagemaker", "USD per hour, on demand, training", _family)
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
        found = _asked(client, region)
        if not found:
            raise UserError(f"--region: AWS has no prices of SageMaker for {region}; name a region such as us-east-1")
        brought[region] = RegionPrices(_API_SOURCE, day, found)
    return _BOOK.keep(brought)


def refresh_now(regions: Iterable[str] = ()) -> Refreshed:
    """Refresh with this computer's own AWS settings; without regions, all that a table has.

    Raises UserError without boto3.
    """
    from stoker.providers.ec2.client import Clients

    return refresh(Clients().get("pricing", API_REGION), tuple(regions) or tuple(tables()) or _FIRST_REGIONS)


def _asked(client: PricingClient, region: str) -> dict[str, float]:
    """The machines of a region with their prices, page by page."""
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

        answer = calling("pricing:GetProducts", ask)
        for text in answer["PriceList"]:
            name, amount = _offered(json.loads(text))
            if amount is not None:
                # Should AWS list one machine twice, it must not look cheaper than it may turn out.
                found[name] = max(amount, found.get(name, 0.0))
        token = answer.get("NextToken") or ""
        if not token:
            return found


def _offered(product: Mapping[str, Any]) -> tuple[str, float | None]:
    """The machine, and what it costs on demand; None for anything else that the list sells."""
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
