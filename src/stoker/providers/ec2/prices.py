"""On-demand prices of EC2's machines: a table in the project, and a newer one of the person's own.

Prices differ by region and change seldom. The project's table (`data/ec2_prices.json`) has its source and date with
each region. `stoker prices --refresh` asks AWS's price list and keeps the answer under the home, where it wins for
every region in which it is the newer one. What is in neither is unknown, and stays so.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date, datetime, timezone
from functools import lru_cache
from importlib import resources as package
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.errors import UserError
from stoker.home import home, make_home
from stoker.providers.ec2 import catalog
from stoker.providers.ec2.errors import calling
from stoker.providers.pricing import Price, Refreshed, RegionPrices

if TYPE_CHECKING:
    from mypy_boto3_pricing import PricingClient
    from mypy_boto3_pricing.type_defs import FilterTypeDef

# The price list is served from few regions, this one among them, whichever region is asked about.
API_REGION = "us-east-1"
_SERVICE = "AmazonEC2"
_API_SOURCE = "AWS price list API"
# Plain Linux on shared hardware, paid by the hour while it runs.
_PLAIN = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}


def on_demand(region: str, machine: str) -> Price | None:
    """What the machine costs in the region; None when nobody here knows."""
    found = tables().get(region)
    amount = found.prices.get(machine) if found is not None else None
    return Price(amount, found.source, found.date) if found is not None and amount is not None else None


def tables() -> dict[str, RegionPrices]:
    """The prices of each region, from whichever table is newer."""
    return {**packaged(), **{region: found for region, found in kept().items() if _is_newer(region, found)}}


def packaged() -> dict[str, RegionPrices]:
    """The project's own table."""
    return dict(_packaged())


def kept() -> dict[str, RegionPrices]:
    """What refreshing brought so far; empty without one, or when the file is not what it should be."""
    path = kept_path()
    try:
        status = path.stat()
    except OSError:
        return {}
    return dict(_kept(path, status.st_mtime_ns, status.st_size))


def kept_path() -> Path:
    """Where refreshed prices are kept."""
    return home() / "prices" / "ec2.json"


def featured(names: Iterable[str]) -> list[str]:
    """The machines that people ask for first: of each family with accelerators, the smallest."""
    smallest: dict[str, catalog.MachineType] = {}
    for machine in map(catalog.facts, names):
        family = machine.name.partition(".")[0]
        if machine.gpus and (family not in smallest or catalog.size(machine) < catalog.size(smallest[family])):
            smallest[family] = machine
    return [machine.name for _, machine in sorted(smallest.items())]


def refresh(client: PricingClient, regions: Iterable[str], *, today: date | None = None) -> Refreshed:
    """Ask AWS's price list about these regions, and keep the answer beside what is kept of others.

    Raises the errors of `ProviderError`, and UserError for a region that AWS has no prices of or a home that cannot be
    written. Nothing is kept unless all was read.
    """
    day = today or datetime.now(timezone.utc).date()
    brought: dict[str, RegionPrices] = {}
    for region in regions:
        found = dict(_asked(client, region))
        if not found:
            raise UserError(f"--region: AWS has no prices for {region}; name a region such as us-east-1")
        brought[region] = RegionPrices(_API_SOURCE, day, found)
    path = kept_path()
    _replace(path, render({**kept(), **brought}))
    return Refreshed(path, {region: len(found.prices) for region, found in brought.items()})


def refresh_now(regions: Iterable[str] = ()) -> Refreshed:
    """Refresh with this computer's own AWS settings; without regions, all that a table has.

    Raises UserError without boto3.
    """
    from stoker.providers.ec2.client import Clients

    return refresh(Clients().get("pricing", API_REGION), tuple(regions) or tuple(tables()))


