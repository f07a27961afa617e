"""Resources that may outlive their machines: disks with this store's label, and placement policies.

Policies have no labels: their description names the owner.
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
from stoker.providers.gce.places import ProjectRegion

DISK = "disk"
POLICY = "placement-policy"
_REMOVING_S = 10.0


def list_leftovers(api: Api, store: str, place: ProjectRegion) -> tuple[Leftover, ...]:
    """List the disks and placement policies of this store in one region that no machine uses."""
    return (*_disks(api, store, place), *_policies(api, store, place))


def remove(api: Api, leftover: Leftover) -> None:
    """Remove a leftover. Raises Transient while Compute Engine considers it to be in use."""
    place = ProjectRegion.of(leftover.region or "")
    if leftover.kind == DISK:
        zone, _, name = leftover.id.partition("/")
        path = f"/compute/v1/projects/{place.project}/zones/{zone}/disks/{name}"
    else:
        path = f"/compute/v1/projects/{place.project}/regions/{place.region}/resourcePolicies/{leftover.id}"
    try:
        operation = api.send("DELETE", path, what=leftover.id)
        operations.wait_until_done(api, operation, leftover.id, _REMOVING_S)
    except NotFound:
        return
    except Transient as error:
        raise Transient(f"{leftover.kind} {leftover.id} cannot be removed yet: {error}") from error


def _disks(api: Api, store: str, place: ProjectRegion) -> Iterator[Leftover]:
    ours = labels.store_label(store)
    path = f"/compute/v1/projects/{place.project}/aggregated/disks"
    list_leftovers = api.scoped(path, "disks", {"filter": f'labels.{labels.STORE} = "{ours}"'}).within(place.region)
    for zone, disk in list_leftovers.items:
        owner = owner_of(disk.get("labels") or {})
        # A disk that is attached to a machine is deleted with the machine.
        if disk.get("users") or owner is None or owner.store != ours:
            continue
        yield Leftover(DISK, f"{zone}/{disk['name']}", "gce", owner.job, owner.claim, str(place), _created_at(disk))


def _policies(api: Api, store: str, place: ProjectRegion) -> Iterator[Leftover]:
    ours = labels.store_label(store)
    path = f"/compute/v1/projects/{place.project}/regions/{place.region}/resourcePolicies"
    for page in api.pages(path, {"filter": 'name eq "stoker-.*"'}):
        for policy in page.get("items") or ():
            owner = from_description(str(policy.get("description") or ""))
            if owner is not None and owner.store == ours:
                yield Leftover(POLICY, policy["name"], "gce", owner.job, owner.claim, str(place), _created_at(policy))


def _created_at(found: Mapping[str, Any]) -> datetime | None:
    try:
        return datetime.fromisoformat(str(found["creationTimestamp"]).replace("Z", "+00:00")).astimezone(timezone.utc)
    except (KeyError, ValueError):
        return None
