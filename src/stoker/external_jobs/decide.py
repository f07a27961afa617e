"""Check an external training job against the policy, and decide the actions. Pure.

The job could not be refused when it was submitted, so `refuse` stops it as soon as it is seen. Nothing is decided from
unknown facts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from stoker.core import audit, budget_verdict, policy_rules
from stoker.core.metric_rules import violation_of_values
from stoker.core.policy_rules import PREFIX, EffectiveLimits, RuleFinding, Subject
from stoker.external_jobs import gpu_alarms
from stoker.external_jobs.clone_chain import CloneChain, JobEnded, JobSeen, RuleWarning, StopCancelled, Stopping
from stoker.external_jobs.clone_decision import decide_after_end, own_limit_text
from stoker.external_jobs.clone_request import has_tag_room
from stoker.external_jobs.gpu_alarms import WantedAlarm
from stoker.external_jobs.snapshot import (
    NEXT_PASS_S,
    NO_ROOM,
    ON_DEMAND,
    CloneJob,
    CreateAlarms,
    ExternalJobAction,
    ExternalJobPlan,
    ExternalJobSnapshot,
    RecordEvent,
    RemoveAlarms,
    StopJob,
    clone_objection,
    clone_obstacle,
    lost_text,
    may_leave_spot,
    policy_limits,
    request_of,
    subject_of,
    without_own_limits,
)
from stoker.external_jobs.unpriced import unpriced_warnings
from stoker.model.durations import span_text
from stoker.model.observed import Known
from stoker.model.policy import Policy, RuleAction

# Metrics and costs change without an event: they are checked this often.
_POLL_S = 300.0
# A job that was asked to stop is `Stopping` at once; descriptions may be this old.
_STOP_VISIBLE_S = 300.0


@dataclass(frozen=True)
class RuleViolation:
    """A rule that a job in progress breaks. `then` is the action; a rule that is not enforced only warns."""

    rule: str
    reason: str
    then: RuleAction
    enforced: bool = True


def decide(snapshot: ExternalJobSnapshot, policy: Policy, now: datetime) -> ExternalJobPlan:
    """Decide the actions for a job. After they are carried out, deciding again gives no more actions."""
    job = snapshot.job
    actions: list[ExternalJobAction] = []
    another = snapshot.chain.is_another(job.name, job.created_at)
    if another or job.name not in snapshot.chain.seen:
        in_progress = job.status == "InProgress"
        actions.append(
            RecordEvent(JobSeen(job.name, in_progress, job.created_at), f"{job.status} when it was first seen")
        )
    if another:
        # Everything in the log is about an earlier job of the same name.
        return ExternalJobPlan(tuple(actions))
    subject = subject_of(job, snapshot.chain, now)
    if job.over:
        if job.name not in snapshot.chain.ended:
            over = JobEnded(job.name, job.status, job.trained_s(now), cost_of(snapshot, now), job.interruptions)
            actions.append(RecordEvent(over, job.failure or own_limit_text(job) or job.status))
        ending = decide_after_end(snapshot, policy, subject, now)
        # The alarms come first: it may take long until a clone can be created.
        actions += (*_alarms(snapshot, ()), *ending.actions)
        settled = ending.settled and not actions and isinstance(snapshot.alarms, Known)
        return replace(ending, actions=tuple(actions), settled=settled)
    if job.status != "InProgress":
        return ExternalJobPlan((*actions, *_alarms(snapshot, ())), note=_stop_note(snapshot.chain, job.name))
    violations = list(_violations(snapshot, policy, subject, now))
    actions += _warnings(snapshot, violations)
    actions += unpriced_warnings(snapshot, policy, subject)
    stop = _stop(snapshot, policy, subject, violations, now)
    if isinstance(stop, RecordEvent):
        assert isinstance(stop.event, RuleWarning)
        if (job.name, stop.event.code) not in snapshot.chain.warned:
            actions.append(stop)
    elif stop is not None:
        actions.append(stop)
    if not isinstance(stop, StopJob) and _may_cancel_stop(snapshot.chain, job.name, now):
        actions.append(RecordEvent(StopCancelled(job.name), "it was not stopped yet, and no rule wants that any more"))
    rules = gpu_alarms.accelerator_rules(policy, subject)
    actions += _alarms(snapshot, gpu_alarms.wanted_alarms(rules, job, snapshot.gpus, snapshot.start, snapshot.topic))
    next_pass_in_s = _next_pass_s(snapshot, policy, subject, now)
    note = stop.reason if stop is not None else _why_without_alarms(snapshot) if rules else ""
    return ExternalJobPlan(tuple(actions), next_pass_in_s=next_pass_in_s, note=note)


def describe_action(action: ExternalJobAction, job: str) -> str:
    """Describe an action about the training job `job` for people."""
    match action:
        case RecordEvent():
            return f"{job}: {action.event.kind}: {action.reason}"
        case StopJob():
            return f"{job}: stop: {action.reason}"
        case CloneJob():
            return f"{job}: clone as {action.event.name}: {action.reason}"
        case CreateAlarms():
            return f"{job}: make {_alarms_text([alarm.name for alarm in action.alarms])}"
        case RemoveAlarms():
            return f"{job}: remove {_alarms_text(list(action.names))}"


def _alarms_text(names: list[str]) -> str:
    return f"the alarm {names[0]}" if len(names) == 1 else f"{len(names)} alarms: {names[0]}, …"


# ── While it is in progress ───────────────────────────────────────────────────────────────────────────────────────────


def _violations(
    snapshot: ExternalJobSnapshot, policy: Policy, subject: Subject, now: datetime
) -> Iterator[RuleViolation]:
    """The rules that the job breaks: by its request, by its limits, and by how it trains."""
    for offering in snapshot.job.offerings(snapshot.price, snapshot.gpus):
        for finding in policy_rules.broken(policy, subject, (offering,)):
            yield _refusal_violation(snapshot, finding)
    yield from _budget_violations(snapshot, policy, subject, now)
    yield from _limit_violations(snapshot, policy_limits(policy, subject), now)
    for rule, bounds in audit.audited_limits(
        policy, without_own_limits(subject), "max_runtime_s", "max_cost", "max_wait_s"
    ):
        for violation in _limit_violations(snapshot, bounds, now, " (audit)" if rule.audit else ""):
            yield replace(violation, then=rule.action, enforced=not rule.audit)
    for rule in policy.rules:
        if rule.metric is None or not snapshot.job.training or not policy_rules.applies(rule, subject):
            continue
        reason = violation_of_values(rule.metric, snapshot.job.metrics, {})
        if reason is not None and snapshot.job.trained_s(now) >= rule.metric.after_s:
            yield _violation(RuleFinding(rule, reason))
    yield from _alarm_violations(snapshot, policy, subject, now)


def _refusal_violation(snapshot: ExternalJobSnapshot, finding: RuleFinding) -> RuleViolation:
    """The violation of a rule that would have refused the job. A job from before the rule continues with a warning, as
    jobs of Stoker do."""
    violation, since, made_at = (
        _violation(finding),
        snapshot.rules_since.get(finding.rule.name),
        snapshot.job.created_at,
    )
    if finding.refuses and (since is None or made_at is None or made_at < since):
        return replace(violation, then="warn", reason=f"{violation.reason}; it was there before the rule, and goes on")
    return violation


def _violation(finding: RuleFinding) -> RuleViolation:
    return RuleViolation(finding.code, str(finding), finding.rule.action, finding.enforced)


def _budget_violations(
    snapshot: ExternalJobSnapshot, policy: Policy, subject: Subject, now: datetime
) -> Iterator[RuleViolation]:
    """The budgets that were spent, and the limits that had no room, before the job began to train. An external job
    cannot be made to wait, so `wait` only warns."""
    if not isinstance(snapshot.budget_state, Known) or snapshot.job.trained_s(now):
        return
    request = request_of(snapshot, snapshot.job.created_at or now)
    for each in budget_verdict.judge(policy, subject, snapshot.budget_state, now, request):
        if isinstance(each, budget_verdict.LaunchDenied):
            yield RuleViolation(each.rule, each.reason, "refuse" if each.refuses else "warn")


def _limit_violations(
    snapshot: ExternalJobSnapshot, bounds: EffectiveLimits, now: datetime, mode: str = ""
) -> Iterator[RuleViolation]:
    limits, job = bounds.spec.limits, snapshot.job
    others = snapshot.chain.others(job.name)
    reached: list[tuple[str, str]] = []
    if limits.max_runtime_s is not None:
        trained_s = job.trained_s(now) + sum(over.trained_s for over in others)
        if trained_s >= limits.max_runtime_s:
            reached.append(("max_runtime", f"{span_text(limits.max_runtime_s)} of training are reached"))
    if limits.max_cost is not None:
        spent = _spent(snapshot, now)
        if spent is not None and spent >= limits.max_cost:
            reached.append(("max_cost", f"${limits.max_cost:g} are reached"))
    if limits.max_wait_s is not None and job.waiting_since is not None:
        waited_s = (now - job.waiting_since).total_seconds()
        if waited_s >= limits.max_wait_s:
            reached.append(("max_wait", f"it waited for a machine for {span_text(waited_s)}"))
    for field, reason in reached:
        if field in bounds.by_rule:
            yield RuleViolation(bounds.rule(field), f"{bounds.named(field)}{mode}: {reason}", "stop")


def _alarm_violations(
    snapshot: ExternalJobSnapshot, policy: Policy, subject: Subject, now: datetime
) -> Iterator[RuleViolation]:
    """The rules whose alarms ring and whose current figures confirm it."""
    if not isinstance(snapshot.alarms, Known) or not isinstance(snapshot.readings, Known) or not snapshot.gpus:
        return
    job, gpus, figures = snapshot.job, snapshot.gpus, snapshot.readings.value
    rules = gpu_alarms.accelerator_rules(policy, subject)
    ringing = {alarm.name for alarm in snapshot.alarms.value if alarm.ringing}
    rung = {each.rule for each in gpu_alarms.wanted_alarms(rules, job, gpus, snapshot.start) if each.name in ringing}
    hangs = any(
        gpu_alarms.begins_to_stall(rule.stall, job, gpus, figures, now)
        or gpu_alarms.violation_text(rule, job, gpus, figures, now) is not None
        for rule in rules
        if rule.stall is not None and not rule.audit and rule.action != "warn"
    )
    # A job that hangs is not judged as wasteful: the stall rule, which would restart it, comes first. Any ringing alarm
    # is a reason to check the stall rules.
    for rule in (rule for rule in rules if (rule.name in rung and not hangs) or (rule.stall is not None and rung)):
        reason = gpu_alarms.violation_text(rule, job, gpus, figures, now)
        if reason is not None:
            yield _violation(RuleFinding(rule, reason))


def _warnings(snapshot: ExternalJobSnapshot, violations: list[RuleViolation]) -> Iterator[RecordEvent]:
    reported = set(snapshot.chain.warned)
    for violation in violations:
        only_warns = not violation.enforced or violation.then == "warn"
        code = violation.rule if violation.enforced else f"{violation.rule}/audit"
        if only_warns and (snapshot.job.name, code) not in reported:
            reported.add((snapshot.job.name, code))
            yield RecordEvent(RuleWarning(snapshot.job.name, violation.rule, code), violation.reason)


def _stop(
    snapshot: ExternalJobSnapshot, policy: Policy, subject: Subject, violations: list[RuleViolation], now: datetime
) -> StopJob | RecordEvent | None:
    """The stop by the first rule that wants one. Rules that end the job for good come before those that restart it.
    Returns a warning instead where the job would be stopped to be cloned, and cannot be cloned."""
    job = snapshot.job
    counting = [violation for violation in violations if violation.enforced and violation.then != "warn"]
    for violation in sorted(counting, key=lambda violation: violation.then == "restart"):
        # A job without checkpoints, or that may not be cloned, is stopped without a restart.
        again = violation.then == "restart" and job.checkpoints and not clone_obstacle(snapshot, policy, subject)
        again = again and has_tag_room(job.tags)
        # A spent budget only delays the clone, and the job is not progressing anyway.
        again = again and not isinstance(clone_objection(snapshot, policy, now, spot=job.spot), RuleFinding)
        return StopJob(Stopping(job.name, violation.rule, "restart" if again else ""), violation.reason)
    return _stop_to_leave_spot(snapshot, policy, subject, now)


def _may_cancel_stop(chain: CloneChain, job: str, now: datetime) -> bool:
    """Return whether SageMaker never received the intended stop. Its descriptions may lag a little."""
    asked_at = chain.stops_at.get(job)
    return asked_at is not None and (now - asked_at).total_seconds() > _STOP_VISIBLE_S


def _stop_to_leave_spot(
    snapshot: ExternalJobSnapshot, policy: Policy, subject: Subject, now: datetime
) -> StopJob | RecordEvent | None:
    """The stop of a job that is to continue without spot. Returns a warning instead where it may not: then it stays on
    spot."""
    stop = _spot_stop(snapshot, policy, subject, now)
    if stop is None:
        return None
    against = clone_objection(snapshot, policy, now, spot=False)
    why = str(against) if isinstance(against, RuleFinding) else "" if against is None else against.reason
    why = why if has_tag_room(snapshot.job.tags) else NO_ROOM
    why = lost_text(snapshot) if snapshot.lost else why
    if not why:
        return stop
    rule = stop.event.rule
    return RecordEvent(
        RuleWarning(snapshot.job.name, rule, f"{rule}/stays"),
        f"{stop.reason.partition(';')[0]}; it stays on spot: {why}",
    )


def _spot_stop(snapshot: ExternalJobSnapshot, policy: Policy, subject: Subject, now: datetime) -> StopJob | None:
    """The stop of a job whose spot machines were reclaimed too often, or are not available."""
    job = snapshot.job
    # A job that has trained, and would lose its progress, waits instead.
    if not may_leave_spot(snapshot, policy, now):
        return None
    bounds = policy_limits(policy, subject)
    limit_s = bounds.spec.retry.spot_wait_s
    if "spot_wait" in bounds.by_rule and limit_s is not None and job.waiting_since is not None:
        waited_s = (now - job.waiting_since).total_seconds()
        if waited_s >= limit_s:
            waited = span_text(waited_s)
            text = f"{bounds.named('spot_wait')}: it waited for spot machines for {waited}; it goes on without"
            return StopJob(Stopping(job.name, bounds.rule("spot_wait"), ON_DEMAND), text)
    most = bounds.spec.retry.on_demand_after
    lost = job.interruptions + sum(over.interruptions for over in snapshot.chain.others(job.name))
    if most is None or lost <= most:
        return None
    rules = policy_rules.enforced_rules(policy, subject, "spot")
    rule = f"{PREFIX}{rules[-1].name}" if rules else ON_DEMAND
    text = f"its spot machines were reclaimed {lost} times; it goes on without"
    return StopJob(Stopping(job.name, rule, ON_DEMAND), text)


def _alarms(snapshot: ExternalJobSnapshot, wanted: tuple[WantedAlarm, ...]) -> Iterator[ExternalJobAction]:
    """The actions that turn the existing alarms into the wanted ones; none where the existing ones are unknown."""
    if not isinstance(snapshot.alarms, Known):
        return
    existing = snapshot.alarms.value
    missing = tuple(each for each in wanted if not any(alarm.is_as(each) for alarm in existing))
    if missing:
        yield CreateAlarms(missing)
    needless = tuple(sorted({alarm.name for alarm in existing} - {each.name for each in wanted}))
    if needless:
        yield RemoveAlarms(needless)


def _why_without_alarms(snapshot: ExternalJobSnapshot) -> str:
    """The reason why a training job has no alarms; empty where it has them or needs none."""
    job = snapshot.job
    if not job.training or snapshot.gpus is not None:
        return ""
    if len(job.machines) > 1:
        return "no alarms: its hosts are of several types, and it is unknown which host has which"
    machine = job.machines[0] if job.machines else "its machines"
    return f"no alarms: there is no way to read the accelerators of {machine}"


def _stop_note(chain: CloneChain, job: str) -> str:
    stop = chain.stops.get(job)
    return f"asked to stop: {stop.rule}" if stop is not None else ""


def _next_pass_s(snapshot: ExternalJobSnapshot, policy: Policy, subject: Subject, now: datetime) -> float:
    bounds = policy_limits(policy, subject)
    limits, due = bounds.spec.limits, [NEXT_PASS_S]
    if policy.about("metric"):
        due.append(_POLL_S)
    if limits.max_runtime_s is not None and snapshot.job.training_since is not None:
        others = sum(over.trained_s for over in snapshot.chain.others(snapshot.job.name))
        due.append(limits.max_runtime_s - snapshot.job.trained_s(now) - others)
    if snapshot.job.waiting_since is not None:
        waited_s = (now - snapshot.job.waiting_since).total_seconds()
        longest = (limits.max_wait_s, bounds.spec.retry.spot_wait_s)
        due += [max(60.0, limit_s - waited_s) for limit_s in longest if limit_s is not None]
    if limits.max_cost is not None:
        due.append(_POLL_S)
    return max(0.0, min(due))


def cost_of(snapshot: ExternalJobSnapshot, now: datetime) -> float | None:
    """The job's cost until now; None where it is unknown. SageMaker reports the savings of managed spot only at the
    end, as seconds that are not billed."""
    job = snapshot.job
    paid_s = job.billable_s if job.over else None if job.spot else job.trained_s(now)
    if snapshot.price is None or paid_s is None:
        return None
    return snapshot.price * job.nodes * paid_s / 3600


def _spent(snapshot: ExternalJobSnapshot, now: datetime) -> float | None:
    """The cost of the whole chain until now; None where a part of it is unknown."""
    costs = [cost_of(snapshot, now), *(over.cost for over in snapshot.chain.others(snapshot.job.name))]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None
