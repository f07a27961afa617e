"""Machines that are kept for a project: where they are, which they are, and which of a job's can be taken from them.

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
from stoker.model.spec import Resources
from stoker.providers.gce import catalog
from stoker.providers.gce.client import Api
from stoker.providers.gce.places import Place

FIELD = "resources.gce.reservation"
# What a job may write that is no reservation's name.
_NO_NAMES = ("any", "none")


@dataclass(frozen=True)
class Held:
    """One reservation. `machine` is empty where it does not tell; what is attached to an N1 machine is part of it."""

    zone: str
    machine: str = ""

    def fits(self, machine: str) -> bool:
        """Whether machines of this type can be taken from it. GPUs that belong to a type need not be compared."""
        return self.machine in ("", machine)

    def __str__(self) -> str:
        return f"{self.machine} in {self.zone}" if self.machine else self.zone


def named(resources: Resources) -> str | None:
    """The reservation that these resources name; None where they name none."""
    name = resources.gce.reservation if resources.gce is not None else None
    return None if name in _NO_NAMES else name


def remarks(resources: Resources) -> tuple[str, ...]:
    """That machines which the job would rather have do not use what it names."""
    name = named(resources)
    if name is None or resources.spot != "prefer":
        return ()
    return (f"{FIELD}: {name} holds on-demand machines; spot ones come first, and do not use it",)


def find(api: Api, place: Place, name: str) -> tuple[Held, ...]:
    """Those of this name in the region. Another project's is told as `projects/PROJECT/reservations/NAME`.

    One call. Raises NotFound where there is none, and Transient where a zone that may have it gives no answer.
    """
    parts = name.split("/")
    project = parts[1] if parts[0] == "projects" and len(parts) > 2 else place.project
    own = parts[parts.index("reservations") + 1] if "reservations" in parts[:-1] else parts[-1]
    asked = {"filter": f'name = "{own}"'}
    listed = api.scoped(f"/compute/v1/projects/{quote(project)}/aggregated/reservations", "reservations", asked)
    found = tuple(
        Held(zone, _machine(each)) for zone, each in listed.within(place.region).items if each.get("name") == own
    )
    if not found:
        raise NotFound(f"{FIELD}: there is no reservation {own} in {project}/{place.region}")
    return found


def kept_for(api: Api, resources: Resources, place: Place, offered: tuple[Offering, ...]) -> tuple[Offering, ...]:
    """What is offered, without what the reservation that the job names is not for: that would be refused, one after
    the other. Who may not look tries it."""
    name = named(resources)
    if name is None:
        return offered
    try:
        return narrowed(offered, find(api, place, name))
    except ProviderError:
        return offered


def narrowed(offered: tuple[Offering, ...], held: Iterable[Held]) -> tuple[Offering, ...]:
    """Without the standard machines that cannot be taken from what is held. All of them where none can: whoever looks
    at the names of a job says why."""
    kept = tuple(held)
    fitting = {
        each
        for each in offered
        if not each.spot and any(one.zone == each.zone and one.fits(each.machine) for one in kept)
    }
    return tuple(each for each in offered if each.spot or each in fitting) if fitting else offered


def problem(name: str, held: Iterable[Held], machines: Iterable[str], zones: Iterable[str]) -> tuple[str, str] | None:
    """Why none of these machines in these zones can be taken from what is held, and what to do; None where one can."""
    kept, wanted, where = tuple(held), list(dict.fromkeys(machines)), set(zones)
    fitting = [one for one in kept if any(one.fits(machine) for machine in wanted)]
    if not fitting:
        told = f"{name} is for {', '.join(map(str, kept))}, and not for {', '.join(wanted)}"
        return told, f"set resources.machine to {kept[0].machine}, or leave the reservation out"
    if where and not any(one.zone in where for one in fitting):
        there = ", ".join(one.zone for one in fitting)
        return f"{name} is in {there}, where this job's machines are not", f"set resources.zones to [{there}]"
    return None


def _machine(told: Mapping[str, Any]) -> str:
    """The machine type, by the name that an offering has for it."""
    properties = (told.get("specificReservation") or {}).get("instanceProperties") or {}
    machine = str(properties.get("machineType") or "").rpartition("/")[2]
    attached = next(iter(properties.get("guestAccelerators") or ()), None)
    if not attached or not catalog.takes_gpus(machine):
        return machine
    kind = str(attached.get("acceleratorType") or "").rpartition("/")[2]
    return f"{machine}+{kind}:{attached.get('acceleratorCount') or 1}"
