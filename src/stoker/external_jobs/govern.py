"""Govern SageMaker training jobs that Stoker did not start, where the policy wants that.

An event is only a wake-up: its content is not trusted. `wake` governs one training job, `tick` all jobs that are in
progress or ended lately. Both observe, decide and apply like the governor of jobs, and may be repeated, late, or
concurrent with others. Training jobs that Stoker itself started are governed as jobs, and not here.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from stoker.core.governor_settings import DEFAULT
from stoker.external_jobs import decide, gpu_alarms, index_rows, training_job
from stoker.external_jobs.apply import ExternalJobApplier
from stoker.external_jobs.aws_account import SageMakerAccount
from stoker.external_jobs.clone_decision import may_be_resumed_by_owner
from stoker.external_jobs.gpu_alarms import Alarm
from stoker.external_jobs.notifications import ExternalJobNotifier
from stoker.external_jobs.observe import ExternalJobObserver, is_own, job_of
from stoker.external_jobs.snapshot import (
    NEXT_PASS_S,
    CloneJob,
    ExternalJobPlan,
    ExternalJobSnapshot,
    StopJob,
    policy_for_external_jobs,
)
from stoker.governor import external_costs
from stoker.governor.pass_record import governor_name
from stoker.governor.serverless.external_jobs import ExternalJobsResult
from stoker.model import keys
from stoker.model.errors import AuthDenied, NotInstalled, StokerError, StoreUnavailable, describe_error
from stoker.model.observed import Unknown
from stoker.model.policy import Policy
from stoker.notifications.dispatcher import NotificationDispatcher
from stoker.policy.reader import PolicyReader
from stoker.providers.ec2.client import Clients
from stoker.store import external_job_index
from stoker.store.base import Store
from stoker.store.external_job_index import ExternalJobRow
from stoker.store.job_log import new_token
from stoker.store.store_clock import read_clock

# Rounds over one training job before the rest is left to the next wake-up. All possible consecutive actions fit in.
MAX_ROUNDS = 8
# The time of a tick for all regions together; jobs beyond it are left to later ticks.
_TICK_S = 60.0


@dataclass
class AlarmSweepResult:
    """Needless alarms, each with the reason, and the problems by region."""

    found: list[tuple[str, str]] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


def sweep(store: Store, *, dry: bool = False) -> AlarmSweepResult:
    """Remove alarms of training jobs that are over, gone, or not governed any more; none of them when `dry`."""
    return ExternalJobGovernor(store).sweep(dry=dry)


class ExternalJobGovernor:
    """Governs external training jobs for one store. Not thread-safe; any number may run elsewhere at the same time.

    `topic` is the ARN of the SNS topic that alarms are sent to.
    """

    def __init__(
        self,
        store: Store,
        account: Callable[[str], SageMakerAccount] | None = None,
        *,
        topic: str | None = None,
        name: str | None = None,
        now: Callable[[], datetime] | None = None,
        dispatcher: NotificationDispatcher | None = None,
    ) -> None:
        clients = Clients()
        self.store = store
        self.start = gpu_alarms.alarm_prefix(store.url)
        self.name = name or governor_name()
        self._open_account = account or (lambda region: SageMakerAccount(region, clients))
        self._accounts: dict[str, SageMakerAccount] = {}
        self._policy_reader = PolicyReader(store, DEFAULT)
        self._now = now
        self._notifier = ExternalJobNotifier(store, self.name, dispatcher)
        self._observer = ExternalJobObserver(store, self.start, topic)

    def wake(self, region: str, name: str) -> ExternalJobsResult:
        """Make a pass over one training job. Invalid names, and names without a job, are ignored.

        Raises StoreError when the store does not answer.
        """
        result = ExternalJobsResult()
        if training_job.NAME.fullmatch(name) is None:
            return result
        policy = self._read_policy(result)
        if policy is None or policy.sagemaker is None or region not in policy.sagemaker.regions:
            return result
        clock = self._clock()
        row = self._govern_job(result, policy, region, name, clock(), None)
        # A job that could not be observed needs another pass.
        result.active = int(bool(result.problems) if row is None else not row.settled)
        if name in result.gone:
            self._drop_row(region, name, clock())
        if row is not None:
            rows = external_job_index.read(self.store, region).rows
            collected = self._notifier.collect(policy, row, rows.get(name))
            result.problems |= self._notifier.send(policy, clock)
            result.unsent = self._notifier.unsent or not collected
            # The row is not updated before its events are recorded, so that the next pass collects them again.
            if collected and self._notifier.is_recorded:
                external_job_index.write(self.store, region, {**rows, name: row}, clock())
        return result

    def tick(self) -> ExternalJobsResult:
        """Make a pass over every training job in the policy's regions that is in progress or ended lately.

        Where the policy names no region, this only reads the policy.
        """
        result = ExternalJobsResult()
        policy = self._read_policy(result)
        if policy is not None and policy.sagemaker is not None:
            clock = self._clock()
            result.places = {("sagemaker", region) for region in policy.sagemaker.regions}
            until_s = time.monotonic() + _TICK_S
            for region in _rotated(policy.sagemaker.regions, clock()):
                self._tick_region(result, policy, region, clock, until_s)
        return result

    def plan(self) -> ExternalJobsResult:
        """The actions that a tick would carry out now, without any action."""
        result = ExternalJobsResult()
        policy = self._read_policy(result)
        if policy is None or policy.sagemaker is None:
            return result
        now = self._clock()()
        for region in policy.sagemaker.regions:
            try:
                account = self._account_in(region)
                for name in {
                    each.name
                    for each in (*account.in_progress(), *account.changed_since(now - external_job_index.ENDED_FOR))
                }:
                    found = account.describe(name)
                    if found is not None and not is_own(self.store, found):
                        snapshot = self._observer.observe(policy, account, found, now, None, None)
                        actions = self._plan(snapshot, policy, now).actions
                        result.done += [decide.describe_action(action, name) for action in actions]
            except Exception as error:  # noqa: BLE001 - one region that fails must not hide the others
                result.problems[f"sagemaker {region}"] = describe_error(error)
        return result

    def sweep(self, *, dry: bool = False) -> AlarmSweepResult:
        """See `sweep`."""
        result = AlarmSweepResult()
        policy = self._read_policy(result)
        if policy is None:
            return result
        wanted = set(policy.sagemaker.regions) if policy.sagemaker is not None else set()
        for region in sorted({*self.store.folders(keys.CLONE_CHAINS), *wanted}):
            try:
                account = self._account_in(region)
                for alarm in account.alarms(self.start):
                    reason = _why_needless(account, alarm) if region in wanted else f"{region} is not governed"
                    if reason is None:
                        continue
                    if not dry:
                        account.remove_alarms([alarm.name])
                    result.found.append((alarm.name, reason))
            except StokerError as error:
                result.problems[f"sagemaker {region}"] = str(error)
        return result

    # ── One region ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _tick_region(
        self, result: ExternalJobsResult, policy: Policy, region: str, clock: Callable[[], datetime], until_s: float
    ) -> None:
        now = clock()
        try:
            account = self._account_in(region)
            running = account.in_progress()
            ended = account.changed_since(now - external_job_index.ENDED_FOR)
            alarms = account.alarms(self.start)
        except StokerError as error:
            # A list that failed proves nothing. A missing permission or package is no reason to keep the tick on.
            result.problems[f"sagemaker {region}"] = str(error)
            result.unknown |= not isinstance(error, (AuthDenied, NotInstalled))
            return
        listed = {each.name: each for each in (*ended, *running)}
        rows = dict(external_job_index.read(self.store, region).rows)
        ringing = {job_of(alarm) for alarm in alarms if alarm.ringing}
        due = [name for name, each in listed.items() if index_rows.is_due(rows.get(name), each, policy, now)]
        # A job in no list may have ended long ago, or be gone, while its alarms and its row still exist.
        unlisted = {name for name, row in rows.items() if not (row.settled and row.ended_at)} - set(listed)
        names = sorted({*ringing, *due, *unlisted, *({job_of(alarm) for alarm in alarms} - set(listed))})
        # In random order, so that every job gets its turn where the time is not enough for all.
        random.shuffle(names)
        changed: dict[str, ExternalJobRow] = {}
        for name in names:
            if training_job.NAME.fullmatch(name) is None or time.monotonic() > until_s:
                continue
            # The alarms of a ringing job are read again.
            row = self._govern_job(result, policy, region, name, now, None if name in ringing else alarms)
            if row is not None:
                if self._notifier.collect(policy, row, rows.get(name)):
                    changed[name] = row
                else:
                    result.unsent = True
        gone = result.gone & set(rows)
        rows = {name: row for name, row in {**rows, **changed}.items() if name not in gone}
        result.problems |= self._notifier.send(policy, clock)
        result.unsent = result.unsent or self._notifier.unsent
        # Rows are not updated before their events are recorded, so that the next tick collects them again.
        if (changed or gone) and self._notifier.is_recorded:
            external_job_index.write(self.store, region, rows, now)
        unsettled = {name for name, row in rows.items() if not row.settled}
        result.active += len(unsettled | {name for name in listed if name not in rows})

    def _govern_job(
        self,
        result: ExternalJobsResult,
        policy: Policy,
        region: str,
        name: str,
        now: datetime,
        listed: Iterable[Alarm] | None,
    ) -> ExternalJobRow | None:
        """Observe, decide and apply for one training job until no action follows. Returns its row; None where the job
        is gone or could not be governed."""
        try:
            account = self._account_in(region)
            applier = ExternalJobApplier(self.store, account, self.name, policy.digest, new_token, result.done.append)
            for _ in range(MAX_ROUNDS):
                found = account.describe(name)
                if found is None:
                    self._remove_alarms_of(account, name, result)
                    return None
                snapshot = self._observer.observe(policy, account, found, now, listed, applier)
                if is_own(self.store, found):
                    return replace(index_rows.row_of(snapshot, ExternalJobPlan(settled=True), policy, now), own=True)
                plan = self._plan(snapshot, policy, now)
                if not plan.actions:
                    row = index_rows.row_of(snapshot, plan, policy, now)
                    if snapshot.job.over:
                        external_costs.record_costs(self.store, row)
                    if isinstance(snapshot.tail, Unknown):
                        result.problems[name] = f"its log cannot be read: {snapshot.tail.error}"
                    return _with_alarm_problems(row, applier.alarm_problems, result)
                # The next round decides again, also where another governor wrote to the log meanwhile.
                applier.apply(plan, snapshot, found)
                listed = None
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - the edge of one job
            # A job that cannot be governed must not stop the others.
            result.problems[name] = describe_error(error)
        return None

    def _plan(self, snapshot: ExternalJobSnapshot, policy: Policy, now: datetime) -> ExternalJobPlan:
        """Decide the plan. Two expensive facts are read only where a first decision needs them: the budgets, where the
        job would be stopped in order to be cloned; and a restart by its owner, where a clone would be made."""
        plan = decide.decide(snapshot, policy, now)
        if snapshot.budget_state is None and any(
            isinstance(each, StopJob) and each.event.after for each in plan.actions
        ):
            budget_state = self._observer.budget_state(policy, snapshot.job, now)
            return (
                plan
                if budget_state is None
                else decide.decide(replace(snapshot, budget_state=budget_state), policy, now)
            )
        if any(isinstance(each, CloneJob) for each in plan.actions) and may_be_resumed_by_owner(snapshot, now):
            resumed_as = self._observer.resumed_as(self._account_in(snapshot.job.region), snapshot)
            return decide.decide(replace(snapshot, resumed_as=resumed_as), policy, now)
        return plan

    def _drop_row(self, region: str, name: str, now: datetime) -> None:
        rows = external_job_index.read(self.store, region).rows
        if name in rows:
            external_job_index.write(
                self.store, region, {other: row for other, row in rows.items() if other != name}, now
            )

    def _remove_alarms_of(self, account: SageMakerAccount, name: str, result: ExternalJobsResult) -> None:
        result.gone.add(name)
        names = [alarm.name for alarm in account.alarms(f"{self.start}{name}-") if job_of(alarm) == name]
        if names:
            account.remove_alarms(names)
            result.done.append(f"{name}: is gone; its alarms are removed")

    # ── Policy, clock and account
    # ────────────────────────────────────────────────────────────────────────────────────────

    def _read_policy(self, result: ExternalJobsResult | AlarmSweepResult) -> Policy | None:
        """The newest policy; None where this Stoker cannot read it: then nothing is done."""
        settings = self._policy_reader.read()
        if settings.policy_error:
            result.problems["policy"] = settings.policy_error
            if isinstance(result, ExternalJobsResult):
                result.unknown = True
            return None
        return policy_for_external_jobs(settings.policy)

    def _clock(self) -> Callable[[], datetime]:
        """The store's clock, read once."""
        return self._now if self._now is not None else read_clock(self.store, self.name, time.monotonic).now

    def _account_in(self, region: str) -> SageMakerAccount:
        if region not in self._accounts:
            self._accounts[region] = self._open_account(region)
        return self._accounts[region]


