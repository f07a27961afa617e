"""Prices of Compute Engine's machines, on demand and spot: see `stoker.providers.price_book`.

Spot prices change once a month at most, so a table can hold them. `stoker prices --provider gce --refresh` asks the
Cloud Billing catalog, which sells cores, memory and GPUs apart: a machine's price is what its parts cost together.
Disks are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING

from stoker.model.errors import UserError
from stoker.providers import machine_types
from stoker.providers.gce import catalog, skus
from stoker.providers.gce.skus import Kind, Part
from stoker.providers.price_book import PriceBook, parse
from stoker.providers.price_table import Refreshed, RegionPrices

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

# The same GPU in another size of machine.
_SAME_GPU = {"a2-megagpu": "a2-highgpu"}
# Sold in slices of whole machines: cores and memory are in the price of the GPUs.
_SLICED = frozenset({"a4-highgpu"})

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
    return machine_types.featured(map(catalog.facts, names), catalog.family)


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
        prices = dict(_added_up(found, spot=False))
        if not prices:
            raise UserError(f"--region: Google has no prices for {region}; name a region such as us-central1")
        brought[region] = RegionPrices(_SOURCE, day, prices, dict(_added_up(found, spot=True)))
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
    """What the parts of machines cost in one region: by whether it is spot, the kind of part, and what it is of."""

    amounts: dict[tuple[bool, Kind, str], float] = field(default_factory=dict)

    def file(self, part: Part) -> None:
        """Should Google list a part twice, a machine must not look cheaper than it may turn out."""
        key = (part.spot, part.kind, part.of)
        self.amounts[key] = max(part.amount, self.amounts.get(key, 0.0))

    def find(self, spot: bool, kind: Kind, *names: str) -> float | None:
        """The price of the first of these that has one."""
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
    """The machines of the table whose every part has a price."""
    for machine in catalog.table().values():
        base, accelerator, _ = catalog.attached(machine.name)
        family, series = catalog.family(base), base.partition("-")[0]
        sliced = family in _SLICED
        core = 0.0 if sliced else parts.find(spot, "core", family, series)
        memory = 0.0 if sliced else parts.find(spot, "memory", family, series)
        name = accelerator or _SAME_GPU.get(family, family)
        gpu = parts.find(spot, "gpu", name, series) if machine.gpus else 0.0
        # A share of a core is not what a core costs.
        if core is None or memory is None or gpu is None or machine.burstable:
            continue
        whole = (machine.cpus or 0) * core + (machine.memory_bytes or 0) / _GIB * memory + machine.gpus * gpu
        yield machine.name, round(whole, 5)
