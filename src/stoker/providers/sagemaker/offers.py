"""Offerings of SageMaker for a job: machine types × spot or on-demand. SageMaker chooses the zone itself.

No API reports where a type is available, so that only a launch can find out.
"""

from __future__ import annotations

from functools import partial

from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.resources import Resources
from stoker.providers import offerings
from stoker.providers.ec2 import places
from stoker.providers.machine_types import MachineType, disk_size
from stoker.providers.sagemaker import catalog, prices

PROVIDER = "sagemaker"
_ANY_ZONE = ""


def offered(resources: Resources) -> tuple[Offering, ...]:
    """The offerings, best first. Raises UserError without a region, and for an impossible name of a machine type."""
    region = _region(resources)
    places.check(region)
    fitting = [machine for machine in catalog.fitting(resources) if not _too_small(machine.name, resources)]
    machines = offerings.candidates(resources, fitting, lambda name: prices.on_demand(region, name))
    found = [each for machine in machines for each in _of(machine, region)]
    return offerings.ordered(resources, offerings.fewest_gpus(resources, found))


def why_none(resources: Resources) -> str:
    """Say in one line that names the field why nothing is offered for these resources."""
    return (
        catalog.why_none(resources)
        or _disk(resources)
        or offerings.why_none("SageMaker", resources, ", ".join(resources.regions))
    )


def unchecked(resources: Resources) -> tuple[str, ...]:
    """List the names in these resources that the packaged tables lack, a line each."""
    left_out = tuple(_left_out(name, resources) for name in resources.machine if _too_small(name, resources))
    return (*places.unchecked(_region(resources), ()), *catalog.unchecked(resources), *left_out)


def _too_small(machine: str, resources: Resources) -> bool:
    """Return whether the type has local disks, which are the only ones, and they are smaller than the job needs."""
    local, wanted = catalog.local_gb(machine), resources.disk_bytes
    return local is not None and wanted is not None and disk_size(wanted) > local


def _left_out(machine: str, resources: Resources) -> str:
    wanted, local = disk_size(resources.disk_bytes or 0), catalog.local_gb(machine)
    return f"resources.disk: {machine} has {local} GB of its own and takes no other disk; {wanted} GB are asked for"


def _disk(resources: Resources) -> str:
    """The reason where all fitting types are excluded for their disks; empty otherwise."""
    left = [machine.name for machine in catalog.fitting(resources) if _too_small(machine.name, resources)]
    return _left_out(left[0], resources) if left else ""


def _of(machine: MachineType, region: str) -> list[Offering]:
    price = prices.on_demand(region, machine.name)
    amount = None if price is None else price.amount
    made = partial(offerings.offering, PROVIDER, machine, region, _ANY_ZONE, on_demand=amount)
    # Not all types support managed spot, and no API reports which; SageMaker refuses the launch of the others.
    return [
        made(spot=False, price=amount, source=offerings.table_source(price)),
        made(spot=True, price=None, source=""),
    ]


def _region(resources: Resources) -> str:
    if resources.only_region is None:
        raise UserError("resources.region: name a region, such as us-east-1, or set AWS_REGION")
    return resources.only_region
