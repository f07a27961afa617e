"""The governor of a function that events call: the usual governor, reused between warm calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from stoker.governor.connected_providers import Fleet
from stoker.governor.loop import Governor, Pass
from stoker.governor.price_keeper import PriceKeeper
from stoker.governor.serverless.events import IgnoredEvent, JobWake, MachineWake, Tick, TrainingWake, WakeEvent
from stoker.governor.serverless.external_jobs import ExternalJobs, ExternalJobsResult
from stoker.governor.serverless.schedule import Schedule, ScheduleNotOn, ScheduleSwitch
from stoker.model.errors import ProviderError, StokerError
from stoker.model.observed import Known
from stoker.providers.base import SupportsJobLookup
from stoker.store import job_log, node_facts
from stoker.store.base import Store

_log = logging.getLogger("stoker")

# A warning reaches the governor and the machine's agent at about the same time, and only the agent's report counts. The
# agent polls every two seconds.
_AGENT_REPORTS_WITHIN_S = 8.0
_POLL_S = 0.5


@dataclass
class CallResult:
    """The result of a call, for the function's log and its response."""

    jobs: list[str] = field(default_factory=list)
    active: int | None = None
    actions: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    # The error that kept the schedule off: the call has not done everything it should.
    unswitched: ScheduleNotOn | None = None


