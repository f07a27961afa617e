"""The contract of a provider's price table, for clouds that do not return a price with each offering."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Protocol

# A table older than this gets a warning.
OLD_DAYS = 90


@dataclass(frozen=True)
class Price:
    """The on-demand price of one machine in $/h, with its source."""

    amount: float
    source: str
    date: date


@dataclass(frozen=True)
class RegionPrices:
    """The prices of one region's machines, all from one source and one date."""

    source: str
    date: date
    prices: Mapping[str, float] = field(default_factory=dict)
    # For clouds whose spot prices change so seldom that a table can hold them.
    spot: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PriceRefresh:
    """The result of a refresh: the number of prices for each region, and the file that holds them."""

    path: Path
    counts: Mapping[str, int]


class PricesModule(Protocol):
    """The module `prices` of a provider that has a price table."""

    def tables(self) -> dict[str, RegionPrices]:
        """The prices of each region, from the newer of the two tables."""

    def featured(self, names: Iterable[str]) -> list[str]:
        """The machines among these that users request most often."""

    def refresh_now(self, regions: Iterable[str] = ()) -> PriceRefresh:
        """Ask the cloud's price list and save the answer; without regions, for all regions of the tables.

        Raises UserError if a required package is not installed, otherwise the subclasses of `ProviderError`.
        """
