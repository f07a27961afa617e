"""Capacity reservations, capacity blocks and groups of them, which moto has none of."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from tests.support.ec2.faults import Failure

# "With 30 minutes (for instance types) […] left in your Capacity Block reservation, we begin terminating any instances
# that are running in the Capacity Block": https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html
CLEANED_UP = timedelta(minutes=30)
_TARGET = "CapacityReservationSpecification.CapacityReservationTarget"
# "The requested reservation does not have sufficient compatible and available capacity for this request": also for
# another type or zone. https://docs.aws.amazon.com/ec2/latest/devguide/errors-overview.html has the code.
_FULL = "The requested reservation does not have sufficient compatible and available capacity for this request."


@dataclass(frozen=True)
class Reserved:
    """One reservation. `group`: the ARN of the resource group that it is in; empty if it is in none."""

    id: str
    region: str
    account: str
    machine: str
    zone: str
    count: int
    block: bool
    starts_at: datetime
    ends_at: datetime | None
    group: str

    def state(self, now: datetime) -> str:
        if self.ends_at is not None and now >= self.ends_at:
            return "expired"
        return "scheduled" if now < self.starts_at else "active"

    @property
    def arn(self) -> str:
        return f"arn:aws:ec2:{self.region}:{self.account}:capacity-reservation/{self.id}"

    def answer(self, used: int, now: datetime) -> dict[str, object]:
        """As EC2 describes it."""
        found: dict[str, object] = {
            "CapacityReservationId": self.id,
            "CapacityReservationArn": self.arn,
            "OwnerId": self.account,
            "InstanceType": self.machine,
            "InstancePlatform": "Linux/UNIX",
            "AvailabilityZone": self.zone,
            "Tenancy": "default",
            "TotalInstanceCount": self.count,
            "AvailableInstanceCount": self.count - used,
            "State": self.state(now),
            "StartDate": self.starts_at,
            "EndDateType": "limited" if self.ends_at is not None else "unlimited",
            "InstanceMatchCriteria": "targeted",
            "ReservationType": "capacity-block" if self.block else "default",
        }
        return found | ({"EndDate": self.ends_at} if self.ends_at is not None else {})


class Reservations:
    """All reservations. `used` counts the instances in one that are not terminated; `end` ends all its instances."""

    def __init__(self, used: Callable[[str], int], end: Callable[[str], None]) -> None:
        self._used = used
        self._end = end
        self._lock = threading.Lock()
        self._held: dict[str, Reserved] = {}
        self._timers: list[threading.Timer] = []

    def reserve(self, region: str, account: str, order: Mapping[str, Any]) -> str:
        """A new reservation, as the test's order describes it; its id."""
        group = f"arn:aws:resource-groups:{region}:{account}:group/{order['group']}" if order["group"] else ""
        made = Reserved(
            id=f"cr-{secrets.token_hex(8)}0",
            region=region,
            account=account,
            machine=order["machine"],
            zone=order["zone"],
            count=order["count"],
            block=order["block"],
            starts_at=datetime.now(timezone.utc),
            ends_at=None,
            group=group,
        )
        with self._lock:
            self._held[made.id] = made
        self.schedule(made.id, order["starts_in_s"], order["ends_in_s"])
        return made.id

    def schedule(self, name: str, starts_in_s: float, ends_in_s: float | None) -> None:
        """Set the times of a reservation."""
        # EC2 tells whole seconds, and keeps to them.
        now = datetime.now(timezone.utc).replace(microsecond=0)
        ends_at = now + timedelta(seconds=ends_in_s) if ends_in_s is not None else None
        with self._lock:
            made = replace(self._held[name], starts_at=now + timedelta(seconds=starts_in_s), ends_at=ends_at)
            self._held[name] = made
        if made.block and ends_at is not None:
            self._end_at(ends_at - CLEANED_UP, name)

    def _end_at(self, at: datetime, name: str) -> None:
        def end() -> None:
            with self._lock:
                held = self._held.get(name)
            if held is not None and held.ends_at is not None and held.ends_at - CLEANED_UP == at:
                self._end(name)

        timer = threading.Timer(max(0.0, (at - datetime.now(timezone.utc)).total_seconds()), end)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def clear(self) -> None:
        for timer in self._timers:
            timer.cancel()
        with self._lock:
            self._held.clear()

    def find(self, region: str, name: str) -> Reserved:
        with self._lock:
            found = self._held.get(name)
        if found is None or found.region != region:
            raise Failure("InvalidCapacityReservationId.NotFound", f"The capacity reservation '{name}' does not exist.")
        return found

    def all(self, region: str) -> list[Reserved]:
        with self._lock:
            return [each for each in self._held.values() if each.region == region]

    def describe(self, region: str, names: list[str]) -> list[dict[str, object]]:
        now = datetime.now(timezone.utc)
        found = [self.find(region, name) for name in names] if names else self.all(region)
        return [each.answer(self._used(each.id), now) for each in found]

    def members(self, group: str) -> list[str]:
        """The ARNs of the reservations in a group, which may be named by its ARN alone here."""
        with self._lock:
            return [each.arn for each in self._held.values() if each.group == group]

    # ── Launches ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def target(self, region: str, param: Callable[[str], Any], machine: str, zone: str, least: int) -> Reserved | None:
        """The reservation in which a launch lands; None if in none. Raises Failure where EC2 would refuse it."""
        name = param(f"{_TARGET}.CapacityReservationId")
        group = param(f"{_TARGET}.CapacityReservationResourceGroupArn")
        market = param("InstanceMarketOptions.MarketType") or "on-demand"
        if not (name or group):
            if market == "capacity-block":
                raise Failure("InvalidParameterCombination", "A capacity block is launched into by its reservation.")
            return None
        wanted = [self.find(region, name)] if name else [each for each in self.all(region) if each.group == group]
        # "--instance-market-options MarketType='capacity-block'" (Launch instances using Capacity Blocks).
        if any(each.block for each in wanted) != (market == "capacity-block"):
            raise Failure("InvalidParameterCombination", f"The market type {market} does not suit the reservation.")
        return self._with_room(wanted, machine, zone, least, falls_back=bool(group) and market != "capacity-block")

    def _with_room(
        self, wanted: list[Reserved], machine: str, zone: str, least: int, *, falls_back: bool
    ) -> Reserved | None:
        now = datetime.now(timezone.utc)
        active = [each for each in wanted if each.state(now) == "active"]
        if wanted and not active and not falls_back:
            if any(each.state(now) == "scheduled" for each in wanted):
                told = "Your Capacity Block is not active yet."
                raise Failure("InvalidCapacityReservationState.PendingActivation", told)
            # No code is documented for a reservation that has ended. They all begin so.
            raise Failure("InvalidCapacityReservationState", "The capacity reservation is in the expired state.")
        for each in active:
            fits = each.machine == machine and zone in ("", each.zone)
            if fits and each.count - self._used(each.id) >= least:
                return each
        if falls_back:
            # "If the group does not have an On-Demand Capacity Reservation with matching attributes and available
            # capacity, the instances run using On-Demand capacity" (Instance lifecycle in a group).
            return None
        raise Failure("ReservationCapacityExceeded", _FULL)
