"""Whether a training job of SageMaker's that others started obeys the rules of the house, and what follows. Pure.

It could not be refused when it was submitted, so `refuse` stops it as soon as it is seen. Nothing follows from what is
not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from stoker.core import audit, budgets, policy_rules
from stoker.core.metric_rules import broken_by
from stoker.core.policy_rules import PREFIX, Bounded, Finding, Subject
from stoker.external_jobs import gpu_alarms
from stoker.external_jobs.clone_chain import Family, Over, Relented, Seen, Stopping, Told
from stoker.external_jobs.clone_decision import after_the_end, at_its_bound
from stoker.external_jobs.clone_request import has_room
from stoker.external_jobs.gpu_alarms import WantedAlarm
from stoker.external_jobs.snapshot import (
    LOOK_S,
    NO_ROOM,
    ON_DEMAND,
    Clone,
    ForeignAction,
    ForeignPlan,
    MakeAlarms,
    Note,
    RemoveAlarms,
    Sight,
    Stop,
    against_a_clone,
    bounds_of,
    may_go_on,
    may_leave_spot,
    refusals,
    subject_of,
    unbounded,
)
from stoker.model.durations import span_text
from stoker.model.observed import Known
from stoker.model.policy import House, Then

__all__ = ["Fault", "cost_of", "decide", "refusals", "subject_of", "told"]

# What changes without a word: metrics, and money.
_CHANGING_S = 300.0
# Whoever is asked to stop is `Stopping` at once; answers may be this old.
_HEARD_S = 300.0


@dataclass(frozen=True)
class Fault:
    """A rule that a job in progress breaks. `then` is what follows; a rule that does not count is only told."""

    rule: str
    reason: str
    then: Then
    counts: bool = True


def decide(sight: Sight, house: House, now: datetime) -> ForeignPlan:
    """What follows. Deciding again after doing it comes to nothing more."""
    job = sight.job
    actions: list[ForeignAction] = []
    another = sight.family.is_another(job.name, job.created_at)
    if another or job.name not in sight.family.seen:
        in_progress = job.status == "InProgress"
        actions.append(Note(Seen(job.name, in_progress, job.created_at), f"{job.status} when it was first seen"))
    if another:
        # All that is known is of the one that had its name before.
        return ForeignPlan(tuple(actions))
    subject = subject_of(job, sight.family, now)
    if job.over:
        if job.name not in sight.family.over:
            over = Over(job.name, job.status, job.trained_s(now), cost_of(sight, now), job.interruptions)
            actions.append(Note(over, job.failure or at_its_bound(job) or job.status))
        ending = after_the_end(sight, house, subject, now)
        # The alarms first: a clone may not be had for long.
        actions += (*_alarms(sight, ()), *ending.actions)
        settled = ending.settled and not actions and isinstance(sight.alarms, Known)
        return replace(ending, actions=tuple(actions), settled=settled)
    if job.status != "InProgress":
        return ForeignPlan((*actions, *_alarms(sight, ())), note=_asked(sight.family, job.name))
    faults = list(_faults(sight, house, subject, now))
    actions += _told(sight, faults)
    stop = _stop(sight, house, subject, faults, now)
    if isinstance(stop, Note):
        assert isinstance(stop.event, Told)
        if (job.name, stop.event.code) not in sight.family.told:
            actions.append(stop)
    elif stop is not None:
        actions.append(stop)
    if not isinstance(stop, Stop) and _may_relent(sight.family, job.name, now):
        actions.append(Note(Relented(job.name), "it was not stopped yet, and no rule wants that any more"))
    rules = gpu_alarms.watching(house, subject)
    actions += _alarms(sight, gpu_alarms.wanted(rules, job, sight.gpus, sight.start, sight.topic))
    look_in_s = _next_look_s(sight, house, subject, now)
    note = stop.reason if stop is not None else _unwatched(sight) if rules else ""
    return ForeignPlan(tuple(actions), look_in_s=look_in_s, note=note)


def told(action: ForeignAction, job: str) -> str:
    """An action about the training job `job` in words."""
    match action:
        case Note():
            return f"{job}: {action.event.kind}: {action.reason}"
        case Stop():
            return f"{job}: stop: {action.reason}"
        case Clone():
            return f"{job}: clone as {action.event.name}: {action.reason}"
        case MakeAlarms():
            return f"{job}: make {_few_alarms([alarm.name for alarm in action.alarms])}"
        case RemoveAlarms():
            return f"{job}: remove {_few_alarms(list(action.names))}"


def _few_alarms(names: list[str]) -> str:
    return f"the alarm {names[0]}" if len(names) == 1 else f"{len(names)} alarms: {names[0]}, …"


# ── While it is in progress ───────────────────────────────────────────────────────────────────────────────────────────


def _faults(sight: Sight, house: House, subject: Subject, now: datetime) -> Iterator[Fault]:
    """The rules that it breaks: by what it asked for, by its bounds, and by how it trains."""
    for offering in sight.job.offerings(sight.price, sight.gpus):
        for finding in policy_rules.broken(house, subject, (offering,)):
            yield _refused(sight, finding)
    yield from _budgets(sight, house, subject, now)
    yield from _bounds(sight, bounds_of(house, subject), now)
    for rule, bounds in audit.watched(house, unbounded(subject), "max_runtime_s", "max_cost", "max_wait_s"):
        for fault in _bounds(sight, bounds, now, " (audit)" if rule.audit else ""):
            yield replace(fault, then=rule.action, counts=not rule.audit)
    for rule in house.rules:
        if rule.metric is None or not sight.job.training or not policy_rules.applies(rule, subject):
            continue
        reason = broken_by(rule.metric, sight.job.metrics, {})
        if reason is not None and sight.job.trained_s(now) >= rule.metric.after_s:
            yield _fault(Finding(rule, reason))
    yield from _rung(sight, house, subject, now)


def _refused(sight: Sight, finding: Finding) -> Fault:
    """A job that was there before the rule goes on, as every other does."""
    fault, since, made_at = _fault(finding), sight.rules_since.get(finding.rule.name), sight.job.created_at
    if finding.refuses and (since is None or made_at is None or made_at < since):
        return replace(fault, then="warn", reason=f"{fault.reason}; it was there before the rule, and goes on")
    return fault


def _fault(finding: Finding) -> Fault:
    return Fault(finding.code, str(finding), finding.rule.action, finding.counts)


def _budgets(sight: Sight, house: House, subject: Subject, now: datetime) -> Iterator[Fault]:
    """The budgets that were spent before it began to train. It cannot be made to wait: `wait` is a word."""
    if not isinstance(sight.books, Known) or sight.job.trained_s(now):
        return
    for each in budgets.judge(house, subject, sight.books, now):
        if isinstance(each, budgets.Held):
            yield Fault(each.rule, each.reason, "refuse" if each.refuses else "warn")


def _bounds(sight: Sight, bounds: Bounded, now: datetime, mode: str = "") -> Iterator[Fault]:
    limits, job = bounds.spec.limits, sight.job
    others = sight.family.others(job.name)
    reached: list[tuple[str, str]] = []
    if limits.max_runtime_s is not None:
        trained_s = job.trained_s(now) + sum(over.trained_s for over in others)
        if trained_s >= limits.max_runtime_s:
            reached.append(("max_runtime", f"{span_text(limits.max_runtime_s)} of training are reached"))
    if limits.max_cost is not None:
        spent = _spent(sight, now)
        if spent is not None and spent >= limits.max_cost:
            reached.append(("max_cost", f"${limits.max_cost:g} are reached"))
    if limits.max_wait_s is not None and job.waiting_since is not None:
        waited_s = (now - job.waiting_since).total_seconds()
        if waited_s >= limits.max_wait_s:
            reached.append(("max_wait", f"it waited for a machine for {span_text(waited_s)}"))
    for field, reason in reached:
        if field in bounds.by_rule:
            yield Fault(bounds.rule(field), f"{bounds.named(field)}{mode}: {reason}", "stop")


def _rung(sight: Sight, house: House, subject: Subject, now: datetime) -> Iterator[Fault]:
    """The rules whose alarms ring and whose figures, asked for now, say the same."""
    if not isinstance(sight.alarms, Known) or not isinstance(sight.readings, Known) or not sight.gpus:
        return
    job, gpus, figures = sight.job, sight.gpus, sight.readings.value
    rules = gpu_alarms.watching(house, subject)
    ringing = {alarm.name for alarm in sight.alarms.value if alarm.ringing}
    rung = {each.rule for each in gpu_alarms.wanted(rules, job, gpus, sight.start) if each.name in ringing}
    hangs = any(
        gpu_alarms.begins_to_stall(rule.stall, job, gpus, figures, now)
        or gpu_alarms.reason(rule, job, gpus, figures, now) is not None
        for rule in rules
        if rule.stall is not None and not rule.audit and rule.action != "warn"
    )
    # One that hangs is no wasteful one: the rule that would start it again is waited for, and whatever rings is reason
    # enough to ask that one.
    for rule in (rule for rule in rules if (rule.name in rung and not hangs) or (rule.stall is not None and rung)):
        reason = gpu_alarms.reason(rule, job, gpus, figures, now)
        if reason is not None:
            yield _fault(Finding(rule, reason))


def _told(sight: Sight, faults: list[Fault]) -> Iterator[Note]:
    told = set(sight.family.told)
    for fault in faults:
        only_told = not fault.counts or fault.then == "warn"
        code = fault.rule if fault.counts else f"{fault.rule}/audit"
        if only_told and (sight.job.name, code) not in told:
            told.add((sight.job.name, code))
            yield Note(Told(sight.job.name, fault.rule, code), fault.reason)


def _stop(sight: Sight, house: House, subject: Subject, faults: list[Fault], now: datetime) -> Stop | Note | None:
    """By the first rule that wants it. What ends a job for good comes before what starts it again. A word where it
    would be stopped to go on, and could not."""
    job = sight.job
    counting = [fault for fault in faults if fault.counts and fault.then != "warn"]
    for fault in sorted(counting, key=lambda fault: fault.then == "restart"):
        # What cannot go on where it was is not begun anew for this.
        again = fault.then == "restart" and job.checkpoints and not may_go_on(sight, house, subject)
        again = again and has_room(job.tags)
        # A budget that is spent only keeps the clone back, and it stands still anyway.
        again = again and not isinstance(against_a_clone(sight, house, now, spot=job.spot), Finding)
        return Stop(Stopping(job.name, fault.rule, "restart" if again else ""), fault.reason)
    return _without_spot(sight, house, subject, now)


def _may_relent(family: Family, job: str, now: datetime) -> bool:
    """Whether SageMaker never heard of a stop that is written down. It may tell a little late what it was asked."""
    asked_at = family.stops_at.get(job)
    return asked_at is not None and (now - asked_at).total_seconds() > _HEARD_S


def _without_spot(sight: Sight, house: House, subject: Subject, now: datetime) -> Stop | Note | None:
    """Whether spot has failed it. What may not go on without stays, and that is said."""
    stop = _spot_failed(sight, house, subject, now)
    if stop is None:
        return None
    against = against_a_clone(sight, house, now, spot=False)
    why = str(against) if isinstance(against, Finding) else "" if against is None else against.reason
    why = why if has_room(sight.job.tags) else NO_ROOM
    if not why:
        return stop
    rule = stop.event.rule
    return Note(
        Told(sight.job.name, rule, f"{rule}/stays"), f"{stop.reason.partition(';')[0]}; it stays on spot: {why}"
    )


def _spot_failed(sight: Sight, house: House, subject: Subject, now: datetime) -> Stop | None:
    """It was taken away too often, or is not to be had."""
    job = sight.job
    # What has trained, and would lose that, rather waits.
    if not may_leave_spot(sight, house, now):
        return None
    bounds = bounds_of(house, subject)
    longest_s = bounds.spec.retry.spot_wait_s
    if "spot_wait" in bounds.by_rule and longest_s is not None and job.waiting_since is not None:
        waited_s = (now - job.waiting_since).total_seconds()
        if waited_s >= longest_s:
            waited = span_text(waited_s)
            told = f"{bounds.named('spot_wait')}: it waited for spot machines for {waited}; it goes on without"
            return Stop(Stopping(job.name, bounds.rule("spot_wait"), ON_DEMAND), told)
    most = bounds.spec.retry.on_demand_after
    lost = job.interruptions + sum(over.interruptions for over in sight.family.others(job.name))
    if most is None or lost <= most:
        return None
    rules = policy_rules.that_count(house, subject, "spot")
    rule = f"{PREFIX}{rules[-1].name}" if rules else ON_DEMAND
    told = f"its spot machines were reclaimed {lost} times; it goes on without"
    return Stop(Stopping(job.name, rule, ON_DEMAND), told)


def _alarms(sight: Sight, wanted: tuple[WantedAlarm, ...]) -> Iterator[ForeignAction]:
    """What makes the alarms those that are wanted. Where nobody knows what there are, nothing."""
    if not isinstance(sight.alarms, Known):
        return
    there = sight.alarms.value
    missing = tuple(each for each in wanted if not any(alarm.is_as(each) for alarm in there))
    if missing:
        yield MakeAlarms(missing)
    needless = tuple(sorted({alarm.name for alarm in there} - {each.name for each in wanted}))
    if needless:
        yield RemoveAlarms(needless)


def _unwatched(sight: Sight) -> str:
    """Why it has no alarms although it trains, in words; empty where it has, or has nothing to watch."""
    job = sight.job
    if not job.training or sight.gpus is not None:
        return ""
    if len(job.machines) > 1:
        return "no alarms: its hosts are of several types, and which of them has what cannot be told"
    return (
        f"no alarms: there is no way to read the accelerators of {job.machines[0] if job.machines else 'its machines'}"
    )


def _asked(family: Family, job: str) -> str:
    stop = family.stops.get(job)
    return f"asked to stop: {stop.rule}" if stop is not None else ""


def _next_look_s(sight: Sight, house: House, subject: Subject, now: datetime) -> float:
    bounds = bounds_of(house, subject)
    limits, due = bounds.spec.limits, [LOOK_S]
    if house.about("metric"):
        due.append(_CHANGING_S)
    if limits.max_runtime_s is not None and sight.job.training_since is not None:
        others = sum(over.trained_s for over in sight.family.others(sight.job.name))
        due.append(limits.max_runtime_s - sight.job.trained_s(now) - others)
    if sight.job.waiting_since is not None:
        waited_s = (now - sight.job.waiting_since).total_seconds()
        longest = (limits.max_wait_s, bounds.spec.retry.spot_wait_s)
        due += [max(60.0, longest_s - waited_s) for longest_s in longest if longest_s is not None]
    if limits.max_cost is not None:
        due.append(_CHANGING_S)
    return max(0.0, min(due))


def cost_of(sight: Sight, now: datetime) -> float | None:
    """What it cost until now; None where that is not known. What managed spot saves is told at the end, as seconds that
    are not billed."""
    job = sight.job
    paid_s = job.billable_s if job.over else None if job.spot else job.trained_s(now)
    if sight.price is None or paid_s is None:
        return None
    return sight.price * job.nodes * paid_s / 3600


def _spent(sight: Sight, now: datetime) -> float | None:
    """The same with its family."""
    costs = [cost_of(sight, now), *(over.cost for over in sight.family.others(sight.job.name))]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None
