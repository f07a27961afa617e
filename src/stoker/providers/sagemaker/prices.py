"""Prices of SageMaker's machines for training: see `stoker.providers.price_book`.

SageMaker has a price list of its own: a machine costs more than EC2's of the same name. The packaged table has AWS's
list of one region; the prices of others, and of types that the list lacks, are estimates: `source` says so. See
`scripts/write_sagemaker_prices.py`. `stoker prices --provider sagemaker --refresh` and a deployed governor ask AWS.
AWS publishes no price for managed spot: its savings appear on the bill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.providers.ec2.prices import AwsPriceList
from stoker.providers.price_book import PriceBook
from stoker.providers.sagemaker import catalog


def _family(machine: str) -> str:
    return ".".join(machine.split(".")[:2])


BOOK = PriceBook("sagemaker", "USD per hour, on demand, training", _family, catalog.facts)
on_demand = BOOK.on_demand
tables = BOOK.tables
featured = BOOK.featured


def _machine(attributes: Mapping[str, Any]) -> str:
    name = str(attributes.get("instanceName") or attributes.get("instanceType") or "").removesuffix("-Training")
    return name if name.startswith(catalog.PREFIX) else ""


_LIST = AwsPriceList(
    BOOK,
    "AmazonSageMaker",
    "AWS price list API, SageMaker training",
    "AWS has no prices of SageMaker for {region}; name a region such as us-east-1",
    {"productFamily": "ML Instance", "component": "Training"},
    _machine,
    first_regions=("us-east-1",),
)
refresh = _LIST.refresh
refresh_now = _LIST.refresh_now
