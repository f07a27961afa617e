"""What all jobs of a store saw of the markets for machines: what was taken back, and what was not to be had. Pure.

Whoever closes a claim leaves a sighting of it in the store, as an empty object whose key tells all. A key follows from
the log alone, so that it does not matter who writes it, nor how often.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Literal

from stoker.model import keys
from stoker.model.job_state import Claim
from stoker.model.offerings import Offering

# The cloud took it back; there was none; it ended otherwise.
Fate = Literal["reclaimed", "dry", "served"]
_FATES: tuple[Fate, ...] = ("reclaimed", "dry", "served")
# That there is none is told once in ten minutes, however many jobs ask: a thousand that wait say no more than one.
# Nine digits of minutes are a thousand machines for two years: nobody's number is too large to be counted with.
_TOLD = re.compile(r"[0-5]0\.(?P<dry>dry)|[^.]+\.[0-9]+\.(?P<fate>reclaimed|served)\.(?P<minutes>[0-9]{1,9})")

# What placement looks back on, and what people are told of.
LATELY_S = 86400.0

# What is thought of a spot machine of which nothing is known: it is taken back once in twenty hours. That counts as
# much as ten hours of watching, so that one reclaim in the first ten minutes is bad luck and no certainty.
_PRIOR_RECLAIMS = 0.5
_PRIOR_HOURS = 10.0
# What a reclaim costs, in hours of the machine: the next one boots, installs and restores, and trains again what was
# not saved. And what it costs to ask in vain.
_RECLAIM_COSTS_H = 0.5
_DRY_COSTS_H = 0.05


@dataclass(frozen=True)
class Sighting:
    """What a claim saw. `hour` is the one in which it was closed, by the store's clock."""

    offering: str
    hour: datetime
    fate: Fate
    machine_minutes: int = 0


@dataclass(frozen=True)
class Tally:
    """Sightings of one offering, counted. `launches` got their machines, which then lived so long together; `dry` is
    in how many spans of ten minutes somebody got none."""

    reclaims: int = 0
    dry: int = 0
    launches: int = 0
    machine_hours: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.reclaims + other.reclaims,
            self.dry + other.dry,
            self.launches + other.launches,
            self.machine_hours + other.machine_hours,
        )

    def __str__(self) -> str:
        told = [f"{self.reclaims} reclaims in {self.machine_hours:.3g} machine-hours"] if self.launches else []
        told += [f"{self.dry} stock-outs"] if self.dry else []
        return ", ".join(told) or "nothing is known"


_NOTHING = Tally()


@dataclass(frozen=True)
class Market:
    """Tallies by offering and hour. One of which nothing is known is empty, and changes nothing."""

    hours: Mapping[str, Mapping[datetime, Tally]] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, sightings: Iterable[Sighting]) -> Market:
        hours: dict[str, dict[datetime, Tally]] = {}
        for each in sightings:
            of_offering = hours.setdefault(each.offering, {})
            of_offering[each.hour] = of_offering.get(each.hour, _NOTHING) + _counted(each)
        return cls(hours)

    def lately(self, offering: Offering, now: datetime, over_s: float = LATELY_S) -> Tally:
        """What was seen of it in so many seconds. Hours are whole: the oldest counts if any of it does."""
        since = now - timedelta(seconds=over_s)
        seen = self.hours.get(offering.key, {})
        return sum((tally for hour, tally in seen.items() if hour + _HOUR > since), start=_NOTHING)


UNKNOWN = Market()
_HOUR = timedelta(hours=1)


def _counted(seen: Sighting) -> Tally:
    if seen.fate == "dry":
        return Tally(dry=1)
    return Tally(int(seen.fate == "reclaimed"), 0, 1, seen.machine_minutes / 60)


# ── What it is worth ──────────────────────────────────────────────────────────────────────────────────────────────────


def reclaim_rate(tally: Tally) -> float:
    """How often a spot machine is taken back in an hour: what was seen, on top of what is thought of any."""
    return (tally.reclaims + _PRIOR_RECLAIMS) / (tally.machine_hours + _PRIOR_HOURS)


def dearness(offering: Offering, tally: Tally) -> float:
    """By what its price is to be multiplied to be compared with others': 1 where nothing ever goes wrong.

    An hour of training on it costs so much more as reclaims throw it back, and as it is asked for in vain.
    """
    lost_h = reclaim_rate(tally) * _RECLAIM_COSTS_H if offering.spot else 0.0
    return 1.0 + lost_h + tally.dry / (tally.dry + tally.launches + 1) * _DRY_COSTS_H


def ordered(
    offerings: Iterable[Offering], market: Market, now: datetime, machines: tuple[str, ...] = ()
) -> list[Offering]:
    """The offerings by price times `dearness`, cheapest first.

    Which kind comes first stays, and then the order in which `machines` are named; those without a price stay last.
    Where nothing is known of any of them, all stay as they are.
    """
    given = list(offerings)
    tallies = [market.lately(offering, now) for offering in given]
    if all(tally == _NOTHING for tally in tallies):
        return given
    preference = {name: place for place, name in enumerate(dict.fromkeys(machines))}
    kinds = {spot: place for place, spot in enumerate(dict.fromkeys(offering.spot for offering in given))}
    types = {name: place for place, name in enumerate(dict.fromkeys(offering.machine for offering in given))}

    def rank(found: tuple[Offering, Tally]) -> tuple[int, int, int, int, float]:
        offering, tally = found
        first = (kinds[offering.spot], preference.get(offering.machine, len(preference)))
        more = dearness(offering, tally)
        price = offering.price if offering.price is not None else offering.on_demand_price
        if price is None:
            return (*first, 2, types[offering.machine], more)
        return (*first, int(offering.price is None), 0, price * more)

    return [offering for offering, _ in sorted(zip(given, tallies, strict=True), key=rank)]


# ── As it is kept ─────────────────────────────────────────────────────────────────────────────────────────────────────


def key_of(job: str, claim: Claim) -> str | None:
    """Where the sighting of a claim is kept; None where it saw nothing of the market, or is open."""
    if claim.closed is None or claim.closed_at is None:
        return None
    at = claim.closed_at.astimezone(timezone.utc)
    if claim.launched:
        fate: Fate = "reclaimed" if claim.closed.outcome == "reclaimed" else "served"
        lived_s = (at - (claim.launched_at or at)).total_seconds()
        told = f"{job}.{claim.number}.{fate}.{round(len(claim.launched) * max(0.0, lived_s) / 60)}"
    elif claim.closed.outcome == "dry" and claim.closed.rule == "no-capacity":
        told = f"{at.minute // 10}0.dry"
    else:
        return None
    return keys.sighting(at, claim.offering.names, told)


def parse(key: str) -> Sighting | None:
    """A sighting from its key; None for what is none."""
    found = keys.read_sighting(key)
    if found is None:
        return None
    hour, names, told = found
    match = _TOLD.fullmatch(told)
    if match is None:
        return None
    fate = next(each for each in _FATES if each == (match["dry"] or match["fate"]))
    return Sighting("/".join(names), hour, fate, int(match["minutes"] or 0))
