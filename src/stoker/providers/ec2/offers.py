"""EC2's offerings for a job: machine types × zones × spot or on-demand, with their prices.

`offline` needs no cloud: it uses the packaged tables, and EC2 chooses the zone. `live` asks EC2 which zones have each
type and for the current spot prices: two calls, three if a type is newer than the table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.model.errors import UserError
from stoker.model.offerings import Offering
from stoker.model.resources import Resources
from stoker.providers import offerings
from stoker.providers.ec2 import catalog, efa, places, prices, reservations
from stoker.providers.ec2.catalog import Ec2MachineType
from stoker.providers.ec2.client import pages

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

PROVIDER = "ec2"
# EC2 chooses the zone.
ANY_ZONE = ""
_LINUX = "Linux/UNIX"
# The same product: some answers still use the name that distinguished VPCs, now the only network.
_ALSO_LINUX = (_LINUX, f"{_LINUX} (Amazon VPC)")


def offline(resources: Resources) -> tuple[Offering, ...]:
    """The offerings of the packaged tables, best first. Zones are those that the job names, else EC2 chooses one; spot
    prices are never known.

    Raises UserError without a region, for a name that no machine type can have, and for a place that cannot exist.
    """
    region = _region(resources)
    places.check(region, resources.zones)
    zones = resources.zones or (ANY_ZONE,)
    machines = _candidates(resources, region)
    where = {machine.name: zones for machine in machines}
    found = offerings.fewest_gpus(resources, _offerings(region, machines, where, {}, ""))
    return offerings.ordered(resources, found)


def live(ec2: EC2Client, resources: Resources, *, now: datetime) -> tuple[Offering, ...]:
    """The offerings of the client's region, best first. Plain data, which may be cached for a while.

    Raises boto3's errors, and UserError for a name that no machine type can have, or a place that cannot exist.
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
    return offerings.ordered(resources, offerings.fewest_gpus(resources, found))


def unchecked(resources: Resources) -> tuple[str, ...]:
    """Names in these resources that the packaged tables do not have, one line each."""
    return (*places.unchecked(_region(resources), resources.zones), *catalog.unchecked(resources))


def why_none(resources: Resources) -> str:
    """The reason why there are no offerings for these resources, in one line that names the field."""
    why = catalog.why_none(resources)
    why = why or reservations.why_none(resources)
    if why:
        return why
    return offerings.why_none("EC2", resources, ", ".join(resources.regions))


# ── Asking ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _learn(ec2: EC2Client, names: list[str]) -> dict[str, Ec2MachineType]:
    """The facts of types that the table does not have. Types that EC2 does not know either are left out."""
    # A filter, because a request by name fails for all types if one does not exist.
    filters = [{"Name": "instance-type", "Values": names}]
    found = pages(ec2.describe_instance_types, "InstanceTypes", Filters=filters)
    return {each["InstanceType"]: catalog.described(each) for each in found}


def _zones(ec2: EC2Client, names: list[str], wanted: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The zones of each type: those that the job names, else all zones of the region itself."""
    filters = [{"Name": "instance-type", "Values": names}]
    found = pages(
        ec2.describe_instance_type_offerings,
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=filters,
    )
    zones: dict[str, set[str]] = {}
    for each in found:
        zone = each["Location"]
        # Local Zones and Wavelength Zones are far from the bucket and priced separately: only for jobs that name them.
        if zone in wanted if wanted else _is_plain_zone(zone):
            zones.setdefault(each["InstanceType"], set()).add(zone)
    return {name: tuple(sorted(there)) for name, there in zones.items()}


def _spot_prices(ec2: EC2Client, names: list[str], now: datetime) -> dict[tuple[str, str], float]:
    """The current spot price, by machine and zone."""
    found = pages(
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


# ── Choosing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _region(resources: Resources) -> str:
    if resources.only_region is None:
        raise UserError("resources.region: name a region, such as us-east-1, or set AWS_REGION")
    return resources.only_region


def _candidates(resources: Resources, region: str) -> list[Ec2MachineType]:
    fitting = catalog.fitting(resources)
    return offerings.candidates(resources, fitting, lambda name: prices.on_demand(region, name))


def _offerings(
    region: str,
    machines: Iterable[Ec2MachineType],
    where: Mapping[str, tuple[str, ...]],
    spot: Mapping[tuple[str, str], float],
    spot_source: str,
) -> list[Offering]:
    found = []
    for machine in machines:
        listed = prices.on_demand(region, machine.name)
        for zone in where[machine.name]:
            # The table holds the region's own prices; its Local Zones have others.
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
    """Parse a price, which EC2 returns as text."""
    try:
        amount = float(text)
    except (TypeError, ValueError):
        return None
    return amount if math.isfinite(amount) and amount > 0 else None


def network_remarks(resources: Resources) -> tuple[str, ...]:
    """A line about machines that get no public address, because of their several network interfaces."""
    if not (resources.ec2 and resources.ec2.efa and resources.regions):
        return ()
    name = next((each.name for each in catalog.fitting(resources) if len(efa.layout(each)) > 1), None)
    if name is None:
        return ()
    needs = "its subnet needs an endpoint for S3 or a NAT gateway (`stoker check ec2` looks)"
    return (f"resources.ec2.efa: EC2 gives {name}, with its several network interfaces, no public address; {needs}",)