def _rotated(regions: Sequence[str], now: datetime) -> list[str]:
    """The regions, beginning with another one every minute, so that each gets its turn."""
    first = int(now.timestamp() // 60) % len(regions) if regions else 0
    return [*regions[first:], *regions[:first]]


def _why_needless(account: SageMakerAccount, alarm: Alarm) -> str | None:
    """The reason why an alarm is needless; None where its job may still be in progress."""
    name = job_of(alarm)
    found = account.describe(name)
    if found is None:
        return f"there is no training job {name}"
    status = str(found.description.get("TrainingJobStatus", ""))
    return f"{name} is {status}" if status in training_job.OVER else None


def _with_alarm_problems(
    row: ExternalJobRow, alarm_problems: dict[str, str], result: ExternalJobsResult
) -> ExternalJobRow:
    """The row with the problems of alarms that could not be created or removed; they are retried in the next pass."""
    if not alarm_problems:
        return row
    problem = f"{len(alarm_problems)} alarms could not be set: {next(iter(alarm_problems.values()))}"
    result.problems[row.name] = problem
    look_at = row.look_at or row.looked_at + timedelta(seconds=NEXT_PASS_S)
    return replace(row, note=f"{row.note}; {problem}" if row.note else problem, settled=False, look_at=look_at)
