"""What the provisioning model of a launch allows: flex-start, and machine types that are never sold on demand."""

from __future__ import annotations

from typing import Any

from tests.support.gce.catalog import MachineType
from tests.support.gce.errors import Json, invalid

# Flex-start. "MAX_RUN_DURATION: […] The value must be between 10 minutes and seven days." "specify a duration between
# 90 seconds (90) and two hours (7200)", or zero: "only allocates resources if they are immediately available".
# https://cloud.google.com/compute/docs/instances/create-flex-start-vm
_RUN_S = range(600, 7 * 24 * 3600 + 1)
_WAIT_S = (0, *range(90, 7201))
# "Flex-start VMs support all accelerator-optimized machine types (except A4X and G4) and H4D machine types."
# https://cloud.google.com/compute/docs/instances/about-flex-start-vms
_FAMILIES = frozenset({"a2", "a3", "a4", "g2", "h4d", "ct5lp", "ct5p", "ct6e"})
# A3 High machines with fewer than 8 GPUs are Spot or Flex-start VMs.
# https://cloud.google.com/compute/docs/accelerator-optimized-machines
_NEVER_STANDARD = frozenset({"a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g"})


def check_model(asked: Json, machine: MachineType, scheduling: Json, field: str) -> None:
    """Raises Failure (400) for what the model of `scheduling` does not allow. `asked` is the whole request."""
    model, at = scheduling["provisioningModel"], f"{field}.scheduling.provisioningModel"
    wait = (asked.get("params") or {}).get("requestValidForDuration")
    if model == "STANDARD" and machine.name in _NEVER_STANDARD:
        raise invalid(at, model, f"{machine.name} is for Spot and Flex-start VMs only.")
    if model != "FLEX_START":
        if wait is not None:
            raise invalid(f"{field}.params.requestValidForDuration", wait, "It is for Flex-start VMs only.")
        return
    if machine.family not in _FAMILIES:
        raise invalid(at, model, f"{machine.name} does not support the FLEX_START provisioning model.")
    if seconds(scheduling.get("maxRunDuration")) not in _RUN_S:
        raise invalid(f"{field}.scheduling.maxRunDuration", "", "It must be between 10 minutes and 7 days.")
    if scheduling["onHostMaintenance"] != "TERMINATE":
        raise invalid(f"{field}.scheduling.onHostMaintenance", "", "Flex-start VMs do not migrate.")
    if (asked.get("reservationAffinity") or {}).get("consumeReservationType") != "NO_RESERVATION":
        raise invalid(f"{field}.reservationAffinity", "", "Flex-start VMs use no reservations.")
    if wait is not None and seconds(wait) not in _WAIT_S:
        told = "must be at least 90 and less or equal to 7200 seconds"
        raise invalid(f"{field}.params.requestValidForDuration", wait, told)


def seconds(duration: Any) -> float | None:
    """A Duration of the API; None where there is none."""
    if duration is None:
        return None
    return float(int(duration.get("seconds", 0)) + duration.get("nanos", 0) / 1e9)
