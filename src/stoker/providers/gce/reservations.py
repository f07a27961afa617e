"""Reservations of a project: their zones and machine types, and which offerings of a job can use them.

A reservation that a job names is for machines of one type in one zone; any other is refused, and so is spot:
https://cloud.google.com/compute/docs/instances/reservations-consume
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from stoker.model.errors import NotFound, ProviderError
from stoker.model.offerings import Offering
from stoker.model.resources import Resources
from stoker.providers.gce import catalog
from stoker.providers.gce.client import Api
from stoker.providers.gce.places import ProjectRegion

FIELD = "resources.gce.reservation"
# Values of the field that are not the name of a reservation.
_NO_NAMES = ("any", "none")


@dataclass(frozen=True)
class GceReservation:
    """One reservation. `machine` includes the GPUs attached to an N1 machine, and is empty where it is not reported."""

    zone: str
    machine: str = ""

    def fits(self, machine: str) -> bool:
        """Return whether machines of this type can use the reservation. GPUs are part of the type's name."""
        return self.machine in ("", machine)

    def __str__(self) -> str:
        return f"{self.machine} in {self.zone}" if self.machine else self.zone


def named(resources: Resources) -> str | None:
    """The name of the reservation in these resources; None where there is none."""
    name = resources.gce.reservation if resources.gce is not None else None
    return None if name in _NO_NAMES else name


def remarks(resources: Resources) -> tuple[str, ...]:
    """Warn that the spot machines which the job prefers do not use its reservation."""
    name = named(resources)
    if name is None or resources.spot != "prefer":
        return ()
    return (f"{FIELD}: {name} holds on-demand machines; spot ones come first, and do not use it",)


def find(api: Api, place: ProjectRegion, name: str) -> tuple[GceReservation, ...]:
    """Find the reservations of this name in the region. `projects/PROJECT/reservations/NAME` names another project's.

    One call. Raises NotFound where there is none, and Transient where a zone that may have it gives no answer.
    """
    parts = name.split("/")
    project = parts[1] if parts[0] == "projects" and len(parts) > 2 else place.project
    own = parts[parts.index("reservations") + 1] if "reservations" in parts[:-1] else parts[-1]
    asked = {"filter": f'name = "{own}"'}
    listed = api.scoped(f"/compute/v1/projects/{quote(project)}/aggregated/reservations", "reservations", asked)
    found = tuple(
        GceReservation(zone, _machine(each))
        for zone, each in listed.within(place.region).items
        if each.get("name") == own
    )
    if not found:
        raise NotFound(f"{FIELD}: there is no reservation {own} in {project}/{place.region}")
    return found


def usable_offerings(
    api: Api, resources: Resources, place: ProjectRegion, offered: tuple[Offering, ...]
) -> tuple[Offering, ...]:
    """The offerings without those that cannot use the job's reservation: each of them would be refused at launch.

    All offerings where the reservation cannot be looked up.
    """
    name = named(resources)
    if name is None:
        return offered
    try:
        return narrowed(offered, find(api, place, name))
    except ProviderError:
        return offered


def narrowed(offered: tuple[Offering, ...], found: Iterable[GceReservation]) -> tuple[Offering, ...]:
    """The offerings without the standard machines that fit none of these reservations. All offerings where none fits:
    the check of the job's names reports the reason."""
    reservations = tuple(found)
    fitting = {
        each
        for each in offered
        if not each.spot and any(one.zone == each.zone and one.fits(each.machine) for one in reservations)
    }
    return tuple(each for each in offered if each.spot or each in fitting) if fitting else offered


def problem(
    name: str, found: Iterable[GceReservation], machines: Iterable[str], zones: Iterable[str]
) -> tuple[str, str] | None:
    """Why none of these machines in these zones can use the reservations, and a fix; None where one can."""
    reservations, wanted, where = tuple(found), list(dict.fromkeys(machines)), set(zones)
    fitting = [one for one in reservations if any(one.fits(machine) for machine in wanted)]
    if not fitting:
        why = f"{name} is for {', '.join(map(str, reservations))}, and not for {', '.join(wanted)}"
        return why, f"set resources.machine to {reservations[0].machine}, or leave the reservation out"
    if where and not any(one.zone in where for one in fitting):
        there = ", ".join(one.zone for one in fitting)
        return f"{name} is in {there}, where this job's machines are not", f"set resources.zones to [{there}]"
    return None


def _machine(reservation: Mapping[str, Any]) -> str:
    """The machine type of a reservation, as an offering names it."""
    properties = (reservation.get("specificReservation") or {}).get("instanceProperties") or {}
    machine = str(properties.get("machineType") or "").rpartition("/")[2]
    attached = next(iter(properties.get("guestAccelerators") or ()), None)
    if not attached or not catalog.takes_gpus(machine):
        return machine
    kind = str(attached.get("acceleratorType") or "").rpartition("/")[2]
    return f"{machine}+{kind}:{attached.get('acceleratorCount') or 1}"
