"""Google's billing catalog, with SKUs as it tells them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any


def sku(
    description: str,
    usd: float,
    usage: str = "OnDemand",
    regions: tuple[str, ...] = ("us-central1", "us-east1", "us-west1"),
    *,
    family: str = "Compute",
    unit: str | None = None,
    currency: str = "USD",
    tiers: tuple[float, ...] = (),
) -> dict[str, Any]:
    """As the billing catalog tells it: whole dollars as text, and billionths. `tiers`: prices of what comes first."""
    memory = " Ram " in description
    unit = unit or ("GiBy.h" if memory else "h")
    group = "GPU" if "GPU" in description else "N1Standard" if "N1 " in description else "RAM" if memory else "CPU"
    expression = {
        "usageUnit": unit,
        "usageUnitDescription": "gibibyte hour" if memory else "hour",
        "baseUnit": "By.s" if memory else "s",
        "baseUnitDescription": "byte second" if memory else "second",
        "baseUnitConversionFactor": 3865470566400 if memory else 3600,
        "displayQuantity": 1,
        "tieredRates": [
            {"startUsageAmount": 100 * place, "unitPrice": money(each, currency)}
            for place, each in enumerate((*tiers, usd))
        ],
    }
    info = {
        "summary": "",
        "pricingExpression": expression,
        "currencyConversionRate": 1,
        "effectiveTime": "2026-11-01T12:34:56.789012Z",
    }
    number = f"{zlib.crc32(description.encode()):012X}"
    name = "-".join(number[start : start + 4] for start in range(0, 12, 4))
    return {
        "name": f"services/6F81-5844-456A/skus/{name}",
        "skuId": name,
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": family,
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": list(regions),
        "pricingInfo": [info],
        "serviceProviderName": "Google",
        "geoTaxonomy": {"type": "MULTI_REGIONAL" if len(regions) > 1 else "REGIONAL", "regions": list(regions)},
    }


def money(usd: float, currency: str = "USD") -> dict[str, Any]:
    units, nanos = divmod(round(usd * 1e9), 10**9)
    return {"currencyCode": currency, "units": str(units), "nanos": nanos}


N1 = [
    sku("N1 Predefined Instance Core running in Americas", 0.031611),
    sku("N1 Predefined Instance Ram running in Americas", 0.004237),
    sku("Spot Preemptible N1 Predefined Instance Core running in Americas", 0.0088, "Preemptible"),
    sku("Spot Preemptible N1 Predefined Instance Ram running in Americas", 0.0012, "Preemptible"),
]
T4 = [
    sku("Nvidia Tesla T4 GPU running in Americas", 0.35),
    sku("Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Americas", 0.175, "Preemptible"),
]
A2 = [
    sku("A2 Instance Core running in Americas", 0.031611),
    sku("A2 Instance Ram running in Americas", 0.004237),
    sku("Nvidia Tesla A100 GPU running in Americas", 2.933908),
    sku("Nvidia Tesla A100 80GB GPU running in Americas", 3.92808),
]
A3 = [
    sku("A3 Instance Core running in Americas", 0.0293),
    sku("A3 Instance Ram running in Americas", 0.0025),
    sku("A3Plus Instance Core running in Americas", 0.0294),
    sku("A3Plus Instance Ram running in Americas", 0.0026),
    sku("Nvidia H100 80GB GPU running in Americas", 9.796550569),
    sku("Nvidia H100 80GB Plus GPU running in Americas", 10.344275712),
]
B200 = [
    sku("A4 Nvidia B200 (1 gpu slice) running in Americas", 16.11),
    sku("Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas", 4.9542),
]


class Billing:
    """The billing catalog, in pages of three."""

    def __init__(self, skus: list[dict[str, Any]]) -> None:
        self.skus = skus
        self.asked: list[tuple[str, dict[str, Any], str]] = []

    def pages(self, path: str, params: Mapping[str, Any], *, service: str) -> Iterator[dict[str, Any]]:
        self.asked.append((path, dict(params), service))
        for start in range(0, len(self.skus), 3):
            yield {"skus": self.skus[start : start + 3], "nextPageToken": "more"}
        # The last page may be an empty one.
        yield {}
