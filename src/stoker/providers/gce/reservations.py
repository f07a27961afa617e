"""Reservations of a project: their zones and machine types, and which offerings of a job can use them.

A reservation that a job names is for machines of one type in one zone; any other is refused, and so is spot:
https://cloud.google.com/compute/docs/instances/reservations-consume. One of a future reservation in calendar mode
(`calendar:NAME`) has machines between two times alone, and ends them with itself. None is made or bought here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any
from urllib.parse import quote

from stoker.model.errors import NotFound, ProviderError, Throttled, Transient, UserError
from stoker.model.offerings import Offering, Reservation
from stoker.model.resources import Resources
from stoker.providers.gce import catalog
from stoker.providers.gce.client import Api
from stoker.providers.gce.places import ProjectRegion

FIELD = "resources.gce.reservation"
# Values of the field that are not the name of a reservation.
_NO_NAMES = ("any", "none")
# Before the name of a reservation in calendar mode.
_CALENDAR = "calendar:"
# A machine of its last minutes would have to save and leave as soon as it came.
LAST_MINUTES_S = 600.0
# States of a future reservation that has no machines, and will have none.
_NEVER = frozenset({"CANCELLED", "DECLINED", "FAILED"})


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


@dataclass(frozen=True)
class CalendarWindow:
    """The time in which a reservation in calendar mode has machines."""

    starts_at: datetime
    ends_at: datetime
    state: str = ""

    def problem(self, name: str, now: datetime) -> str:
        """Why no machine is to be had of the reservation any more; empty where one is, or will be."""
        if self.state in _NEVER:
            return f"the future reservation of {name} is {self.state.lower()}; name another"
        over = now >= self.ends_at - timedelta(seconds=LAST_MINUTES_S)
        verb = "ended" if now >= self.ends_at else "ends"
        return f"{name} {verb} at {_minute(self.ends_at)}; name another" if over else ""

    def __str__(self) -> str:
        return f"from {_minute(self.starts_at)} to {_minute(self.ends_at)}"

    def wait(self, name: str, now: datetime) -> str:
        """Why the reservation has no machines yet; empty where it has."""
        return f"{name} begins at {_minute(self.starts_at)}" if now < self.starts_at else ""


def named(resources: Resources) -> str | None:
    """The name of the reservation in these resources; None where there is none."""
    written = resources.gce.reservation if resources.gce is not None else None
    return None if written in (None, *_NO_NAMES) else name_of(str(written))


def name_of(written: str) -> str:
    """The name in a value of the field."""
    return written.removeprefix(_CALENDAR)


def is_calendar(resources: Resources) -> bool:
    """Return whether the job names its reservation as one in calendar mode."""
    written = resources.gce.reservation if resources.gce is not None else None
    return (written or "").startswith(_CALENDAR)


def check(resources: Resources) -> None:
    """Raise UserError for `calendar:` without the name of a reservation."""
    if is_calendar(resources) and named(resources) in ("", *_NO_NAMES):
        raise UserError(f"{FIELD}: {_CALENDAR} takes the name of a reservation, as in {_CALENDAR}block-7")


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
    project, own = _project_and_name(place, name)
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


def find_window(api: Api, place: ProjectRegion, name: str) -> CalendarWindow | None:
    """The time in which the reservation has machines; None for one that is not of calendar mode.

    One call: a reservation itself does not say what it is of. Raises Transient where a zone gives no answer.
    """
    project, own = _project_and_name(place, name)
    listed = api.scoped(f"/compute/v1/projects/{quote(project)}/aggregated/futureReservations", "futureReservations")
    found: list[CalendarWindow] = []
    for _, each in listed.within(place.region).items:
        status = each.get("status") or {}
        made = {str(link).rpartition("/")[2] for link in status.get("autoCreatedReservations") or ()}
        if each.get("reservationMode") == "CALENDAR" and own in {each.get("reservationName"), *made}:
            window = _window(each.get("timeWindow") or {}, str(status.get("procurementStatus") or ""))
            found += [window] if window is not None else []
    return min(found, key=partial(_by_next_use, datetime.now(timezone.utc)), default=None)


def _by_next_use(now: datetime, window: CalendarWindow) -> tuple[bool, bool, datetime]:
    """The order of reservations of one name: the next that has machines, or will have. A future reservation stays
    listed after its end, and after it was declined, while its name may be used again."""
    over = window.ends_at <= now
    return window.state in _NEVER, over, window.starts_at


def known_window(api: Api, place: ProjectRegion, name: str) -> CalendarWindow | None:
    """The same as `find_window`; None also where that cannot be looked up, so that Google decides."""
    try:
        return find_window(api, place, name)
    except ProviderError:
        return None


def _window(found: Mapping[str, Any], state: str) -> CalendarWindow | None:
    starts_at = _time(found.get("startTime"))
    ends_at = _time(found.get("endTime"))
    if starts_at is not None and ends_at is None and found.get("duration"):
        ends_at = starts_at + timedelta(seconds=int(found["duration"].get("seconds") or 0))
    return None if starts_at is None or ends_at is None else CalendarWindow(starts_at, ends_at, state)


def _time(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).astimezone(timezone.utc)
    except ValueError:
        return None


def _minute(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"


def _project_and_name(place: ProjectRegion, name: str) -> tuple[str, str]:
    parts = name.split("/")
    project = parts[1] if parts[0] == "projects" and len(parts) > 2 else place.project
    return project, parts[parts.index("reservations") + 1] if "reservations" in parts[:-1] else parts[-1]


def usable_offerings(
    api: Api, resources: Resources, place: ProjectRegion, offered: tuple[Offering, ...]
) -> tuple[Offering, ...]:
    """The offerings without those that cannot use the job's reservation: each of them would be refused at launch.

    All offerings where the reservation cannot be looked up. Those of a reservation in calendar mode know its times.
    Raises Transient or Throttled where these are unknown for now: their machines would get no notice of the end.
    """
    name = named(resources)
    if name is None:
        return offered
    usable, window = offered, None
    try:
        usable = narrowed(offered, find(api, place, name))
        window = find_window(api, place, name)
    except ProviderError as error:
        if isinstance(error, (Throttled, Transient)) and (is_calendar(resources) or _any_bound(offered)):
            raise
    if window is None:
        return usable
    known = Reservation(name, window.starts_at, window.ends_at, ends_machines_at=window.ends_at)
    return tuple(each if each.spot else replace(each, reservation=known) for each in usable)


def _any_bound(offered: Iterable[Offering]) -> bool:
    """Return whether a type is sold by reservation alone: its machines are bound to theirs, whatever its mode."""
    return any(not each.spot and not catalog.facts(each.machine).standard for each in offered)


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


def kind_problem(name: str, window: CalendarWindow | None, *, bound: bool, now: datetime) -> str:
    """The problem with the way in which a request names its reservation; empty where there is none. `bound`: as one in
    calendar mode."""
    if window is None:
        return f"{name} is of no future reservation in calendar mode; write {name} alone" if bound else ""
    if not bound:
        return f"{name} is in calendar mode; write {_CALENDAR}{name}"
    return window.problem(name, now)


def _machine(reservation: Mapping[str, Any]) -> str:
    """The machine type of a reservation, as an offering names it."""
    properties = (reservation.get("specificReservation") or {}).get("instanceProperties") or {}
    machine = str(properties.get("machineType") or "").rpartition("/")[2]
    attached = next(iter(properties.get("guestAccelerators") or ()), None)
    if not attached or not catalog.takes_gpus(machine):
        return machine
    kind = str(attached.get("acceleratorType") or "").rpartition("/")[2]
    return f"{machine}+{kind}:{attached.get('acceleratorCount') or 1}"
