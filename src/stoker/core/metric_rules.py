"""Find trainings whose metrics violate a rule. A metric that is not reported violates nothing. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime

from stoker.core.snapshot import JobSnapshot
from stoker.core.stalls import is_fresh
from stoker.model.durations import span_text
from stoker.model.job_state import Claim
from stoker.model.node_facts import Trend
from stoker.model.policy import MetricRule


def metric_violation(wanted: MetricRule, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    """Describe the violation; None if there is none, or that is not known. One rank is enough."""
    for rank in range(claim.nodes):
        beat = job.heartbeat_of(claim, rank)
        if beat is not None and is_fresh(beat, now) and beat.value.trained_s >= wanted.after_s:
            reason = violation_of_values(wanted, beat.value.metrics, beat.value.trends)
            if reason is not None:
                return reason
    return None


def violation_of_values(wanted: MetricRule, metrics: Mapping[str, float], trends: Mapping[str, Trend]) -> str | None:
    """Describe how these values violate the rule, if they do."""
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
