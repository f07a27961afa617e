"""Observations of the machine markets by all jobs of a store: reclaims and missing capacity. Pure.

The governor that closes a claim stores an observation as an empty object whose key holds all data. The key follows from
the log alone, so it does not matter which governor writes it, or how often.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Literal

from stoker.model import market_keys
from stoker.model.job_state import Claim
from stoker.model.offerings import Offering

# Reclaimed by the cloud; no capacity; ended otherwise.
Fate = Literal["reclaimed", "dry", "served"]
_FATES: tuple[Fate, ...] = ("reclaimed", "dry", "served")
# Missing capacity is recorded once in ten minutes, however many jobs ask. Nine digits of minutes are a thousand
# machines for two years, so no number is too large to be summed.
_OBSERVATION = re.compile(r"[0-5]0\.(?P<dry>dry)|[^.]+\.[0-9]+\.(?P<fate>reclaimed|served)\.(?P<minutes>[0-9]{1,9})")

# The time span that placement uses and that messages report.
LATELY_S = 86400.0

# Prior for a spot machine without observations: one reclaim in twenty hours. It weighs as much as ten observed hours,
# so that one reclaim in the first ten minutes counts as bad luck.
_PRIOR_RECLAIMS = 0.5
_PRIOR_HOURS = 10.0
# The cost of a reclaim in machine-hours: the next machine boots, installs, restores and repeats unsaved training. And
# the cost of a launch without capacity.
_RECLAIM_COSTS_H = 0.5
_DRY_COSTS_H = 0.05


@dataclass(frozen=True)
class MarketObservation:
    """The observation of one claim. `hour` is the hour of its close, by the store's clock."""

    offering: str
    hour: datetime
    fate: Fate
    machine_minutes: int = 0


@dataclass(frozen=True)
class Tally:
    """Counted observations of one offering. `launches` got machines, which ran for `machine_hours` in total; `dry`
    counts the spans of ten minutes in which a launch found no capacity."""

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
        parts = [f"{self.reclaims} reclaims in {self.machine_hours:.3g} machine-hours"] if self.launches else []
        parts += [f"{self.dry} stock-outs"] if self.dry else []
        return ", ".join(parts) or "nothing is known"


_NOTHING = Tally()


@dataclass(frozen=True)
class MarketHistory:
    """Tallies by offering and hour. Offerings without observations keep their order."""

    hours: Mapping[str, Mapping[datetime, Tally]] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, observations: Iterable[MarketObservation]) -> MarketHistory:
        hours: dict[str, dict[datetime, Tally]] = {}
        for each in observations:
            of_offering = hours.setdefault(each.offering, {})
            of_offering[each.hour] = of_offering.get(each.hour, _NOTHING) + _counted(each)
        return cls(hours)

    def lately(self, offering: Offering, now: datetime, over_s: float = LATELY_S) -> Tally:
        """Observations of an offering in the last `over_s` seconds. The oldest hour counts whole if any part of it
        does."""
        since = now - timedelta(seconds=over_s)
        seen = self.hours.get(offering.key, {})
        return sum((tally for hour, tally in seen.items() if hour + _HOUR > since), start=_NOTHING)


NO_HISTORY = MarketHistory()
_HOUR = timedelta(hours=1)


def _counted(seen: MarketObservation) -> Tally:
    if seen.fate == "dry":
        return Tally(dry=1)
    return Tally(int(seen.fate == "reclaimed"), 0, 1, seen.machine_minutes / 60)


# ── Expected cost ──────────────────────────────────────────────────────────────────────────────────────────────────


def reclaim_rate(tally: Tally) -> float:
    """Expected reclaims of a spot machine per hour: the observations combined with the prior."""
    return (tally.reclaims + _PRIOR_RECLAIMS) / (tally.machine_hours + _PRIOR_HOURS)


def cost_factor(offering: Offering, tally: Tally) -> float:
    """Factor by which reclaims and launches without capacity raise the price of an hour of training; 1 without any."""
    lost_h = reclaim_rate(tally) * _RECLAIM_COSTS_H if offering.spot else 0.0
    return 1.0 + lost_h + tally.dry / (tally.dry + tally.launches + 1) * _DRY_COSTS_H


def by_expected_cost(
    offerings: Iterable[Offering], market: MarketHistory, now: datetime, machines: tuple[str, ...] = ()
) -> list[Offering]:
    """The offerings by price times `cost_factor`, cheapest first.

    The order of spot and on-demand stays, then the order of `machines`; offerings without a price stay last. Without
    any observation the order does not change.
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
        more = cost_factor(offering, tally)
        price = offering.price if offering.price is not None else offering.on_demand_price
        if price is None:
            return (*first, 2, types[offering.machine], more)
        return (*first, int(offering.price is None), 0, price * more)

    return [offering for offering, _ in sorted(zip(given, tallies, strict=True), key=rank)]


# ── As it is stored
# ─────────────────────────────────────────────────────────────────────────────────────────────────────


def observation_key(job: str, claim: Claim) -> str | None:
    """The key of a claim's observation; None if it observed nothing of the market, or is open."""
    if claim.closed is None or claim.closed_at is None:
        return None
    at = claim.closed_at.astimezone(timezone.utc)
    if claim.launched:
        fate: Fate = "reclaimed" if claim.closed.outcome == "reclaimed" else "served"
        lived_s = (at - (claim.launched_at or at)).total_seconds()
        observation = f"{job}.{claim.number}.{fate}.{round(len(claim.launched) * max(0.0, lived_s) / 60)}"
    elif claim.closed.outcome == "dry" and claim.closed.rule == "no-capacity":
        observation = f"{at.minute // 10}0.dry"
    else:
        return None
    return market_keys.market_observation(at, claim.offering.names, observation)


def parse_observation(key: str) -> MarketObservation | None:
    """Parse an observation from its key; None if it is not such a key."""
    found = market_keys.read_market_observation(key)
    if found is None:
        return None
    hour, names, observation = found
    match = _OBSERVATION.fullmatch(observation)
    if match is None:
        return None
    fate = next(each for each in _FATES if each == (match["dry"] or match["fate"]))
    return MarketObservation("/".join(names), hour, fate, int(match["minutes"] or 0))
