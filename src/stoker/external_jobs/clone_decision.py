"""Decide whether an ended training job continues as a clone. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from stoker.core import policy_rules
from stoker.core.policy_rules import RuleFinding, Subject
from stoker.external_jobs.clone_chain import Cloning, GaveUp, Stopping
from stoker.external_jobs.clone_request import clone_name, has_tag_room
from stoker.external_jobs.failure_diagnosis import INTERNAL, ExternalJobFailure, diagnose
from stoker.external_jobs.snapshot import (
    LOST,
    NO_ROOM,
    ON_DEMAND,
    CloneJob,
    ExternalJobPlan,
    ExternalJobSnapshot,
    RecordEvent,
    clone_objection,
    clone_obstacle,
    lost_text,
    may_leave_spot,
    policy_limits,
)
from stoker.external_jobs.training_job import MAX_WAIT, ExternalJob
from stoker.model.durations import span_text
from stoker.model.observed import Known, Unknown
from stoker.model.policy import Policy

# The owner of a job has seen its end after this time: it is not cloned any more.
_LATE_S = 86400.0
# A stop whose reply was lost counts as this governor's if SageMaker began to stop the job at about the time when the
# intent was written, right before the request. The first value covers the difference between the clocks of the store
# and SageMaker, which is less than a minute; up to the write, the job was seen in progress. The second covers the
# retries of a request by its client.
_CLOCK_SKEW_S = 60.0
_STOP_TAKES_S = 300.0
_BUDGET_S = 300.0
_ENDED_BEFORE_POLICY = "it was over before the policy was about jobs here"
# A person needs longer than this to notice the end of a job and restart it by hand.
_BY_HAND_S = 300.0


def decide_after_end(snapshot: ExternalJobSnapshot, policy: Policy, subject: Subject, now: datetime) -> ExternalJobPlan:
    """Decide what follows the end of a job, once."""
    job, chain = snapshot.job, snapshot.chain
    meant = chain.clones.get(job.name)
    if meant is not None:
        if meant.name in chain.made:
            return ExternalJobPlan(settled=True, note=f"goes on as {meant.name}")
        if job.name in chain.gave_up:
            return ExternalJobPlan(settled=True, note=f"does not go on: {chain.gave_up[job.name].rule}")
        if not _wants_clones(policy):
            return _give_up(
                snapshot, "unwanted", f"the policy wants no clones any more, and {meant.name} was not made yet"
            )
        if _is_late(snapshot, now):
            return _give_up(snapshot, "late", f"{meant.name} could not be made for a day")
        return _clone_plan(snapshot, policy, meant, f"{meant.rule}: as {meant.name}", now)
    if job.name in chain.gave_up:
        return ExternalJobPlan(settled=True, note=f"does not go on: {chain.gave_up[job.name].rule}")
    stop = chain.stops.get(job.name)
    stopped = not job.exceeded and (job.stop_asked_at is not None or job.status == "Stopped")
    if job.status == "Completed" or (stop is None and stopped) or (stop is not None and not stop.after):
        return ExternalJobPlan(settled=True)
    if stop is not None:
        match _end_cause(snapshot):
            case "the job itself":
                stop = None
            case "owner":
                return ExternalJobPlan(settled=True)
            case "unclear":
                reason_text = (
                    f"it was to be stopped so that it goes on ({stop.rule}), and it is not known whether that ended it"
                )
                return _give_up(snapshot, "stop-unclear", reason_text)
    if stop is None and job.exceeded:
        return _ended_at_own_limit(snapshot, policy, subject, now)
    if not _wants_clones(policy):
        if stop is not None:
            return _give_up(snapshot, "unwanted", "it was stopped to go on, and the policy wants no clones any more")
        return ExternalJobPlan(settled=True)
    if stop is not None and job.status == "Stopped":
        return _clone_after_stop(snapshot, policy, subject, stop, now)
    return _after_failure(snapshot, policy, subject, now, stop)


def may_be_resumed_by_owner(snapshot: ExternalJobSnapshot, now: datetime) -> bool:
    """Return whether the owner may have restarted the job by hand from its checkpoints before its clone is made."""
    ended = snapshot.job.ended_at
    return bool(snapshot.job.checkpoints) and ended is not None and (now - ended).total_seconds() > _BY_HAND_S


def _clone_after_stop(
    snapshot: ExternalJobSnapshot, policy: Policy, subject: Subject, stop: Stopping, now: datetime
) -> ExternalJobPlan:
    """The plan for a job that was stopped in order to be cloned."""
    if stop.after != ON_DEMAND:
        return _clone_within_limits(
            snapshot, policy, subject, ExternalJobFailure("machine", "restart", f"ended by {stop.rule}"), now
        )
    if _is_late(snapshot, now):
        return _give_up(snapshot, "late", "it has been over for too long")
    return _new_clone(snapshot, policy, ExternalJobFailure("machine", ON_DEMAND, "it goes on without spot"), now)


def own_limit_text(job: ExternalJob) -> str:
    """The reason of a job that SageMaker ended at the job's own limit; empty for others."""
    return f"SageMaker ended it: its {job.exceeded} are over" if job.exceeded else ""


