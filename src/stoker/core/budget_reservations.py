"""Reservations of running jobs in budgets, and the queue for the rest. Pure.

A claimed job reserves what it may still cost until it ends: the rest of its `max_cost`, or of its `max_runtime` at the
price of its machines, whichever is less. Nothing is stored besides the job logs: every governor computes the same
reservations from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from stoker.core.costs import Cost, dollars_per_s, highest_possible_cost, in_dollars, valid_span_s
from stoker.core.governor_settings import DEFAULT
from stoker.core.hold import hold_of
from stoker.core.policy_rules import EffectiveLimits, Subject, effective_limits
from stoker.core.prior_usage import used_before
from stoker.model.durations import span_text
from stoker.model.job_state import Claim, JobState
from stoker.model.offerings import Offering
from stoker.model.policy import Policy
from stoker.model.spec import Spec

# Boot, set-up and restoring cost money too, and `max_runtime` does not count them.
START_S = 600.0
# Assumed runtime of a job without any limit: the default limit of jobs at paid providers.
UNBOUNDED_S = 86400.0
# Codes of warnings by which a job enters the queue for a budget, or for a limit of machines at the same time; and
# leaves it. A job is in the queue of its newest code.
WAITS, WAITS_FOR_ROOM, LEAVES = "budget:waits", "concurrent:waits", "budget:leaves"


def micro(dollars: float) -> int:
    """Millionths of a dollar, whose sums are exact. Negative and NaN amounts count as 0."""
    return round(min(dollars, 1e12) * 1e6) if dollars > 0 else 0


@dataclass(frozen=True)
class Need:
    """Dollars that a job may still cost, the dollars per second of its machines, and the source of the number.
    `rolling`: the job has no limit, and may cost as much from any later time on."""

    dollars: float
    dollars_per_s: float
    why: str
    rolling: bool = False

    def within(self, seconds: float) -> int:
        """Millionths of a dollar that it may cost in the next `seconds`."""
        return micro(min(self.dollars, self.dollars_per_s * max(0.0, seconds)))

    def after(self, seconds: float, length_s: float) -> int:
        """Millionths of a dollar that it may cost in the `length_s` that follow the next `seconds`."""
        gone = 0.0 if self.rolling else self.dollars_per_s * max(0.0, seconds)
        return micro(min(self.dollars - gone, self.dollars_per_s * max(0.0, length_s)))


@dataclass(frozen=True)
class BudgetReservation:
    """The amount that one job may still cost. `at` is its first claim: of two jobs that race, the later one yields.
    `since` is when it was opened; `idle`: it has no machine now; `begun`: it had one before."""

    job: str
    tags: Mapping[str, str]
    at: datetime
    need: Need
    since: datetime
    idle: bool = False
    begun: bool = False


@dataclass(frozen=True)
class Reserved:
    """The part of a reservation in the current period of one budget, and in the next (`later`), in millionths of a
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
    """A job in a queue, since when, and for what: for millionths of a dollar of a budget (`amount`), or for machines
    (`nodes` is not 0). `begun`: it had machines before."""

    job: str
    since: datetime
    amount: int
    tags: Mapping[str, str]
    nodes: int = 0
    gpus: int = 0
    begun: bool = False

    @property
    def place(self) -> tuple[datetime, str]:
        return self.since, self.job


@dataclass(frozen=True)
class LaunchRequest:
    """A launch to be judged: what it may cost, its machines and its place in the queue. `claimed_at` is the time of its
    claim, if it exists already: then only claims that are not younger count against it."""

    need: Need
    since: datetime
    claimed_at: datetime | None = None
    claim: int = 0
    nodes: int = 0
    gpus: int = 0
    # It had machines before.
    begun: bool = False


def limits_of_job(policy: Policy, state: JobState, spec: Spec, now: datetime) -> EffectiveLimits:
    """The bounds of a job, its own and the policy's."""
    return effective_limits(policy, Subject(spec, now.date(), state.job, used_before(state, spec, now)))


def first_need(bounds: EffectiveLimits, offering: Offering) -> Need:
    """The need of a job that has not begun, on machines of this offering."""
    return _need(bounds, _rate(offering, bounds.spec.nodes), 0.0, 0.0)


def launch_request(
    bounds: EffectiveLimits, state: JobState, offering: Offering, now: datetime, claim: Claim | None = None
) -> LaunchRequest:
    """Build the request for machines of this offering; `claim`: the existing claim, if any."""
    spent = highest_possible_cost(state, now)
    need = _need(bounds, _rate(offering, bounds.spec.nodes), spent, _trained_s(state))
    nodes = bounds.spec.nodes if claim is None else claim.nodes
    return LaunchRequest(
        need,
        state.opened_at or state.submitted_at,
        claimed_at=None if claim is None else claim.at,
        claim=0 if claim is None else claim.number,
        nodes=nodes,
        gpus=nodes * offering.gpus,
        begun=has_begun(state),
    )


def first_request(bounds: EffectiveLimits, offerings: Iterable[Offering], now: datetime) -> LaunchRequest | None:
    """Build the request of a job that is not submitted yet: the least that any of these offerings needs. None where
    there is no offering."""
    known = list(offerings)
    if not known:
        return None
    need = min((first_need(bounds, offering) for offering in known), key=lambda need: need.dollars)
    nodes = bounds.spec.nodes
    return LaunchRequest(need, now, nodes=nodes, gpus=nodes * min(offering.gpus for offering in known))


def has_begun(state: JobState) -> bool:
    """Return whether the job had machines since it was opened."""
    return any(claim.attempt is not None for claim in state.since_opened())


