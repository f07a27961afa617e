"""What a table of on-demand prices is, for a provider whose cloud does not tell them with every offering."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Protocol

# Older than this, a table is worth a word.
OLD_DAYS = 90


@dataclass(frozen=True)
class Price:
    """$/h of one machine, on demand, with where the figure is from."""

    amount: float
    source: str
    date: date


@dataclass(frozen=True)
class RegionPrices:
    """What one region's machines cost, all from one source at one time."""

    source: str
    date: date
    prices: Mapping[str, float] = field(default_factory=dict)
    # Where spot prices change so seldom that a table can hold them.
    spot: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Refreshed:
    """What a refresh brought: how many prices for each region, and where they are kept."""

    path: Path
    counts: Mapping[str, int]


class PriceTable(Protocol):
    """The module `prices` of a provider that keeps a table."""

    def tables(self) -> dict[str, RegionPrices]:
        """The prices of each region, from whichever table is newer."""

    def featured(self, names: Iterable[str]) -> list[str]:
        """Those of the machines that people ask for first."""

    def refresh_now(self, regions: Iterable[str] = ()) -> Refreshed:
        """Ask the cloud's price list, and keep the answer; without regions, for all that a table has.

        Raises UserError when what it needs is not installed, else the errors of `ProviderError`.
        """
