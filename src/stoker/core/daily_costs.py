"""What a job spent on which day, in UTC: from its log alone, by the store's clock. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone

from stoker.core.costs import Cost
from stoker.model.job_state import Claim, JobState

# By the claims' numbers: until when machines of theirs were held for a look after their close, one moment for each.
Held = Mapping[int, tuple[datetime, ...]]
NOT_HELD: Held = {}


@dataclass(frozen=True)
class Sum:
    """Dollars, as far as they are known. Not `whole`: there is more to it that nobody knows."""

    known: float = 0.0
    whole: bool = True

    def plus(self, dollars: float | None) -> Sum:
        """What can be no amount is not known either."""
        if dollars is None or not math.isfinite(dollars):
            return Sum(self.known, whole=False)
        return Sum(self.known + dollars, self.whole)


@dataclass(frozen=True)
class Sums:
    """What was spent on a day, what that would have cost on-demand, and what of it counts against budgets: where no
    spot price is known, the on-demand price does."""

    spent: Sum = Sum()
    on_demand: Sum = Sum()
    counted: Sum = Sum()

    def plus(self, cost: Cost) -> Sums:
        return Sums(self.spent.plus(cost.spent), self.on_demand.plus(cost.on_demand), self.counted.plus(cost.dearest))


@dataclass(frozen=True)
class Spell:
    """Machines of a claim that were paid for on one day, from when to when."""

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


def spells(state: JobState, now: datetime, held: Held = NOT_HELD, since: datetime | None = None) -> Iterator[Spell]:
    """Every spell of a job until now, claim by claim; what was before `since` is left out. None is empty."""
    for claim in state.claims:
        if claim.launched_at is None:
            continue
        end = claim.closed_at or now
        parts = [(claim.launched_at, end, len(claim.launched or ()))]
        parts += [(end, until, 1) for until in held.get(claim.number, ())]
        for start, until, machines in parts:
            for first, last in days(max(start, since) if since else start, until):
                if machines:
                    yield Spell(claim, first, last, machines)


def by_day(found: Iterable[Spell]) -> dict[date, Sums]:
    """The sums of each day. One price that is not known leaves the others known."""
    days: dict[date, Sums] = {}
    for spell in found:
        days[spell.day] = days.get(spell.day, Sums()).plus(spell.cost)
    return days


def midnight(day: date) -> datetime:
    """Its beginning, in UTC."""
    return datetime.combine(day, time.min, tzinfo=timezone.utc)


def days(start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """The parts of a span on each day that it touches."""
    start = start.astimezone(timezone.utc)
    end = end.astimezone(timezone.utc)
    while start < end:
        last = min(end, midnight(start.date() + timedelta(days=1)))
        yield start, last
        start = last
