"""Prices of Compute Engine's machines, on demand and spot: see `stoker.providers.price_book`.

Spot prices change once a month at most, so a table can hold them. `stoker prices --provider gce --refresh` asks the
Cloud Billing catalog, which sells cores, memory and GPUs apart: a machine's price is what its parts cost together.
Disks are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any, Literal

from stoker.errors import UserError
from stoker.providers import machines
from stoker.providers.gce import catalog
from stoker.providers.price_book import PriceBook, parse, price
from stoker.providers.pricing import Refreshed, RegionPrices

if TYPE_CHECKING:
    from stoker.providers.gce.client import Api

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
    "spot",
    "tables",
]

# Compute Engine, as the billing catalog knows it.
_SERVICE = "6F81-5844-456A"
_SOURCE = "Cloud Billing catalog"
_PAGE = 5000
_GIB = 1024**3

Usage = Literal["OnDemand", "Preemptible"]

# Descriptions are matched as a whole: what is reserved, committed, sole-tenant, custom, flex-start or in calendar mode
# carries words of its own, and some of it calls itself OnDemand.
_HOST = re.compile(
    r"(Spot Preemptible )?(?P<series>[A-Za-z0-9 ]+?)( AMD| Arm)?( Predefined)?( Instance)? (?P<part>Core|Ram)"
    r" running in .+"
)
_GPU = re.compile(
    r"(Nvidia )?(Tesla )?(?P<gpu>[A-Z0-9][A-Za-z0-9 ]*?) GPU( attached to Spot Preemptible VMs)? running in .+"
)
# What the descriptions call the series of machines.
_SERIES = {
    **{name.upper(): name for name in ("n1", "n2", "n2d", "n4", "e2", "c2d", "c3", "c4", "c4a", "t2d", "t2a")},
    **{name.upper(): name for name in ("a2", "g2")},
    "Compute optimized": "c2",
    "A3": "a3-highgpu",
    "A3Plus": "a3-megagpu",
    "A3Ultra": "a3-ultragpu",
}
# What they call the GPUs, by what is built in or attached.
_GPUS = {
    "T4": "nvidia-tesla-t4",
    "V100": "nvidia-tesla-v100",
    "P100": "nvidia-tesla-p100",
    "P4": "nvidia-tesla-p4",
    "L4": "g2",
    "A100": "a2-highgpu",
    "A100 80GB": "a2-ultragpu",
    "H100 80GB": "a3-highgpu",
    "H100 80GB Plus": "a3-megagpu",
    "H100 80GB Mega": "a3-megagpu",
    "H200 141GB": "a3-ultragpu",
}
# The same GPU in another size of machine.
_SAME_GPU = {"a2-megagpu": "a2-highgpu"}

_BOOK = PriceBook("gce", "USD per hour, without disks", catalog.family)
on_demand = _BOOK.on_demand
spot = _BOOK.spot
tables = _BOOK.tables
packaged = _BOOK.packaged
kept = _BOOK.kept
kept_path = _BOOK.kept_path
render = _BOOK.render


def featured(names: Iterable[str]) -> list[str]:
    """The machines that people ask for first: of each family with accelerators, the smallest."""
    return machines.featured(map(catalog.facts, names), catalog.family)


def refresh(api: Api, regions: Iterable[str], *, today: date | None = None) -> Refreshed:
    """Ask the billing catalog, and keep what it says of these regions beside what is kept of others.

    Raises the errors of `ProviderError`, and UserError for a region that Google has no prices of or a home that cannot
    be written. Nothing is kept unless all was read.
    """
    day = today or datetime.now(timezone.utc).date()
    wanted = tuple(regions)
    parts = _asked(api, frozenset(wanted))
    brought: dict[str, RegionPrices] = {}
    for region in wanted:
        found = parts.get(region, _Parts())
        prices = dict(_added_up(found, "OnDemand"))
        if not prices:
            raise UserError(f"--region: Google has no prices for {region}; name a region such as us-central1")
        brought[region] = RegionPrices(_SOURCE, day, prices, dict(_added_up(found, "Preemptible")))
    return _BOOK.keep(brought)


def refresh_now(regions: Iterable[str] = ()) -> Refreshed:
    """Refresh with this computer's own Google settings; without regions, all that a table has.

    Raises UserError without httpx and google-auth.
    """
    from stoker.providers.gce.client import Api, check_installed

    check_installed()
    # People may write a region with the project that they use in it.
    wanted = tuple(region.rpartition("/")[2] for region in regions)
    return refresh(Api(), wanted or tuple(tables()))


# ── The billing catalog ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Parts:
    """What the parts of machines cost in one region: by kind of use, then series or GPU."""

    cores: dict[tuple[Usage, str], float] = field(default_factory=dict)
    memory: dict[tuple[Usage, str], float] = field(default_factory=dict)
    gpus: dict[tuple[Usage, str], float] = field(default_factory=dict)


def _asked(api: Api, regions: frozenset[str]) -> dict[str, _Parts]:
    found: dict[str, _Parts] = {}
    path = f"/v1/services/{_SERVICE}/skus"
    for page in api.pages(path, {"currencyCode": "USD", "pageSize": str(_PAGE)}, service="cloudbilling"):
        for sku in page.get("skus") or ():
            usage = (sku.get("category") or {}).get("usageType")
            amount = _amount(sku)
            if usage not in ("OnDemand", "Preemptible") or amount is None:
                continue
            for region in regions.intersection(sku.get("serviceRegions") or ()):
                _file(found.setdefault(region, _Parts()), usage, str(sku.get("description", "")), amount)
    return found


def _file(parts: _Parts, usage: Usage, description: str, amount: float) -> None:
    host, gpu = _HOST.fullmatch(description), _GPU.fullmatch(description)
    if host is not None and host["series"] in _SERIES:
        kind = parts.cores if host["part"] == "Core" else parts.memory
        key = (usage, _SERIES[host["series"]])
    elif gpu is not None and gpu["gpu"] in _GPUS:
        kind, key = parts.gpus, (usage, _GPUS[gpu["gpu"]])
    else:
        return
    # Should Google list a part twice, a machine must not look cheaper than it may turn out.
    kind[key] = max(amount, kind.get(key, 0.0))


def _amount(sku: Mapping[str, Any]) -> float | None:
    """$/h of one unit; None where it is free up to somewhere, or told in another way."""
    with suppress(LookupError, TypeError, ValueError):
        (rate,) = sku["pricingInfo"][-1]["pricingExpression"]["tieredRates"]
        told = rate["unitPrice"]
        return price(int(told.get("units") or 0) + int(told.get("nanos") or 0) / 1e9)
    return None


def _added_up(parts: _Parts, usage: Usage) -> Iterator[tuple[str, float]]:
    """The machines of the table whose every part has a price."""
    for machine in catalog.table().values():
        base, accelerator, _ = catalog.attached(machine.name)
        family = catalog.family(base)
        series = base.partition("-")[0]
        core = _of(parts.cores, usage, family, series)
        memory = _of(parts.memory, usage, family, series)
        gpu = _of(parts.gpus, usage, accelerator or _SAME_GPU.get(family, family), series) if machine.gpus else 0.0
        # A share of a core is not what a core costs.
        if core is None or memory is None or gpu is None or machine.burstable:
            continue
        whole = (machine.cpus or 0) * core + (machine.memory_bytes or 0) / _GIB * memory + machine.gpus * gpu
        yield machine.name, round(whole, 5)


def _of(prices: Mapping[tuple[Usage, str], float], usage: Usage, *names: str) -> float | None:
    return next((found for name in names if (found := prices.get((usage, name))) is not None), None)
