"""The capacity reservation, the capacity block or the group of them that a job names: its machines are asked for where
they are, and while they are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from stoker.model.errors import NoSuchResource, ProviderError, UserError
from stoker.model.offerings import Offering, Reservation
from stoker.model.resources import Resources
from stoker.providers.ec2.client import pages
from stoker.providers.ec2.errors import call_aws, map_error

_FIELD = "resources.ec2.reservation"
_BLOCK = "capacity-block"
# A reservation in one of these states never has machines again.
_OVER = frozenset({"expired", "cancelled", "cancelling", "failed", "payment-failed", "unsupported"})
# "You can use all the instances you reserved until 30 minutes (for instance types) or 60 minutes (for UltraServer type)
# before the end time of the Capacity Block", https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html
_CLEANED_UP = timedelta(minutes=30)
_ULTRASERVERS_CLEANED_UP = timedelta(minutes=60)
# The machine types that UltraServers consist of.
_IN_ULTRASERVERS = ("p6e-", "trn2u.")
# The longest time before its end in which no attempt begins in a reservation: the longest notice, and what an attempt
# needs beside it.
_NO_MORE = timedelta(minutes=20)
_NEVER = datetime.max.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class ReservedCapacity:
    """The machines of one reservation: of one type, in one zone."""

    machine: str
    zone: str
    reservation: Reservation


def group_of(resources: Resources) -> str | None:
    """The ARN of the resource group of reservations that the job names; None if it names none."""
    name = _name(resources)
    return name if name.startswith("arn:") else None


def find(ec2: Any, resource_groups: Callable[[], Any], resources: Resources) -> tuple[ReservedCapacity, ...]:
    """The reserved capacity that the job names and can use; empty if it names no reservation and no group of them.

    `resource_groups` returns a client of that service. Raises UserError for reservations that do not fit the job, and
    NoSuchResource for those that will never have machines again.
    """
    name = _name(resources)
    if not name.startswith(("cr-", "arn:")):
        return ()
    group = group_of(resources)
    found = _describe(ec2, name) if group is None else _members(ec2, resource_groups(), group)
    alive = [each for each in found if each.get("State", "active") not in _OVER]
    if not alive:
        states = ", ".join(f"{each['CapacityReservationId']} is {_state_text(each)}" for each in found)
        raise NoSuchResource(f"{_FIELD}: {states or f'{name} holds no reservation'}; name one that is active")
    usable = _of_kind(alive, resources, group)
    here = [each for each in usable if not resources.zones or each["AvailabilityZone"] in resources.zones]
    if not here:
        where = _listed(each["AvailabilityZone"] for each in usable)
        raise UserError(f"{_FIELD}: {name} is in {where}, and the job's zones or subnets are not; name some there")
    fitting = [each for each in here if not resources.machine or each["InstanceType"] in resources.machine]
    if not fitting:
        machines = _listed(each["InstanceType"] for each in here)
        raise UserError(f"{_FIELD}: {name} holds {machines}, which resources.machine does not name")
    return tuple(
        ReservedCapacity(each["InstanceType"], each["AvailabilityZone"], _times(each, alone=group is None))
        for each in fitting
    )


def restrict(resources: Resources, found: tuple[ReservedCapacity, ...]) -> Resources:
    """Restrict zones and machine types to those of the reserved capacity, if the job names any."""
    if not found:
        return resources
    zones = tuple(dict.fromkeys(each.zone for each in found))
    return replace(resources, zones=zones, machine=tuple(dict.fromkeys(each.machine for each in found)))


def with_reservations(
    offered: tuple[Offering, ...], found: tuple[ReservedCapacity, ...], now: datetime
) -> tuple[Offering, ...]:
    """The offerings with their reservations. Those without one are left out, except spot machines.

    EC2 chooses among the reservations of a group: of those of one type and zone, the one that ends machines first
    counts, and shortly before that the job waits for the next one.
    """
    if not found:
        return offered

    def order(reservation: Reservation) -> tuple[bool, datetime]:
        later = reservation.starts_at is not None and reservation.starts_at > now
        when = reservation.starts_at if later else reservation.ends_machines_at or reservation.ends_at
        return later, when or _NEVER

    first: dict[tuple[str, str], Reservation] = {}
    for each in sorted(found, key=lambda each: order(each.reservation)):
        before = first.setdefault((each.machine, each.zone), each.reservation)
        ends_at = before.ends_machines_at
        if ends_at is not None and ends_at - _NO_MORE <= now and before != each.reservation:
            # Until then a launch might be into the one that ends, and without the notice of its end.
            starts_at = max(ends_at, each.reservation.starts_at or ends_at)
            first[each.machine, each.zone] = replace(each.reservation, starts_at=starts_at)
    attached = (
        each if each.spot else replace(each, reservation=first.get((each.machine, each.zone))) for each in offered
    )
    return tuple(each for each in attached if each.spot or each.reservation is not None)


# ── Asking ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def list_group(resource_groups: Any, group: str) -> list[str]:
    """The ids of the reservations in a resource group."""
    wanted = [{"Name": "resource-type", "Values": ["AWS::EC2::CapacityReservation"]}]
    found = pages(resource_groups.list_group_resources, "Resources", Group=group, Filters=wanted)
    arns = call_aws(_FIELD, lambda: [str(each["Identifier"]["ResourceArn"]) for each in found], _group_error)
    return [arn.rpartition("/")[2] for arn in arns]


def _group_error(what: str, response: Any) -> ProviderError:
    """The error that an answer of Resource Groups stands for."""
    error = map_error(what, response)
    missing = response.get("Error", {}).get("Code") in ("NotFoundException", "BadRequestException")
    return NoSuchResource(str(error)) if missing else error


def _describe(ec2: Any, name: str) -> list[Mapping[str, Any]]:
    answer = call_aws(_FIELD, lambda: ec2.describe_capacity_reservations(CapacityReservationIds=[name]))
    return list(answer["CapacityReservations"])


def _members(ec2: Any, resource_groups: Any, group: str) -> list[Mapping[str, Any]]:
    """The reservations of a group. All are listed, because a request by id fails for all if one is forgotten."""
    ids = list_group(resource_groups, group)
    listed = call_aws(_FIELD, lambda: list(pages(ec2.describe_capacity_reservations, "CapacityReservations")))
    return [each for each in listed if each["CapacityReservationId"] in ids]


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _name(resources: Resources) -> str:
    written = resources.ec2.reservation if resources.ec2 is not None else None
    return (written or "").removeprefix("block:")


def _of_kind(alive: list[Mapping[str, Any]], resources: Resources, group: str | None) -> list[Mapping[str, Any]]:
    """The reservations of the kind that the job asks for: a launch is into capacity blocks, or into others."""
    assert resources.ec2 is not None and resources.ec2.reservation is not None
    name, wants_block = _name(resources), resources.ec2.reservation.startswith("block:")
    fixed = [each for each in alive if not each.get("Interruptible")]
    if not fixed:
        raise UserError(f"{_FIELD}: {name} is interruptible, which Stoker does not ask for; name another")
    usable = [each for each in fixed if (each.get("ReservationType", "default") == _BLOCK) == wants_block]
    if usable:
        return usable
    form = name if wants_block else f"block:{name}"
    if group is None:
        kind = "is no capacity block" if wants_block else "is a capacity block"
    else:
        kind = "holds no capacity block" if wants_block else "holds capacity blocks alone"
    raise UserError(f"{_FIELD}: {name} {kind}; write {form}")


def _times(found: Mapping[str, Any], *, alone: bool) -> Reservation:
    ends_at = found.get("EndDate")
    block = found.get("ReservationType", "default") == _BLOCK
    early = _ULTRASERVERS_CLEANED_UP if found["InstanceType"].startswith(_IN_ULTRASERVERS) else _CLEANED_UP
    return Reservation(
        name=found["CapacityReservationId"],
        starts_at=None if found.get("State", "active") == "active" else found.get("StartDate"),
        ends_at=ends_at,
        ends_machines_at=ends_at - early if block and ends_at is not None else None,
        machines=found.get("TotalInstanceCount") if alone else None,
    )


def _state_text(found: Mapping[str, Any]) -> str:
    ended = found.get("EndDate") if found["State"] == "expired" else None
    return f"{found['State']} (it ended at {ended:%Y-%m-%d %H:%M} UTC)" if ended is not None else str(found["State"])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
