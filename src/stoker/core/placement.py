"""Which offering the next attempt is launched on, or why none is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from stoker.core import market, spot
from stoker.core.costs import known_cost
from stoker.core.governor_settings import Policy
from stoker.core.saved_work import cause_of_end
from stoker.core.snapshot import JobSnapshot
from stoker.model.durations import span_text
from stoker.model.job_state import JobState
from stoker.model.offerings import Offering
from stoker.model.spec import Spec

# Whose bound on the cost it is, where the job itself has it.
MAX_COST = "limits.max_cost"
_MOST_NAMED = 3
_SPOT_FIRST = "spot first"
_NO_SPOT = "on-demand: no spot to be had"
# People's numbers reach past the end of the calendar, and nobody sleeps that long without another look.
_FARTHEST_S = 86400.0
# Markets change by the hour.
_LOOK_AGAIN = timedelta(minutes=10)
_NONE: Mapping[str, str] = MappingProxyType({})
# Zones of one type may differ in what they support; that three of them say the very same is no accident.
_SAME_REFUSALS = 3


@dataclass(frozen=True)
class Chosen:
    """Launch on this."""

    offering: Offering
    reason: str


@dataclass(frozen=True)
class Dry:
    """Everything acceptable is dry for now."""

    until: datetime
    reason: str


@dataclass(frozen=True)
class Impossible:
    """Nothing on offer can serve this job. `unpriced`: a price that nobody knows today is all that is in the way;
    `bound`: what the job may cost is."""

    reason: str
    unpriced: bool = False
    bound: bool = False


Placement = Chosen | Dry | Impossible


def wants_claim(job: JobSnapshot) -> str | None:
    """Why the job needs its next claim now, or None. Says nothing about where.

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
            # The one that saves is still there, and its replacement found no place: try again.
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
        return None  # It may have finished inside the grace: what nobody could read never causes a launch.
    if all(job.exit_of(claim, rank) is not None or job.rank_gone(claim, rank) for rank in ranks):
        return None  # It is over: first its verdict, which may be that the job is done.
    return f"attempt {claim.attempt} was given notice"


def place(
    job: JobSnapshot,
    offerings: tuple[Offering, ...],
    policy: Policy,
    now: datetime,
    *,
    bound: str = "retry.spot_wait",
    cost_bound: str = MAX_COST,
    used: float = 0.0,
    given_up_by: str = "",
    shunned: Mapping[str, str] = _NONE,
) -> Placement:
    """Choose among `offerings`, which come in order of preference.

    `bound` is who says how long spot is waited for, `cost_bound` who says what the job may cost, `used` what of that it
    had spent before it was last opened, `given_up_by` the rule of the house that says after how many reclaims spot is
    given up. `shunned` are keys of offerings that are not to be had for now, and why.
    """
    look = _Look(job, offerings, policy, now, shunned, cost_bound, used, given_up_by)
    left_s = _spot_alone_left_s(job, now)
    if left_s <= 0:
        wait_s = spot.alone_s(job.spec)
        waited = bool(wait_s) and wait_s != math.inf
        no_spot = f"on-demand: no spot in {span_text(wait_s or 0.0)} ({bound})" if waited else _NO_SPOT
        return look.place(no_spot=no_spot)
    found = look.place(spot_alone=True)
    if isinstance(found, Chosen) or left_s == math.inf:
        return found
    if isinstance(found, Impossible) and isinstance(look.place(), Impossible):
        return found  # What comes after the wait will not do either.
    until = now + timedelta(seconds=min(left_s, _FARTHEST_S))
    # No countdown: what a job waits for is written down again whenever it changes.
    wait_s = spot.alone_s(job.spec) or 0.0
    reason = f"{found.reason}; on-demand will do after {span_text(wait_s)} without a machine ({bound})"
    return Dry(min(found.until, until) if isinstance(found, Dry) else until, reason)


def _spot_alone_left_s(job: JobSnapshot, now: datetime) -> float:
    """For how long nothing but spot will do; 0: there is no such time, or it is over."""
    wait_s = spot.alone_s(job.spec)
    if wait_s is None:
        return math.inf
    if not wait_s or spot.given_up(job.spec, _taken(job, now)):
        return 0.0
    # While an attempt saves, nobody is without a machine yet.
    waited_s = 0.0 if job.state.open_claims else (now - waiting_since(job.state)).total_seconds()
    return max(0.0, wait_s - waited_s)


