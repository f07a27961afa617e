"""A training job of SageMaker's that others started, as it was seen, and what can be done about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from stoker.core import budgets, policy_rules
from stoker.core.budget_state import Books
from stoker.core.policy_rules import Bounded, Finding, Subject
from stoker.external_jobs.clone_chain import Cloning, Family, FamilyEvent, Stopping
from stoker.external_jobs.gpu_alarms import Alarm, Readings, WantedAlarm
from stoker.external_jobs.training_job import TrainingJob
from stoker.model.observed import Observed
from stoker.model.policy import House, Rule
from stoker.model.spec import Limits

# The rule that a job was cloned by because spot was given up.
ON_DEMAND: Literal["on-demand"] = "on-demand"
# Why there is no clone of what has no room for a tag: it could not tell where it comes from.
NO_ROOM = "it has as many tags as SageMaker takes, and its clone would need one more; remove one"
# Nothing about it changed, and no bound is near: its tags or its metrics may have all the same.
LOOK_S = 900.0


@dataclass(frozen=True)
class Sight:
    """A training job, what Stoker did about its family, and what else was asked for."""

    job: TrainingJob
    family: Family
    # Those of this job that are ours.
    alarms: Observed[tuple[Alarm, ...]]
    # What names of alarms begin with.
    start: str
    # Whom alarms tell; empty: nobody.
    topic: str = ""
    # GPUs of one host; None where nobody can say, or read them.
    gpus: int | None = None
    # Dollars an hour for one host on demand; None is unknown, never free.
    price: float | None = None
    # Asked for only where an alarm rings, and where it failed; None where nobody asked.
    readings: Observed[Readings] | None = None
    tail: Observed[tuple[str, ...]] | None = None
    # Since when there have been the rules that would have refused it, by their names.
    rules_since: Mapping[str, datetime] = field(default_factory=dict)
    # How the budgets stand, where it may be cloned: a clone is a launch. None where nobody asked.
    books: Observed[Books] | None = None
    # Which training job of others goes on from its checkpoints already; empty: none. None where nobody asked.
    resumed_as: Observed[str] | None = None
    # Since when the house has wanted the jobs of this region to obey; None where nobody asked, or knows.
    wanted_since: datetime | None = None


@dataclass(frozen=True)
class Note:
    """Write it down."""

    event: FamilyEvent
    reason: str


@dataclass(frozen=True)
class Stop:
    """Write it down, where it is not, and ask SageMaker to stop the job: its script gets a SIGTERM first."""

    event: Stopping
    reason: str


@dataclass(frozen=True)
class Clone:
    """Write it down, where it is not, and ask SageMaker for the clone."""

    event: Cloning
    reason: str


@dataclass(frozen=True)
class MakeAlarms:
    """The job trains, and these are missing."""

    alarms: tuple[WantedAlarm, ...]


@dataclass(frozen=True)
class RemoveAlarms:
    """They are of no use, or no more."""

    names: tuple[str, ...]


ForeignAction = Note | Stop | Clone | MakeAlarms | RemoveAlarms


@dataclass(frozen=True)
class ForeignPlan:
    """What to do now. `settled`: it is over, and nothing will ever be done about it."""

    actions: tuple[ForeignAction, ...] = ()
    settled: bool = False
    # The next look is due in so many seconds, whatever happens.
    look_in_s: float = LOOK_S
    # Why it is where it is, for lists.
    note: str = ""


def subject_of(job: TrainingJob, family: Family, now: datetime) -> Subject:
    """Whom rules are held against. What is exempt is so with its clones."""
    return Subject(replace(job.spec(), name=family.origin), now.date(), job.name, others=True)


def for_others(house: House) -> House:
    """The rules as they are held against training jobs of others. One of these cannot say what it may cost at most, so
    a rule that would refuse it for that stops it when it has."""

    def held(rule: Rule) -> Rule:
        return replace(rule, then="stop") if rule.max_cost is not None and rule.action == "refuse" else rule

    return replace(house, rules=tuple(map(held, house.rules)))


def refusals(house: House, job: TrainingJob, subject: Subject) -> tuple[Finding, ...]:
    """The rules that would have refused it, by each of its machines."""
    found = {
        finding.rule.name: finding
        for offering in job.offerings()
        for finding in policy_rules.broken(house, subject, (offering,))
        if finding.refuses
    }
    return tuple(found.values())


def bounds_of(house: House, subject: Subject) -> Bounded:
    """The house's own bounds. SageMaker keeps the job's itself, and for one job only; these are for its clones too."""
    return policy_rules.bounded(house, unbounded(subject))


def unbounded(subject: Subject) -> Subject:
    """Without the bounds that SageMaker keeps."""
    return replace(subject, spec=replace(subject.spec, limits=Limits()))


def against_a_clone(sight: Sight, house: House, now: datetime, *, spot: bool) -> Finding | budgets.Held | None:
    """What the rules have against the clone, with spot or without: they would refuse it, or a budget is spent.

    Where nobody has asked how the budgets stand, they are left to whoever has.
    """
    job = replace(sight.job, spot=spot)
    subject = subject_of(job, sight.family, now)
    refused = refusals(house, job, subject)
    if refused:
        return refused[0]
    found = () if sight.books is None else budgets.judge(house, subject, sight.books, now)
    return next((each for each in found if isinstance(each, budgets.Held)), None)


def may_leave_spot(sight: Sight, house: House, now: datetime) -> bool:
    """Whether it may go on without spot, as far as it goes: once, and where it loses nothing by that."""
    job = sight.job
    if not job.spot or any(each.rule == ON_DEMAND for each in sight.family.clones.values()):
        return False
    if house.sagemaker is None or not house.sagemaker.clone or job.parent:
        return False
    return bool(job.checkpoints) or job.trained_s(now) == 0


def may_go_on(sight: Sight, house: House, subject: Subject) -> str:
    """Why this job may not be cloned, in words; empty where it may, as far as its family goes."""
    if house.sagemaker is None or not house.sagemaker.clone:
        return "the policy wants no clones"
    if sight.job.parent:
        return f"{sight.job.parent} started it, and would not know of a clone"
    most = bounds_of(house, subject).spec.retry.resumes
    without_spot = sum(1 for clone in sight.family.clones.values() if clone.rule == ON_DEMAND)
    # Other stores may have made clones that this one knows of by their tags alone.
    done = max(len(sight.family.clones), sight.job.clone) - without_spot
    return f"it was cloned {done} times already" if done >= most else ""
