"""Whether a job has reached a bound on its time or its money, and when it will. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stoker.core.costs import burn_rate, known_cost, span_s
from stoker.core.policy_rules import Bounded
from stoker.core.snapshot import JobSnapshot
from stoker.model.durations import span_text


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
            return Reached(bounds.rule("max_runtime"), f"{_title(bounds, 'max_runtime')} is reached")
        if job.state.open_claims:
            due.append(left)
    if limits.max_cost is not None:
        # Of what has no price nothing is known; the rest counts all the same.
        spent, rate = known_cost(job.state, now), burn_rate(job.state)
        # What the grace will burn is set aside.
        set_aside = rate * save_s
        left = limits.max_cost - spent - set_aside
        if left <= 0 and (spent > 0 or limits.max_cost <= 0):
            spent += bounds.used_of("max_cost")
            told = f"{_title(bounds, 'max_cost')} is reached: ${spent:,.2f} spent"
            if set_aside > 0:
                told += f", ${set_aside:,.2f} set aside for saving"
            return Reached(bounds.rule("max_cost"), told)
        if rate > 0:
            due.append(left / rate)
    return Far(min(due, default=None))


def used_up(bounds: Bounded) -> str | None:
    """The house's bound that leaves a job nothing if it is opened now, in words. `bounds` are of all that it used."""
    for field in ("max_runtime", "max_cost"):
        most = bounds.value(field)
        if field in bounds.by_rule and most is not None and bounds.used_of(field) >= most:
            used = bounds.used_of(field)
            told = f"${used:,.2f} are spent" if field == "max_cost" else f"it has trained for {span_text(used)}"
            return f"{_title(bounds, field)} counts all attempts of a job, and {told}"
    return None


def _title(bounds: Bounded, field: str) -> str:
    """Whose bound it is, and how much: `policy max-cost ($500)`."""
    most = bounds.value(field) or 0.0
    return f"{bounds.named(field)} ({f'${most:g}' if field == 'max_cost' else f'{span_text(most)} of training'})"


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
