"""What SageMaker has to offer for a job: machine types × spot or on-demand. It chooses the zone itself.

Nothing tells where a type is to be had, so nothing is asked: what is not there is found out by trying.
"""

from __future__ import annotations

from functools import partial

from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.spec import Resources
from stoker.providers import offerings
from stoker.providers.ec2 import places
from stoker.providers.machine_types import MachineType, disk_size
from stoker.providers.sagemaker import catalog, prices

PROVIDER = "sagemaker"
_ANY_ZONE = ""


def offered(resources: Resources) -> tuple[Offering, ...]:
    """Best first. Raises UserError without a region, and for a name that no machine type can have."""
    region = _region(resources)
    places.check(region)
    fitting = [machine for machine in catalog.fitting(resources) if not _too_small(machine.name, resources)]
    machines = offerings.candidates(resources, fitting, lambda name: prices.on_demand(region, name))
    found = [each for machine in machines for each in _of(machine, region)]
    return offerings.ordered(resources, machines, offerings.fewest_gpus(resources, found))


def why_none(resources: Resources) -> str:
    """Why nothing is offered for these resources, in one line that names the field."""
    return (
        catalog.why_none(resources) or _disk(resources) or offerings.why_none("SageMaker", resources, resources.region)
    )


def unchecked(resources: Resources) -> tuple[str, ...]:
    """What these resources name and the project's tables do not have, a line each."""
    left_out = tuple(_left_out(name, resources) for name in resources.machine if _too_small(name, resources))
    return (*places.unchecked(_region(resources), ()), *catalog.unchecked(resources), *left_out)


def _too_small(machine: str, resources: Resources) -> bool:
    """Whether it has disks of its own and these are smaller than what is asked for: there are no others."""
    local, wanted = catalog.local_gb(machine), resources.disk_bytes
    return local is not None and wanted is not None and disk_size(wanted) > local


def _left_out(machine: str, resources: Resources) -> str:
    wanted, local = disk_size(resources.disk_bytes or 0), catalog.local_gb(machine)
    return f"resources.disk: {machine} has {local} GB of its own and takes no other disk; {wanted} GB are asked for"


def _disk(resources: Resources) -> str:
    """Whether all that fit are left out for their disks, in words."""
    left = [machine.name for machine in catalog.fitting(resources) if _too_small(machine.name, resources)]
    return _left_out(left[0], resources) if left else ""


def _of(machine: MachineType, region: str) -> list[Offering]:
    price = prices.on_demand(region, machine.name)
    amount = None if price is None else price.amount
    made = partial(offerings.offering, PROVIDER, machine, region, _ANY_ZONE, on_demand=amount)
    # Managed spot is not for all types, and nothing says for which; SageMaker refuses what it cannot do.
    return [
        made(spot=False, price=amount, source=offerings.table_source(price)),
        made(spot=True, price=None, source=""),
    ]


def _region(resources: Resources) -> str:
    if resources.region is None:
        raise UserError("resources.region: name a region, such as us-east-1, or set AWS_REGION")
    return resources.region
