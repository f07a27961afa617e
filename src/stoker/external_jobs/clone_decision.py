"""Whether a training job of SageMaker's that is over goes on as a clone. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from stoker.core import policy_rules
from stoker.core.policy_rules import Finding, Subject
from stoker.external_jobs.clone_chain import Cloning, GaveUp, Stopping
from stoker.external_jobs.clone_request import clone_name, has_room
from stoker.external_jobs.failure_diagnosis import Cause, diagnose
from stoker.external_jobs.snapshot import (
    NO_ROOM,
    ON_DEMAND,
    Clone,
    ForeignPlan,
    Note,
    Sight,
    against_a_clone,
    bounds_of,
    may_go_on,
    may_leave_spot,
)
from stoker.external_jobs.training_job import MAX_WAIT, TrainingJob
from stoker.model.durations import span_text
from stoker.model.observed import Known, Unknown
from stoker.model.policy import House

# What was over for so long has been seen by its owner.
_LATE_S = 86400.0
# A request to stop that nobody saw answered is taken for ours where SageMaker began to stop the job at the time that
# it was written down, right before it was sent. Store and SageMaker have clocks of their own: a minute is more than
# they are apart, and up to that moment the job was seen in progress. Afterwards a request may take as long as a client
# tries it.
_EARLY_S = 60.0
_WITHIN_S = 300.0
_BUDGET_S = 300.0
_BEFORE = "it was over before the policy was about jobs here"
# Nobody sees a job end and starts it again by hand in less.
_BY_HAND_S = 300.0


def after_the_end(sight: Sight, house: House, subject: Subject, now: datetime) -> ForeignPlan:
    """What follows the end of a job, once."""
    job, family = sight.job, sight.family
    meant = family.clones.get(job.name)
    if meant is not None:
        if meant.name in family.made:
            return ForeignPlan(settled=True, note=f"goes on as {meant.name}")
        if job.name in family.gave_up:
            return ForeignPlan(settled=True, note=f"does not go on: {family.gave_up[job.name].rule}")
        if not _wanted(house):
            return _gave_up(
                sight, "unwanted", f"the policy wants no clones any more, and {meant.name} was not made yet"
            )
        if _is_late(sight, now):
            return _gave_up(sight, "late", f"{meant.name} could not be made for a day")
        return _launched(sight, house, meant, f"{meant.rule}: as {meant.name}", now)
    if job.name in family.gave_up:
        return ForeignPlan(settled=True, note=f"does not go on: {family.gave_up[job.name].rule}")
    stop = family.stops.get(job.name)
    stopped = not job.exceeded and (job.stop_asked_at is not None or job.status == "Stopped")
    if job.status == "Completed" or (stop is None and stopped) or (stop is not None and not stop.after):
        return ForeignPlan(settled=True)
    if stop is not None:
        match _whose_end(sight):
            case "its own":
                stop = None
            case "others":
                return ForeignPlan(settled=True)
            case "unclear":
                told = (
                    f"it was to be stopped so that it goes on ({stop.rule}), and it is not known whether that ended it"
                )
                return _gave_up(sight, "unheard", told)
    if stop is None and job.exceeded:
        return _outlasted(sight, house, subject, now)
    if not _wanted(house):
        if stop is not None:
            return _gave_up(sight, "unwanted", "it was stopped to go on, and the policy wants no clones any more")
        return ForeignPlan(settled=True)
    if stop is not None and job.status == "Stopped":
        return _as_meant(sight, house, subject, stop, now)
    return _failed(sight, house, subject, now, stop)


def may_be_resumed(sight: Sight, now: datetime) -> bool:
    """Whether somebody may have started it again by hand, from where it was, before its clone is made."""
    ended = sight.job.ended_at
    return bool(sight.job.checkpoints) and ended is not None and (now - ended).total_seconds() > _BY_HAND_S


def _as_meant(sight: Sight, house: House, subject: Subject, stop: Stopping, now: datetime) -> ForeignPlan:
    """It was stopped so that it can go on."""
    if stop.after != ON_DEMAND:
        return _with_bounds(sight, house, subject, Cause("machine", "restart", f"ended by {stop.rule}"), now)
    if _is_late(sight, now):
        return _gave_up(sight, "late", "it has been over for too long")
    return _cloned(sight, house, Cause("machine", ON_DEMAND, "it goes on without spot"), now)


def at_its_bound(job: TrainingJob) -> str:
    """That SageMaker ended it at a bound of its own, in words; empty where it did not."""
    return f"SageMaker ended it: its {job.exceeded} are over" if job.exceeded else ""


def _outlasted(sight: Sight, house: House, subject: Subject, now: datetime) -> ForeignPlan:
    """SageMaker ended it at a bound of its own. What waited for spot goes on without, where the house says so."""
    job, bounds, ended = sight.job, bounds_of(house, subject), at_its_bound(sight.job)
    waited = job.exceeded == MAX_WAIT and "spot_wait" in bounds.by_rule
    if not waited or not may_leave_spot(sight, house, now):
        return ForeignPlan(settled=True, note=ended)
    if not _was_ours(sight):
        return _gave_up(sight, "before", _BEFORE)
    if _is_late(sight, now):
        return _gave_up(sight, "late", f"it has been over for too long; {ended}")
    cause = Cause("machine", ON_DEMAND, f"{bounds.named('spot_wait')}: {ended}; it goes on without spot")
    return _cloned(sight, house, cause, now)


def _failed(sight: Sight, house: House, subject: Subject, now: datetime, stop: Stopping | None) -> ForeignPlan:
    job = sight.job
    if not _was_ours(sight):
        return _gave_up(sight, "before", _BEFORE)
    if not isinstance(sight.tail, Known):
        error = f": {sight.tail.error}" if sight.tail is not None else ""
        if _is_late(sight, now):
            return _gave_up(sight, "unread", f"its log could not be read for a day{error}")
        return ForeignPlan(look_in_s=0.0, note=f"its log cannot be read, so it is not known why it failed{error}")
    cause = diagnose(job.failure, sight.tail.value, policy_rules.that_count(house, subject, "failure"))
    if cause.blame == "script":
        return _gave_up(sight, cause.rule, cause.reason)
    if stop is not None:
        return _as_meant(sight, house, subject, stop, now)
    least_s = bounds_of(house, subject).spec.retry.min_runtime_s
    if cause.blame != "house" and job.trained_s(now) < least_s:
        trained = f"it had trained for {span_text(job.trained_s(now))}, less than {span_text(least_s)}"
        return _gave_up(sight, "too-short", f"{trained}; {cause.reason}")
    if not job.checkpoints and cause.blame == "unexplained":
        return _gave_up(sight, "no-checkpoints", f"it saves no checkpoints to go on from; {cause.reason}")
    return _with_bounds(sight, house, subject, cause, now)


def _with_bounds(sight: Sight, house: House, subject: Subject, cause: Cause, now: datetime) -> ForeignPlan:
    why_not = may_go_on(sight, house, subject)
    if why_not:
        return _gave_up(sight, "bounded", f"{why_not}; {cause.reason}")
    if _is_late(sight, now):
        return _gave_up(sight, "late", f"it has been over for too long; {cause.reason}")
    return _cloned(sight, house, cause, now)


def _cloned(sight: Sight, house: House, cause: Cause, now: datetime) -> ForeignPlan:
    job, number = sight.job, max(len(sight.family.clones), sight.job.clone) + 1
    name = clone_name(job.name, job.created_at)
    spot = job.spot and cause.rule != ON_DEMAND
    return _launched(sight, house, Cloning(job.name, name, number, cause.rule, spot), cause.reason, now)


def _launched(sight: Sight, house: House, meant: Cloning, reason: str, now: datetime) -> ForeignPlan:
    """A rule that would refuse it does so now, as when a job is resumed. A budget that is spent only keeps it back."""
    if not has_room(sight.job.tags):
        return _gave_up(sight, "no-room", f"{NO_ROOM}; {reason}")
    if isinstance(sight.resumed_as, Unknown):
        told = f"waits to go on: it is not known whether it was started again by hand: {sight.resumed_as.error}"
        return ForeignPlan(look_in_s=0.0, note=told)
    if sight.resumed_as is not None and sight.resumed_as.value:
        told = f"{sight.resumed_as.value} goes on from its checkpoints already; {reason}"
        return _gave_up(sight, "resumed-by-owner", told)
    against = against_a_clone(sight, house, now, spot=meant.spot)
    if isinstance(against, Finding):
        return _gave_up(sight, against.code, str(against))
    if against is not None:
        return ForeignPlan(look_in_s=_BUDGET_S, note=f"waits to go on: {against.reason}")
    return ForeignPlan((Clone(meant, reason),), note=f"goes on as {meant.name}")


def _gave_up(sight: Sight, rule: str, reason: str) -> ForeignPlan:
    job, family = sight.job.name, sight.family
    stop = family.stops.get(job)
    meant = job in family.clones or (stop is not None and bool(stop.after))
    return ForeignPlan((Note(GaveUp(job, rule, meant), reason),), note=reason)


def _whose_end(sight: Sight) -> Literal["ours", "others", "its own", "unclear"]:
    """Who ended a job that was to be stopped so that it goes on."""
    family, job = sight.family, sight.job
    if job.name in family.heard:
        return "ours"
    meant_at, began_at = family.stops_at.get(job.name), job.stop_asked_at
    if job.exceeded or (began_at is None and job.status == "Failed"):
        return "its own"
    if meant_at is None or began_at is None:
        return "unclear"
    after_s = (began_at - meant_at).total_seconds()
    if after_s < -_EARLY_S:
        return "others"
    return "ours" if after_s <= _WITHIN_S and job.name not in family.unheard else "unclear"


def _wanted(house: House) -> bool:
    return house.sagemaker is not None and house.sagemaker.clone


def _was_ours(sight: Sight) -> bool:
    """Over since the house wanted that. What ended before is its owner's."""
    ended, wanted = sight.job.ended_at, sight.wanted_since
    return ended is not None and wanted is not None and ended >= wanted


def _is_late(sight: Sight, now: datetime) -> bool:
    ended = sight.job.ended_at
    return ended is None or (now - ended).total_seconds() > _LATE_S
