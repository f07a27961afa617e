"""Read the Cloud Billing catalog, one SKU at a time.

The catalog prices cores, memory and GPUs separately, and each of them in many variants: on demand and spot, but also
commitments, reservations, sole-tenant nodes, custom machines, flex start (DWS) and calendar mode. Many of these
variants have the usage type `OnDemand`, and so do some of spot. Therefore the description decides, matched as a whole:
every SKU other than a plain part of a machine has further words in it.
https://cloud.google.com/billing/docs/reference/rest/v1/services.skus
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from stoker.providers.price_book import price

Kind = Literal["core", "memory", "gpu"]


@dataclass(frozen=True)
class SkuPart:
    """A part of machines: $/h of one core, one GiB of memory or one GPU, and the regions with this price.

    `of` is a series (`n2`), a family (`a3-megagpu`), or an attached GPU (`nvidia-tesla-t4`).
    """

    kind: Kind
    of: str
    spot: bool
    regions: frozenset[str]
    amount: float


# `N2 Instance Core running in Americas`, `Spot Preemptible Compute optimized Ram running in Montreal`.
_HOST = re.compile(
    r"(?P<spot>(Spot )?Preemptible )?(?P<series>[A-Za-z0-9 ]+?)( AMD| Arm)?( Predefined)?( Instance)?"
    r" (?P<part>Core|Ram) running in .+"
)
# `Nvidia L4 GPU attached to Spot Preemptible VMs running in Oregon`, `H200 141GB GPU running in Belgium`,
# `RTX 6000 96GB running in Iowa`, and for whole machines in equal slices:
# `Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas`.
_GPU = re.compile(
    r"(?P<before>(Spot )?Preemptible )?(A4 )?(Nvidia )?(Tesla )?(?P<gpu>[A-Z0-9][A-Za-z0-9 ]*?)( GPU| \(1 gpu slice\))?"
    r"(?P<behind> attached to (Spot )?Preemptible VMs)? running in .+"
)
# Series and families of machines by their names in descriptions.
_SERIES = {
    **{name.upper(): name for name in ("n1", "n2", "n2d", "n4", "e2", "c2d", "c3", "c4", "c4a", "t2d", "t2a")},
    **{name.upper(): name for name in ("a2", "g2", "g4")},
    "Compute optimized": "c2",
    "A3": "a3-highgpu",
    "A3Plus": "a3-megagpu",
    "A3Ultra": "a3-ultragpu",
}
# Series, families and attached GPUs by the GPU's name in descriptions.
_GPUS = {
    "T4": "nvidia-tesla-t4",
    "V100": "nvidia-tesla-v100",
    "P100": "nvidia-tesla-p100",
    "P4": "nvidia-tesla-p4",
    "L4": "g2",
    "A100": "a2-highgpu",
    "A100 80GB": "a2-ultragpu",
    "H100 80GB": "a3-highgpu",
    # The same GPU: its name differs from region to region.
    "H100 80GB Plus": "a3-megagpu",
    "H100 80GB Mega": "a3-megagpu",
    "H100 Mega 80GB": "a3-megagpu",
    "H200 141GB": "a3-ultragpu",
    "RTX 6000 96GB": "g4",
    "B200": "a4-highgpu",
}
_USAGES = ("OnDemand", "Preemptible")
_UNITS: dict[Kind, str] = {"core": "h", "memory": "GiBy.h", "gpu": "h"}


def read(sku: Mapping[str, Any]) -> SkuPart | None:
    """The part that a SKU prices; None for any other SKU, and for an unknown format."""
    category = sku.get("category") or {}
    usage = category.get("usageType")
    if category.get("resourceFamily") != "Compute" or usage not in _USAGES:
        return None
    named = _named(str(sku.get("description", "")))
    if named is None:
        return None
    kind, of, spot = named
    # Some spot SKUs have the usage type OnDemand; no on-demand SKU has the usage type Preemptible.
    if usage == "Preemptible" and not spot:
        return None
    amount = _amount(sku, _UNITS[kind])
    regions = frozenset(str(region) for region in sku.get("serviceRegions") or ())
    return None if amount is None else SkuPart(kind, of, spot, regions, amount)


def _named(description: str) -> tuple[Kind, str, bool] | None:
    host = _HOST.fullmatch(description)
    if host is not None:
        series = _SERIES.get(host["series"])
        return None if series is None else ("core" if host["part"] == "Core" else "memory", series, bool(host["spot"]))
    gpu = _GPU.fullmatch(description)
    if gpu is not None and gpu["gpu"] in _GPUS:
        return "gpu", _GPUS[gpu["gpu"]], bool(gpu["before"] or gpu["behind"])
    return None


def _amount(sku: Mapping[str, Any], unit: str) -> float | None:
    """The current $/h of one unit; None for another unit, another currency, or no price."""
    with suppress(LookupError, TypeError, ValueError, AttributeError):
        expression = sku["pricingInfo"][-1]["pricingExpression"]  # The newest is the last.
        if expression.get("usageUnit") != unit:
            return None
        # Of tiered rates the highest counts, to avoid an estimate that is too low.
        return max(price(_dollars(rate["unitPrice"])) for rate in expression["tieredRates"] if _costs(rate))
    return None


def _costs(rate: Mapping[str, Any]) -> bool:
    return _dollars(rate["unitPrice"]) != 0


def _dollars(money: Mapping[str, Any]) -> float:
    """The amount in dollars. Whole dollars come as text, billionths as a number; a zero of either is left out."""
    if money.get("currencyCode") != "USD":
        raise ValueError(f"{money.get('currencyCode')!r} are no dollars")
    return int(money.get("units") or 0) + int(money.get("nanos") or 0) / 1e9
