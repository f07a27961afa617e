"""Choose the offering that the next attempt is launched on, or say why there is none. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from types import MappingProxyType

from stoker.core import market, reserved_time, spot
from stoker.core.acceptable_offerings import MAX_COST, SPOT_FIRST, acceptable, reclaims_text, within_cost_limit
from stoker.core.costs import highest_possible_cost
from stoker.core.governor_settings import GovernorSettings
from stoker.core.launch_history import (
    Refusals,
    count_reclaims,
    dry_for_all_until,
    dry_until,
    full_until,
    last_dry,
    later_of,
    waiting_since,
)
from stoker.core.name_list import first_names
from stoker.core.saved_work import cause_of_end
from stoker.core.snapshot import JobSnapshot
from stoker.model.durations import span_text
from stoker.model.job_state import JobState
from stoker.model.offerings import Offering

_NO_SPOT = "on-demand: no spot to be had"
# Waits are written by people and may exceed what Python can represent; the governor decides again within a day anyway.
_FARTHEST_S = 86400.0
# Market observations change by the hour.
_LOOK_AGAIN = timedelta(minutes=10)
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Placed:
    """Launch on this offering."""

    offering: Offering
    reason: str


@dataclass(frozen=True)
class NoCapacityNow:
    """Every acceptable offering is without capacity for now."""

    until: datetime
    reason: str


@dataclass(frozen=True)
class NoOffering:
    """No offering can serve this job. `unpriced`: only because a price is unknown today; `bound`: because of the limit
    on the cost; `over`: because what the job names has ended."""

    reason: str
    unpriced: bool = False
    bound: bool = False
    over: bool = False


Placement = Placed | NoCapacityNow | NoOffering


def wants_claim(job: JobSnapshot) -> str | None:
    """Return why the job needs its next claim now, or None.

    A hard notice is enough: the next attempt boots while this one saves. At most one attempt waits.
    """
    state = job.state
    if state.ended is not None or state.stop is not None:
        return None
    last = state.last_claim
    if last is None or last.number <= state.opened_seq:
        if state.open_claims:
            return None
        return "first attempt" if not state.claims else "resumed"
    if last.closed is not None:
        if state.open_claims:
            # The noticed attempt still saves, and its replacement found no machine: try again.
            return _handover(job) if len(state.open_claims) == 1 else None
        return f"after attempt {last.attempt}: {cause_of_end(last.closed_reason)}" if last.attempt else "next offering"
    if len(state.open_claims) == 1:
        return _handover(job)
    return None


def _handover(job: JobSnapshot) -> str | None:
    (claim,) = job.state.open_claims
    if claim.launched is None or claim.drain is not None or not job.noticed(claim):
        return None
    ranks = range(claim.nodes)
    if any(job.exit_unread(claim, rank) for rank in ranks):
        return None  # It may have finished within the grace period: an unreadable exit never causes a launch.
    if all(job.exit_of(claim, rank) is not None or job.rank_gone(claim, rank) for rank in ranks):
        return None  # It is over. Its verdict comes first: the job may be done.
    return f"attempt {claim.attempt} was given notice"


def place(
    job: JobSnapshot,
    offerings: tuple[Offering, ...],
    settings: GovernorSettings,
    now: datetime,
    *,
    bound: str = "retry.spot_wait",
    cost_bound: str = MAX_COST,
    used: float = 0.0,
    given_up_by: str = "",
    excluded: Mapping[str, str] = _NONE,
    hopeless: Set[str] = frozenset(),
) -> Placement:
    """Choose among `offerings`, which come in order of preference.

    `bound` names the source of the wait for spot and `cost_bound` the source of the limit on the cost, for messages.
    `used` is the part of that limit that was spent before the job was last opened. `given_up_by` is the policy rule
    that gives up spot after a number of reclaims. `excluded` are the keys of offerings not to use now, with the
    reasons; `hopeless` those of them that never will do, whose reasons count only where there is no other.
    """
    still_open, over = reserved_time.still_open(job.spec, offerings, now)
    search = _Search(job, still_open, settings, now, excluded, hopeless, cost_bound, used, given_up_by, over)
    left_s = _spot_alone_left_s(job, now)
    if left_s <= 0:
        wait_s = spot.spot_only_s(job.spec)
        waited = bool(wait_s) and wait_s != math.inf
        no_spot = f"on-demand: no spot in {span_text(wait_s or 0.0)} ({bound})" if waited else _NO_SPOT
        return search.place(no_spot=no_spot)
    found = search.place(spot_alone=True)
    if isinstance(found, Placed) or left_s == math.inf:
        return found
    if isinstance(found, NoOffering) and isinstance(search.place(), NoOffering):
        return found  # On-demand offerings cannot serve the job either.
    until = now + timedelta(seconds=min(left_s, _FARTHEST_S))
    # No countdown: the reason for waiting is stored again whenever it changes.
    wait_s = spot.spot_only_s(job.spec) or 0.0
    reason = f"{found.reason}; on-demand will do after {span_text(wait_s)} without a machine ({bound})"
    return NoCapacityNow(min(found.until, until) if isinstance(found, NoCapacityNow) else until, reason)


def _spot_alone_left_s(job: JobSnapshot, now: datetime) -> float:
    """How much longer only spot is acceptable; 0 if on-demand is acceptable now."""
    wait_s = spot.spot_only_s(job.spec)
    if wait_s is None:
        return math.inf
    if not wait_s or spot.given_up(job.spec, _taken(job, now)):
        return 0.0
    # While an attempt saves, the job still has a machine.
    waited_s = 0.0 if job.state.open_claims else (now - waiting_since(job.state)).total_seconds()
    return max(0.0, wait_s - waited_s)


def _taken(job: JobSnapshot, now: datetime) -> int:
    """Count the reclaims. An open claim counts too: it had a notice, otherwise no next claim would be wanted."""
    return count_reclaims(job.state, now, job.spec.retry.spot_again_s) + len(job.state.open_claims)


@dataclass(frozen=True)
class _Search:
    """One search for an offering."""

    job: JobSnapshot
    offerings: tuple[Offering, ...]
    settings: GovernorSettings
    now: datetime
    excluded: Mapping[str, str]
    hopeless: Set[str]
    cost_bound: str
    used: float
    given_up_by: str
    # Why reservations are over, if any are.
    over: str

    def place(self, *, spot_alone: bool = False, no_spot: str = _NO_SPOT) -> Placement:
        taken = _taken(self.job, self.now)
        found = self._place(taken, spot_alone, no_spot)
        if isinstance(found, Placed) or not spot.given_up(self.job.spec, taken):
            return found
        # The job has given up spot, but no other machine is available: a reclaim is better than no machine.
        again = self._place(0, spot_alone, no_spot)
        match again:
            case Placed(offering=offering) if offering.spot:
                return Placed(offering, f"spot again after {reclaims_text(taken)}; on-demand: {found.reason}")
            case NoCapacityNow(until=until) if isinstance(found, NoCapacityNow):
                return replace(found, until=min(until, found.until))
            case NoCapacityNow():
                return again
        return found

    def _place(self, reclaimed: int, spot_alone: bool, no_spot: str) -> Placement:
        job, now, excluded = self.job, self.now, self.excluded
        state, spec = job.state, job.spec
        fitting, reason = acceptable(spec, self.offerings, reclaimed, spot_alone=spot_alone, cost_bound=self.cost_bound)
        if not fitting:
            known, _ = acceptable(spec, self.offerings, reclaimed, spot_alone=spot_alone, unpriced=True)
            over = bool(self.over) and not known
            return NoOffering(self.over if over else reason, unpriced=bool(known), over=over)
        spent = highest_possible_cost(state, now)
        fitting, too_little = within_cost_limit(
            spec, fitting, self.settings.leave_s, spent, cost_bound=self.cost_bound, used=self.used
        )
        if not fitting:
            return NoOffering(too_little, bound=True)
        if self.given_up_by and spot.given_up(spec, reclaimed) and not any(offering.spot for offering in fitting):
            reason += f" ({self.given_up_by})"
        dry = later_of(dry_until(state, self.settings), dry_for_all_until(job))
        full = full_until(state, self.settings)
        places = {offering.key: full[place] for offering in fitting if (place := offering.place) in full}
        dry = later_of(dry, {key: until for key, (until, _) in places.items()})
        opening = reserved_time.opening(fitting, now)
        dry = later_of(dry, opening)
        refusals = Refusals.of(state)
        usable = [offering for offering in fitting if not refusals.cover(offering)]
        if not usable:
            return NoOffering(refusals.reason)
        open_now = [offering for offering in usable if dry.get(offering.key, now) <= now]
        weighed = market.by_expected_cost(open_now, job.market, now, spec.resources.machine)
        weighed = _in_turn(weighed, state)
        chosen = next((offering for offering in weighed if offering.key not in excluded), None)
        if chosen is not None:
            if reason == SPOT_FIRST and not chosen.spot:
                reason = no_spot
            return Placed(chosen, reason + _rather(chosen, open_now[0], job, now, excluded))
        if all(offering.key in excluded for offering in usable):
            awaited = next((offering for offering in usable if offering.key not in self.hopeless), usable[0])
            return NoCapacityNow(now + _LOOK_AGAIN, excluded[awaited.key])
        soonest = min(dry[offering.key] for offering in usable if offering.key not in excluded)
        if all(offering.key in places for offering in usable):
            return NoCapacityNow(soonest, places[usable[0].key][1])
        awaited = min(usable, key=lambda offering: opening.get(offering.key, now))
        if awaited.key in opening and awaited.reservation is not None:
            return NoCapacityNow(soonest, reserved_time.opens_text(awaited.reservation, opening[awaited.key]))
        return NoCapacityNow(soonest, f"no capacity: {first_names(sorted({offering.title for offering in usable}))}")


def _in_turn(weighed: list[Offering], state: JobState) -> list[Offering]:
    """The offerings, those whose cloud queues requests in turn: one that was waited for in vain comes after the others.

    Without turns, the first two of a list would be waited for forever: each is open again when the other is given up.
    """
    given_up = last_dry(state)
    never = datetime.min.replace(tzinfo=timezone.utc)
    return sorted(weighed, key=lambda offering: given_up.get(offering.key, never) if offering.queued else never)


def _rather(chosen: Offering, usual: Offering, job: JobSnapshot, now: datetime, excluded: Mapping[str, str]) -> str:
    """Explain the difference from the offering that would be chosen without market observations."""
    if usual.key in excluded:
        return f"; {excluded[usual.key]}"
    if chosen == usual:
        return ""
    seen, better = job.market.lately(usual, now), job.market.lately(chosen, now)
    return f"; rather than {usual.title} ({seen} in 24 h; here: {better})"
