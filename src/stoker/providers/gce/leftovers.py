"""Resources that may outlive their machines: disks with this store's label, placement policies, managed instance groups
and their templates.

All but disks have no labels: their description names the owner. A group may also hold a request that still waits for
machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from itertools import chain
from typing import Any

from stoker.model.errors import NotFound, Transient
from stoker.model.offerings import Leftover
from stoker.providers.gce import group_launch, labels, operations
from stoker.providers.gce.client import Api
from stoker.providers.gce.instances import StoreInstances
from stoker.providers.gce.owners import from_description, owner_of
from stoker.providers.gce.places import ProjectRegion

DISK = "disk"
POLICY = "placement-policy"
GROUP = "instance-group"
TEMPLATE = "instance-template"
# The collections of those that are regional.
_REGIONAL = {POLICY: "resourcePolicies", TEMPLATE: "instanceTemplates"}
_OURS = {"filter": 'name eq "stoker-.*"'}
_REMOVING_S = 10.0


def list_leftovers(api: Api, store: str, place: ProjectRegion) -> tuple[Leftover, ...]:
    """List what this store has in one region beside its machines. Groups come before the templates that they use."""
    regional = (_regional(api, store, place, kind) for kind in _REGIONAL)
    return (*_disks(api, store, place), *_groups(api, store, place), *chain.from_iterable(regional))


def remove(api: Api, leftover: Leftover, instances: StoreInstances) -> None:
    """Remove a leftover. Raises Transient while it is in use."""
    place = ProjectRegion.of(leftover.region or "")
    zone, _, name = leftover.id.rpartition("/")
    if leftover.kind == DISK:
        path = f"/compute/v1/projects/{place.project}/zones/{zone}/disks/{name}"
    elif leftover.kind == GROUP:
        path = f"/compute/v1/projects/{place.project}/zones/{zone}/instanceGroupManagers/{name}"
        _empty(api, leftover, f"{path}/resizeRequests/{name}", instances)
    else:
        kind = _REGIONAL[leftover.kind]
        path = f"/compute/v1/projects/{place.project}/regions/{place.region}/{kind}/{name}"
    try:
        operation = api.send("DELETE", path, what=leftover.id)
        operations.wait_until_done(api, operation, leftover.id, _REMOVING_S)
    except NotFound:
        return
    except Transient as error:
        raise Transient(f"{leftover.kind} {leftover.id} cannot be removed yet: {error}") from error


def _empty(api: Api, group: Leftover, resize: str, instances: StoreInstances) -> None:
    """Cancel the group's request. Raises Transient while machines may come of it, or are there: with a group, Google
    deletes its machines, of which one may still save, or be held for debugging."""
    found = group_launch.look_up(api, resize)
    if found is not None and group_launch.is_active(found):
        group_launch.cancel(api, resize)
        found = group_launch.look_up(api, resize)
    if found is not None and group_launch.is_active(found):
        raise Transient(f"{GROUP} {group.id} cannot be removed yet: its request is still in Google's queue")
    if found is not None and not group_launch.has_succeeded(found):
        return
    place = ProjectRegion.of(group.region or "")
    if any((each.job, each.claim) == (group.job, group.claim) for each in instances.list_region(place)):
        raise Transient(f"{GROUP} {group.id} cannot be removed yet: it has machines")


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


def _groups(api: Api, store: str, place: ProjectRegion) -> Iterator[Leftover]:
    path = f"/compute/v1/projects/{place.project}/aggregated/instanceGroupManagers"
    for zone, group in api.scoped(path, "instanceGroupManagers", _OURS).within(place.region).items:
        yield from _described(GROUP, f"{zone}/{group['name']}", group, store, place)


def _regional(api: Api, store: str, place: ProjectRegion, kind: str) -> Iterator[Leftover]:
    path = f"/compute/v1/projects/{place.project}/regions/{place.region}/{_REGIONAL[kind]}"
    for page in api.pages(path, _OURS):
        for each in page.get("items") or ():
            yield from _described(kind, str(each["name"]), each, store, place)


def _described(kind: str, name: str, found: Mapping[str, Any], store: str, place: ProjectRegion) -> Iterator[Leftover]:
    """Yield what its description says to be this store's."""
    owner = from_description(str(found.get("description") or ""))
    if owner is not None and owner.store == labels.store_label(store):
        yield Leftover(kind, name, "gce", owner.job, owner.claim, str(place), _created_at(found))


def _created_at(found: Mapping[str, Any]) -> datetime | None:
    try:
        return datetime.fromisoformat(str(found["creationTimestamp"]).replace("Z", "+00:00")).astimezone(timezone.utc)
    except (KeyError, ValueError):
        return None
