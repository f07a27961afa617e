"""Tables of prices as files: the project's own, and a newer one of the person's.

The project's table has its source and date with each region. What a refresh brought is kept under the home, where it
wins for every region in which it is the newer one. What is in neither is unknown, and stays so.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from importlib import resources as package
from pathlib import Path
from typing import Any

from stoker.model.errors import UserError
from stoker.providers.price_table import Price, Refreshed, RegionPrices
from stoker.store.home import home, make_home


@dataclass(frozen=True)
class PriceBook:
    """The tables of one provider, whose package has its own under `data/PROVIDER_prices.json`."""

    provider: str
    # What the figures mean, for whoever opens the file.
    unit: str
    # Machines of one family stand in one line of the file, so that a change can be read.
    family: Callable[[str], str]

    def on_demand(self, region: str, machine: str) -> Price | None:
        """What the machine costs in the region; None when nobody here knows."""
        found = self.tables().get(region)
        amount = found.prices.get(machine) if found is not None else None
        return Price(amount, found.source, found.date) if found is not None and amount is not None else None

    def spot(self, region: str, machine: str) -> Price | None:
        """What it costs as a spot machine; None when nobody here knows."""
        found = self.tables().get(region)
        amount = found.spot.get(machine) if found is not None else None
        return Price(amount, found.source, found.date) if found is not None and amount is not None else None

    def tables(self) -> dict[str, RegionPrices]:
        """The prices of each region, from whichever table is newer."""
        ours = self.packaged()
        newer = {
            region: found
            for region, found in self.kept().items()
            if region not in ours or found.date >= ours[region].date
        }
        return {**ours, **newer}

    def packaged(self) -> dict[str, RegionPrices]:
        """The project's own table."""
        return dict(_packaged(self.provider))

    def kept(self) -> dict[str, RegionPrices]:
        """What refreshing brought so far; empty without one, or when the file is not what it should be."""
        path = self.kept_path()
        try:
            status = path.stat()
        except OSError:
            return {}
        return dict(_kept(path, status.st_mtime_ns, status.st_size))

    def kept_path(self) -> Path:
        """Where refreshed prices are kept."""
        return home() / "prices" / f"{self.provider}.json"

    def keep(self, brought: Mapping[str, RegionPrices]) -> Refreshed:
        """Keep these beside what is kept of other regions. Raises UserError for a home that cannot be written."""
        path = self.kept_path()
        _replace(path, self.render({**self.kept(), **brought}))
        return Refreshed(path, {region: len(found.prices) for region, found in brought.items()})

    def render(self, tables: Mapping[str, RegionPrices]) -> str:
        """The file's text: regions and machines in order, a line for each family."""
        regions = []
        for region, found in sorted(tables.items()):
            parts = [f'"source": {json.dumps(found.source)}', f'"date": "{found.date.isoformat()}"']
            parts.append(f'"prices": {self._listed(found.prices)}')
            if found.spot:
                parts.append(f'"spot": {self._listed(found.spot)}')
            text = ",\n      ".join(parts)
            regions.append(f'    "{region}": {{\n      {text}\n    }}')
        return f'{{\n  "unit": {json.dumps(self.unit)},\n  "regions": {{\n' + ",\n".join(regions) + "\n  }\n}\n"

    def _listed(self, prices: Mapping[str, float]) -> str:
        families: dict[str, list[str]] = {}
        for name, amount in sorted(prices.items()):
            families.setdefault(self.family(name), []).append(f'"{name}": {amount!r}')
        lines = ",\n".join("        " + ", ".join(family) for family in families.values())
        return f"{{\n{lines}\n      }}"


def parse(text: str) -> dict[str, RegionPrices]:
    """Raises ValueError for what is not a table of prices."""
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
    """A price as it is told. Raises ValueError or TypeError for what is none: a machine is never free."""
    amount = float(value)
    if not (math.isfinite(amount) and amount > 0):
        raise ValueError(f"{value!r} is no price")
    return amount


@lru_cache(maxsize=4)
def _packaged(provider: str) -> Mapping[str, RegionPrices]:
    return parse(
        package.files(f"stoker.providers.{provider}").joinpath(f"data/{provider}_prices.json").read_text("utf-8")
    )


@lru_cache(maxsize=4)
def _kept(path: Path, _mtime_ns: int, _size: int) -> Mapping[str, RegionPrices]:
    """Read once for as long as it stays the same: it is asked for each machine."""
    try:
        return parse(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def _replace(path: Path, text: str) -> None:
    """All of it or nothing: somebody else may be reading."""
    make_home()
    try:
        path.parent.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; set STOKER_HOME to a folder that can") from error
