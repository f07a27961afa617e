"""Build offerings from machine types and prices: select the types to look for, and order the result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from stoker.model import codec
from stoker.model.offerings import Offering
from stoker.model.resources import Resources, short_region
from stoker.providers.machine_types import MachineType, size
from stoker.providers.price_book import Price

# The most machine types to ask about if the job names none: enough alternatives if the first have no capacity, and few
# enough for one call.
_MOST_TYPES = 24
_RECENT_S = 120.0

T = TypeVar("T", bound=MachineType)


class RecentOfferings:
    """The offerings of the last two minutes, by resources.

    Prices and zones change slowly; a job that tries one zone after another need not ask the cloud each time.
    """

    def __init__(self) -> None:
        self._found: dict[bytes, tuple[float, tuple[Offering, ...]]] = {}

    def get(self, resources: Resources, ask: Callable[[], tuple[Offering, ...]]) -> tuple[Offering, ...]:
        """The offerings for these resources, from `ask` unless they are recent. Passes on the errors of `ask`."""
        key = codec.dumps(resources)
        fresh_s = time.monotonic() - _RECENT_S
        self._found = {each: cached for each, cached in self._found.items() if cached[0] > fresh_s}
        if key not in self._found:
            found = ask()
            self._found[key] = (time.monotonic(), found)
        return self._found[key][1]


def candidates(resources: Resources, fitting: list[T], on_demand: Callable[[str], Price | None]) -> list[T]:
    """The machine types to look for: all that the job names, else the cheapest few of those with the fewest GPUs."""
    if resources.machine:
        return fitting

    def cost(machine: T) -> tuple[int, float, tuple[int, int, int, str]]:
        price = on_demand(machine.name)
        return (machine.gpus, math.inf if price is None else price.amount, size(machine))

    return sorted(fitting, key=cost)[:_MOST_TYPES]


def offering(
    provider: str,
    machine: MachineType,
    region: str,
    zone: str,
    *,
    spot: bool,
    price: float | None,
    on_demand: float | None,
    source: str,
    queued: bool = False,
) -> Offering:
    """One machine type in one zone, spot or not. `queued` is `Offering.queued`."""
    return Offering(
        provider=provider,
        machine=machine.name,
        zone=zone,
        spot=spot,
        region=region,
        price=price,
        on_demand_price=on_demand,
        price_source="" if price is None else source,
        cpus=machine.cpus,
        memory_bytes=machine.memory_bytes,
        gpu=machine.gpu,
        gpus=machine.gpus,
        queued=queued,
    )


def fewest_gpus(resources: Resources, found: Iterable[Offering]) -> list[Offering]:
    """The offerings with as many GPUs as requested; if no machine has exactly that many, those with the fewest more.

    A job that requests one GPU must not pay for sixteen because smaller machines have no capacity, or are no longer
    listed. Offerings that `resources.spot` excludes do not count. Machines that the job names are never filtered.
    """
    offered = list(found)
    if resources.machine or resources.gpus is None or not resources.gpus.count:
        return offered
    most = math.inf if resources.gpus.most is None else resources.gpus.most
    fewest = min((each.gpus for each in offered if is_wanted(resources, spot=each.spot)), default=None)
    return [each for each in offered if (fewest is None or each.gpus == fewest) and each.gpus <= most]


def is_wanted(resources: Resources, *, spot: bool) -> bool:
    """Return True if the job accepts spot machines (`spot`), or on-demand ones (not `spot`)."""
    return spot in {"never": (False,), "only": (True,), "prefer": (True, False)}[resources.spot]


def table_source(price: Price | None) -> str:
    """The source of a table's price, for display."""
    return "" if price is None else f"table of {price.date.isoformat()} ({price.source})"


def ordered(resources: Resources, found: Iterable[Offering]) -> tuple[Offering, ...]:
    """Sort the offerings: by the job's preference if it names machines, then by price.

    Unknown prices come last, the smallest machine first. At equal prices, the job's first region comes first.
    """
    preference = {name: place for place, name in enumerate(dict.fromkeys(resources.machine))}
    regions = {short_region(region): place for place, region in enumerate(resources.regions)}

    def rank(offered: Offering) -> tuple[Any, ...]:
        return (
            preference.get(offered.machine, len(preference)),
            math.inf if offered.price is None else offered.price,
            # Spot prices roughly follow on-demand prices: a usable order if the spot price is unknown.
            math.inf if offered.on_demand_price is None else offered.on_demand_price,
            offered.gpus,
            offered.cpus or 0,
            offered.memory_bytes or 0,
            offered.machine,
            regions.get(short_region(offered.region or ""), len(regions)),
            offered.zone,
            # At the same price, on-demand comes first: it is not reclaimed.
            offered.spot,
        )

    return tuple(sorted(found, key=rank))


def why_none(cloud: str, resources: Resources, region: str) -> str:
    """The reason, with the field's name, why existing machines are not available where the job looks for them."""
    field = "machine" if resources.machine else "gpus" if resources.gpus else "region"
    what = ", ".join(resources.machine) or "such a machine"
    if resources.zones:
        return f"resources.zones: {cloud} does not offer {what} in {', '.join(resources.zones)}; try `zones: any`"
    return (
        f"resources.{field}: {cloud} does not offer {what} in {region or 'this region'}; try another resources.region"
    )
