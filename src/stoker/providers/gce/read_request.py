"""Read the contents of a launch request: owner, names, machine type and zone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.model.errors import InvalidRequest
from stoker.providers.base import HttpRequest
from stoker.providers.gce.owners import Owner, owner_of


def owner(request: HttpRequest) -> Owner:
    """The owner of the request's machines. Raises InvalidRequest for a request that this provider did not build."""
    found = owner_of(properties(request).get("labels") or {})
    if found is None:
        raise InvalidRequest(f"not a request of the gce provider: {request.path}")
    return found


def names(request: HttpRequest) -> frozenset[str]:
    """The names of the request's machines."""
    return frozenset(request.body.get("perInstanceProperties") or (request.body.get("name"),))


def properties(request: HttpRequest) -> Mapping[str, Any]:
    """The properties of each machine, which a bulk request and a template hold in a field of their own."""
    body = request.body
    found: Mapping[str, Any] = body.get("instanceProperties") or body.get("properties") or body
    return found


def describing(requests: tuple[HttpRequest, ...]) -> HttpRequest:
    """The request of a launch that has the properties of the machines."""
    return next((each for each in requests if "properties" in each.body), requests[-1])


def waits_in_queue(request: HttpRequest) -> bool:
    """Return whether the request waits in Google's queue for its machine (flex-start)."""
    return bool((request.body.get("params") or {}).get("requestValidForDuration"))


def is_bound(request: HttpRequest) -> bool:
    """Return whether the machines are bound to a reservation, and end with it."""
    return (properties(request).get("scheduling") or {}).get("provisioningModel") == "RESERVATION_BOUND"


def reservations(request: HttpRequest) -> tuple[str, ...]:
    """The names of the reservations that the machines use."""
    affinity = properties(request).get("reservationAffinity") or {}
    return tuple(str(name) for name in affinity.get("values") or ())


def machine_type(request: HttpRequest) -> str:
    """The machine type, with which messages about the request begin."""
    return _last(str(properties(request).get("machineType", "machines")))


def machine(request: HttpRequest) -> str:
    """The machine type with its attached GPUs, as an offering names it."""
    attached = (
        f"+{_last(str(each['acceleratorType']))}:{each['acceleratorCount']}"
        for each in properties(request).get("guestAccelerators") or ()
    )
    return machine_type(request) + "".join(attached)


def zone(request: HttpRequest) -> str | None:
    """The zone of the request's machines; None where the request leaves it open."""
    locations = (request.body.get("locationPolicy") or {}).get("locations") or {}
    for name, each in locations.items():
        if each.get("preference") == "ALLOW":
            return _last(name)
    parts = request.path.split("/")
    return parts[parts.index("zones") + 1] if "zones" in parts else None


def _last(link: str) -> str:
    return link.rpartition("/")[2]