class EventGovernor:
    """One store's governor, woken by events. Warm calls reuse its clients and its memory."""

    def __init__(
        self,
        store: Store,
        schedule: Schedule,
        *,
        name: str,
        external_jobs: ExternalJobs,
        fleet: Fleet | None = None,
        prices: PriceKeeper | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store = store
        self.governor = Governor(store, fleet, name=name)
        self.switch = ScheduleSwitch(store, schedule)
        self.external_jobs = external_jobs
        self._prices = prices
        self._sleep = sleep

    def handle(self, woken: Iterable[WakeEvent]) -> CallResult:
        """Make a pass over the jobs of these events, each job once. Raises StoreError when the store does not answer:
        the caller repeats the call. All other problems are reported, and left to the next tick. Where the schedule
        could not be switched on, there may be no next tick, so `log_result` raises."""
        events = list(dict.fromkeys(woken))
        done = CallResult(ignored=[each.why for each in events if isinstance(each, IgnoredEvent)])
        if self._prices is not None:
            # First: a function has no home of its own, and a limit on the cost needs the prices.
            done.problems |= self._prices.read()
        jobs = self._jobs(events, done)
        if Tick() in events:
            self._tick(done)
        elif jobs:
            self._pass_over(jobs, new=any(isinstance(each, JobWake) for each in events), done=done)
        return done

    def _jobs(self, events: list[WakeEvent], done: CallResult) -> set[str]:
        """The jobs of these events, after their agents had time to report."""
        jobs = {each.job for each in events if isinstance(each, JobWake)}
        for each in events:
            if isinstance(each, MachineWake):
                job = self._job_of(each.provider, each.instance, each.region, done)
                if job is None:
                    done.ignored.append(f"{each.instance} is no machine of this store")
                    continue
                jobs.add(job)
                if each.warned:
                    self._wait_for_agent(job, each.instance)
            elif isinstance(each, TrainingWake):
                job = self._job_of(each.provider, each.name, each.region, done)
                if job is None:
                    self._wake_external_job(each, done)
                else:
                    jobs.add(job)
        return jobs

    def _job_of(self, name: str, instance: str, region: str, done: CallResult) -> str | None:
        try:
            provider = self.governor.fleet.provider(name)
            return provider.job_of(instance, region) if isinstance(provider, SupportsJobLookup) else None
        except StokerError as error:
            done.problems[instance] = str(error)
            return None

    def _wake_external_job(self, wake: TrainingWake, done: CallResult) -> None:
        # Another call may have switched the schedule off since: external jobs are not in the list that it checks.
        try:
            result = self.external_jobs.wake(wake)
        except BaseException:
            # After any error, the tick has to look at the job again; raised again.
            self._keep_schedule_on(done, surely=True)
            raise
        self._add(result, done)
        if not _is_idle(result):
            self._keep_schedule_on(done, surely=True)

    def _wait_for_agent(self, job: str, instance: str) -> None:
        """Wait until the machine's agent has reported the warning, for a limited time: the agent may have failed."""
        waited_s = 0.0
        while not self._agent_has_reported(job, instance) and waited_s < _AGENT_REPORTS_WITHIN_S:
            self._sleep(_POLL_S)
            waited_s += _POLL_S

    def _agent_has_reported(self, job: str, instance: str) -> bool:
        state = job_log.read(self.store, job, self.governor.memory.states.get(job))
        claims = state.open_claims if state is not None else ()
        claim = next((c for c in claims if any(n.instance == instance for n in c.launched or ())), None)
        if claim is None:
            return True  # No open claim has this machine: there will be no report.
        facts = node_facts.read_claim(self.store, job, claim)
        node = next((each for each in facts if each.instance == instance), None)
        return node is None or any(
            isinstance(part, Known) and part.value is not None for part in (node.notice, node.exit)
        )

    def _tick(self, done: CallResult) -> None:
        passed = self.governor.run_pass()
        self._add_pass(passed, done)
        result = self.external_jobs.tick()
        self._add(result, done)
        if self._prices is not None:
            done.problems |= self._prices.refresh({*self.governor.places(), *result.places})
        # Unsent notifications are retried until they are given up.
        if not (passed.idle and not passed.unsent and _is_idle(result)):
            # A schedule that ticked is on. A tick that was requested otherwise repairs a schedule that is off.
            self._keep_schedule_on(done)
            return
        try:
            self.switch.rest_if_idle(self._has_external_jobs)
        except ScheduleNotOn as error:
            self._record_not_on(error, done)
        except ProviderError as error:
            # The schedule still ticks, so the next tick tries again.
            done.problems["schedule"] = str(error)

    def _has_external_jobs(self) -> bool:
        """Return whether an external job started while the schedule was being switched off: its event found the
        schedule on, and did not switch it."""
        return not _is_idle(self.external_jobs.tick())

    def _add(self, result: ExternalJobsResult, done: CallResult) -> None:
        done.actions += result.done
        done.problems |= result.problems

    def _pass_over(self, jobs: set[str], *, new: bool, done: CallResult) -> None:
        done.jobs = sorted(jobs)
        try:
            passed = self.governor.run_pass(only=jobs)
        except BaseException:
            # After any error, the tick has to repeat the pass.
            self._keep_schedule_on(done, surely=new)
            raise
        self._add_pass(passed, done)
        if not passed.idle or passed.unsent:
            self._keep_schedule_on(done, surely=new)

    def _add_pass(self, passed: Pass, done: CallResult) -> None:
        done.active = passed.active
        done.actions += [f"{each.job}: {type(each).__name__}: {each.reason}" for each in passed.actions]
        done.problems |= passed.problems

    def _keep_schedule_on(self, done: CallResult, *, surely: bool = False) -> None:
        """Keep the schedule on, after the pass: a failure here can harm it no more."""
        try:
            self.switch.wanted(surely=surely)
        except ScheduleNotOn as error:
            self._record_not_on(error, done)

    def _record_not_on(self, error: ScheduleNotOn, done: CallResult) -> None:
        done.problems["schedule"] = str(error)
        done.unswitched = error


def _is_idle(result: ExternalJobsResult) -> bool:
    return result.active == 0 and not result.unknown and not result.unsent


def log_result(done: CallResult) -> dict[str, object]:
    """Log the result, and return a short form of it. Raises ScheduleNotOn where the schedule could not be switched on:
    without it no pass follows, so the call has to be repeated."""
    for line in done.actions:
        _log.info("%s", line)
    for what, text in done.problems.items():
        _log.warning("%s: %s", what, text)
    for line in done.ignored:
        _log.info("ignored: %s", line)
    if done.unswitched is not None:
        raise done.unswitched
    return {
        "jobs": done.jobs,
        "active": done.active,
        "actions": len(done.actions),
        "problems": len(done.problems),
        "ignored": len(done.ignored),
    }
