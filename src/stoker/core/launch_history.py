"""Earlier launches of a job, as far as they matter for the next one: reclaims, missing capacity, refusals. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from stoker.core.governor_settings import GovernorSettings
from stoker.core.snapshot import JobSnapshot
from stoker.model.job_state import JobState
from stoker.model.offerings import Offering

# The rule of claims that ended because the network of their zone had no free address.
SUBNET_FULL = "subnet-full"


def next_try(state: JobState, settings: GovernorSettings, dry_for_s: float = 0.0) -> datetime | None:
    """When a job whose last claim found no capacity is tried again, by its own log; None if its last claim ended
    otherwise.

    `dry_for_s` is how long all jobs avoid an offering of this provider that had no capacity.
    """
    last = state.last_claim
    if state.open_claims or last is None or last.closed is None or last.closed.outcome != "dry":
        return None
    least = {
        claim.offering.key: claim.closed_at + timedelta(seconds=dry_for_s)
        for claim in state.since_opened()
        if claim.closed_at is not None and claim.closed is not None and claim.closed.outcome == "dry"
    }
    return min(later_of(dry_until(state, settings), least).values(), default=None)


def count_reclaims(state: JobState, now: datetime, forgotten_s: float | None = None) -> int:
    """Count the reclaims since the job was opened that are not older than `forgotten_s`."""
    taken = [claim.closed_at for claim in state.since_opened() if claim.closed and claim.closed.outcome == "reclaimed"]
    if forgotten_s is None:
        return len(taken)
    return sum(1 for at in taken if at is not None and (now - at).total_seconds() < forgotten_s)


def waiting_since(state: JobState) -> datetime:
    """Since when the job has had no machines. A gang that never was complete does not end the waiting."""
    moments = [state.opened_at or state.submitted_at]
    moments += [
        claim.closed_at
        for claim in state.since_opened()
        if claim.attempt is not None and claim.closed and claim.closed_at and claim.closed.outcome != "dry"
    ]
    return max(moments)


def dry_until(state: JobState, settings: GovernorSettings) -> dict[str, datetime]:
    """Until when each offering without capacity is avoided. The pause doubles with each such answer in a row."""
    until: dict[str, datetime] = {}
    streak: dict[str, int] = {}
    for claim in state.since_opened():
        if claim.closed is None or claim.closed_at is None:
            continue
        key = claim.offering.key
        if claim.closed.outcome != "dry":
            if claim.attempt is not None:
                streak.pop(key, None)
                until.pop(key, None)
            continue
        streak[key] = streak.get(key, 0) + 1
        # At a place with a counted bound, no capacity means a lost race: the next try need not wait long.
        doubled = 0 if claim.offering.most_nodes is not None else min(streak[key] - 1, 16)
        pause = min(settings.dry_most_s, settings.dry_first_s * 2**doubled)
        until[key] = claim.closed_at + timedelta(seconds=pause)
    return until


def last_dry(state: JobState) -> dict[str, datetime]:
    """When each offering was last found without capacity since the job was opened."""
    return {
        claim.offering.key: claim.closed_at
        for claim in state.since_opened()
        if claim.closed is not None and claim.closed_at is not None and claim.closed.outcome == "dry"
    }


def dry_for_all_until(job: JobSnapshot) -> dict[str, datetime]:
    """Until when each offering is avoided in which any job found no capacity."""
    pause = timedelta(seconds=job.capabilities.dry_for_s)
    return {key: at + pause for key, at in job.dry.items()} if pause else {}


def full_until(state: JobState, settings: GovernorSettings) -> dict[tuple[str | None, str], tuple[datetime, str]]:
    """Until when each region and zone is avoided whose network had no free address, and what the cloud said.

    The pause doubles with each such answer, as that of offerings without capacity does.
    """
    found: dict[tuple[str | None, str], tuple[datetime, str]] = {}
    streak: dict[tuple[str | None, str], int] = {}
    for claim in state.since_opened():
        if claim.closed is None or claim.closed_at is None or claim.closed.rule != SUBNET_FULL:
            continue
        place = claim.offering.place
        streak[place] = streak.get(place, 0) + 1
        pause = min(settings.dry_most_s, settings.dry_first_s * 2 ** min(streak[place] - 1, 16))
        found[place] = (claim.closed_at + timedelta(seconds=pause), claim.closed_reason)
    return found


def later_of(one: dict[str, datetime], other: dict[str, datetime]) -> dict[str, datetime]:
    return one | {key: max(until, one.get(key, until)) for key, until in other.items()}


# Zones may differ in what they support; the same refusal from three of them is no accident.
_SAME_REFUSALS = 3


@dataclass(frozen=True)
class Refusals:
    """Refusals of clouds since the job was opened, and which offerings need not be tried again."""

    # Refused offerings by key.
    keys: frozenset[str]
    # Machine types over quota, by region, with spot or not: a quota is the same in every zone of a region.
    over_quota: frozenset[tuple[str | None, str, bool]]
    # Spot, or on-demand, by region, if the same refusal came so often that every other offering of that kind there
    # would give it too.
    hopeless: frozenset[tuple[str | None, bool]]
    # Why no offering of a region can work: the account lacks a permission there, or the request is impossible.
    final: Mapping[str | None, str]
    last: str

    @classmethod
    def of(cls, state: JobState) -> Refusals:
        counts: dict[tuple[str | None, bool, str], int] = {}
        final: dict[str | None, str] = {}
        keys, over_quota, last = set(), set(), ""
        for claim in state.since_opened():
            if claim.closed is None or claim.closed.outcome != "refused":
                continue
            offering, last = claim.offering, claim.closed_reason
            keys.add(offering.key)
            if claim.closed.rule == "QuotaExceeded":
                over_quota.add((offering.region, offering.machine, offering.spot))
            if claim.closed.rule in ("AuthDenied", "NoSuchResource", "UserError"):
                final.setdefault(offering.region, last)
            # The same message about another machine type counts as the same refusal.
            message = (offering.region, offering.spot, last.removeprefix(f"{offering.machine}: "))
            counts[message] = counts.get(message, 0) + 1
        hopeless = {(region, spot) for (region, spot, _), times in counts.items() if times >= _SAME_REFUSALS}
        return cls(frozenset(keys), frozenset(over_quota), frozenset(hopeless), final, last)

    def cover(self, offering: Offering) -> bool:
        return (
            offering.region in self.final
            or offering.key in self.keys
            or (offering.region, offering.machine, offering.spot) in self.over_quota
            or (offering.region, offering.spot) in self.hopeless
        )

    @property
    def reason(self) -> str:
        """Why no offering is left: the first reason that no other offering could change, else the last refusal."""
        return next(iter(self.final.values()), self.last)
