"""Prices of Compute Engine's machines, on demand and spot: see `stoker.providers.price_book`.

Spot prices change once a month at most, so that a table can hold them. `stoker prices --provider gce --refresh` reads
the Cloud Billing catalog, which prices cores, memory and GPUs separately: a machine's price is the sum of its parts.
Disks are not included. TPUs are another service of that catalog, which is not read: their prices stay as packaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

from stoker.providers.gce import catalog, skus
from stoker.providers.gce.skus import Kind, SkuPart
from stoker.providers.price_book import PriceBook, PriceRefresh

if TYPE_CHECKING:
    from stoker.providers.gce.client import Api

# Compute Engine's id in the billing catalog.
_SERVICE = "6F81-5844-456A"
_SOURCE = "Cloud Billing catalog; TPUs as packaged"
_UNKNOWN = "Google has no prices for {region}; name a region such as us-central1"
_PAGE = 5000
_GIB = 1024**3

# Families whose GPU is priced under another family.
_SAME_GPU = {"a2-megagpu": "a2-highgpu"}
# Priced in slices of whole machines: the price of the GPUs includes cores and memory.
_SLICED = frozenset({"a4-highgpu"})

BOOK = PriceBook("gce", "USD per hour, without disks", catalog.family, catalog.facts)
on_demand = BOOK.on_demand
spot = BOOK.spot
tables = BOOK.tables
featured = BOOK.featured


def refresh(api: Api, regions: Iterable[str], *, today: date | None = None) -> PriceRefresh:
    """Read the billing catalog, and save the prices of these regions: see `PriceBook.refresh`."""
    wanted = tuple(regions)
    parts = _asked(api, frozenset(wanted))

    def ask(region: str) -> tuple[dict[str, float], dict[str, float]]:
        found = parts.get(region)
        if found is None:
            return {}, {}
        on_demand, spot = (dict(_added_up(found, spot=each)) for each in (False, True))
        packaged = BOOK.packaged().get(region)
        if packaged is not None and on_demand:
            on_demand |= _tpus(packaged.prices)
            spot |= _tpus(packaged.spot)
        return on_demand, spot

    return BOOK.refresh(wanted, ask, _SOURCE, _UNKNOWN, today)


def _tpus(prices: Mapping[str, float]) -> dict[str, float]:
    """The prices of machines with TPUs."""
    return {name: amount for name, amount in prices.items() if catalog.is_tpu(catalog.facts(name).gpu or "")}


def refresh_now(regions: Iterable[str] = ()) -> PriceRefresh:
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
    """The prices of machine parts in one region: by spot or not, kind of part, and the series or GPU."""

    amounts: dict[tuple[bool, Kind, str], float] = field(default_factory=dict)

    def file(self, part: SkuPart) -> None:
        """Record a part's price. Where Google lists a part twice, the higher price counts, to avoid an estimate that is
        too low."""
        key = (part.spot, part.kind, part.of)
        self.amounts[key] = max(part.amount, self.amounts.get(key, 0.0))

    def find(self, spot: bool, kind: Kind, *names: str) -> float | None:
        """The price of the first of these names that has one."""
        return next((found for name in names if (found := self.amounts.get((spot, kind, name))) is not None), None)


def _asked(api: Api, regions: frozenset[str]) -> dict[str, _Parts]:
    found: dict[str, _Parts] = {}
    path = f"/v1/services/{_SERVICE}/skus"
    for page in api.pages(path, {"currencyCode": "USD", "pageSize": str(_PAGE)}, service="cloudbilling"):
        for sku in page.get("skus") or ():
            part = skus.read(sku)
            if part is not None:
                for region in regions & part.regions:
                    found.setdefault(region, _Parts()).file(part)
    return found


def _added_up(parts: _Parts, *, spot: bool) -> Iterator[tuple[str, float]]:
    """Yield the machines of the table whose parts all have a price, with the sum."""
    for machine in catalog.table().values():
        base, accelerator, _ = catalog.split_name(machine.name)
        family, series = catalog.family(base), base.partition("-")[0]
        sliced = family in _SLICED
        core = 0.0 if sliced else parts.find(spot, "core", family, series)
        memory = 0.0 if sliced else parts.find(spot, "memory", family, series)
        name = accelerator or _SAME_GPU.get(family, family)
        gpu = parts.find(spot, "gpu", name, series) if machine.gpus else 0.0
        # A burstable machine has a share of a core, whose price is not that of a core.
        if core is None or memory is None or gpu is None or machine.burstable:
            continue
        whole = (machine.cpus or 0) * core + (machine.memory_bytes or 0) / _GIB * memory + machine.gpus * gpu
        yield machine.name, round(whole, 5)