def _taken(job: JobSnapshot, now: datetime) -> int:
    """A claim that is still open was given notice, or there would be no next one: that is a reclaim already."""
    return reclaims(job.state, now, job.spec.retry.spot_again_s) + len(job.state.open_claims)


@dataclass(frozen=True)
class _Look:
    """One search for a place."""

    job: JobSnapshot
    offerings: tuple[Offering, ...]
    policy: Policy
    now: datetime
    shunned: Mapping[str, str]
    cost_bound: str
    used: float
    given_up_by: str

    def place(self, *, spot_alone: bool = False, no_spot: str = _NO_SPOT) -> Placement:
        taken = _taken(self.job, self.now)
        found = self._place(taken, spot_alone, no_spot)
        if isinstance(found, Chosen) or not spot.given_up(self.job.spec, taken):
            return found
        # It has given spot up, but there is nothing else for now: better taken back again than no machine at all.
        again = self._place(0, spot_alone, no_spot)
        match again:
            case Chosen(offering=offering) if offering.spot:
                return Chosen(offering, f"spot again after {_reclaims(taken)}; on-demand: {found.reason}")
            case Dry(until=until) if isinstance(found, Dry):
                return replace(found, until=min(until, found.until))
            case Dry():
                return again
        return found

    def _place(self, reclaimed: int, spot_alone: bool, no_spot: str) -> Placement:
        job, now, shunned = self.job, self.now, self.shunned
        state, spec = job.state, job.spec
        fitting, reason = acceptable(spec, self.offerings, reclaimed, spot_alone=spot_alone, cost_bound=self.cost_bound)
        if not fitting:
            known, _ = acceptable(spec, self.offerings, reclaimed, spot_alone=spot_alone, unpriced=True)
            return Impossible(reason, unpriced=bool(known))
        spent, whose = known_cost(state, now), self.cost_bound
        fitting, too_little = that_pay(spec, fitting, self.policy.leave_s, spent, cost_bound=whose, used=self.used)
        if not fitting:
            return Impossible(too_little, bound=True)
        if self.given_up_by and spot.given_up(spec, reclaimed) and not any(offering.spot for offering in fitting):
            reason += f" ({self.given_up_by})"
        dry = _later(_dry(state, self.policy), _dry_for_all(job))
        refusals = _Refusals.of(state)
        usable = [offering for offering in fitting if not refusals.cover(offering)]
        if not usable or refusals.final:
            return Impossible(refusals.final or refusals.last)
        open_now = [offering for offering in usable if dry.get(offering.key, now) <= now]
        weighed = market.ordered(open_now, job.market, now, spec.resources.machine)
        chosen = next((offering for offering in weighed if offering.key not in shunned), None)
        if chosen is not None:
            if reason == _SPOT_FIRST and not chosen.spot:
                reason = no_spot
            return Chosen(chosen, reason + _rather(chosen, open_now[0], job, now, shunned))
        if all(offering.key in shunned for offering in usable):
            return Dry(now + _LOOK_AGAIN, shunned[usable[0].key])
        soonest = min(dry[offering.key] for offering in usable if offering.key not in shunned)
        return Dry(soonest, f"no capacity: {_few(sorted({offering.title for offering in usable}))}")


def _rather(chosen: Offering, usual: Offering, job: JobSnapshot, now: datetime, shunned: Mapping[str, str]) -> str:
    """Why it is not the one that would be chosen if nobody knew anything of the market."""
    if usual.key in shunned:
        return f"; {shunned[usual.key]}"
    if chosen == usual:
        return ""
    seen, better = job.market.lately(usual, now), job.market.lately(chosen, now)
    return f"; rather than {usual.title} ({seen} in 24 h; here: {better})"


def next_try(state: JobState, policy: Policy, dry_for_s: float = 0.0) -> datetime | None:
    """When a job for which everything was dry is tried again, as far as its own log tells; None where something else
    came last. `dry_for_s` is how long its provider's dry offerings are left alone by everybody."""
    last = state.last_claim
    if state.open_claims or last is None or last.closed is None or last.closed.outcome != "dry":
        return None
    least = {
        claim.offering.key: claim.closed_at + timedelta(seconds=dry_for_s)
        for claim in state.since_opened()
        if claim.closed_at is not None and claim.closed is not None and claim.closed.outcome == "dry"
    }
    return min(_later(_dry(state, policy), least).values(), default=None)


