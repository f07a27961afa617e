"""What EC2 has to offer for a job: machine types × zones × spot or on-demand, with their prices.

`offline` needs no cloud: the project's tables, and EC2 chooses the zone. `live` asks EC2 where each type is to be had
and what spot costs there now: two calls, three where a type is newer than the table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.spec import Resources
from stoker.providers import offerings
from stoker.providers.ec2 import catalog, places, prices
from stoker.providers.ec2.catalog import MachineType

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

PROVIDER = "ec2"
# EC2 chooses the zone.
ANY_ZONE = ""
_LINUX = "Linux/UNIX"
# The same thing: some answers still tell apart what has long been the only network there is.
_ALSO_LINUX = (_LINUX, f"{_LINUX} (Amazon VPC)")


def offline(resources: Resources) -> tuple[Offering, ...]:
    """What the project's tables know, best first. Zones are those that the job names, else EC2 chooses; a spot price is
    never known.

    Raises UserError without a region, for a name that no machine type can have, and for a place that cannot be.
    """
    region = _region(resources)
    places.check(region, resources.zones)
    zones = resources.zones or (ANY_ZONE,)
    machines = _candidates(resources, region)
    where = {machine.name: zones for machine in machines}
    found = offerings.fewest_gpus(resources, _offerings(region, machines, where, {}, ""))
    return offerings.ordered(resources, machines, found)


def live(ec2: EC2Client, resources: Resources, *, now: datetime) -> tuple[Offering, ...]:
    """What can be had in the client's region, best first. Plain data: it may be kept for a while.

    Raises what boto3 raises, and UserError for a name that no machine type can have, or a place that cannot be.
    """
    region = ec2.meta.region_name
    places.check(region, resources.zones)
    machines = _candidates(resources, region)
    if not machines:
        return ()
    unknown = [machine.name for machine in machines if not machine.known]
    if unknown:
        learnt = _learn(ec2, unknown)
        machines = [learnt.get(machine.name, machine) for machine in machines]
        machines = [machine for machine in machines if catalog.serves(machine, resources)]
    names = [machine.name for machine in machines]
    where = _zones(ec2, names, resources.zones) if names else {}
    machines = [machine for machine in machines if where.get(machine.name)]
    spot = _spot_prices(ec2, [machine.name for machine in machines], now) if machines else {}
    found = _offerings(region, machines, where, spot, f"spot price history {now:%Y-%m-%d}")
    return offerings.ordered(resources, machines, offerings.fewest_gpus(resources, found))


def unchecked(resources: Resources) -> tuple[str, ...]:
    """What these resources name and the project's tables do not have, a line each."""
    return (*places.unchecked(_region(resources), resources.zones), *catalog.unchecked(resources))


def why_none(resources: Resources) -> str:
    """Why nothing is offered for these resources, in one line that names the field."""
    why = catalog.why_none(resources)
    if why:
        return why
    return offerings.why_none("EC2", resources, resources.region)


# ── Asking ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _learn(ec2: EC2Client, names: list[str]) -> dict[str, MachineType]:
    """The facts of types that the table does not have. What EC2 does not know either is not in the answer."""
    # By a filter: asked for by name, one type that is not there would spoil the answer for the others.
    filters = [{"Name": "instance-type", "Values": names}]
    found = _pages(ec2.describe_instance_types, "InstanceTypes", Filters=filters)
    return {each["InstanceType"]: catalog.described(each) for each in found}


def _zones(ec2: EC2Client, names: list[str], wanted: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Where each type is to be had: in the zones named, else in the zones of the region itself."""
    filters = [{"Name": "instance-type", "Values": names}]
    found = _pages(
        ec2.describe_instance_type_offerings,
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=filters,
    )
    zones: dict[str, set[str]] = {}
    for each in found:
        zone = each["Location"]
        # Local Zones and Wavelength Zones are far from the bucket, and priced apart: only for who names them.
        if zone in wanted if wanted else _is_plain_zone(zone):
            zones.setdefault(each["InstanceType"], set()).add(zone)
    return {name: tuple(sorted(there)) for name, there in zones.items()}


def _spot_prices(ec2: EC2Client, names: list[str], now: datetime) -> dict[tuple[str, str], float]:
    """The spot price in force, by machine and zone."""
    found = _pages(
        ec2.describe_spot_price_history,
        "SpotPriceHistory",
        InstanceTypes=names,
        ProductDescriptions=[_LINUX],
        StartTime=now,
    )
    latest: dict[tuple[str, str], tuple[datetime, float]] = {}
    for each in found:
        amount = _amount(each.get("SpotPrice"))
        if each.get("ProductDescription", _LINUX) not in _ALSO_LINUX or amount is None:
            continue
        key = (each["InstanceType"], each["AvailabilityZone"])
        if key not in latest or latest[key][0] < each["Timestamp"]:
            latest[key] = (each["Timestamp"], amount)
    return {key: amount for key, (_, amount) in latest.items()}


def _pages(call: Callable[..., Any], part: str, **asked: Any) -> Iterable[Any]:
    token = ""
    while True:
        answer = call(**asked, **({"NextToken": token} if token else {}))
        yield from answer.get(part, ())
        # The end is an empty token in one call and none in another.
        token = answer.get("NextToken") or ""
        if not token:
            return


# ── Choosing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _region(resources: Resources) -> str:
    if resources.region is None:
        raise UserError("resources.region: name a region, such as us-east-1, or set AWS_REGION")
    return resources.region


def _candidates(resources: Resources, region: str) -> list[MachineType]:
    fitting = catalog.fitting(resources)
    return offerings.candidates(resources, fitting, lambda name: prices.on_demand(region, name))


def _offerings(
    region: str,
    machines: Iterable[MachineType],
    where: Mapping[str, tuple[str, ...]],
    spot: Mapping[tuple[str, str], float],
    spot_source: str,
) -> list[Offering]:
    found = []
    for machine in machines:
        listed = prices.on_demand(region, machine.name)
        for zone in where[machine.name]:
            # The table is of the region itself; its Local Zones cost something else.
            price = listed if zone == ANY_ZONE or _is_plain_zone(zone) else None
            amount = None if price is None else price.amount
            source = offerings.table_source(price)
            found.append(_offering(machine, region, zone, spot=False, price=amount, on_demand=amount, source=source))
            if machine.spot:
                now = spot.get((machine.name, zone))
                found.append(
                    _offering(machine, region, zone, spot=True, price=now, on_demand=amount, source=spot_source)
                )
    return found


_offering = partial(offerings.offering, PROVIDER)


def _is_plain_zone(zone: str) -> bool:
    """`us-east-1a`, not `us-west-2-lax-1a` nor `us-east-1-wl1-bos-wlz-1`."""
    return re.fullmatch(r"[a-z]{2}(-[a-z]+)+-[0-9][a-z]", zone) is not None


def _amount(text: Any) -> float | None:
    """EC2 tells prices as text."""
    try:
        amount = float(text)
    except (TypeError, ValueError):
        return None
    return amount if math.isfinite(amount) and amount > 0 else None
