"""Decide whether a job has reached a limit on its time or cost, and when it will. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stoker.core.costs import burn_rate, highest_possible_cost, valid_span_s
from stoker.core.policy_rules import EffectiveLimits
from stoker.core.snapshot import JobSnapshot
from stoker.model.durations import span_text


@dataclass(frozen=True)
class Reached:
    """A limit that is reached. `rule` is its name in decisions."""

    rule: str
    reason: str


@dataclass(frozen=True)
class NotReached:
    """No limit is reached. `next_s`: seconds until the next check; None: no limit requires one."""

    next_s: float | None = None


def check_limits(job: JobSnapshot, bounds: EffectiveLimits, now: datetime, save_s: float) -> Reached | NotReached:
    """Check the training time, then the cost. `save_s` is how long saving may take, which costs money too."""
    limits, due = bounds.spec.limits, []
    if limits.max_runtime_s is not None:
        left = limits.max_runtime_s - trained_s(job, now)
        if left <= 0:
            return Reached(bounds.rule("max_runtime"), f"{_title(bounds, 'max_runtime')} is reached")
        if job.state.open_claims:
            due.append(left)
    if limits.max_cost is not None:
        # Claims without a known price are left out; the others count.
        spent, rate = highest_possible_cost(job.state, now), burn_rate(job.state)
        # The cost of the grace period is set aside.
        set_aside = rate * save_s
        left = limits.max_cost - spent - set_aside
        if left <= 0 and (spent > 0 or limits.max_cost <= 0):
            spent += bounds.used_of("max_cost")
            reason = f"{_title(bounds, 'max_cost')} is reached: ${spent:,.2f} spent"
            if set_aside > 0:
                reason += f", ${set_aside:,.2f} set aside for saving"
            return Reached(bounds.rule("max_cost"), reason)
        if rate > 0:
            due.append(left / rate)
    return NotReached(min(due, default=None))


def exhausted_limit(bounds: EffectiveLimits) -> str | None:
    """Describe the policy limit that leaves a resumed job nothing; None if there is none. `bounds` include all
    usage."""
    for field in ("max_runtime", "max_cost"):
        most = bounds.value(field)
        if field in bounds.by_rule and most is not None and bounds.used_of(field) >= most:
            used = bounds.used_of(field)
            usage = f"${used:,.2f} are spent" if field == "max_cost" else f"it has trained for {span_text(used)}"
            return f"{_title(bounds, field)} counts all attempts of a job, and {usage}"
    return None


def _title(bounds: EffectiveLimits, field: str) -> str:
    """Source and value of a limit: `policy max-cost ($500)`."""
    most = bounds.value(field) or 0.0
    return f"{bounds.named(field)} ({f'${most:g}' if field == 'max_cost' else f'{span_text(most)} of training'})"


def trained_s(job: JobSnapshot, now: datetime) -> float:
    """Training time since the job was opened, as closed attempts reported and open ones report it."""
    total = 0.0
    for claim in job.state.since_opened():
        if claim.closed is not None:
            total += valid_span_s(claim.closed.trained_s)
            continue
        spans = [0.0]
        for rank in range(claim.nodes):
            beat = job.heartbeat_of(claim, rank)
            if beat is None:
                continue
            since = (now - beat.modified).total_seconds() if beat.value.phase in ("training", "saving") else 0.0
            spans.append(valid_span_s(beat.value.trained_s) + max(0.0, since))
        total += max(spans)
    return total
