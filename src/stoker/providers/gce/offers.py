"""Offerings of Compute Engine for a job: machine types × zones × spot or standard, with their prices.

`offline` needs no cloud and uses the packaged tables. `live` asks Compute Engine in which zones each type exists: one
call, two where GPUs are attached. Prices, spot included, always come from the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.model.offerings import Offering
from stoker.model.resources import Resources
from stoker.providers import offerings
from stoker.providers.gce import catalog, flex_start, places, prices
from stoker.providers.gce.catalog import GceMachineType
from stoker.providers.gce.places import ProjectRegion

if TYPE_CHECKING:
    from stoker.providers.gce.client import AggregatedList, Api

PROVIDER = "gce"
_PAGE = 500

_Where = Mapping[str, tuple[str, ...]]


def offline(resources: Resources, place: ProjectRegion) -> tuple[Offering, ...]:
    """The offerings of the packaged tables, best first.

    Raises UserError for an impossible name of a machine type, and for an impossible place.
    """
    places.check(place, resources.zones)
    machines = _candidates(resources, place.region)
    where = {machine.name: resources.zones or _known_zones(machine, place.region, resources) for machine in machines}
    return _offered(resources, place, machines, where)


def live(api: Api, resources: Resources, place: ProjectRegion) -> tuple[Offering, ...]:
    """The offerings in this place, best first. Plain data, which may be cached for a while.

    Raises the errors of `ProviderError`, and UserError for an impossible name of a machine type or an impossible place.
    """
    places.check(place, resources.zones)
    machines = _candidates(resources, place.region)
    if not machines:
        return ()
    listed = [_listed(api, place, "machineTypes", [catalog.split_name(machine.name)[0] for machine in machines])]
    types = _types(listed[0])
    gpus = {accelerator for machine in machines if (accelerator := catalog.split_name(machine.name)[1])}
    if gpus:
        listed.append(_listed(api, place, "acceleratorTypes", gpus))
    cards = _cards(listed[-1]) if gpus else {}
    where: dict[str, tuple[str, ...]] = {}
    found: list[GceMachineType] = []
    for machine in machines:
        base, accelerator, count = catalog.split_name(machine.name)
        description = next(iter(types.get(base, {}).values()), None)
        if not machine.known and description is not None and accelerator is None:
            machine = catalog.from_api(description)
            if not catalog.serves(machine, resources):
                continue
        zones = set(types.get(base, ()))
        if accelerator is not None:
            zones &= {zone for zone, most in cards.get(accelerator, {}).items() if most >= count}
        where[machine.name] = tuple(sorted(zone for zone in zones if _wanted(zone, resources.zones)))
        found.append(machine)
    offered = _offered(resources, place, found, where)
    if not offered or offered[0].gpus > _fewest(resources, machines):
        # A job ends where nothing is offered, and larger machines cost more. A zone that gave no answer must cause
        # neither, so that such a zone raises Transient here.
        for each in listed:
            each.answered(*(zone for zone in each.silent if _wanted(zone, resources.zones)))
    if not offered:
        places.check_spelling(place.region)
    return offered


def unchecked(resources: Resources, place: ProjectRegion) -> tuple[str, ...]:
    """List the names in these resources that the packaged tables lack, a line each. Raises UserError as `offline`."""
    return (*places.unchecked(place.region, resources.zones), *catalog.unchecked(resources))


def why_none(resources: Resources) -> str:
    """Say in one line that names the field why nothing is offered for these resources."""
    why = catalog.why_none(resources)
    if why:
        return why
    return offerings.why_none("Compute Engine", resources, ", ".join(resources.regions))


def smaller_machines(resources: Resources) -> tuple[str, ...]:
    """Name the machine types with as many GPUs as requested that only spot or flex-start would bring, in one line.

    Empty where the job names its machines, and where it may have one with no more GPUs than requested.
    """
    gpus = resources.gpus
    if resources.machine or gpus is None or not gpus.count:
        return ()
    fitting = catalog.fitting(replace(resources, gce=None))
    fewest = min((machine.gpus for machine in fitting if any(_ways(resources, machine))), default=0)
    smaller = [machine for machine in fitting if gpus.count <= machine.gpus < fewest]
    if not smaller:
        return ()
    best = smaller[0]
    ways = ["resources.spot: prefer"] if best.spot else []
    ways += [f"{flex_start.FIELD}: true"] if flex_start.is_sold(best.name) else []
    return (f"resources.gpus: {best.name} has {best.gpus} × {best.gpu}; it is sold with {' or '.join(ways)}",)


# ── Lists of Compute Engine ───────────────────────────────────────────────────────────────────────────────────────────


def _types(listed: AggregatedList) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Compute Engine's descriptions of machine types, by name and zone."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for zone, each in listed.items:
        found.setdefault(str(each["name"]), {})[zone] = each
    return found


def _cards(listed: AggregatedList) -> dict[str, dict[str, int]]:
    """The most GPUs of each kind that a machine may have, by name and zone."""
    found: dict[str, dict[str, int]] = {}
    for zone, each in listed.items:
        found.setdefault(str(each["name"]), {})[zone] = int(each.get("maximumCardsPerInstance") or 0)
    return found


def _listed(api: Api, place: ProjectRegion, kind: str, names: Iterable[str]) -> AggregatedList:
    """List the items of these names in the region's zones, and the zones that gave no answer.

    A filter takes one regular expression after `eq`, so that items are selected by zone here.
    """
    wanted = set(names)
    asked = {"filter": f'name eq "{"|".join(sorted(wanted))}"', "maxResults": str(_PAGE)}
    listed = api.scoped(f"/compute/v1/projects/{place.project}/aggregated/{kind}", kind, asked)
    found = []
    for zone, each in listed.items:
        gone = (each.get("deprecated") or {}).get("state") in ("OBSOLETE", "DELETED")
        if places.region_of(zone) == place.region and each.get("name") in wanted and not gone:
            found.append((zone, each))
    return replace(
        listed,
        items=tuple(found),
        silent=frozenset(name for name in listed.silent if places.region_of(name) == place.region),
    )


# ── Selection ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _candidates(resources: Resources, region: str) -> list[GceMachineType]:
    fitting = catalog.fitting(resources)
    return offerings.candidates(resources, fitting, lambda name: prices.on_demand(region, name))


def _known_zones(machine: GceMachineType, region: str, resources: Resources) -> tuple[str, ...]:
    """The zones of a machine type by the table; all zones where a job names the type, or the region is new."""
    accelerator = catalog.split_name(machine.name)[1]
    known = places.zones_with(accelerator or catalog.family(machine.name), region)
    if known or (machine.gpu and not resources.machine and places.zones_of(region)):
        return known
    return places.zones_of(region) or (f"{region}-a",)


def _fewest(resources: Resources, machines: list[GceMachineType]) -> float:
    """The fewest GPUs of any machine that this job may use, whether a zone has it or not."""
    if resources.machine:
        return math.inf
    sold = (machine.gpus for machine in machines if any(_ways(resources, machine)))
    return min(sold, default=math.inf)


def _ways(resources: Resources, machine: GceMachineType) -> tuple[bool, bool]:
    """Return whether this job may have the machine as other than spot, and on spot."""
    standard = offerings.is_wanted(resources, spot=False) and _is_sold(resources, machine)
    return standard, offerings.is_wanted(resources, spot=True) and machine.spot


def _is_sold(resources: Resources, machine: GceMachineType) -> bool:
    """Return whether the machine is sold other than as spot, in the way that this job requests: by flex-start, from a
    reservation, or on demand."""
    if flex_start.is_wanted(resources):
        return flex_start.is_sold(machine.name)
    return machine.standard or (resources.gce is not None and resources.gce.reservation is not None)


def _wanted(zone: str, named: tuple[str, ...]) -> bool:
    """Return whether to use a zone. Zones for accelerators alone (`us-central1-ai1a`) are distant and must be named."""
    return zone in named if named else len(zone.rpartition("-")[2]) == 1


def _offered(
    resources: Resources, place: ProjectRegion, machines: list[GceMachineType], where: _Where
) -> tuple[Offering, ...]:
    make = partial(offerings.offering, PROVIDER)
    queued = flex_start.is_wanted(resources)
    found = []
    for machine in machines:
        standard = prices.on_demand(place.region, machine.name)
        amount = None if standard is None else standard.amount
        spot = prices.spot(place.region, machine.name)
        for zone in where[machine.name]:
            at = (machine, str(place), zone)
            if _is_sold(resources, machine):
                # Flex-start costs less than on demand, and the table does not say how much less.
                source = offerings.table_source(standard) + (", on demand" if queued else "")
                found.append(make(*at, spot=False, price=amount, on_demand=amount, source=source, queued=queued))
            if machine.spot:
                now = None if spot is None else spot.amount
                source = offerings.table_source(spot)
                found.append(make(*at, spot=True, price=now, on_demand=amount, source=source))
    return offerings.ordered(resources, offerings.fewest_gpus(resources, found))
