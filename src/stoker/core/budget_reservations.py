"""What jobs may still cost: the money that budgets set aside for them, and the queue for what is left. Pure.

A job that was claimed reserves what it may still cost until it ends: what is left of its `max_cost`, or of its
`max_runtime` at the price of its machines, whichever is less. Nothing is kept beside the job logs: every governor
computes the same reservations from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from stoker.core.costs import Cost, in_dollars, known_cost, per_s, span_s
from stoker.core.governor_settings import DEFAULT
from stoker.core.hold import hold_of
from stoker.core.policy_rules import Bounded, Subject, bounded
from stoker.core.prior_usage import used_before
from stoker.model.durations import span_text
from stoker.model.job_state import Claim, JobState
from stoker.model.offerings import Offering
from stoker.model.policy import House
from stoker.model.spec import Spec

# Boot, set-up and restoring cost money too, and `max_runtime` does not count them.
START_S = 600.0
# For a job without any bound: as long as a job of a paid provider gets where it names none.
UNBOUNDED_S = 86400.0
# Codes of warnings by which a job takes its place in the queue for money, and gives it up.
WAITS, LEAVES = "budget:waits", "budget:leaves"


def micro(dollars: float) -> int:
    """Millionths of a dollar. Sums of these are exact; what is no amount is none."""
    return round(min(dollars, 1e12) * 1e6) if dollars > 0 else 0


@dataclass(frozen=True)
class Need:
    """Dollars that a job may still cost, the dollars a second of its machines, and how that is known. `rolling`: it has
    no bound, and may cost as much from any later moment on."""

    dollars: float
    per_s: float
    why: str
    rolling: bool = False

    def within(self, seconds: float) -> int:
        """Millionths of a dollar that it may cost in so many seconds."""
        return micro(min(self.dollars, self.per_s * max(0.0, seconds)))

    def after(self, seconds: float, length_s: float) -> int:
        """Millionths of a dollar that are left to cost in `length_s`, if it runs for so many seconds before."""
        gone = 0.0 if self.rolling else self.per_s * max(0.0, seconds)
        return micro(min(self.dollars - gone, self.per_s * max(0.0, length_s)))


@dataclass(frozen=True)
class Reservation:
    """What one job may still cost. `at` is when it was first claimed: of two that race, the later one yields. `since`
    is when it was opened; `idle`: it has no machine now; `begun`: it had one before."""

    job: str
    tags: Mapping[str, str]
    at: datetime
    need: Need
    since: datetime
    idle: bool = False
    begun: bool = False


@dataclass(frozen=True)
class Reserved:
    """What of a reservation falls into the present period of one budget, and into the next, in millionths of a
    dollar."""

    job: str
    at: datetime
    amount: int
    since: datetime
    idle: bool = False
    begun: bool = False
    later: int = 0


@dataclass(frozen=True)
class Waiting:
    """A job in the queue for money: since when, and for how many millionths of a dollar."""

    job: str
    since: datetime
    amount: int
    tags: Mapping[str, str]

    @property
    def place(self) -> tuple[datetime, str]:
        return self.since, self.job


@dataclass(frozen=True)
class Ask:
    """A launch that is to be judged: what it may cost, and its place in the queue. `claimed_at`: its claim was made
    already, then; only claims that are as old count against it."""

    need: Need
    since: datetime
    claimed_at: datetime | None = None


def bounds_of(house: House, state: JobState, spec: Spec, now: datetime) -> Bounded:
    """The bounds of a job, its own and the policy's."""
    return bounded(house, Subject(spec, now.date(), state.job, used_before(state, spec, now)))


def first_need(bounds: Bounded, offering: Offering) -> Need:
    """What a job may cost that has not begun, on machines of this offering."""
    return _need(bounds, _rate(offering, bounds.spec.nodes), 0.0, 0.0)


def ask_for(bounds: Bounded, state: JobState, offering: Offering, now: datetime, claim: Claim | None = None) -> Ask:
    """What is to be judged before the job gets machines of this offering; `claim`: one that was made already."""
    spent = known_cost(state, now)
    need = _need(bounds, _rate(offering, bounds.spec.nodes), spent, _trained_s(state))
    return Ask(need, state.opened_at or state.submitted_at, None if claim is None else claim.at)


def reservation(house: House, state: JobState, spec: Spec, now: datetime) -> Reservation | None:
    """What this job may still cost, as far as it has begun; None where nothing is reserved for it.

    Between two attempts the reservation stays: the job goes on as soon as there is a machine.
    """
    held = [claim for claim in state.since_opened() if claim.open or claim.attempt is not None]
    if not held:
        return None
    if state.ended is not None:
        need = _look_at_failure(state, spec, now)
    else:
        need = _still(bounds_of(house, state, spec, now), state, held, now)
    if need is None:
        return None
    since = state.opened_at or state.submitted_at
    begun = any(claim.attempt is not None for claim in held)
    return Reservation(state.job, spec.tags, held[0].at, need, since, not state.open_claims, begun)


