"""The governor behind a function that events call: kept between calls, and the same as everywhere else."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from stoker.governor.connected_providers import Fleet
from stoker.governor.loop import Governor, Pass
from stoker.governor.serverless.events import JobWake, MachineWake, Nothing, Tick, TrainingWake, Woken
from stoker.governor.serverless.external_jobs import ExternalJobs, Looked
from stoker.governor.serverless.schedule import NotOn, Schedule, Switch
from stoker.model.errors import ProviderError, StokerError
from stoker.model.observed import Known
from stoker.providers.base import Recognises
from stoker.store import job_log, node_facts
from stoker.store.base import Store

_log = logging.getLogger("stoker")

# A warning comes to us and to the machine's agent at about the same time, and only what the agent says counts. It looks
# every two seconds.
_HEARD_WITHIN_S = 8.0
_LISTEN_S = 0.5


@dataclass
class Done:
    """What came of a call, for the function's log and its answer."""

    jobs: list[str] = field(default_factory=list)
    active: int | None = None
    actions: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    # Why the clock could not be switched on: the call has not done all that it was for.
    unswitched: NotOn | None = None


class Waker:
    """One store's governor, woken by events. Warm calls find its clients and all that it remembers."""

    def __init__(
        self,
        store: Store,
        schedule: Schedule,
        *,
        name: str,
        foreign: ExternalJobs,
        fleet: Fleet | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store = store
        self.governor = Governor(store, fleet, name=name)
        self.switch = Switch(store, schedule)
        self.foreign = foreign
        self._sleep = sleep

    def handle(self, woken: Iterable[Woken]) -> Done:
        """Look at what these are about, each job once. Raises StoreError when the store does not answer: whoever called
        calls again. Everything else that goes wrong is told, and left to the next tick; where there may be none, for
        the clock could not be switched on, `tell` raises."""
        events = list(dict.fromkeys(woken))
        done = Done(ignored=[each.why for each in events if isinstance(each, Nothing)])
        jobs = self._jobs(events, done)
        if Tick() in events:
            self._tick(done)
        elif jobs:
            self._look(jobs, new=any(isinstance(each, JobWake) for each in events), done=done)
        return done

    def _jobs(self, events: list[Woken], done: Done) -> set[str]:
        """The jobs that these events are about, once their agents have said what they know."""
        jobs = {each.job for each in events if isinstance(each, JobWake)}
        for each in events:
            if isinstance(each, MachineWake):
                job = self._job_of(each.provider, each.instance, each.region, done)
                if job is None:
                    done.ignored.append(f"{each.instance} is no machine of this store")
                    continue
                jobs.add(job)
                if each.warned:
                    self._listen(job, each.instance)
            elif isinstance(each, TrainingWake):
                job = self._job_of(each.provider, each.name, each.region, done)
                if job is None:
                    self._look_at_others(each, done)
                else:
                    jobs.add(job)
        return jobs

    def _job_of(self, name: str, instance: str, region: str, done: Done) -> str | None:
        try:
            provider = self.governor.fleet.provider(name)
            return provider.job_of(instance, region) if isinstance(provider, Recognises) else None
        except StokerError as error:
            done.problems[instance] = str(error)
            return None

    def _look_at_others(self, wake: TrainingWake, done: Done) -> None:
        # Another function may have switched the clock off since: these jobs are in no list that it looks at again.
        try:
            looked = self.foreign.wake(wake)
        except BaseException:
            self._keep_on(done, surely=True)
            raise
        self._take(looked, done)
        if not _rests(looked):
            self._keep_on(done, surely=True)

    def _listen(self, job: str, instance: str) -> None:
        """Until the machine's agent has passed the warning on; not for ever, for it may be the one that is ill."""
        waited_s = 0.0
        while not self._has_spoken(job, instance) and waited_s < _HEARD_WITHIN_S:
            self._sleep(_LISTEN_S)
            waited_s += _LISTEN_S

    def _has_spoken(self, job: str, instance: str) -> bool:
        state = job_log.read(self.store, job, self.governor.memory.states.get(job))
        claims = state.open_claims if state is not None else ()
        claim = next((c for c in claims if any(n.instance == instance for n in c.launched or ())), None)
        if claim is None:
            return True  # It is over with this machine: nothing will be said.
        told = node_facts.read_claim(self.store, job, claim)
        node = next((each for each in told if each.instance == instance), None)
        return node is None or any(
            isinstance(part, Known) and part.value is not None for part in (node.notice, node.exit)
        )

    def _tick(self, done: Done) -> None:
        passed = self.governor.run_pass()
        self._tell(passed, done)
        looked = self.foreign.tick()
        self._take(looked, done)
        # What could not be told yet is tried again as long as it is worth telling.
        if not (passed.idle and not passed.unsent and _rests(looked)):
            # A clock that ticked is on; whoever was called by anything else heals one that is off.
            self._keep_on(done)
            return
        try:
            self.switch.rest_if_idle(self._has_others)
        except NotOn as error:
            self._not_on(error, done)
        except ProviderError as error:
            # It ticks on, so this is tried again.
            done.problems["schedule"] = str(error)

    def _has_others(self) -> bool:
        """Whether one of others came while it was switched off: what told of it found it switched on."""
        return not _rests(self.foreign.tick())

    def _take(self, looked: Looked, done: Done) -> None:
        done.actions += looked.done
        done.problems |= looked.problems

    def _look(self, jobs: set[str], *, new: bool, done: Done) -> None:
        done.jobs = sorted(jobs)
        try:
            passed = self.governor.run_pass(only=jobs)
        except BaseException:
            # Whatever it was, the tick is to go on from there.
            self._keep_on(done, surely=new)
            raise
        self._tell(passed, done)
        if not passed.idle or passed.unsent:
            self._keep_on(done, surely=new)

    def _tell(self, passed: Pass, done: Done) -> None:
        done.active = passed.active
        done.actions = [f"{each.job}: {type(each).__name__}: {each.reason}" for each in passed.actions]
        done.problems |= passed.problems

    def _keep_on(self, done: Done, *, surely: bool = False) -> None:
        """The clock, after a pass that it can harm no more."""
        try:
            self.switch.wanted(surely=surely)
        except NotOn as error:
            self._not_on(error, done)

    def _not_on(self, error: NotOn, done: Done) -> None:
        done.problems["schedule"] = str(error)
        done.unswitched = error


def _rests(looked: Looked) -> bool:
    return looked.active == 0 and not looked.unknown and not looked.untold


def tell(done: Done) -> dict[str, object]:
    """Log what was done, and answer it in short. Raises NotOn where the clock could not be switched on: without
    it nobody looks again, so the call is to be repeated."""
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
