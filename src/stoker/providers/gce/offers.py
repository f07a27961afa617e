"""What Compute Engine has to offer for a job: machine types × zones × spot or standard, with their prices.

`offline` needs no cloud: the project's tables. `live` asks Compute Engine where each type is to be had: one call, two
where GPUs are attached. Prices, spot too, are always those of the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.model.offerings import Offering
from stoker.model.spec import Resources
from stoker.providers import offerings
from stoker.providers.gce import catalog, places, prices
from stoker.providers.gce.catalog import MachineType
from stoker.providers.gce.places import Place

if TYPE_CHECKING:
    from stoker.providers.gce.client import Api, Scoped

PROVIDER = "gce"
_PAGE = 500

_Where = Mapping[str, tuple[str, ...]]


def offline(resources: Resources, place: Place) -> tuple[Offering, ...]:
    """What the project's tables know, best first.

    Raises UserError for a name that no machine type can have, and for a place that cannot be.
    """
    places.check(place, resources.zones)
    machines = _candidates(resources, place.region)
    where = {machine.name: resources.zones or _known_zones(machine, place.region, resources) for machine in machines}
    return _offered(resources, place, machines, where)


def live(api: Api, resources: Resources, place: Place) -> tuple[Offering, ...]:
    """What can be had in this place, best first. Plain data: it may be kept for a while.

    Raises the errors of `ProviderError`, and UserError for a name that no machine type can have, or a place that cannot
    be.
    """
    places.check(place, resources.zones)
    machines = _candidates(resources, place.region)
    if not machines:
        return ()
    listed = [_listed(api, place, "machineTypes", [catalog.attached(machine.name)[0] for machine in machines])]
    types = _types(listed[0])
    gpus = {accelerator for machine in machines if (accelerator := catalog.attached(machine.name)[1])}
    if gpus:
        listed.append(_listed(api, place, "acceleratorTypes", gpus))
    cards = _cards(listed[-1]) if gpus else {}
    where: dict[str, tuple[str, ...]] = {}
    found: list[MachineType] = []
    for machine in machines:
        base, accelerator, count = catalog.attached(machine.name)
        learnt = next(iter(types.get(base, {}).values()), None)
        if not machine.known and learnt is not None and accelerator is None:
            machine = catalog.described(learnt)
            if not catalog.serves(machine, resources):
                continue
        zones = set(types.get(base, ()))
        if accelerator is not None:
            zones &= {zone for zone, most in cards.get(accelerator, {}).items() if most >= count}
        where[machine.name] = tuple(sorted(zone for zone in zones if _wanted(zone, resources.zones)))
        found.append(machine)
    offered = _offered(resources, place, found, where)
    if not offered or offered[0].gpus > _fewest(resources, machines):
        # Nothing on offer ends a job, and larger machines cost more: that a zone gave no answer is no reason.
        for each in listed:
            each.answered(*(zone for zone in each.silent if _wanted(zone, resources.zones)))
    if not offered:
        places.check_spelling(place.region)
    return offered


def unchecked(resources: Resources, place: Place) -> tuple[str, ...]:
    """What these resources name and the project's tables do not have, a line each. Raises UserError as `offline`."""
    return (*places.unchecked(place.region, resources.zones), *catalog.unchecked(resources))


def why_none(resources: Resources) -> str:
    """Why nothing is offered for these resources, in one line that names the field."""
    why = catalog.why_none(resources)
    if why:
        return why
    return offerings.why_none("Compute Engine", resources, resources.region)


# ── Asking ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _types(listed: Scoped) -> dict[str, dict[str, Mapping[str, Any]]]:
    """What Compute Engine tells of machine types, by name and zone."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for zone, each in listed.items:
        found.setdefault(str(each["name"]), {})[zone] = each
    return found


def _cards(listed: Scoped) -> dict[str, dict[str, int]]:
    """How many of each GPU a machine may have, by name and zone."""
    found: dict[str, dict[str, int]] = {}
    for zone, each in listed.items:
        found.setdefault(str(each["name"]), {})[zone] = int(each.get("maximumCardsPerInstance") or 0)
    return found


def _listed(api: Api, place: Place, kind: str, names: Iterable[str]) -> Scoped:
    """Every one of these names in the zones of the region, and the zones of it that gave no answer.

    A filter takes regular expressions after `eq`, and only one of them: zones are told apart here.
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


# ── Choosing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _candidates(resources: Resources, region: str) -> list[MachineType]:
    fitting = catalog.fitting(resources)
    return offerings.candidates(resources, fitting, lambda name: prices.on_demand(region, name))


def _known_zones(machine: MachineType, region: str, resources: Resources) -> tuple[str, ...]:
    """Where the table says that it is. Somebody who names a machine knows better, and so for a region that is new."""
    accelerator = catalog.attached(machine.name)[1]
    known = places.zones_with(accelerator or catalog.family(machine.name), region)
    if known or (machine.gpu and not resources.machine and places.zones_of(region)):
        return known
    return places.zones_of(region) or (f"{region}-a",)


def _fewest(resources: Resources, machines: list[MachineType]) -> float:
    """The fewest GPUs of a machine that could be sold to this job, if only a zone had it."""
    if resources.machine:
        return math.inf
    sold = (machine.gpus for machine in machines if any(_ways(resources, machine)))
    return min(sold, default=math.inf)


def _ways(resources: Resources, machine: MachineType) -> tuple[bool, bool]:
    """Whether this job may have the machine on demand, and on spot."""
    reserved = resources.gce is not None and resources.gce.reservation is not None
    standard = offerings.is_wanted(resources, spot=False) and (machine.standard or reserved)
    return standard, offerings.is_wanted(resources, spot=True) and machine.spot


def _wanted(zone: str, named: tuple[str, ...]) -> bool:
    """Zones for accelerators alone (`us-central1-ai1a`) are far from the rest: only for who names them."""
    return zone in named if named else len(zone.rpartition("-")[2]) == 1


def _offered(resources: Resources, place: Place, machines: list[MachineType], where: _Where) -> tuple[Offering, ...]:
    make = partial(offerings.offering, PROVIDER)
    reserved = resources.gce is not None and resources.gce.reservation is not None
    found = []
    for machine in machines:
        standard = prices.on_demand(place.region, machine.name)
        amount = None if standard is None else standard.amount
        spot = prices.spot(place.region, machine.name)
        for zone in where[machine.name]:
            at = (machine, str(place), zone)
            if machine.standard or reserved:
                source = offerings.table_source(standard)
                found.append(make(*at, spot=False, price=amount, on_demand=amount, source=source))
            if machine.spot:
                now = None if spot is None else spot.amount
                source = offerings.table_source(spot)
                found.append(make(*at, spot=True, price=now, on_demand=amount, source=source))
    return offerings.ordered(resources, machines, offerings.fewest_gpus(resources, found))
