"""Price tables as files: the packaged table, and a newer one that the user or a governor refreshed.

The packaged table has its source and date with each region. A refresh is saved under Stoker's home and is used for
every region in which it is the newer one. A price in neither table is unknown, and stays so. A store may hold a newer
table for all its governors: see `stoker.governor.price_keeper`.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from stoker.model.errors import UserError
from stoker.providers import machine_types, packaged_data
from stoker.providers.machine_types import MachineType
from stoker.store.home import home, make_home

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

    def price(self, amount: float | None) -> Price | None:
        """A price of this table with its source; None if the table does not have it."""
        return None if amount is None else Price(amount, self.source, self.date)


@dataclass(frozen=True)
class PriceRefresh:
    """The result of a refresh: the number of prices for each region, and the file that holds them."""

    path: Path
    counts: Mapping[str, int]


@dataclass(frozen=True)
class PriceBook:
    """The price tables of one provider. The packaged one is `data/PROVIDER_prices.json` in the provider's package."""

    provider: str
    # The meaning of the figures, for readers of the file.
    unit: str
    # Machines of one family share a line of the file, so that changes are readable.
    family: Callable[[str], str]
    facts: Callable[[str], MachineType]

    def on_demand(self, region: str, machine: str) -> Price | None:
        """The machine's on-demand price in the region; None if unknown."""
        found = self.tables().get(region)
        return None if found is None else found.price(found.prices.get(machine))

    def spot(self, region: str, machine: str) -> Price | None:
        """The machine's spot price in the region; None if unknown."""
        found = self.tables().get(region)
        return None if found is None else found.price(found.spot.get(machine))

    def featured(self, names: Iterable[str]) -> list[str]:
        """The machines among these that users request most often: the smallest of each family with accelerators."""
        return machine_types.featured(map(self.facts, names), self.family)

    def tables(self) -> dict[str, RegionPrices]:
        """The prices of each region, from the newer of the two tables."""
        packaged = self.packaged()
        newer = {
            region: found
            for region, found in self.refreshed_tables().items()
            if region not in packaged or found.date >= packaged[region].date
        }
        return {**packaged, **newer}

    def packaged(self) -> dict[str, RegionPrices]:
        """The packaged table."""
        return dict(_packaged(self.provider))

    def refreshed_tables(self) -> dict[str, RegionPrices]:
        """The tables of earlier refreshes; empty if there are none or the file cannot be parsed."""
        path = self.refreshed_path()
        try:
            status = path.stat()
        except OSError:
            return {}
        return dict(_read_refreshed(path, status.st_mtime_ns, status.st_size))

    def refreshed_path(self) -> Path:
        """The file of the refreshed prices."""
        return home() / "prices" / f"{self.provider}.json"

    def refresh(
        self,
        regions: Iterable[str],
        ask: Callable[[str], tuple[Mapping[str, float], Mapping[str, float]]],
        source: str,
        unknown: str,
        today: date | None = None,
    ) -> PriceRefresh:
        """Save the prices of these regions, and keep the saved prices of others. `ask` returns a region's on-demand and
        spot prices from the cloud; `unknown` is the message, with `{region}`, about a region without prices.

        Raises the errors of `ask`, and UserError for a region without prices or a home folder that is not writable.
        Saves nothing unless all regions were read.
        """
        day = today or datetime.now(timezone.utc).date()
        refreshed: dict[str, RegionPrices] = {}
        for region in regions:
            prices, spot = ask(region)
            if not prices:
                raise UserError(f"--region: {unknown.format(region=region)}")
            refreshed[region] = RegionPrices(source, day, prices, spot)
        path = self.refreshed_path()
        _replace(path, self.render({**self.refreshed_tables(), **refreshed}))
        return PriceRefresh(path, {region: len(found.prices) for region, found in refreshed.items()})

    def keep(self, text: str) -> None:
        """Save the regions of a table, rendered as `render` does, that are newer than the saved ones.

        Raises ValueError for a text that is no table, and UserError for a home folder that is not writable.
        """
        saved = self.refreshed_tables()
        newer = {
            region: found
            for region, found in parse(text).items()
            if region not in saved or found.date > saved[region].date
        }
        if newer:
            _replace(self.refreshed_path(), self.render({**saved, **newer}))

    def render(self, tables: Mapping[str, RegionPrices]) -> str:
        """The text of the file: regions and machines sorted, one line for each family."""
        regions = []
        for region, found in sorted(tables.items()):
            parts = [f'"source": {json.dumps(found.source)}', f'"date": "{found.date.isoformat()}"']
            parts.append(f'"prices": {self._render_prices(found.prices)}')
            if found.spot:
                parts.append(f'"spot": {self._render_prices(found.spot)}')
            text = ",\n      ".join(parts)
            regions.append(f'    "{region}": {{\n      {text}\n    }}')
        return f'{{\n  "unit": {json.dumps(self.unit)},\n  "regions": {{\n' + ",\n".join(regions) + "\n  }\n}\n"

    def _render_prices(self, prices: Mapping[str, float]) -> str:
        families: dict[str, list[str]] = {}
        for name, amount in sorted(prices.items()):
            families.setdefault(self.family(name), []).append(f'"{name}": {amount!r}')
        lines = ",\n".join("        " + ", ".join(family) for family in families.values())
        return f"{{\n{lines}\n      }}"


def parse(text: str) -> dict[str, RegionPrices]:
    """Parse a price table. Raises ValueError if the text is not one."""
    try:
        return {
            str(region): RegionPrices(
                source=str(found["source"]),
                date=date.fromisoformat(found["date"]),
                prices={str(name): price(amount) for name, amount in found["prices"].items()},
                spot={str(name): price(amount) for name, amount in found.get("spot", {}).items()},
            )
            for region, found in json.loads(text)["regions"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a table of prices: {error!r}") from error


def price(value: Any) -> float:
    """Parse a price. Raises ValueError or TypeError for anything but a positive number: no machine is free."""
    amount = float(value)
    if not (math.isfinite(amount) and amount > 0):
        raise ValueError(f"{value!r} is no price")
    return amount


@lru_cache(maxsize=4)
def _packaged(provider: str) -> Mapping[str, RegionPrices]:
    return parse(packaged_data.read_text(provider, "prices"))


@lru_cache(maxsize=4)
def _read_refreshed(path: Path, _mtime_ns: int, _size: int) -> Mapping[str, RegionPrices]:
    """Read the file once for as long as it does not change: prices are looked up for each machine."""
    try:
        return parse(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def _replace(path: Path, text: str) -> None:
    """Replace the file atomically: another process may be reading it."""
    make_home()
    try:
        path.parent.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(path)
        finally:
            with suppress(OSError):
                Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; set STOKER_HOME to a folder that can") from error


class PricesModule(Protocol):
    """The module `prices` of a provider that has a price table."""

    BOOK: PriceBook

    def tables(self) -> dict[str, RegionPrices]:
        """The prices of each region, from the newer of the two tables."""

    def featured(self, names: Iterable[str]) -> list[str]:
        """The machines among these that users request most often."""

    def refresh_now(self, regions: Iterable[str] = ()) -> PriceRefresh:
        """Ask the cloud's price list and save the answer; without regions, for all regions of the tables.

        Raises UserError if a required package is not installed, otherwise the subclasses of `ProviderError`.
        """
