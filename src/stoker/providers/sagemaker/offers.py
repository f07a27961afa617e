"""What SageMaker has to offer for a job: machine types × spot or on-demand. It chooses the zone itself.

Nothing tells where a type is to be had, so nothing is asked: what is not there is found out by trying.
"""

from __future__ import annotations

from functools import partial

from stoker.errors import UserError
from stoker.model import Offering
from stoker.providers import offering
from stoker.providers.ec2 import places
from stoker.providers.machines import MachineType
from stoker.providers.sagemaker import catalog, prices
from stoker.spec import Resources

PROVIDER = "sagemaker"
_ANY_ZONE = ""


def offered(resources: Resources) -> tuple[Offering, ...]:
    """Best first. Raises UserError without a region, and for a name that no machine type can have."""
    region = _region(resources)
    places.check(region)
    fitting = catalog.fitting(resources)
    machines = offering.candidates(resources, fitting, lambda name: prices.on_demand(region, name))
    found = [each for machine in machines for each in _of(machine, region)]
    return offering.ordered(resources, machines, offering.fewest_gpus(resources, found))


def why_none(resources: Resources) -> str:
    """Why nothing is offered for these resources, in one line that names the field."""
    return catalog.why_none(resources) or offering.why_none("SageMaker", resources, resources.region)


def unchecked(resources: Resources) -> tuple[str, ...]:
    """What these resources name and the project's tables do not have, a line each."""
    return (*places.unchecked(_region(resources), ()), *catalog.unchecked(resources))


def _of(machine: MachineType, region: str) -> list[Offering]:
    price = prices.on_demand(region, machine.name)
    amount = None if price is None else price.amount
    made = partial(offering.offering, PROVIDER, machine, region, _ANY_ZONE, on_demand=amount)
    # Managed spot is not for all types, and nothing says for which; SageMaker refuses what it cannot do.
    return [
        made(spot=False, price=amount, source=offering.table_source(price)),
        made(spot=True, price=None, source=""),
    ]


def _region(resources: Resources) -> str:
    if resources.region is None:
        raise UserError("resources.region: name a region, such as us-east-1, or set AWS_REGION")
    return resources.region