def _few(names: list[str]) -> str:
    """A list that stays one line, however many zones a cloud has."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def acceptable(
    spec: Spec,
    offerings: tuple[Offering, ...],
    reclaimed: int = 0,
    *,
    unpriced: bool = False,
    spot_alone: bool = False,
    cost_bound: str = MAX_COST,
) -> tuple[list[Offering], str]:
    """The offerings that the spec allows, best first, and why those (or why none).

    `unpriced`: an unknown price forbids nothing, as in a plan that asks nobody. What is known to be too dear is out.
    `spot_alone`: a job that waits for spot before it takes on-demand machines still does. `cost_bound` is who says what
    the job may cost.
    """
    if not offerings:
        return [], f"{spec.resources.provider} offers nothing that fits the resources asked for"
    wanted = "prefer" if spot.falls_back(spec) else spec.resources.spot
    if wanted == "prefer" and spot_alone and not spot.given_up(spec, reclaimed):
        wanted = "only"
    kept = [o for o in offerings if wanted == "prefer" or o.spot == (wanted == "only")]
    if not kept:
        return (
            [],
            f"{spec.resources.provider} has no {'spot' if wanted == 'only' else 'on-demand'} offering that fits",
        )
    kept, too_dear = _affordable(spec, kept, unpriced, cost_bound)
    if not kept:
        return [], too_dear
    if spot.given_up(spec, reclaimed):
        # What is sold as spot alone, or may cost no more than spot does, goes on as spot: `prefer` forbids neither.
        on_demand = [offering for offering in kept if not offering.spot]
        if on_demand:
            return on_demand, f"on-demand after {_reclaims(reclaimed)}"
        if not all(offering.spot for offering in offerings):
            return kept, f"spot again after {_reclaims(reclaimed)}: no on-demand offering is within the bounds"
    if wanted == "prefer":
        kept.sort(key=lambda offering: not offering.spot)  # Stable: the order of preference stays inside each.
    return kept, {"never": "on-demand", "only": "spot", "prefer": _SPOT_FIRST}[wanted]


def _affordable(spec: Spec, offerings: list[Offering], unpriced: bool, cost_bound: str) -> tuple[list[Offering], str]:
    """Those whose price is known to be within the job's bounds, or why none is."""
    kept = offerings
    if spec.limits.max_cost is not None and not unpriced:
        kept = _priced(kept)
        if not kept:
            return [], (
                f"{cost_bound} needs a known price, and no fitting offering has one; "
                f"`stoker prices --provider {spec.resources.provider} --refresh` may bring one"
            )
    if spec.resources.max_price is not None:
        most = spec.resources.max_price
        cheap = [o for o in kept if _costs_at_most(o, most) or (unpriced and o.price is None)]
        if not cheap:
            why = f"no fitting offering is known to cost at most resources.max_price (${most:g}/h)"
            return [], f"{why}{_cheapest(kept)}"
        kept = cheap
    return kept, ""


def that_pay(
    spec: Spec,
    offerings: list[Offering],
    leave_s: float,
    spent: float = 0.0,
    *,
    cost_bound: str = MAX_COST,
    used: float = 0.0,
) -> tuple[list[Offering], str]:
    """The offerings on which the job can train at all before its bound on the cost ends it, or why there are none.

    What saving and leaving may cost is set aside: where nothing is left beside it, a machine would be launched only to
    be ended at once. `used` is what was taken off the bound before.
    """
    most, save_s = spec.limits.max_cost, spec.checkpoints.grace_s + leave_s
    if most is None:
        return offerings, ""
    set_aside = {each.key: (_at_most(each) or 0.0) * spec.nodes * save_s / 3600 for each in offerings}
    kept = [each for each in offerings if not set_aside[each.key] or set_aside[each.key] < most - spent]
    if kept or not offerings:
        return kept, ""
    cheapest = min(set_aside.values())
    what = f"({span_text(save_s)} at ${cheapest * 3600 / save_s:,.2f}/h: ${cheapest:,.2f})"
    if spent + used:
        told = f"${spent + used:,.2f} of ${most + used:g} is spent"
        return [], f"{cost_bound}: {told}, and what is left does not pay for saving {what}"
    advice = "raise it, shorten checkpoints.grace, or take a cheaper machine"
    return [], f"{cost_bound}: ${most:g} does not even pay for saving {what}; {advice}"


