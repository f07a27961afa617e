"""Machines of a failed job that are held for a while, so that a person can look at what went wrong.

Pure, and used by both sides: the agent stays as long as this allows, and the governor terminates no held machine.
Only the attempt that ended the job is held, only if its own script failed, and only until its time or money runs out or
a person asks for the end (`stoker stop`, `stoker resume`). The governor that ends the job knows the policy's limits and
writes the longest hold into the log; every reader uses that value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import zip_longest

from stoker.core.costs import job_cost, valid_span_s
from stoker.model.job_state import Claim, JobState
from stoker.model.spec import Spec

# The agent counts from the moment it reads the job's end. After this extra time it has powered off, or never will.
LEAVE_S = 60.0

# A hold is useful only for ends by these rules: failures of the script or its set-up.
HELD_RULES = frozenset({"user-error"})


@dataclass(frozen=True)
class Hold:
    """The claim whose machines are held, and the times of the hold, by the store's clock."""

    claim: int
    since: datetime
    until: datetime

    @property
    def ends_at(self) -> datetime:
        """From this time on the machines may be terminated."""
        return self.until + timedelta(seconds=LEAVE_S)

    @property
    def longest_s(self) -> float:
        return (self.until - self.since).total_seconds()


def hold_of(state: JobState, spec: Spec) -> Hold | None:
    """Return the hold of an ended job, also if its time is over; None if it has none."""
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
    """How long the machines of the last attempt may be held, by the spec and its limits."""
    return max(0.0, min(valid_span_s(spec.retry.hold_on_failure_s), _affordable_s(state, claim, spec, ended_at)))


def longest_held(state: JobState, spec: Spec, now: datetime) -> dict[int, datetime]:
    """The latest possible end of each hold, by claim number, from the log alone.

    A hold ends early when a person asks for that or resumes the job. The machines' own reports are in their facts.
    """
    found = {}
    hold, stop = hold_of(replace(state, stop=None), spec), state.stop
    if hold is not None:
        found[hold.claim] = min(now, hold.until, *(() if stop is None else (max(stop.at, hold.since),)))
    for claim, following in zip_longest(state.claims, state.claims[1:]):
        if claim.number in found or not qualifies_for_hold(claim, spec) or claim.number > state.opened_seq:
            continue
        assert claim.closed_at is not None
        # A state that an older Stoker cached has no `released_at`.
        released_at = claim.released_at or (following.at if following is not None else state.opened_at or now)
        longest = timedelta(seconds=_asked_s(claim, spec))
        found[claim.number] = min(now, max(released_at, claim.closed_at), claim.closed_at + longest)
    return found


def qualifies_for_hold(claim: Claim, spec: Spec) -> bool:
    """Return whether this attempt ended its job in a way that allows a hold."""
    closed = claim.closed
    return (
        bool(claim.launched)
        and closed is not None
        and not closed.restart
        and closed.rule in HELD_RULES
        and _asked_s(claim, spec) > 0
    )


def is_held(state: JobState, spec: Spec, instance: str, now: datetime) -> bool:
    """Return whether this machine is held and must not be terminated yet."""
    hold = hold_of(state, spec)
    if hold is None or now >= hold.ends_at:
        return False
    claim = state.claim(hold.claim)
    return claim is not None and any(node.instance == instance for node in claim.launched or ())


def _asked_s(claim: Claim, spec: Spec) -> float:
    """The hold that the spec asks for, or less if the log says so."""
    asked_s = valid_span_s(spec.retry.hold_on_failure_s)
    logged_s = claim.closed.hold_s if claim.closed is not None else None
    return asked_s if logged_s is None else min(asked_s, valid_span_s(logged_s))


def _affordable_s(state: JobState, claim: Claim, spec: Spec, ended_at: datetime) -> float:
    """How long `limits.max_cost` pays for all machines of the claim, minus the time to power off."""
    most = spec.limits.max_cost
    if most is None:
        return float("inf")
    spent, price = job_cost(state, ended_at, since_opened=True).spent, claim.offering.price
    if spent is None or price is None:
        return 0.0
    rate = price * len(claim.launched or ()) / 3600
    return (most - spent) / rate - LEAVE_S if rate > 0 else float("inf")