# ── The file ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def parse(text: str) -> dict[str, RegionPrices]:
    """Raises ValueError for what is not a table of prices."""
    try:
        return {
            str(region): RegionPrices(
                source=str(found["source"]),
                date=date.fromisoformat(found["date"]),
                prices={str(name): _amount(amount) for name, amount in found["prices"].items()},
            )
            for region, found in json.loads(text)["regions"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a table of prices: {error!r}") from error


def render(tables: Mapping[str, RegionPrices]) -> str:
    """The file's text: regions and machines in order, a line for each family, so that a change can be read."""
    regions = []
    for region, found in sorted(tables.items()):
        families: dict[str, list[str]] = {}
        for name, amount in sorted(found.prices.items()):
            families.setdefault(name.partition(".")[0], []).append(f'"{name}": {amount!r}')
        lines = ",\n".join("        " + ", ".join(family) for family in families.values())
        regions.append(
            f'    "{region}": {{\n      "source": {json.dumps(found.source)},\n'
            f'      "date": "{found.date.isoformat()}",\n      "prices": {{\n{lines}\n      }}\n    }}'
        )
    return '{\n  "unit": "USD per hour, on demand, Linux",\n  "regions": {\n' + ",\n".join(regions) + "\n  }\n}\n"


@lru_cache(maxsize=1)
def _packaged() -> Mapping[str, RegionPrices]:
    return parse(package.files("stoker.providers.ec2").joinpath("data/ec2_prices.json").read_text("utf-8"))


@lru_cache(maxsize=4)
def _kept(path: Path, _mtime_ns: int, _size: int) -> Mapping[str, RegionPrices]:
    """Read once for as long as it stays the same: it is asked for each machine."""
    try:
        return parse(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


def _is_newer(region: str, found: RegionPrices) -> bool:
    ours = _packaged().get(region)
    return ours is None or found.date >= ours.date


def _amount(value: Any) -> float:
    amount = float(value)
    if not (math.isfinite(amount) and amount > 0):
        raise ValueError(f"{value!r} is no price")
    return amount


def _replace(path: Path, text: str) -> None:
    """All of it or nothing: somebody else may be reading."""
    make_home()
    try:
        path.parent.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".ec2-")
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


# ── AWS's price list ──────────────────────────────────────────────────────────────────────────────────────────────────


def _asked(client: PricingClient, region: str) -> Iterable[tuple[str, float]]:
    """The machines of a region with their prices, page by page."""
    wanted = {**_PLAIN, "regionCode": region}
    filters: list[FilterTypeDef] = [
        {"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()
    ]
    found: dict[str, float] = {}
    token = ""
    while True:
        more: dict[str, Any] = {"NextToken": token} if token else {}

        def ask(more: dict[str, Any] = more) -> Any:
            return client.get_products(ServiceCode=_SERVICE, Filters=filters, **more)

        answer = calling("pricing:GetProducts", ask)
        for text in answer["PriceList"]:
            product = json.loads(text)
            name, amount = _offered(product, wanted)
            if amount is not None:
                # Should AWS list one machine twice, it must not look cheaper than it may turn out.
                found[name] = max(amount, found.get(name, 0.0))
        token = answer.get("NextToken") or ""
        if not token:
            return found.items()


def _offered(product: Mapping[str, Any], wanted: Mapping[str, str]) -> tuple[str, float | None]:
    """The machine, and what it costs on demand; None for anything else that the list sells."""
    attributes = product.get("product", {}).get("attributes", {})
    name = attributes.get("instanceType", "")
    if not name or any(attributes.get(key, value) != value for key, value in wanted.items()):
        return name, None
    # Capacity blocks are paid ahead and listed at nothing; a machine is never free.
    if attributes.get("marketoption", "OnDemand") != "OnDemand":
        return name, None
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term.get("priceDimensions", {}).values():
            if dimension.get("unit") == "Hrs":
                with suppress(ValueError, TypeError):
                    return name, _amount(dimension.get("pricePerUnit", {}).get("USD"))
    return name, None