def _ended_at_own_limit(
    snapshot: ExternalJobSnapshot, policy: Policy, subject: Subject, now: datetime
) -> ExternalJobPlan:
    """The plan for a job that SageMaker ended at the job's own limit. A job that waited for spot continues without it,
    where the policy says so."""
    job, bounds, ended = snapshot.job, policy_limits(policy, subject), own_limit_text(snapshot.job)
    waited = job.exceeded == MAX_WAIT and "spot_wait" in bounds.by_rule
    if not waited or not may_leave_spot(snapshot, policy, now):
        return ExternalJobPlan(settled=True, note=ended)
    if not _ended_while_governed(snapshot):
        return _give_up(snapshot, "before", _ENDED_BEFORE_POLICY)
    if _is_late(snapshot, now):
        return _give_up(snapshot, "late", f"it has been over for too long; {ended}")
    cause = ExternalJobFailure("machine", ON_DEMAND, f"{bounds.named('spot_wait')}: {ended}; it goes on without spot")
    return _new_clone(snapshot, policy, cause, now)


def _after_failure(
    snapshot: ExternalJobSnapshot, policy: Policy, subject: Subject, now: datetime, stop: Stopping | None
) -> ExternalJobPlan:
    job = snapshot.job
    if not _ended_while_governed(snapshot):
        return _give_up(snapshot, "before", _ENDED_BEFORE_POLICY)
    if not isinstance(snapshot.tail, Known):
        error = f": {snapshot.tail.error}" if snapshot.tail is not None else ""
        if _is_late(snapshot, now):
            return _give_up(snapshot, "unread", f"its log could not be read for a day{error}")
        return ExternalJobPlan(
            next_pass_in_s=0.0, note=f"its log cannot be read, so it is not known why it failed{error}"
        )
    cause = diagnose(job.failure, snapshot.tail.value, policy_rules.enforced_rules(policy, subject, "failure"))
    if cause.blame == "script":
        return _give_up(snapshot, cause.rule, cause.reason)
    if stop is not None:
        return _clone_after_stop(snapshot, policy, subject, stop, now)
    least_s = policy_limits(policy, subject).spec.retry.min_runtime_s
    # SageMaker's own fault at any time, also before the training: CreateTrainingJob's RetryStrategy treats it so, too.
    if cause.blame != "policy" and cause.rule != INTERNAL and job.trained_s(now) < least_s:
        trained = f"it had trained for {span_text(job.trained_s(now))}, less than {span_text(least_s)}"
        return _give_up(snapshot, "too-short", f"{trained}; {cause.reason}")
    if not job.checkpoints and cause.blame == "unexplained":
        return _give_up(snapshot, "no-checkpoints", f"it saves no checkpoints to go on from; {cause.reason}")
    return _clone_within_limits(snapshot, policy, subject, cause, now)


def _clone_within_limits(
    snapshot: ExternalJobSnapshot, policy: Policy, subject: Subject, cause: ExternalJobFailure, now: datetime
) -> ExternalJobPlan:
    why_not = clone_obstacle(snapshot, policy, subject)
    if why_not:
        rule = LOST if why_not == lost_text(snapshot) else "bounded"
        return _give_up(snapshot, rule, f"{why_not}; {cause.reason}")
    if _is_late(snapshot, now):
        return _give_up(snapshot, "late", f"it has been over for too long; {cause.reason}")
    return _new_clone(snapshot, policy, cause, now)


