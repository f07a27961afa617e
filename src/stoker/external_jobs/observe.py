"""Read everything about an external training job that a decision needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from stoker.core.budget_state import BudgetState, has_budget
from stoker.core.policy_rules import Subject, applies
from stoker.external_jobs import chain_log, gpu_alarms, training_job
from stoker.external_jobs.apply import ExternalJobApplier
from stoker.external_jobs.aws_account import (
    SageMakerAccount,
    TrainingJobDescription,
    accelerators_of,
    gpus_of,
    price_of,
)
from stoker.external_jobs.clone_chain import CloneChain
from stoker.external_jobs.clone_request import base_name, clone_name, parse_lineage
from stoker.external_jobs.gpu_alarms import Alarm
from stoker.external_jobs.snapshot import (
    ExternalJobSnapshot,
    is_judged_by_budgets,
    refusals,
    subject_of,
)
from stoker.external_jobs.training_job import NAME, ExternalJob
from stoker.governor.budget_tracker import BudgetTracker
from stoker.governor.observe import Memory, active_jobs
from stoker.model.errors import ProviderError
from stoker.model.observed import Known, Observed, Unknown
from stoker.model.policy import Policy, Rule
from stoker.policy.versions import PolicyHistory
from stoker.providers.sagemaker import names
from stoker.providers.sagemaker import tags as aws_tags
from stoker.store import external_job_index, job_log
from stoker.store.base import Store

_JOB_ID = re.compile(r"[a-z0-9-]+")


class ExternalJobObserver:
    """Reads SageMaker, CloudWatch and the store, and changes nothing."""

    def __init__(self, store: Store, start: str, topic: str | None = None) -> None:
        self._store = store
        # The prefix of this store's alarm names.
        self._start = start
        self._topic = topic
        self._policy_history = PolicyHistory(store)

    def observe(
        self,
        policy: Policy,
        account: SageMakerAccount,
        found: TrainingJobDescription,
        now: datetime,
        listed: Iterable[Alarm] | None,
        applier: ExternalJobApplier | None,
    ) -> ExternalJobSnapshot:
        """The snapshot of a job that a decision is made from."""
        job = training_job.parse_description(found.description, found.tags, account.region)
        chain = self._chain(job)
        alarms = self._alarms(account, job, listed, applier)
        gpus = gpus_of(job)
        readings = tail = since = None
        if isinstance(alarms, Known) and job.training and any(alarm.ringing for alarm in alarms.value):
            span_s = max((gpu_alarms.span_s(rule) for rule in policy.rules), default=0.0)
            since_readings = now - timedelta(seconds=span_s + 1200)
            readings = _observed(lambda: account.readings(job.name, job.hosts, since_readings, now))
        if (job.status == "Failed" or job.exceeded) and not {job.name} & {*chain.clones, *chain.gave_up}:
            since = self._governed_since(policy, account.region)
            tail = _observed(lambda: account.tail(job.name, job.last_training_at)) if job.status == "Failed" else None
        subject = subject_of(job, chain, now)
        rules_since = {} if job.over else self._rules_since(policy, job, chain, subject, now)
        # Budgets matter until the job was let in, or where a clone may follow.
        wants = job.status in ("Failed", "Stopped") or (
            job.status == "InProgress" and is_judged_by_budgets(job, chain, policy, now)
        )
        budget_state = self.budget_state(policy, job, now) if wants else None
        return ExternalJobSnapshot(
            job=job,
            chain=chain,
            alarms=alarms,
            start=self._start,
            lost=found.lost,
            topic=account.usable_topic(self._topic),
            gpus=gpus,
            accelerators=accelerators_of(job),
            price=price_of(job),
            readings=readings,
            tail=tail,
            budget_state=budget_state,
            rules_since=rules_since,
            wanted_since=since,
        )

    def _chain(self, job: ExternalJob) -> CloneChain:
        """The clone chain of a job. People copy tags too, so a job is a clone only if the log of its origin names
        it."""
        origin = parse_lineage(job.tags).origin
        if origin and origin != job.name and NAME.fullmatch(origin) is not None:
            chain = chain_log.read(self._store, job.region, origin)
            if chain.holds(job.name):
                return chain
        return chain_log.read(self._store, job.region, job.name)

    def _alarms(
        self,
        account: SageMakerAccount,
        job: ExternalJob,
        listed: Iterable[Alarm] | None,
        applier: ExternalJobApplier | None,
    ) -> Observed[tuple[Alarm, ...]]:
        try:
            found = account.alarms(f"{self._start}{job.name}-") if listed is None else listed
        except ProviderError as error:
            return Unknown(str(error))
        mine = {alarm.name: alarm for alarm in found if job_of(alarm) == job.name}
        if applier is None:
            return Known(tuple(mine.values()))
        # CloudWatch may not list an alarm at once after its creation, or may list its old state.
        for name, made in applier.made.items():
            listed_as = mine.get(name, Alarm(name, made.host))
            mine[name] = replace(listed_as, topics=(made.topic,) if made.topic else listed_as.topics)
        return Known(tuple(alarm for name, alarm in mine.items() if name not in applier.removed))

    def resumed_as(self, account: SageMakerAccount, snapshot: ExternalJobSnapshot) -> Observed[str]:
        """The job in progress outside the chain that uses the same checkpoints; empty: there is none."""
        return _observed(lambda: next(self._jobs_with_same_checkpoints(account, snapshot), ""))

    def _jobs_with_same_checkpoints(self, account: SageMakerAccount, snapshot: ExternalJobSnapshot) -> Iterator[str]:
        job, chain, rows = snapshot.job, snapshot.chain, external_job_index.read(self._store, account.region).rows
        for name in (each.name for each in account.in_progress()):
            row = rows.get(name)
            if name == clone_name(job.name, job.created_at):
                continue
            if row is not None and row.checkpoints is not None:
                checkpoints, tags = row.checkpoints, row.tags
            else:
                found = account.describe(name)
                if found is None:
                    continue
                other = training_job.parse_description(found.description, found.tags, account.region)
                checkpoints, tags = other.checkpoints, dict(other.tags)
            if checkpoints == job.checkpoints and not _belongs_to_chain(chain, job, name, tags):
                yield name

    def budget_state(self, policy: Policy, job: ExternalJob, now: datetime) -> Observed[BudgetState] | None:
        """The state of the budgets; None where no budget covers this job."""
        if not has_budget(policy, job.tags):
            return None
        tracker = BudgetTracker(self._store, Memory())
        tracker.begin(tuple(active_jobs(self._store)), whole=False)
        return tracker.read_state(policy, now)

    def _governed_since(self, policy: Policy, region: str) -> datetime | None:
        return self._policy_history.since(policy, partial(_governs, region))

    def _rules_since(
        self, policy: Policy, job: ExternalJob, chain: CloneChain, subject: Subject, now: datetime
    ) -> dict[str, datetime]:
        """Since when each rule that would have refused this job exists, unchanged and for the job's region."""
        rules = [finding.rule for finding in refusals(policy, job, subject)]
        if job.trained_s(now) and is_judged_by_budgets(job, chain, policy, now):
            shared = policy.about("budget", "concurrent")
            rules += [rule for rule in shared if rule.action == "refuse" and applies(rule, subject)]
        found = {}
        for rule in rules:
            at = self._policy_history.since(policy, partial(_has_rule, rule, job.region))
            if at is not None:
                found[rule.name] = at
        return found