def reservation(policy: Policy, state: JobState, spec: Spec, now: datetime) -> BudgetReservation | None:
    """The reservation of a job that has begun; None if nothing is reserved for it.

    Between two attempts the reservation stays: the job goes on as soon as there is a machine.
    """
    held = [claim for claim in state.since_opened() if claim.open or claim.attempt is not None]
    if not held:
        return None
    if state.ended is not None:
        need = _hold_need(state, spec, now)
    else:
        need = _still(limits_of_job(policy, state, spec, now), state, held, now)
    if need is None:
        return None
    since = state.opened_at or state.submitted_at
    return BudgetReservation(state.job, spec.tags, held[0].at, need, since, not state.open_claims, has_begun(state))


def queued(state: JobState, spec: Spec) -> Waiting | None:
    """The job's place in a queue; None if it is not queued."""
    if state.ended is not None or state.stop is not None or state.open_claims:
        return None
    codes, since = _codes(state), state.opened_at or state.submitted_at
    if codes and codes[-1].startswith(WAITS_FOR_ROOM):
        nodes, gpus = _machines_of(codes[-1])
        return Waiting(state.job, since, 0, spec.tags, nodes, gpus, has_begun(state))
    if not codes or not codes[-1].startswith(WAITS):
        return None
    amount = codes[-1].rpartition(":")[2]
    return Waiting(state.job, since, int(amount) if amount.isdigit() else 0, spec.tags)


def waits_code(state: JobState, amount: int) -> str | None:
    """Code of the warning by which the job enters the queue for this amount; None if it is queued already."""
    codes = _codes(state)
    if codes and codes[-1].startswith(WAITS) and int(codes[-1].rpartition(":")[2] or 0) >= amount:
        return None
    return f"{WAITS}:{_claims(state)}:{len(codes)}:{amount}"


def waits_for_room_code(state: JobState, nodes: int, gpus: int) -> str | None:
    """Code of the warning by which the job enters the queue for machines; None if it is queued for so many already."""
    codes = _codes(state)
    if codes and codes[-1].startswith(WAITS_FOR_ROOM):
        known_nodes, known_gpus = _machines_of(codes[-1])
        if known_nodes >= nodes and known_gpus >= gpus:
            return None
    return f"{WAITS_FOR_ROOM}:{_claims(state)}:{len(codes)}:{nodes}:{gpus}"


def leaves_code(state: JobState) -> str | None:
    """Code of the warning by which the job leaves its queue; None if it is not queued."""
    codes = _codes(state)
    queued_now = bool(codes) and codes[-1].startswith((WAITS, WAITS_FOR_ROOM))
    return f"{LEAVES}:{_claims(state)}:{len(codes)}" if queued_now else None


# ── Small things ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _codes(state: JobState) -> list[str]:
    """The job's warnings about queues since its last claim, the newest last."""
    number = _claims(state)
    starts = tuple(f"{kind}:{number}:" for kind in (WAITS, WAITS_FOR_ROOM, LEAVES))
    return [code for code in state.warned if code.startswith(starts)]


def _machines_of(code: str) -> tuple[int, int]:
    """The nodes and accelerators in a code of the queue for machines."""
    nodes, gpus = code.split(":")[-2:]
    return (int(nodes), int(gpus)) if nodes.isdigit() and gpus.isdigit() else (1, 0)


def _claims(state: JobState) -> int:
    return state.last_claim.number if state.last_claim is not None else 0


def _rate(offering: Offering, nodes: int) -> float:
    """Highest possible dollars per second; 0 if no price is known."""
    return (Cost(offering.price, offering.on_demand_price).at_most or 0.0) * nodes / 3600


def _save_s(spec: Spec) -> float:
    return valid_span_s(spec.checkpoints.grace_s) + DEFAULT.leave_s


def _trained_s(state: JobState) -> float:
    return sum(valid_span_s(claim.closed.trained_s) for claim in state.since_opened() if claim.closed)


def _need(bounds: EffectiveLimits, rate: float, spent: float, trained_s: float, start_s: float = START_S) -> Need:
    """The need by the tightest limit of the job. Saving and leaving add to `max_runtime`, and are part of
    `max_cost`."""
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


def _still(bounds: EffectiveLimits, state: JobState, held: Iterable[Claim], now: datetime) -> Need | None:
    """The need of a running job until its end."""
    spec, last = bounds.spec, list(held)[-1]
    rate = sum(dollars_per_s(claim, claim.nodes) for claim in state.open_claims)
    # A running job past its limits still has to save.
    least = rate * _save_s(spec)
    if state.stop is not None or (state.open_claims and all(_ends(claim) for claim in state.open_claims)):
        return Need(least, rate, "the last save") if rate else None
    passed_s = 0.0
    if last.open and last.launched_at is not None:
        passed_s = max(0.0, (now - last.launched_at).total_seconds())
    # Time counts as start-up until START_S is over, then as training.
    trained_s, start_s = _trained_s(state) + max(0.0, passed_s - START_S), max(0.0, START_S - passed_s)
    own = dollars_per_s(last, last.nodes)
    need = _need(bounds, own, highest_possible_cost(state, now), trained_s, start_s)
    # An older attempt that still saves costs money too.
    beside = max(0.0, rate - own) * _save_s(spec) if spec.limits.max_cost is None else 0.0
    return Need(max(need.dollars + beside, least), max(rate, own), need.why, need.rolling)


def _ends(claim: Claim) -> bool:
    """Return whether the attempt is draining because the job ends."""
    return claim.drain is not None and claim.drain.outcome == "limit"


def _hold_need(state: JobState, spec: Spec, now: datetime) -> Need | None:
    hold = hold_of(state, spec)
    claim = state.claim(hold.claim) if hold is not None else None
    if hold is None or claim is None or now >= hold.until:
        return None
    rate = dollars_per_s(claim)
    return Need(rate * (hold.until - now).total_seconds(), rate, "retry.hold_on_failure")
