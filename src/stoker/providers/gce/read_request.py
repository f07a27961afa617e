"""What a request for machines asks for, read from the request itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.model.errors import InvalidRequest
from stoker.providers.base import HttpRequest
from stoker.providers.gce.owners import Owner, owner_of


def owner(request: HttpRequest) -> Owner:
    """Whose machines it makes. Raises InvalidRequest for what is no request of ours."""
    told = owner_of(properties(request).get("labels") or {})
    if told is None:
        raise InvalidRequest(f"not a request of the gce provider: {request.path}")
    return told


def names(request: HttpRequest) -> frozenset[str]:
    """What its machines are called."""
    return frozenset(request.body.get("perInstanceProperties") or (request.body.get("name"),))


def properties(request: HttpRequest) -> Mapping[str, Any]:
    """What a machine shall be like: a bulk request tells that apart."""
    found: Mapping[str, Any] = request.body.get("instanceProperties", request.body)
    return found


def machine_type(request: HttpRequest) -> str:
    """The machine type, which for people is what the request is about."""
    return _last(str(properties(request).get("machineType", "machines")))


def machine(request: HttpRequest) -> str:
    """The machine with what is attached to it, by the name that an offering has for it."""
    attached = (
        f"+{_last(str(each['acceleratorType']))}:{each['acceleratorCount']}"
        for each in properties(request).get("guestAccelerators") or ()
    )
    return machine_type(request) + "".join(attached)


def zone(request: HttpRequest) -> str | None:
    """Where it wants its machines; None where it leaves that open."""
    locations = (request.body.get("locationPolicy") or {}).get("locations") or {}
    for name, each in locations.items():
        if each.get("preference") == "ALLOW":
            return _last(name)
    parts = request.path.split("/")
    return parts[parts.index("zones") + 1] if "zones" in parts else None


def _last(link: str) -> str:
    return link.rpartition("/")[2]