def _belongs_to_chain(chain: CloneChain, job: ExternalJob, name: str, tags: Mapping[str, str]) -> bool:
    """Return whether a training job is in the chain, or a clone that another store made of a job in it. The latter is
    recognised by its tags, which people copy, together with its name, which they do not."""
    start, own = base_name(name), base_name(job.name)
    # Long names are cut.
    named_alike = start != name and (start.startswith(own) or own.startswith(start))
    return chain.holds(name) or (parse_lineage(tags).origin == chain.origin and named_alike)


def job_of(alarm: Alarm) -> str:
    """The training job that the alarm watches."""
    return alarm.host.partition("/")[0]


def _has_rule(rule: Rule, region: str, policy: Policy) -> bool:
    """Return whether a version of the policy has this rule. Approvals are no part of a version, and change no rule."""
    written = replace(rule, exempt=tuple(each for each in rule.exempt if not each.approved_by))
    return written in policy.rules and _governs(region, policy)


def _governs(region: str, policy: Policy) -> bool:
    return policy.sagemaker is not None and region in policy.sagemaker.regions


def _observed(fetch: Callable[[], object]) -> Observed:  # type: ignore[type-arg]
    try:
        return Known(fetch())
    except ProviderError as error:
        return Unknown(str(error))


def is_own(store: Store, found: TrainingJobDescription) -> bool:
    """Return whether Stoker started the training job. Anybody may choose tags and names, so a job belongs to this store
    only if a claim in its log has it. A job whose name and tags fit another store is left to that store."""
    name, tags_of_job = str(found.description.get("TrainingJobName", "")), aws_tags.from_aws(found.tags)
    named, job, whose = names.read(name), tags_of_job.get(aws_tags.JOB, ""), tags_of_job.get(aws_tags.STORE, "")
    if named is None or _JOB_ID.fullmatch(job) is None:
        return False
    if name != names.training_job(store.url, job, named.claim, named.nodes):
        return whose != store.url and name == names.training_job(whose, job, named.claim, named.nodes)
    state = job_log.read(store, job)
    return state is not None and any(claim.number == named.claim for claim in state.claims)
