"""What Compute Engine machines may leave beside them: disks with this store's label, and placement policies.

Policies have no labels: whose they are stands in their description.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from stoker.model.errors import NotFound, Transient
from stoker.model.offerings import Leftover
from stoker.providers.gce import labels, operations
from stoker.providers.gce.client import Api
from stoker.providers.gce.owners import from_description, owner_of
from stoker.providers.gce.places import Place

DISK = "disk"
POLICY = "placement-policy"
_REMOVING_S = 10.0


def listed(api: Api, store: str, place: Place) -> tuple[Leftover, ...]:
    """Everything of this store in one region that no machine uses."""
    return (*_disks(api, store, place), *_policies(api, store, place))


def remove(api: Api, leftover: Leftover) -> None:
    """Remove it. Raises Transient while Compute Engine holds it to be in use."""
    place = Place.of(leftover.region or "")
    if leftover.kind == DISK:
        zone, _, name = leftover.id.partition("/")
        path = f"/compute/v1/projects/{place.project}/zones/{zone}/disks/{name}"
    else:
        path = f"/compute/v1/projects/{place.project}/regions/{place.region}/resourcePolicies/{leftover.id}"
    try:
        operation = api.send("DELETE", path, what=leftover.id)
        operations.finished(api, operation, leftover.id, _REMOVING_S)
    except NotFound:
        return
    except Transient as error:
        raise Transient(f"{leftover.kind} {leftover.id} cannot be removed yet: {error}") from error


def _disks(api: Api, store: str, place: Place) -> Iterator[Leftover]:
    ours = labels.store_label(store)
    path = f"/compute/v1/projects/{place.project}/aggregated/disks"
    listed = api.scoped(path, "disks", {"filter": f'labels.{labels.STORE} = "{ours}"'}).within(place.region)
    for zone, disk in listed.items:
        told = owner_of(disk.get("labels") or {})
        # Those that hang on a machine are deleted with it.
        if disk.get("users") or told is None or told.store != ours:
            continue
        yield Leftover(DISK, f"{zone}/{disk['name']}", "gce", told.job, told.claim, str(place), _moment(disk))


def _policies(api: Api, store: str, place: Place) -> Iterator[Leftover]:
    ours = labels.store_label(store)
    path = f"/compute/v1/projects/{place.project}/regions/{place.region}/resourcePolicies"
    for page in api.pages(path, {"filter": 'name eq "stoker-.*"'}):
        for policy in page.get("items") or ():
            told = from_description(str(policy.get("description") or ""))
            if told is not None and told.store == ours:
                yield Leftover(POLICY, policy["name"], "gce", told.job, told.claim, str(place), _moment(policy))


def _moment(found: Mapping[str, Any]) -> datetime | None:
    try:
        return datetime.fromisoformat(str(found["creationTimestamp"]).replace("Z", "+00:00")).astimezone(timezone.utc)
    except (KeyError, ValueError):
        return None
