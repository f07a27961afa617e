"""An external training job as it was observed, and the possible actions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from stoker.core import budget_verdict, policy_rules
from stoker.core.budget_reservations import LaunchRequest, Need
from stoker.core.budget_state import BudgetState
from stoker.core.name_list import first_names
from stoker.core.policy_rules import EffectiveLimits, RuleFinding, Subject
from stoker.external_jobs.clone_chain import ChainEvent, CloneChain, Cloning, Stopping
from stoker.external_jobs.gpu_alarms import Alarm, JobFigures, WantedAlarm
from stoker.external_jobs.training_job import ExternalJob
from stoker.model.observed import Observed
from stoker.model.policy import Policy, Rule
from stoker.model.spec import Limits

# The rule of clones that were made to leave spot.
ON_DEMAND: Literal["on-demand"] = "on-demand"
# The reason not to clone a job with the maximum number of tags: a clone needs one more tag for its lineage.
NO_ROOM = "it has as many tags as SageMaker takes, and its clone would need one more; remove one"
# The rule of jobs that are not cloned because their clone would lack something.
LOST = "lost-fields"
# The time to the next pass over a job without changes or near limits: its tags or metrics may have changed.
NEXT_PASS_S = 900.0


@dataclass(frozen=True)
class ExternalJobSnapshot:
    """A training job, the state of its clone chain, and everything else that was read for the decision."""

    job: ExternalJob
    chain: CloneChain
    # The alarms of this job that belong to this store.
    alarms: Observed[tuple[Alarm, ...]]
    # The prefix of this store's alarm names.
    start: str
    # The fields of the job that its clone would not have: see `clone_request.lost_fields`.
    lost: tuple[str, ...] = ()
    # The SNS topic of alarms; empty: none.
    topic: str = ""
    # GPUs of one host; None where that is unknown, or their load cannot be read.
    gpus: int | None = None
    # Accelerators of all hosts, of any maker.
    accelerators: int = 0
    # Dollars an hour for one host on demand; None is unknown, never free.
    price: float | None = None
    # Read only where an alarm rings, and where the job failed; None where they were not read.
    readings: Observed[JobFigures] | None = None
    tail: Observed[tuple[str, ...]] | None = None
    # Since when each rule exists that would have refused the job, by the rule's name.
    rules_since: Mapping[str, datetime] = field(default_factory=dict)
    # The budgets, where the job may be cloned: a clone is a launch. None where they were not read.
    budget_state: Observed[BudgetState] | None = None
    # The external job that continues from its checkpoints already; empty: none. None where that was not checked.
    resumed_as: Observed[str] | None = None
    # Since when the policy governs jobs of this region; None where that was not read, or is unknown.
    wanted_since: datetime | None = None


@dataclass(frozen=True)
class RecordEvent:
    """Write an event to the chain's log."""

    event: ChainEvent
    reason: str


@dataclass(frozen=True)
class StopJob:
    """Write the intent, unless it is written, and ask SageMaker to stop the job: its script gets a SIGTERM first."""

    event: Stopping
    reason: str


@dataclass(frozen=True)
class CloneJob:
    """Write the intent, unless it is written, and ask SageMaker for the clone."""

    event: Cloning
    reason: str


@dataclass(frozen=True)
class CreateAlarms:
    """Create the missing alarms of a job that trains."""

    alarms: tuple[WantedAlarm, ...]


@dataclass(frozen=True)
class RemoveAlarms:
    """Remove alarms that are not wanted any more."""

    names: tuple[str, ...]


ExternalJobAction = RecordEvent | StopJob | CloneJob | CreateAlarms | RemoveAlarms


@dataclass(frozen=True)
class ExternalJobPlan:
    """The actions to carry out now. `settled`: the job is over, and no action will ever follow."""

    actions: tuple[ExternalJobAction, ...] = ()
    settled: bool = False
    # Seconds until the next pass over the job is due, even without an event.
    next_pass_in_s: float = NEXT_PASS_S
    # The reason for the job's state, for lists.
    note: str = ""


def subject_of(job: ExternalJob, chain: CloneChain, now: datetime) -> Subject:
    """The job as the subject of rules. An exemption of the origin covers its clones."""
    return Subject(replace(job.spec(), name=chain.origin), now.date(), job.name, is_external=True)


