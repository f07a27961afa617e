"""The cost of a job on each day, in UTC: from its log alone, by the store's clock. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone

from stoker.core.costs import Cost
from stoker.model.job_state import Claim, JobState

# End of the hold of each held machine, by claim number.
HeldUntil = Mapping[int, tuple[datetime, ...]]
NOT_HELD: HeldUntil = {}


@dataclass(frozen=True)
class KnownSum:
    """The known part of a sum in dollars. Not `whole`: another part is unknown."""

    known: float = 0.0
    whole: bool = True

    def plus(self, dollars: float | None) -> KnownSum:
        """Add dollars; None, NaN and infinity count as unknown."""
        if dollars is None or not math.isfinite(dollars):
            return KnownSum(self.known, whole=False)
        return KnownSum(self.known + dollars, self.whole)


@dataclass(frozen=True)
class DaySums:
    """Sums of a day: spent, the same on-demand, and what counts against budgets (the on-demand price if the spot price
    is unknown)."""

    spent: KnownSum = KnownSum()
    on_demand: KnownSum = KnownSum()
    counted: KnownSum = KnownSum()

    def plus(self, cost: Cost) -> DaySums:
        return DaySums(
            self.spent.plus(cost.spent), self.on_demand.plus(cost.on_demand), self.counted.plus(cost.at_most)
        )


@dataclass(frozen=True)
class PaidSpan:
    """Machines of a claim that were paid for during a part of one day."""

    claim: Claim
    start: datetime
    end: datetime
    machines: int

    @property
    def day(self) -> date:
        return self.start.date()

    @property
    def machine_s(self) -> float:
        return (self.end - self.start).total_seconds() * self.machines

    @property
    def cost(self) -> Cost:
        hours, offering = self.machine_s / 3600, self.claim.offering
        return Cost(
            spent=None if offering.price is None else offering.price * hours,
            on_demand=None if offering.on_demand_price is None else offering.on_demand_price * hours,
        )


def paid_spans(
    state: JobState, now: datetime, held: HeldUntil = NOT_HELD, since: datetime | None = None
) -> Iterator[PaidSpan]:
    """Every paid span of a job until now, claim by claim, from `since` on. No span is empty."""
    for claim in state.claims:
        if claim.launched_at is None:
            continue
        end = claim.closed_at or now
        parts = [(claim.launched_at, end, len(claim.launched or ()))]
        parts += [(end, until, 1) for until in held.get(claim.number, ())]
        for start, until, machines in parts:
            for first, last in days(max(start, since) if since else start, until):
                if machines:
                    yield PaidSpan(claim, first, last, machines)


def by_day(found: Iterable[PaidSpan]) -> dict[date, DaySums]:
    """The sums of each day. An unknown price leaves the other sums known."""
    days: dict[date, DaySums] = {}
    for spell in found:
        days[spell.day] = days.get(spell.day, DaySums()).plus(spell.cost)
    return days


def midnight(day: date) -> datetime:
    """The beginning of a day, in UTC."""
    return datetime.combine(day, time.min, tzinfo=timezone.utc)


def days(start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Split a span into its parts on each day."""
    start = start.astimezone(timezone.utc)
    end = end.astimezone(timezone.utc)
    while start < end:
        last = min(end, midnight(start.date() + timedelta(days=1)))
        yield start, last
        start = last
