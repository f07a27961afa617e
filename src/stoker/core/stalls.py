"""Decide whether a job stands still, or wastes its accelerators. Pure.

Neither is ever concluded from anything that is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from stoker.core.snapshot import JobSnapshot
from stoker.model.durations import span_text
from stoker.model.job_state import Claim
from stoker.model.node_facts import Activity, AgentPhase, Heartbeat
from stoker.model.observed import Stamped
from stoker.model.policy import Stall, Utilization
from stoker.model.usage_series import LONGEST_S, means, quiet

# A heartbeat older than this many of its intervals says nothing about now.
_FRESH_BEATS = 6
# Before its training a node does what nothing else bounds. Later, saving and flushing have bounds of their own.
_EARLIER: tuple[AgentPhase, ...] = ("setup", "restoring")
# A job that once took an hour for a step may take this many times as long for another, whatever `steps` says.
_STEP_FACTOR = 2.0
# The numbers that a job's own bound (`limits.stall`) does not name.
_DEFAULTS = Stall()


@dataclass(frozen=True)
class _Rank:
    """What one rank tells that does not wait."""

    beat: Heartbeat
    activity: Activity
    # Its job reports steps, on whichever rank: lines of the log are no progress then.
    by_steps: bool

    @property
    def trains(self) -> bool:
        return self.beat.phase == "training"

    @property
    def progress_s(self) -> float:
        """Since when nothing of it moved on; infinite where other ranks tell that."""
        if not self.trains or not self.by_steps:
            return self.activity.silent_s
        ages = [age for age in (self.activity.stepped_s, self.activity.released_s) if age is not None]
        # What is no number stays none: it is neither long enough nor short enough.
        return next((age for age in ages if math.isnan(age)), min(ages, default=math.inf))

    def is_idle(self, window_s: float, windows: int, above: float) -> bool:
        """Whether its processors, disks and network are known to have done nothing but twitch."""
        # Of what is long ago, the share of a coarse period is enough: work only ever gives a job more time.
        return quiet(self.activity.work, window_s, windows, above, 1, hidden=False)

    def is_saving(self, within_s: float) -> bool:
        saving_s = self.activity.saving_s
        return saving_s is not None and not saving_s >= within_s


def stalled(wanted: Stall, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    """Return for how long nothing has moved, in words; None where something does, or that cannot be known.

    Every rank must stand still, or wait for those that do.
    """
    ranks = _told(job, claim, now)
    if ranks is None or _debugged(ranks):
        return None
    if all(_stands_still(wanted, rank, claim.offering.gpus, _progress_s(ranks)) for rank in ranks):
        return _idle_words(wanted, ranks)
    return _stuck(wanted, ranks)


def begins_to_stall(wanted: Stall, job: JobSnapshot, claim: Claim, now: datetime) -> bool:
    """Return whether nothing of a training moved in the newest window, and not for all of the windows yet.

    Processors, disks and network do not count here: what is at work beside the accelerators may be what hangs.
    """
    ranks = _told(job, claim, now)
    if ranks is None or not all(rank.trains for rank in ranks) or _debugged(ranks):
        return False

    def is_quiet(windows: int) -> bool:
        return all(_quiet(wanted, rank.activity, claim.offering.gpus, windows) for rank in ranks)

    silent_s = _progress_s(ranks)
    if not silent_s >= wanted.window_s or not is_quiet(1):
        return False
    # Windows that cannot be read never make a stall, so they are not waited for.
    known = all(means(rank.activity.utilization, wanted.span_s) is not None for rank in ranks)
    return silent_s < wanted.span_s or (known and not is_quiet(wanted.windows))


def silent(longest_s: float, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    """As `stalled`, for a job that says itself how long it may go without progress, whatever its machines do meanwhile.
    Before the training it has no say in that: there they must do nothing, either."""
    ranks = _told(job, claim, now)
    if ranks is None or _debugged(ranks):
        return None
    window_s = min(longest_s, LONGEST_S) / _DEFAULTS.windows
    if not all(rank.progress_s >= longest_s for rank in ranks) or _saves(ranks, longest_s, window_s, _DEFAULTS):
        return None
    for rank in ranks:
        idle = rank.trains or rank.is_idle(window_s, _DEFAULTS.windows, _DEFAULTS.working_above)
        if not idle or (rank.trains and not rank.beat.trained_s >= longest_s):
            return None
    early = _earlier(ranks)
    if early:
        return f"limits.stall: no line of the log and no work for {span_text(longest_s)}, before the training ({early})"
    return f"limits.stall: {_nothing_new(ranks)} for {span_text(longest_s)}"


def silent_for_s(job: JobSnapshot, claim: Claim, now: datetime) -> float:
    """Return since when no rank has moved on, as far as they tell; 0 where they do not."""
    ranks = _told(job, claim, now)
    return _progress_s(ranks) if ranks is not None else 0.0


def debugged_for_s(job: JobSnapshot, claim: Claim) -> tuple[int, float] | None:
    """Return the rank that has been held by a debugger for longest, and for how long; None where none is."""
    found = []
    for rank in range(claim.nodes):
        beat = job.heartbeat_of(claim, rank)
        activity = beat.value.activity if beat is not None else None
        if activity is not None and activity.debugged_s is not None:
            found.append((activity.debugged_s, rank))
    return (max(found)[1], max(found)[0]) if found else None


def wasteful(wanted: Utilization, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    """Return how little the accelerators were used, in words; None where it was enough, or that cannot be known."""
    ranks = _told(job, claim, now)
    here, gpus = job.capabilities.here, job.spec.resources.gpus
    asked = gpus.count if gpus is not None else 0
    if ranks is None or len(ranks) < claim.nodes or claim.offering.gpus == 0 or (here and asked == 0):
        return None
    if _debugged(ranks):
        return None
    used: list[float] = []
    for rank in ranks:
        found = means(rank.activity.utilization, wanted.over_s)
        if not rank.trains or not rank.beat.trained_s >= wanted.after_s + wanted.over_s:
            return None
        if found is None or len(found) < max(claim.offering.gpus, rank.activity.devices):
            return None  # There are some that cannot be read.
        # A submitter's own computer may have more of them than the job. Which are the job's is not known: it used no
        # others than those that were used most.
        used += sorted(found)[-asked:] if here else found
    mean = sum(used) / len(used)
    if mean >= wanted.value:
        return None
    whose = "its accelerator was" if len(used) == 1 else f"its {len(used)} accelerators were"
    return f"{whose} used {mean:.0%} over {span_text(wanted.over_s)}"


def fresh(beat: Stamped[Heartbeat], now: datetime) -> bool:
    """Return whether it says anything about now: of a training that was heard a moment ago."""
    return _heard(beat, now) and beat.value.phase == "training"


def _heard(beat: Stamped[Heartbeat], now: datetime) -> bool:
    # What is no number is neither long enough nor young enough.
    return (now - beat.modified).total_seconds() <= _FRESH_BEATS * beat.value.interval_s


def _told(job: JobSnapshot, claim: Claim, now: datetime) -> list[_Rank] | None:
    """What each rank tells that does not wait; None where all wait, or one does something else, does not tell what, or
    was not heard just now.

    A rank that waits to be allowed to train, or for other ranks, does what it should. Those it waits for may not.
    """
    found: list[tuple[Heartbeat, Activity]] = []
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
    by_steps = any(beat.phase == "training" and activity.stepped_s is not None for beat, activity in found)
    return [_Rank(beat, activity, by_steps) for beat, activity in found] or None


def _debugged(ranks: Sequence[_Rank]) -> bool:
    """Whether a person looks into any of them: the others may wait for that one."""
    return any(rank.activity.debugged_s is not None for rank in ranks)


def _earlier(ranks: Sequence[_Rank]) -> str:
    """What is done by those that do not train yet, in words."""
    return ", ".join(phase for phase in _EARLIER if any(rank.beat.phase == phase for rank in ranks))


def _progress_s(ranks: Sequence[_Rank]) -> float:
    return min(rank.progress_s for rank in ranks)


def _nothing_new(ranks: Sequence[_Rank]) -> str:
    return "no step" if ranks[0].by_steps else "no step and no line of the log"


def _idle_words(wanted: Stall, ranks: Sequence[_Rank]) -> str:
    lasts, early = span_text(_progress_s(ranks)), _earlier(ranks)
    idle = all(rank.is_idle(wanted.window_s, wanted.windows, wanted.working_above) for rank in ranks)
    least = "no line of the log" if early else "no step" if ranks[0].by_steps else "no step, no line of the log"
    when = f", before the training ({early})" if early else ""
    if idle:
        return f"{least} and no work for {lasts}{when}"
    return f"{least} for {lasts}{when}; its processors, disks or network are at work, and for too long"


def _stands_still(wanted: Stall, rank: _Rank, gpus: int, of_all_s: float) -> bool:
    """`of_all_s` is the progress of all ranks, for one that reports none itself."""
    span_s, activity = wanted.span_s, rank.activity
    progress_s = of_all_s if rank.progress_s == math.inf else rank.progress_s
    # Before the training its age is not counted; what was silent for so long is no younger.
    if not (rank.beat.trained_s if rank.trains else activity.silent_s) >= wanted.after_s:
        return False
    if not progress_s >= span_s or not activity.work:
        return False
    idle = rank.is_idle(wanted.window_s, wanted.windows, wanted.working_above) and not rank.is_saving(wanted.window_s)
    if not idle and not progress_s >= span_s + wanted.working_s:
        return False
    if not rank.trains:
        return True  # Its accelerators have nothing to do yet.
    if not gpus and not activity.devices:
        return idle  # Nothing but processors, and they must do nothing.
    return _quiet(wanted, activity, gpus, wanted.windows)


def _stuck(wanted: Stall, ranks: Sequence[_Rank]) -> str | None:
    """As a hang in which accelerators or processors spin: steps were reported, and there are no more, on any rank."""
    if wanted.steps_s is None or not ranks[0].by_steps:
        return None
    # A job that has reported a single step may still compile what makes the next.
    began = all(rank.activity.first_step for rank in ranks if rank.activity.stepped_s is not None)
    for rank in ranks:
        longest_s = max(wanted.steps_s, _STEP_FACTOR * rank.activity.longest_step_s)
        longest_s += wanted.working_s if began else 0.0
        if not rank.trains or not rank.beat.trained_s >= wanted.after_s or not rank.progress_s >= longest_s:
            return None
    if _saves(ranks, wanted.steps_s, wanted.window_s, wanted):
        return None
    return f"no step for {span_text(_progress_s(ranks))}, whatever else it does"


def _saves(ranks: Sequence[_Rank], longest_s: float, within_s: float, wanted: Stall) -> bool:
    """Whether a rank has been saving just now, and has had no more time for that than others have for other work."""
    saves = any(rank.is_saving(within_s) for rank in ranks if rank.trains)
    return saves and not _progress_s(ranks) >= longest_s + wanted.working_s


def _quiet(wanted: Stall, activity: Activity, gpus: int, windows: int) -> bool:
    """Whether all accelerators are known to have done nothing in the last `windows`."""
    return quiet(activity.utilization, wanted.window_s, windows, wanted.below, max(gpus, activity.devices))
