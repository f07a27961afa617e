"""Whether a job stands still, or wastes its accelerators: two questions, and neither has an answer where anything that
it rests on is not known. Pure."""

from __future__ import annotations

from datetime import datetime

from stoker.core.snapshot import JobSnapshot
from stoker.core.spans import span_text
from stoker.fold import Claim
from stoker.model import Activity, AgentPhase, Heartbeat, Stamped
from stoker.rules import Stall, Utilization
from stoker.series import means, quiet

# A heartbeat older than this many of its intervals says nothing about now.
_FRESH_BEATS = 6
# Before its training a node does what nobody else bounds. Later, saving and flushing have bounds of their own.
_EARLIER: tuple[AgentPhase, ...] = ("setup", "restoring")


def stalled(wanted: Stall, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    """How long nothing has moved, in words; None where something does, or nobody can know.

    Every rank must stand still, or wait for those that do. One whose accelerators are busy may wait for another, too,
    which is not for this rule.
    """
    told = _told(job, claim, now)
    if told is None or not all(_stands_still(wanted, beat, activity, claim.offering.gpus) for beat, activity in told):
        return None
    silent_s = min(activity.silent_s for _, activity in told)
    early = _earlier(told)
    if early:
        return f"no line of the log and no work for {span_text(silent_s)}, before the training ({early})"
    return f"no step, no line of the log and no work for {span_text(silent_s)}"


def begins_to_stall(wanted: Stall, job: JobSnapshot, claim: Claim, now: datetime) -> bool:
    """Whether nothing of a training moved in the newest window, and not for all of the windows yet. What is at work
    beside its accelerators does not count: it may be what hangs."""
    told = _told(job, claim, now)
    if told is None or not all(beat.phase == "training" for beat, _ in told):
        return False
    ranks = [activity for _, activity in told]

    def is_quiet(windows: int) -> bool:
        return all(_quiet(wanted, activity, claim.offering.gpus, windows) for activity in ranks)

    silent_s = min(activity.silent_s for activity in ranks)
    if not silent_s >= wanted.window_s or not is_quiet(1):
        return False
    # Windows that cannot be read never make a stall, so nobody waits for them.
    known = all(means(activity.utilization, wanted.span_s) is not None for activity in ranks)
    return silent_s < wanted.span_s or (known and not is_quiet(wanted.windows))


def silent(longest_s: float, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    """As `stalled`, for a job that says itself how long it may be silent, whatever its machines do meanwhile. Before
    the training it has no say in that: there they must do nothing, either."""
    told = _told(job, claim, now)
    if told is None:
        return None
    for beat, activity in told:
        lasts_s = beat.trained_s if beat.phase == "training" else activity.idle_s
        if lasts_s is None or not (lasts_s >= longest_s and activity.silent_s >= longest_s):
            return None
    early = _earlier(told)
    if early:
        return f"limits.stall: no line of the log and no work for {span_text(longest_s)}, before the training ({early})"
    return f"limits.stall: no step and no line of the log for {span_text(longest_s)}"


def silent_for_s(job: JobSnapshot, claim: Claim, now: datetime) -> float:
    """Since when no rank has moved on, as far as they tell; 0 where they do not."""
    told = _told(job, claim, now)
    return min(activity.silent_s for _, activity in told) if told is not None else 0.0


def wasteful(wanted: Utilization, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    """How little the accelerators were used, in words; None where it was enough, or nobody can know."""
    told = _told(job, claim, now)
    here, gpus = job.capabilities.here, job.spec.resources.gpus
    asked = gpus.count if gpus is not None else 0
    if told is None or len(told) < claim.nodes or claim.offering.gpus == 0 or (here and asked == 0):
        return None
    used: list[float] = []
    for beat, activity in told:
        found = means(activity.utilization, wanted.over_s)
        if beat.phase != "training" or not beat.trained_s >= wanted.after_s + wanted.over_s:
            return None
        if found is None or len(found) < max(claim.offering.gpus, activity.devices):
            return None  # There are some that cannot be read.
        # Somebody's own computer may have more of them than the job. Which are its, nobody tells: it used none more
        # than those that were used most.
        used += sorted(found)[-asked:] if here else found
    mean = sum(used) / len(used)
    if mean >= wanted.value:
        return None
    whose = "its accelerator was" if len(used) == 1 else f"its {len(used)} accelerators were"
    return f"{whose} used {mean:.0%} over {span_text(wanted.over_s)}"


def fresh(beat: Stamped[Heartbeat], now: datetime) -> bool:
    """Whether it says anything about now: of a training that was heard a moment ago."""
    return _heard(beat, now) and beat.value.phase == "training"


def _heard(beat: Stamped[Heartbeat], now: datetime) -> bool:
    # What is no number is neither long enough nor young enough.
    return (now - beat.modified).total_seconds() <= _FRESH_BEATS * beat.value.interval_s


def _told(job: JobSnapshot, claim: Claim, now: datetime) -> list[tuple[Heartbeat, Activity]] | None:
    """What each rank tells that does not wait; None where all wait, or one does something else, does not tell what, or
    was not heard just now.

    One that waits to be allowed to train, or for other ranks, does what it should. Those it waits for may not.
    """
    found = []
    for rank in range(claim.nodes):
        beat = job.heartbeat_of(claim, rank)
        if beat is None or not _heard(beat, now):
            return None
        phase, activity = beat.value.phase, beat.value.activity
        if phase == "waiting" or (activity is not None and activity.waits):
            continue
        if phase not in ("training", *_EARLIER) or activity is None:
            return None
        found.append((beat.value, activity))
    return found or None


def _earlier(told: list[tuple[Heartbeat, Activity]]) -> str:
    """What is done by those that do not train yet, in words."""
    return ", ".join(phase for phase in _EARLIER if any(beat.phase == phase for beat, _ in told))


def _stands_still(wanted: Stall, beat: Heartbeat, activity: Activity, gpus: int) -> bool:
    span_s, trains = wanted.span_s, beat.phase == "training"
    # Before the training nobody counts its age; what was silent for so long is no younger.
    if not (beat.trained_s if trains else activity.silent_s) >= wanted.after_s:
        return False
    if not activity.silent_s >= span_s or activity.idle_s is None:
        return False
    if not activity.idle_s >= span_s and not activity.silent_s >= span_s + wanted.working_s:
        return False
    if not trains:
        return True  # Its accelerators have nothing to do yet.
    if not gpus and not activity.devices:
        # Nothing but processors, and they do nothing.
        return activity.idle_s >= span_s
    return _quiet(wanted, activity, gpus, wanted.windows)


def _quiet(wanted: Stall, activity: Activity, gpus: int, windows: int) -> bool:
    """Whether all accelerators are known to have done nothing in the last `windows`."""
    return quiet(activity.utilization, wanted.window_s, windows, wanted.below, max(gpus, activity.devices))