def queued(state: JobState, spec: Spec) -> Waiting | None:
    """The job's place in the queue for money; None where it has none."""
    if state.ended is not None or state.stop is not None or state.open_claims:
        return None
    codes = _codes(state)
    if not codes or not codes[-1].startswith(WAITS):
        return None
    amount = codes[-1].rpartition(":")[2]
    return Waiting(state.job, state.opened_at or state.submitted_at, int(amount) if amount.isdigit() else 0, spec.tags)


def waits_code(state: JobState, amount: int) -> str | None:
    """The warning by which the job takes its place, for so much; None where it has it already."""
    codes = _codes(state)
    if codes and codes[-1].startswith(WAITS) and int(codes[-1].rpartition(":")[2] or 0) >= amount:
        return None
    return f"{WAITS}:{_claims(state)}:{len(codes)}:{amount}"


def leaves_code(state: JobState) -> str | None:
    """The warning by which it gives its place up: it waits for something else. None where it has none."""
    codes = _codes(state)
    return f"{LEAVES}:{_claims(state)}:{len(codes)}" if codes and codes[-1].startswith(WAITS) else None


# ── Small things ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _codes(state: JobState) -> list[str]:
    """What it said about its place since its last claim, the newest last."""
    number = _claims(state)
    return [code for code in state.warned if code.startswith((f"{WAITS}:{number}:", f"{LEAVES}:{number}:"))]


def _claims(state: JobState) -> int:
    return state.last_claim.number if state.last_claim is not None else 0


def _rate(offering: Offering, nodes: int) -> float:
    """Dollars a second, at most; none where no price is known."""
    return (Cost(offering.price, offering.on_demand_price).dearest or 0.0) * nodes / 3600


def _save_s(spec: Spec) -> float:
    return span_s(spec.checkpoints.grace_s) + DEFAULT.leave_s


def _trained_s(state: JobState) -> float:
    return sum(span_s(claim.closed.trained_s) for claim in state.since_opened() if claim.closed)


def _need(bounds: Bounded, rate: float, spent: float, trained_s: float, start_s: float = START_S) -> Need:
    """By the tightest of the job's bounds. Saving and leaving come on top of the time, and are part of the money."""
    limits = bounds.spec.limits
    found: list[tuple[float, str]] = []
    if limits.max_cost is not None:
        found.append((max(0.0, limits.max_cost - spent), bounds.named("max_cost")))
    if limits.max_runtime_s is not None:
        left_s = max(0.0, limits.max_runtime_s - trained_s) + start_s + _save_s(bounds.spec)
        found.append((left_s * rate, f"{bounds.named('max_runtime')} at {in_dollars(rate * 3600)}/h"))
    if not found:
        why = f"an estimate, {span_text(UNBOUNDED_S)} at {in_dollars(rate * 3600)}/h: limits.max_cost is not set"
        found.append((UNBOUNDED_S * rate, why))
    dollars, why = min(found)
    rolling = limits.max_cost is None and limits.max_runtime_s is None
    return Need(dollars if math.isfinite(dollars) else 1e12, rate, why, rolling)


def _still(bounds: Bounded, state: JobState, held: Iterable[Claim], now: datetime) -> Need | None:
    """What a job that has begun may still cost."""
    spec, last = bounds.spec, list(held)[-1]
    rate = sum(per_s(claim, claim.nodes) for claim in state.open_claims)
    # However far it is past its bounds: it runs, and has to save.
    least = rate * _save_s(spec)
    if state.stop is not None or (state.open_claims and all(_ends(claim) for claim in state.open_claims)):
        return Need(least, rate, "the last save") if rate else None
    passed_s = 0.0
    if last.open and last.launched_at is not None:
        passed_s = max(0.0, (now - last.launched_at).total_seconds())
    # The training begins when the start is over: until then the time is the start's.
    trained_s, start_s = _trained_s(state) + max(0.0, passed_s - START_S), max(0.0, START_S - passed_s)
    own = per_s(last, last.nodes)
    need = _need(bounds, own, known_cost(state, now), trained_s, start_s)
    # An older attempt that still saves beside it is paid for, too.
    beside = max(0.0, rate - own) * _save_s(spec) if spec.limits.max_cost is None else 0.0
    return Need(max(need.dollars + beside, least), max(rate, own), need.why, need.rolling)


def _ends(claim: Claim) -> bool:
    """Whether the attempt saves, and the job ends with it."""
    return claim.drain is not None and claim.drain.outcome == "limit"


def _look_at_failure(state: JobState, spec: Spec, now: datetime) -> Need | None:
    hold = hold_of(state, spec)
    claim = state.claim(hold.claim) if hold is not None else None
    if hold is None or claim is None or now >= hold.until:
        return None
    rate = per_s(claim)
    return Need(rate * (hold.until - now).total_seconds(), rate, "retry.hold_on_failure")
