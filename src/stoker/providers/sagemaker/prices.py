"""Prices of SageMaker's machines for training: see `stoker.providers.price_book`.

SageMaker has a price list of its own: a machine costs more than EC2's of the same name. No table is packaged;
`stoker prices --provider sagemaker --refresh` asks AWS. Until then prices are unknown. AWS publishes no price for
managed spot: its savings appear on the bill.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any

from stoker.providers.ec2.client import Clients
from stoker.providers.ec2.prices import API_REGION, price_list
from stoker.providers.price_book import PriceBook, PriceRefresh
from stoker.providers.sagemaker import catalog

if TYPE_CHECKING:
    from mypy_boto3_pricing import PricingClient

_SERVICE = "AmazonSageMaker"
_API_SOURCE = "AWS price list API, SageMaker training"
_UNKNOWN = "AWS has no prices of SageMaker for {region}; name a region such as us-east-1"
# The attributes that select machines for training from SageMaker's price list.
_TRAINING = {"productFamily": "ML Instance", "component": "Training"}
# The regions to refresh where neither the person nor a table names one.
_FIRST_REGIONS = ("us-east-1",)


def _family(machine: str) -> str:
    return ".".join(machine.split(".")[:2])


BOOK = PriceBook("sagemaker", "USD per hour, on demand, training", _family, catalog.facts)
on_demand = BOOK.on_demand
tables = BOOK.tables
featured = BOOK.featured


def refresh(client: PricingClient, regions: Iterable[str], *, today: date | None = None) -> PriceRefresh:
    """Ask AWS's price list about these regions: see `PriceBook.refresh`."""

    def ask(region: str) -> tuple[Mapping[str, float], Mapping[str, float]]:
        return price_list(client, _SERVICE, {**_TRAINING, "regionCode": region}, _machine), {}

    return BOOK.refresh(regions, ask, _API_SOURCE, _UNKNOWN, today)


def refresh_now(regions: Iterable[str] = ()) -> PriceRefresh:
    """Refresh with this computer's own AWS settings; without regions, all that a table has.

    Raises UserError without boto3.
    """
    return refresh(Clients().get("pricing", API_REGION), tuple(regions) or tuple(tables()) or _FIRST_REGIONS)


def _machine(attributes: Mapping[str, Any]) -> str:
    name = str(attributes.get("instanceName") or attributes.get("instanceType") or "").removesuffix("-Training")
    return name if name.startswith(catalog.PREFIX) else ""