def _new_clone(
    snapshot: ExternalJobSnapshot, policy: Policy, cause: ExternalJobFailure, now: datetime
) -> ExternalJobPlan:
    job, number = snapshot.job, max(len(snapshot.chain.clones), snapshot.job.clone) + 1
    name = clone_name(job.name, job.created_at)
    spot = job.spot and cause.rule != ON_DEMAND
    return _clone_plan(snapshot, policy, Cloning(job.name, name, number, cause.rule, spot), cause.reason, now)


def _clone_plan(
    snapshot: ExternalJobSnapshot, policy: Policy, meant: Cloning, reason: str, now: datetime
) -> ExternalJobPlan:
    """Plan the clone, unless something objects. A rule that would refuse it does so now, as for a resumed job. A spent
    budget only delays it."""
    if not has_tag_room(snapshot.job.tags):
        return _give_up(snapshot, "no-room", f"{NO_ROOM}; {reason}")
    if snapshot.lost:
        return _give_up(snapshot, LOST, f"{lost_text(snapshot)}; {reason}")
    if isinstance(snapshot.resumed_as, Unknown):
        reason_text = (
            f"waits to go on: it is not known whether it was started again by hand: {snapshot.resumed_as.error}"
        )
        return ExternalJobPlan(next_pass_in_s=0.0, note=reason_text)
    if snapshot.resumed_as is not None and snapshot.resumed_as.value:
        reason_text = f"{snapshot.resumed_as.value} goes on from its checkpoints already; {reason}"
        return _give_up(snapshot, "resumed-by-owner", reason_text)
    against = clone_objection(snapshot, policy, now, spot=meant.spot)
    if isinstance(against, RuleFinding):
        return _give_up(snapshot, against.code, str(against))
    if against is not None:
        return ExternalJobPlan(next_pass_in_s=_BUDGET_S, note=f"waits to go on: {against.reason}")
    return ExternalJobPlan((CloneJob(meant, reason),), note=f"goes on as {meant.name}")


def _give_up(snapshot: ExternalJobSnapshot, rule: str, reason: str) -> ExternalJobPlan:
    job, chain = snapshot.job.name, snapshot.chain
    stop = chain.stops.get(job)
    meant = job in chain.clones or (stop is not None and bool(stop.after))
    return ExternalJobPlan((RecordEvent(GaveUp(job, rule, meant), reason),), note=reason)


def _end_cause(snapshot: ExternalJobSnapshot) -> Literal["this-stop", "owner", "the job itself", "unclear"]:
    """The cause of the end of a job that was to be stopped in order to be cloned: this stop, its owner, or the job
    itself."""
    chain, job = snapshot.chain, snapshot.job
    if job.name in chain.accepted_stops:
        return "this-stop"
    meant_at, began_at = chain.stops_at.get(job.name), job.stop_asked_at
    if job.exceeded or (began_at is None and job.status == "Failed"):
        return "the job itself"
    if meant_at is None or began_at is None:
        return "unclear"
    after_s = (began_at - meant_at).total_seconds()
    if after_s < -_CLOCK_SKEW_S:
        return "owner"
    return "this-stop" if after_s <= _STOP_TAKES_S and job.name not in chain.unanswered_stops else "unclear"


def _wants_clones(policy: Policy) -> bool:
    return policy.sagemaker is not None and policy.sagemaker.clone


def _ended_while_governed(snapshot: ExternalJobSnapshot) -> bool:
    """Return whether the job ended after the policy began to govern its region. Earlier jobs are left to their
    owner."""
    ended, wanted = snapshot.job.ended_at, snapshot.wanted_since
    return ended is not None and wanted is not None and ended >= wanted


def _is_late(snapshot: ExternalJobSnapshot, now: datetime) -> bool:
    ended = snapshot.job.ended_at
    return ended is None or (now - ended).total_seconds() > _LATE_S
