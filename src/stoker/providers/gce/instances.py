"""The Compute Engine machines of one store: which exist, the states they are in, and how they ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from stoker.model.errors import NotFound
from stoker.model.offerings import Instance, InstanceState
from stoker.providers.base import EndReason
from stoker.providers.gce import labels, names, operations
from stoker.providers.gce.client import AggregatedList, Api
from stoker.providers.gce.owners import Owner, owner_of
from stoker.providers.gce.places import ProjectRegion, instance_id, is_id, region_of, split_id

# The status of a request for a flex-start machine that waits in Google's queue: it is listed, and can be deleted.
QUEUED = "PENDING"
_STATES: dict[str, InstanceState] = {
    QUEUED: "pending",
    "PROVISIONING": "pending",
    "STAGING": "pending",
    "RUNNING": "running",
    "REPAIRING": "running",
    "PENDING_STOP": "stopping",
    "STOPPING": "stopping",
    "DEPROVISIONING": "stopping",
    # The machine powered itself off, or a person stopped it. Its disk costs money until the machine is deleted.
    "TERMINATED": "off",
    # A suspended machine may be resumed and continue its training.
    "SUSPENDING": "running",
    "SUSPENDED": "running",
}
# Operation types of Compute Engine.
_PREEMPTED = "compute.instances.preempted"
# `deferredDelete` is the deletion at the end of maxRunDuration.
_ENDED = frozenset({"delete", _PREEMPTED, "compute.instances.deferredDelete"})
_SWITCHED_OFF = "compute.instances.guestTerminate"


@dataclass(frozen=True)
class StoreInstances:
    """Look up the machines that carry one store's label."""

    api: Api
    store_label: str

    def list_region(self, place: ProjectRegion) -> tuple[Instance, ...]:
        """List the store's machines in one region.

        Raises Transient where a zone of the region gives no answer: that zone may hold machines, so a list without it
        proves nothing.
        """
        listed = self._listed(place).within(place.region)
        return tuple(_instance(owner, machine, place) for owner, machine in self._owned(listed, place))

    def states(self, ids: Iterable[str], place: ProjectRegion) -> Mapping[str, InstanceState]:
        """Look up the state of each id.

        `gone`: an operation that ended the machine is on record. `unheard-of`: neither a machine nor such an operation
        is. Raises Transient where the zone of one of the machines gives no answer.
        """
        wanted = list(ids)
        found: dict[str, InstanceState] = dict.fromkeys(wanted, "unheard-of")
        if not wanted:
            return found
        listed = self._listed(place).answered(*(split_id(name)[0] for name in wanted if is_id(name)))
        for _, machine in self._owned(listed, place):
            name = instance_id(_last(machine["zone"]), str(machine["id"]))
            if name in found:
                found[name] = _STATES.get(machine["status"], "running")
        missing = {split_id(name)[1]: name for name, state in found.items() if state == "unheard-of" and is_id(name)}
        zones = {number: split_id(name)[0] for number, name in missing.items()}
        for operation in operations.on_instances(self.api, place.project, zones) if missing else ():
            ended = operation.get("operationType") in _ENDED and operation.get("status") == "DONE"
            if ended and not operation.get("error"):
                # A preemption may also only stop a machine, but then the machine would have been listed above.
                found[missing[str(operation.get("targetId"))]] = "gone"
        return found

    def named(self, name: str, zone: str, place: ProjectRegion) -> Instance | None:
        """The machine of this name, read from the machine itself; None where this store has none."""
        try:
            found = self.api.get(f"/compute/v1/projects/{place.project}/zones/{zone}/instances/{name}")
        except NotFound:
            return None
        owner = owner_of(found.get("labels") or {})
        return _instance(owner, found, place) if owner is not None and owner.store == self.store_label else None

    def status(self, instance: str, place: ProjectRegion) -> str | None:
        """The status of one machine in Compute Engine's words, read from the machine itself; None where it is not
        there."""
        zone, number = split_id(instance)
        try:
            found = self.api.get(f"/compute/v1/projects/{place.project}/zones/{zone}/instances/{number}")
        except NotFound:
            return None
        return str(found.get("status") or "")

    def end_reason(self, instance: str, place: ProjectRegion) -> EndReason | None:
        """Say whether a machine was preempted or switched itself off; None for any other end."""
        zone, number = split_id(instance)
        done = operations.on_instances(self.api, place.project, {number: zone})
        kinds = {each.get("operationType") for each in done}
        if _PREEMPTED in kinds:
            return EndReason(reclaimed=True, reason="preempted")
        if _SWITCHED_OFF in kinds:
            return EndReason(reclaimed=False, reason="it switched itself off", by_itself=True)
        return None

    def _listed(self, place: ProjectRegion) -> AggregatedList:
        path = f"/compute/v1/projects/{place.project}/aggregated/instances"
        return self.api.scoped(path, "instances", {"filter": f'labels.{labels.STORE} = "{self.store_label}"'})

    def _owned(self, listed: AggregatedList, place: ProjectRegion) -> Iterator[tuple[Owner, Mapping[str, Any]]]:
        for zone, machine in listed.items:
            # The label is compared again here: ownership must not depend on how Google evaluates a filter.
            owner = owner_of(machine.get("labels") or {})
            if owner is not None and owner.store == self.store_label and region_of(zone) == place.region:
                yield owner, machine


def parse_time(text: object) -> datetime:
    """Parse one of Google's timestamps; the current time where it cannot be parsed."""
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).astimezone(timezone.utc)
    except ValueError:
        return datetime.now(timezone.utc)


def _instance(owner: Owner, machine: Mapping[str, Any], place: ProjectRegion) -> Instance:
    zone = _last(machine["zone"])
    return Instance(
        id=instance_id(zone, str(machine["id"])),
        provider="gce",
        job=owner.job,
        claim=owner.claim,
        rank=names.rank(machine["name"]) or 0,
        state=_STATES.get(machine["status"], "running"),
        created_at=parse_time(machine.get("creationTimestamp")),
        region=str(place),
        zone=zone,
    )


def _last(link: str) -> str:
    return link.rpartition("/")[2]