def _priced(offerings: list[Offering]) -> list[Offering]:
    """Those with a price; of spot, where none has one, those that are known to cost no more than on-demand does."""
    known_spot = any(offering.spot and offering.price is not None for offering in offerings)
    return [o for o in offerings if (o.price if known_spot else _at_most(o)) is not None]


def _at_most(offering: Offering) -> float | None:
    """What it costs at most; None where nobody knows. Spot is never dearer than on-demand where nobody bids for it."""
    return offering.on_demand_price if offering.price is None and offering.spot else offering.price


def _costs_at_most(offering: Offering, most: float) -> bool:
    """Whether that is known."""
    price = _at_most(offering)
    return price is not None and price <= most


def _cheapest(offerings: list[Offering]) -> str:
    known = [(offering.price, offering.machine) for offering in offerings if offering.price is not None]
    if not known:
        return ""
    price, machine = min(known)
    return f"; the cheapest known is {machine} at ${price:.4f}/h"


def _reclaims(count: int) -> str:
    return "1 reclaim" if count == 1 else f"{count} reclaims"


def reclaims(state: JobState, now: datetime, forgotten_s: float | None = None) -> int:
    """How often the cloud took machines back since the job was opened, as far as that is not forgotten."""
    taken = [claim.closed_at for claim in state.since_opened() if claim.closed and claim.closed.outcome == "reclaimed"]
    if forgotten_s is None:
        return len(taken)
    return sum(1 for at in taken if at is not None and (now - at).total_seconds() < forgotten_s)


def waiting_since(state: JobState) -> datetime:
    """Since when the job has had no machines. A gang that never was complete is no end of the waiting."""
    moments = [state.opened_at or state.submitted_at]
    moments += [
        claim.closed_at
        for claim in state.since_opened()
        if claim.attempt is not None and claim.closed and claim.closed_at and claim.closed.outcome != "dry"
    ]
    return max(moments)


def _dry(state: JobState, policy: Policy) -> dict[str, datetime]:
    """Until when each offering that was found dry is left alone. It doubles with each dry answer in a row."""
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
        # Where room is counted before a claim, a dry answer is a lost race: the next try need not be put off for long.
        doubled = 0 if claim.offering.most_nodes is not None else min(streak[key] - 1, 16)
        pause = min(policy.dry_most_s, policy.dry_first_s * 2**doubled)
        until[key] = claim.closed_at + timedelta(seconds=pause)
    return until


def _dry_for_all(job: JobSnapshot) -> dict[str, datetime]:
    """Until when each offering is left alone that any job found dry."""
    pause = timedelta(seconds=job.capabilities.dry_for_s)
    return {key: at + pause for key, at in job.dry.items()} if pause else {}


def _later(one: dict[str, datetime], other: dict[str, datetime]) -> dict[str, datetime]:
    return one | {key: max(until, one.get(key, until)) for key, until in other.items()}


@dataclass(frozen=True)
class _Refusals:
    """What clouds refused this job since it was opened, and what need not be asked for again."""

    # Offerings by key; and, as machine and spot: a quota is the same in every zone.
    keys: frozenset[str]
    over_quota: frozenset[tuple[str, bool]]
    # The very same was said so often of spot, or of on-demand, that the rest of them would say it too.
    hopeless: frozenset[bool]
    # Why nothing at all will do: this account may not, or this request cannot be built.
    final: str
    last: str

    @classmethod
    def of(cls, state: JobState) -> _Refusals:
        said: dict[tuple[bool, str], int] = {}
        keys, over_quota, final, last = set(), set(), "", ""
        for claim in state.since_opened():
            if claim.closed is None or claim.closed.outcome != "refused":
                continue
            offering, last = claim.offering, claim.closed_reason
            keys.add(offering.key)
            if claim.closed.rule == "QuotaExceeded":
                over_quota.add((offering.machine, offering.spot))
            if claim.closed.rule in ("AuthDenied", "Misnamed", "UserError"):
                final = final or last
            # Said of one machine type or of another, it is the same.
            words = (offering.spot, last.removeprefix(f"{offering.machine}: "))
            said[words] = said.get(words, 0) + 1
        hopeless = {spot for (spot, _), times in said.items() if times >= _SAME_REFUSALS}
        return cls(frozenset(keys), frozenset(over_quota), frozenset(hopeless), final, last)

    def cover(self, offering: Offering) -> bool:
        return (
            offering.key in self.keys
            or (offering.machine, offering.spot) in self.over_quota
            or offering.spot in self.hopeless
        )
