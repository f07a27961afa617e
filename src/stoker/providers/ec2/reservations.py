"""The capacity reservation or block that a job names: its machines are asked for where it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stoker.model.errors import UserError
from stoker.model.resources import Resources
from stoker.providers.ec2.errors import call_aws

_FIELD = "resources.ec2.reservation"
_BLOCK = "capacity-block"
# A reservation in one of these states never has machines again.
_OVER = frozenset({"expired", "cancelled", "cancelling", "failed", "payment-failed", "unsupported"})


def restrict(ec2: Any, resources: Resources) -> Resources:
    """Restrict zones and machine types to those of the reservation that the job names by its id.

    Raises UserError for a reservation that the job cannot use. A resource group may hold several of them, so that it
    restricts nothing.
    """
    written = resources.ec2.reservation if resources.ec2 is not None else None
    name = (written or "").removeprefix("block:")
    if not name.startswith("cr-"):
        return resources
    answer = call_aws(_FIELD, lambda: ec2.describe_capacity_reservations(CapacityReservationIds=[name]))
    found = answer["CapacityReservations"][0]
    zone, machine, state = found["AvailabilityZone"], found["InstanceType"], found.get("State", "active")
    if state in _OVER:
        raise UserError(f"{_FIELD}: {name} is {state}; name one that is active")
    is_block = found.get("ReservationType", "default") == _BLOCK
    if is_block != (written != name):
        kind, form = ("is a capacity block", f"block:{name}") if is_block else ("is no capacity block", name)
        raise UserError(f"{_FIELD}: {name} {kind}; write {form}")
    if resources.zones and zone not in resources.zones:
        raise UserError(f"{_FIELD}: {name} is in {zone}, and the job's zones or subnets are not; name some there")
    if resources.machine and machine not in resources.machine:
        raise UserError(f"{_FIELD}: {name} holds {machine}, which resources.machine does not name")
    return replace(resources, zones=(zone,), machine=(machine,))
