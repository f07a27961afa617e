"""Decide whether a job is stalled, or wastes its accelerators. Pure.

Neither is ever concluded from missing data.
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
from stoker.model.policy import StallRule, UtilizationRule
from stoker.model.usage_series import LONGEST_S, all_idle, device_means

# A heartbeat older than this many of its intervals says nothing about the present.
_FRESH_BEATS = 6
# Phases before the training that no other limit bounds. Saving and flushing have limits of their own.
_EARLIER: tuple[AgentPhase, ...] = ("setup", "restoring")
# A job that once took an hour for a step may take this many times as long for another, whatever `steps` says.
_STEP_FACTOR = 2.0
# Numbers that `limits.stall` does not set.
_DEFAULTS = StallRule()


@dataclass(frozen=True)
class _Rank:
    """The report of one rank that does not wait."""

    beat: Heartbeat
    activity: Activity
    # Some rank of the job reports steps: then lines of the log do not count as progress.
    by_steps: bool

    @property
    def trains(self) -> bool:
        return self.beat.phase == "training"

    @property
    def progress_s(self) -> float:
        """Seconds since its last progress; infinite if other ranks report that."""
        if not self.trains or not self.by_steps:
            return self.activity.silent_s
        ages = [age for age in (self.activity.stepped_s, self.activity.released_s) if age is not None]
        # NaN stays NaN: it compares neither as long enough nor as short enough.
        return next((age for age in ages if math.isnan(age)), min(ages, default=math.inf))

    def is_idle(self, window_s: float, windows: int, above: float) -> bool:
        """Return whether its processors, disks and network are known to have been idle."""
        # For older times the mean of a coarse period is enough: work only ever gives a job more time.
        return all_idle(self.activity.work, window_s, windows, above, 1, hidden=False)

    def is_saving(self, within_s: float) -> bool:
        saving_s = self.activity.saving_s
        return saving_s is not None and not saving_s >= within_s


def stall_reason(wanted: StallRule, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    """Describe the stall; None if there is none, or that is not known.

    Every rank must be stalled, or wait for stalled ranks.
    """
    ranks = _reports(job, claim, now)
    if ranks is None or _debugged(ranks):
        return None
    if all(_is_stalled(wanted, rank, claim.offering.gpus, _progress_s(ranks)) for rank in ranks):
        return _stall_text(wanted, ranks)
    return _stuck(wanted, ranks)


def begins_to_stall(wanted: StallRule, job: JobSnapshot, claim: Claim, now: datetime) -> bool:
    """Return whether a training made no progress in the newest window, but not yet for all windows.

    Processors, disks and network do not count here: a hanging training may keep them busy.
    """
    ranks = _reports(job, claim, now)
    if ranks is None or not all(rank.trains for rank in ranks) or _debugged(ranks):
        return False

    def are_idle(windows: int) -> bool:
        return all(_accelerators_idle(wanted, rank.activity, claim.offering.gpus, windows) for rank in ranks)

    silent_s = _progress_s(ranks)
    if not silent_s >= wanted.window_s or not are_idle(1):
        return False
    # Unreadable windows never become a stall, so they are not waited for.
    known = all(device_means(rank.activity.utilization, wanted.span_s) is not None for rank in ranks)
    return silent_s < wanted.span_s or (known and not are_idle(wanted.windows))


def no_progress_reason(longest_s: float, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    """As `stall_reason`, by the job's own `limits.stall`, whatever its machines do meanwhile. Before the training the
    machines must also be idle."""
    ranks = _reports(job, claim, now)
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
    """Return the seconds since any rank made progress; 0 if unknown."""
    ranks = _reports(job, claim, now)
    return _progress_s(ranks) if ranks is not None else 0.0


def debugged_for_s(job: JobSnapshot, claim: Claim) -> tuple[int, float] | None:
    """Return the rank with the longest debugger session, and its duration; None if there is none."""
    found = []
    for rank in range(claim.nodes):
        beat = job.heartbeat_of(claim, rank)
        activity = beat.value.activity if beat is not None else None
        if activity is not None and activity.debugged_s is not None:
            found.append((activity.debugged_s, rank))
    return (max(found)[1], max(found)[0]) if found else None


def low_use_reason(wanted: UtilizationRule, job: JobSnapshot, claim: Claim, now: datetime) -> str | None:
    """Describe a low use of the accelerators; None if it was high enough, or is not known."""
    ranks = _reports(job, claim, now)
    runs_locally, gpus = job.capabilities.runs_locally, job.spec.resources.gpus
    asked = gpus.count if gpus is not None else 0
    if ranks is None or len(ranks) < claim.nodes or claim.offering.gpus == 0 or (runs_locally and asked == 0):
        return None
    if _debugged(ranks):
        return None
    used: list[float] = []
    for rank in ranks:
        found = device_means(rank.activity.utilization, wanted.over_s)
        if not rank.trains or not rank.beat.trained_s >= wanted.after_s + wanted.over_s:
            return None
        if found is None or len(found) < max(claim.offering.gpus, rank.activity.devices):
            return None  # Some accelerators cannot be read.
        # The submitter's own computer may have more accelerators than the job uses. Which ones are the job's is
        # unknown: the busiest ones are taken.
        used += sorted(found)[-asked:] if runs_locally else found
    mean = sum(used) / len(used)
    if mean >= wanted.value:
        return None
    subject = "its accelerator was" if len(used) == 1 else f"its {len(used)} accelerators were"
    return f"{subject} used {mean:.0%} over {span_text(wanted.over_s)}"


def is_fresh(beat: Stamped[Heartbeat], now: datetime) -> bool:
    """Return whether the heartbeat is recent and from a running training."""
    return _is_recent(beat, now) and beat.value.phase == "training"


def _is_recent(beat: Stamped[Heartbeat], now: datetime) -> bool:
    # A NaN interval compares as false, so the heartbeat does not count as recent.
    return (now - beat.modified).total_seconds() <= _FRESH_BEATS * beat.value.interval_s


def _reports(job: JobSnapshot, claim: Claim, now: datetime) -> list[_Rank] | None:
    """The reports of all ranks that do not wait. None if all wait, or if one is in another phase, reports no activity
    or has no recent heartbeat.

    A rank that waits for permission to train or for other ranks is healthy; the ranks it waits for may not be.
    """
    found: list[tuple[Heartbeat, Activity]] = []
    for rank in range(claim.nodes):
        beat = job.heartbeat_of(claim, rank)
        if beat is None or not _is_recent(beat, now):
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
    """Return whether a debugger holds any rank: the others may wait for that one."""
    return any(rank.activity.debugged_s is not None for rank in ranks)


def _earlier(ranks: Sequence[_Rank]) -> str:
    """The phases of ranks that do not train yet, as text."""
    return ", ".join(phase for phase in _EARLIER if any(rank.beat.phase == phase for rank in ranks))


def _progress_s(ranks: Sequence[_Rank]) -> float:
    return min(rank.progress_s for rank in ranks)


def _nothing_new(ranks: Sequence[_Rank]) -> str:
    return "no step" if ranks[0].by_steps else "no step and no line of the log"


def _stall_text(wanted: StallRule, ranks: Sequence[_Rank]) -> str:
    lasts, early = span_text(_progress_s(ranks)), _earlier(ranks)
    idle = all(rank.is_idle(wanted.window_s, wanted.windows, wanted.working_above) for rank in ranks)
    least = "no line of the log" if early else "no step" if ranks[0].by_steps else "no step, no line of the log"
    when = f", before the training ({early})" if early else ""
    if idle:
        return f"{least} and no work for {lasts}{when}"
    return f"{least} for {lasts}{when}; its processors, disks or network are at work, and for too long"


def _is_stalled(wanted: StallRule, rank: _Rank, gpus: int, of_all_s: float) -> bool:
    """Return whether one rank is stalled. `of_all_s` is the age of the last progress of any rank, for a rank that
    reports none itself."""
    span_s, activity = wanted.span_s, rank.activity
    progress_s = of_all_s if rank.progress_s == math.inf else rank.progress_s
    # Before the training there is no training time; the silence is a lower bound of the age.
    if not (rank.beat.trained_s if rank.trains else activity.silent_s) >= wanted.after_s:
        return False
    if not progress_s >= span_s or not activity.work:
        return False
    idle = rank.is_idle(wanted.window_s, wanted.windows, wanted.working_above) and not rank.is_saving(wanted.window_s)
    if not idle and not progress_s >= span_s + wanted.working_s:
        return False
    if not rank.trains:
        return True  # Its accelerators are not in use yet.
    if not gpus and not activity.devices:
        return idle  # Without accelerators the processors must be idle.
    return _accelerators_idle(wanted, activity, gpus, wanted.windows)


def _stuck(wanted: StallRule, ranks: Sequence[_Rank]) -> str | None:
    """Detect a hang with busy accelerators or processors: steps were reported, and no rank reports new ones."""
    if wanted.steps_s is None or not ranks[0].by_steps:
        return None
    # After a single step the script may still be compiling.
    began = all(rank.activity.first_step for rank in ranks if rank.activity.stepped_s is not None)
    for rank in ranks:
        longest_s = max(wanted.steps_s, _STEP_FACTOR * rank.activity.longest_step_s)
        longest_s += wanted.working_s if began else 0.0
        if not rank.trains or not rank.beat.trained_s >= wanted.after_s or not rank.progress_s >= longest_s:
            return None
    if _saves(ranks, wanted.steps_s, wanted.window_s, wanted):
        return None
    return f"no step for {span_text(_progress_s(ranks))}, whatever else it does"


def _saves(ranks: Sequence[_Rank], longest_s: float, within_s: float, wanted: StallRule) -> bool:
    """Return whether a rank saved recently, and has not exceeded the time allowed for other work either."""
    saves = any(rank.is_saving(within_s) for rank in ranks if rank.trains)
    return saves and not _progress_s(ranks) >= longest_s + wanted.working_s


def _accelerators_idle(wanted: StallRule, activity: Activity, gpus: int, windows: int) -> bool:
    """Return whether all accelerators are known to have been idle in the last `windows`."""
    return all_idle(activity.utilization, wanted.window_s, windows, wanted.below, max(gpus, activity.devices))
