"""Governors that claim at the same time, each on the logs as it read them last, and a draw of the order of all steps.

The clock of the store has whole seconds, as some have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from hypothesis import strategies as st

from stoker.core.budget_reservations import launch_request, limits_of_job
from stoker.core.budget_state import compute_budget_state
from stoker.core.budget_verdict import LaunchDenied, judge
from stoker.core.policy_rules import Subject
from stoker.model.job_state import JobState, fold
from stoker.model.log_entries import Claimed, Closed, Ended, Entry, Event, Launched, Submitted, Warned
from stoker.model.observed import Known
from stoker.model.offerings import Offering
from stoker.model.policy import Policy
from stoker.model.spec import Spec
from tests.support.sim_data import EPOCH, nodes

Logs = dict[str, list[Entry]]


@dataclass
class Race:
    """Jobs, their logs, and governors. Subclasses say what is bounded: `spec`, `waiting_code` and `check`."""

    governors: int
    policy: Policy
    machine: Offering
    # The rule by which a claim is abandoned.
    rule: str
    now: datetime = EPOCH
    logs: Logs = field(default_factory=dict)
    read: dict[int, Logs] = field(default_factory=dict)
    # Jobs whose claim is about to be launched.
    claims: set[str] = field(default_factory=set)
    yielded: int = 0

    def __post_init__(self) -> None:
        for job in self.jobs:
            self.logs[job] = []
            self.append(job, Submitted(spec_digest="0" * 64, submitter="jane"))
        for governor in range(self.governors):
            self.look(governor)

    @property
    def jobs(self) -> tuple[str, ...]:
        raise NotImplementedError

    def spec(self, job: str) -> Spec:
        raise NotImplementedError

    def waiting_code(self, state: JobState, held: LaunchDenied) -> str | None:
        """The code of the warning with which the job begins to wait; None if it has one already."""
        raise NotImplementedError

    def check(self) -> None:
        """Assert that no more is launched than the policy allows."""
        raise NotImplementedError

    def append(self, job: str, event: Event) -> None:
        self.logs[job].append(Entry(len(self.logs[job]) + 1, self.now.replace(microsecond=0), "", event))

    def look(self, governor: int) -> None:
        self.read[governor] = {job: list(entries) for job, entries in self.logs.items()}

    def state(self, job: str, logs: Logs | None = None) -> JobState:
        state = fold(job, (self.logs if logs is None else logs)[job])
        assert state is not None
        return state

    def held(self, job: str, logs: Logs, claimed: bool) -> LaunchDenied | None:
        states = [(self.state(each, logs), self.spec(each)) for each in self.jobs]
        budgets = compute_budget_state(self.policy, [], states, self.now)
        state = self.state(job, logs)
        claim = state.open_claims[0] if claimed else None
        limits = limits_of_job(self.policy, state, self.spec(job), self.now)
        ask = launch_request(limits, state, self.machine, self.now, claim)
        found = judge(self.policy, Subject(self.spec(job), self.now.date(), job), Known(budgets), self.now, ask)
        return next((each for each in found if isinstance(each, LaunchDenied)), None)

    def claim(self, governor: int, job: str) -> None:
        """On what it read last. An entry that another was quicker with is not written."""
        known = self.read[governor][job]
        state = self.state(job)
        if known != self.logs[job] or state.ended is not None or state.open_claims:
            return
        held = self.held(job, self.read[governor], claimed=False)
        if held is None:
            self.append(job, Claimed(offering=self.machine, nodes=self.spec(job).nodes))
            self.claims.add(job)
        elif (code := self.waiting_code(state, held)) is not None:
            self.append(job, Warned(code=code))

    def launch(self, job: str) -> None:
        """Reads all logs, then launches or gives up: all of it may come long after the claim, and in any order."""
        state = self.state(job)
        if job not in self.claims or not state.open_claims or state.open_claims[0].launched is not None:
            return
        number = state.open_claims[0].number
        if self.held(job, self.logs, claimed=True) is not None:
            self.append(job, Closed(claim=number, outcome="abandoned", rule=self.rule, restart=True))
            self.yielded += 1
        else:
            self.append(job, Launched(number, nodes(number, self.spec(job).nodes)))
            self.check()
        self.claims.discard(job)

    def end(self, job: str) -> None:
        state = self.state(job)
        if state.open_claims and state.open_claims[0].launched is not None:
            number = state.open_claims[0].number
            closing = Closed(claim=number, outcome="succeeded", rule="finished")
            self.append(job, Ended(outcome="succeeded", rule="finished", claim=number, closing=closing))

    def reclaim(self, job: str) -> None:
        state = self.state(job)
        if state.open_claims and state.open_claims[0].launched is not None:
            number = state.open_claims[0].number
            self.append(job, Closed(claim=number, outcome="reclaimed", rule="notice", restart=True))


R = TypeVar("R", bound=Race)


def play(draw: st.DrawFn, race: R, pauses_s: Sequence[float]) -> R:
    """Draw the steps of a race: judging, writing the claim, judging again on all logs, launching, ending."""
    for _ in range(draw(st.integers(1, 60))):
        race.now += timedelta(seconds=draw(st.sampled_from(pauses_s)))
        job, governor = draw(st.sampled_from(race.jobs)), draw(st.integers(0, race.governors - 1))
        match draw(st.sampled_from(["look", "claim", "claim", "launch", "launch", "end", "reclaim"])):
            case "look":
                race.look(governor)
            case "claim":
                race.claim(governor, job)
            case "launch":
                race.launch(job)
            case "end":
                race.end(job)
            case "reclaim":
                race.reclaim(job)
    return race


def let_all_finish(race: Race, pause: timedelta) -> None:
    """Passes over all jobs, and jobs that end: all get in, or there is a deadlock or one that starves."""
    for _ in range(len(race.jobs) + 1):
        for job in race.jobs:
            race.end(job)
        race.now += pause
        for job in race.jobs:
            race.now += timedelta(seconds=2)
            race.launch(job)
            race.look(0)
            race.claim(0, job)
            race.now += timedelta(seconds=2)
            race.launch(job)
    for job in race.jobs:
        race.end(job)
    assert all(race.state(job).ended is not None for job in race.jobs), race.logs
