"""Whether a job has reached a bound on its time or its money, and when it will. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stoker.core.costs import burn_rate, known_cost, span_s
from stoker.core.governance import Bounded
from stoker.core.snapshot import JobSnapshot
from stoker.core.spans import span_text


@dataclass(frozen=True)
class Reached:
    """A bound that is reached. `rule` is what decisions call it."""

    rule: str
    reason: str


@dataclass(frozen=True)
class Far:
    """None is reached. The next look is due in so many seconds; None: by no bound."""

    next_s: float | None = None


def reached(job: JobSnapshot, bounds: Bounded, now: datetime, save_s: float) -> Reached | Far:
    """By training time, then by money. `save_s` is how long saving may take, which costs money too."""
    limits, due = bounds.spec.limits, []
    if limits.max_runtime_s is not None:
        left = limits.max_runtime_s - trained_s(job, now)
        if left <= 0:
            told = f"{bounds.named('max_runtime')} ({span_text(limits.max_runtime_s)} of training) is reached"
            return Reached(bounds.rule("max_runtime"), told)
        if job.state.open_claims:
            due.append(left)
    if limits.max_cost is not None:
        # Of what has no price nothing is known; the rest counts all the same.
        spent, rate = known_cost(job.state, now), burn_rate(job.state)
        # What the grace will burn is set aside.
        set_aside = rate * save_s
        left = limits.max_cost - spent - set_aside
        if left <= 0 and (spent > 0 or limits.max_cost <= 0):
            told = f"{bounds.named('max_cost')} (${limits.max_cost:g}) is reached: ${spent:,.2f} spent"
            if set_aside > 0:
                told += f", ${set_aside:,.2f} set aside for saving"
            return Reached(bounds.rule("max_cost"), told)
        if rate > 0:
            due.append(left / rate)
    return Far(min(due, default=None))


def trained_s(job: JobSnapshot, now: datetime) -> float:
    """Training time since the job was opened: what closed attempts reported, and what the open ones report."""
    total = 0.0
    for claim in job.state.since_opened():
        if claim.closed is not None:
            total += span_s(claim.closed.trained_s)
            continue
        spans = [0.0]
        for rank in range(claim.nodes):
            beat = job.heartbeat_of(claim, rank)
            if beat is None:
                continue
            since = (now - beat.modified).total_seconds() if beat.value.phase in ("training", "saving") else 0.0
            spans.append(span_s(beat.value.trained_s) + max(0.0, since))
        total += max(spans)
    return total
