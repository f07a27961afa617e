"""Whether a job stands still, or wastes its accelerators: two questions, and neither has an answer where anything that
it rests on is not known. Pure."""

from __future__ import annotations

from datetime import datetime

from stoker.core.snapshot import JobSnapshot
from stoker.core.spans import span_text
from stoker.fold import Claim
from stoker.model import Activity, Heartbeat, Stamped
from stoker.rules import Stall, Utilization
from stoker.series import means, quiet

# A heartbeat older than this many of its intervals says nothing about now.
_FRESH_BEATS = 6


def stalled(wanted: Stall, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    """How long nothing has moved, in words; None where something does, or nobody can know.

    Every rank must stand still. One whose accelerators are busy may wait for another, which is not for this rule.
    """
    told = _activities(job, claim, now, wanted.after_s)
    if told is None or not all(_stands_still(wanted, activity, claim.offering.gpus) for activity in told):
        return None
    silent_s = min(activity.silent_s for activity in told)
    return f"no step, no line of the log and no work for {span_text(silent_s)}"


def silent(longest_s: float, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    """As `stalled`, for a job that says itself how long it may be silent, whatever its machines do meanwhile."""
    told = _activities(job, claim, now, longest_s)
    if told is None or not all(activity.silent_s >= longest_s for activity in told):
        return None
    return f"limits.stall: no step and no line of the log for {span_text(longest_s)}"


def wasteful(wanted: Utilization, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    """How little the accelerators were used, in words; None where it was enough, or nobody can know."""
    told = _activities(job, claim, now, wanted.after_s + wanted.over_s)
    if told is None or claim.offering.gpus == 0:
        return None
    used: list[float] = []
    for activity in told:
        found = means(activity.utilization, wanted.over_s)
        if found is None or len(found) < max(claim.offering.gpus, activity.devices):
            return None  # There are some that cannot be read.
        used += found
    mean = sum(used) / len(used)
    if mean >= wanted.value:
        return None
    return f"its {len(used)} accelerators were used {mean:.0%} over {span_text(wanted.over_s)}"


def fresh(beat: Stamped[Heartbeat], now: datetime) -> bool:
    """Whether it says anything about now: of a training that was heard a moment ago."""
    # What is no number is neither long enough nor young enough.
    heard = (now - beat.modified).total_seconds() <= _FRESH_BEATS * beat.value.interval_s
    return heard and beat.value.phase == "training"


def _activities(job: JobSnapshot, claim: Claim, now: datetime, least_s: float) -> list[Activity] | None:
    """Of every rank; None unless all train, have for long enough, and were heard just now."""
    found = []
    for rank in range(claim.nodes):
        beat = job.heartbeat_of(claim, rank)
        if beat is None or not fresh(beat, now) or not beat.value.trained_s >= least_s or beat.value.activity is None:
            return None
        found.append(beat.value.activity)
    return found


def _stands_still(wanted: Stall, activity: Activity, gpus: int) -> bool:
    span_s = wanted.window_s * wanted.windows
    if not activity.silent_s >= span_s or activity.idle_s is None:
        return False
    if not activity.idle_s >= span_s and not activity.silent_s >= span_s + wanted.working_s:
        return False
    if not gpus and not activity.devices:
        # Nothing but processors, and they do nothing.
        return activity.idle_s >= span_s
    devices = max(gpus, activity.devices)
    return quiet(activity.utilization, wanted.window_s, wanted.windows, wanted.below, devices)