def policy_for_external_jobs(policy: Policy) -> Policy:
    """The policy as it applies to external jobs. An external job has no `max_cost`, so a rule that would refuse it for
    that stops it when it reaches the cost."""

    def adapted(rule: Rule) -> Rule:
        return replace(rule, then="stop") if rule.max_cost is not None and rule.action == "refuse" else rule

    return replace(policy, rules=tuple(map(adapted, policy.rules)))


def refusals(policy: Policy, job: ExternalJob, subject: Subject) -> tuple[RuleFinding, ...]:
    """The rules that would have refused the job, for any of its machine types."""
    found = {
        finding.rule.name: finding
        for offering in job.offerings()
        for finding in policy_rules.broken(policy, subject, (offering,))
        if finding.refuses
    }
    return tuple(found.values())


def policy_limits(policy: Policy, subject: Subject) -> EffectiveLimits:
    """The limits of the policy, which cover the whole clone chain. SageMaker enforces the job's own limits, for each
    job by itself."""
    return policy_rules.effective_limits(policy, without_own_limits(subject))


def without_own_limits(subject: Subject) -> Subject:
    """The subject without the limits that SageMaker enforces."""
    return replace(subject, spec=replace(subject.spec, limits=Limits()))


def clone_objection(
    snapshot: ExternalJobSnapshot, policy: Policy, now: datetime, *, spot: bool
) -> RuleFinding | budget_verdict.LaunchDenied | None:
    """The objection of the policy against a clone, with spot or without: a rule refuses it, or a budget is spent.

    Budgets are skipped where they were not read.
    """
    job = replace(snapshot.job, spot=spot)
    subject = subject_of(job, snapshot.chain, now)
    refused = refusals(policy, job, subject)
    if refused:
        return refused[0]
    # The machines of the job itself are free by then; those of all others count.
    request = request_of(snapshot, now)
    found = (
        ()
        if snapshot.budget_state is None
        else budget_verdict.judge(policy, subject, snapshot.budget_state, now, request)
    )
    return next((each for each in found if isinstance(each, budget_verdict.LaunchDenied)), None)


def request_of(snapshot: ExternalJobSnapshot, claimed_at: datetime) -> LaunchRequest:
    """The machines of the job, against those that others had by then. It reserves no money."""
    need, nodes = Need(0.0, 0.0, ""), snapshot.job.nodes
    return LaunchRequest(need, claimed_at, claimed_at, nodes=nodes, gpus=snapshot.accelerators)


def lost_text(snapshot: ExternalJobSnapshot) -> str:
    """The reason not to clone a job of which something would be lost."""
    fields = first_names(snapshot.lost)
    return (
        f"its clone would lack {fields}, which the boto3 of this governor does not know; "
        "install a newer boto3 and Stoker, and deploy again"
    )


def may_leave_spot(snapshot: ExternalJobSnapshot, policy: Policy, now: datetime) -> bool:
    """Return whether the job may be cloned without spot: once in a chain, and only without loss of progress."""
    job = snapshot.job
    if not job.spot or any(each.rule == ON_DEMAND for each in snapshot.chain.clones.values()):
        return False
    if policy.sagemaker is None or not policy.sagemaker.clone or job.parent:
        return False
    return bool(job.checkpoints) or job.trained_s(now) == 0


def clone_obstacle(snapshot: ExternalJobSnapshot, policy: Policy, subject: Subject) -> str:
    """The reason why this job may not be cloned, by the policy and its chain; empty where it may."""
    if policy.sagemaker is None or not policy.sagemaker.clone:
        return "the policy wants no clones"
    if snapshot.job.parent:
        return f"{snapshot.job.parent} started it, and would not know of a clone"
    if snapshot.lost:
        return lost_text(snapshot)
    most = policy_limits(policy, subject).spec.retry.resumes
    without_spot = sum(1 for clone in snapshot.chain.clones.values() if clone.rule == ON_DEMAND)
    # Other stores may have made clones, which this one knows only by their tags.
    done = max(len(snapshot.chain.clones), snapshot.job.clone) - without_spot
    return f"it was cloned {done} times already" if done >= most else ""
