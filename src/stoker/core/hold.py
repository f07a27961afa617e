"""Machines of a failed job that are kept for a while, so that a person can look at what went wrong.

Pure, and asked by both sides: the agent stays as long as this allows, and the governor ends nothing that this keeps.
Only the attempt that ended the job is kept, only where its own script failed, and only until its time or its money is
over, or somebody asks for the end (`stoker stop`, `stoker resume`). Who ends the job knows the bounds of the house, and
writes down for how long: that holds for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import zip_longest

from stoker.core.costs import job_cost, span_s
from stoker.model.job_state import Claim, JobState
from stoker.model.spec import Spec

# The agent counts from when it reads of the job's end. So much later it has powered off by itself, or never will.
LEAVE_S = 60.0

# The rules by which a job ends that a look at its machine may explain: what the script, or its set-up, did.
HELD_RULES = frozenset({"user-error"})


@dataclass(frozen=True)
class Hold:
    """Whose machines are kept, and until when, by the store's clock."""

    claim: int
    since: datetime
    until: datetime

    @property
    def ends_at(self) -> datetime:
        """From here on nobody keeps them."""
        return self.until + timedelta(seconds=LEAVE_S)

    @property
    def longest_s(self) -> float:
        return (self.until - self.since).total_seconds()


def hold_of(state: JobState, spec: Spec) -> Hold | None:
    """The hold that an ended job is entitled to, whether or not its time is over; None where there is none."""
    ended = state.ended
    if ended is None or ended.outcome != "failed" or ended.rule not in HELD_RULES or state.stop is not None:
        return None
    claim = state.claim(ended.claim) if ended.claim is not None else None
    if claim is None or claim.closed_at is None or not claim.launched:
        return None
    longest_s = min(_asked_s(claim, spec), allowed_s(state, claim, spec, claim.closed_at))
    if longest_s <= 0:
        return None
    return Hold(claim.number, since=claim.closed_at, until=claim.closed_at + timedelta(seconds=longest_s))


def allowed_s(state: JobState, claim: Claim, spec: Spec, ended_at: datetime) -> float:
    """How long machines of an attempt that ends its job may be held, by the spec and its bounds."""
    return max(0.0, min(span_s(spec.retry.hold_on_failure_s), _affordable_s(state, claim, spec, ended_at)))


def longest_held(state: JobState, spec: Spec, now: datetime) -> dict[int, datetime]:
    """By the claims' numbers: until when machines were held at most, from the log alone, whatever came after.

    A hold ends when somebody asks for that, or opens the job again. What the machines themselves said of it is in
    their facts.
    """
    found = {}
    hold, stop = hold_of(replace(state, stop=None), spec), state.stop
    if hold is not None:
        found[hold.claim] = min(now, hold.until, *(() if stop is None else (max(stop.at, hold.since),)))
    for claim, following in zip_longest(state.claims, state.claims[1:]):
        if claim.number in found or not may_have_been_held(claim, spec) or claim.number > state.opened_seq:
            continue
        assert claim.closed_at is not None
        # A fold that an older Stoker kept does not say.
        let_go_at = claim.let_go_at or (following.at if following is not None else state.opened_at or now)
        longest = timedelta(seconds=_asked_s(claim, spec))
        found[claim.number] = min(now, max(let_go_at, claim.closed_at), claim.closed_at + longest)
    return found


def may_have_been_held(claim: Claim, spec: Spec) -> bool:
    """Whether this attempt ended its job in a way that machines are kept for."""
    closed = claim.closed
    return (
        bool(claim.launched)
        and closed is not None
        and not closed.restart
        and closed.rule in HELD_RULES
        and _asked_s(claim, spec) > 0
    )


def is_kept(state: JobState, spec: Spec, instance: str, now: datetime) -> bool:
    """Whether this machine is one that nobody may end yet."""
    hold = hold_of(state, spec)
    if hold is None or now >= hold.ends_at:
        return False
    claim = state.claim(hold.claim)
    return claim is not None and any(node.instance == instance for node in claim.launched or ())


def _asked_s(claim: Claim, spec: Spec) -> float:
    """What the spec asks for, or less where the log says so."""
    asked_s = span_s(spec.retry.hold_on_failure_s)
    told_s = claim.closed.hold_s if claim.closed is not None else None
    return asked_s if told_s is None else min(asked_s, span_s(told_s))


def _affordable_s(state: JobState, claim: Claim, spec: Spec, ended_at: datetime) -> float:
    """How long `limits.max_cost` pays for all machines of the claim. The time to power off is set aside."""
    most = spec.limits.max_cost
    if most is None:
        return float("inf")
    spent, price = job_cost(state, ended_at, since_opened=True).spent, claim.offering.price
    if spent is None or price is None:
        return 0.0
    rate = price * len(claim.launched or ()) / 3600
    return (most - spent) / rate - LEAVE_S if rate > 0 else float("inf")
