"""Whether an experiment leads nowhere, by what it reports of itself. What it does not report says nothing. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime

from stoker.core.snapshot import JobSnapshot
from stoker.core.stalls import fresh
from stoker.model.durations import span_text
from stoker.model.job_state import Claim
from stoker.model.node_facts import Trend
from stoker.model.policy import Metric


def hopeless(wanted: Metric, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    """How it is so, in words; None where it is not, or nobody can know. One rank that says so is enough."""
    for rank in range(claim.nodes):
        beat = job.heartbeat_of(claim, rank)
        if beat is not None and fresh(beat, now) and beat.value.trained_s >= wanted.after_s:
            reason = broken_by(wanted, beat.value.metrics, beat.value.trends)
            if reason is not None:
                return reason
    return None


def broken_by(wanted: Metric, metrics: Mapping[str, float], trends: Mapping[str, Trend]) -> str | None:
    """How these values are hopeless, in words."""
    value = metrics.get(wanted.name)
    if value is None:
        return None
    if wanted.nan:
        return None if math.isfinite(value) else f"{wanted.name} is {value}"
    if wanted.above is not None:
        return f"{wanted.name} is {value:g}, above {wanted.above:g}" if value > wanted.above else None
    if wanted.below is not None:
        return f"{wanted.name} is {value:g}, below {wanted.below:g}" if value < wanted.below else None
    trend, longest_s = trends.get(wanted.name), wanted.no_improvement_s
    if trend is None or longest_s is None:
        return None
    best, since_s = (trend.low, trend.low_s) if wanted.goal == "min" else (trend.high, trend.high_s)
    if not since_s >= longest_s:
        return None
    return f"{wanted.name} has not improved on {best:g} for {span_text(since_s)}"
