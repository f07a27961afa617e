"""Governors that claim at the same time, on what each knew a while ago: together they never launch more machines than
the limits of machines at the same time allow.

The order of all steps is drawn: judging on old logs, writing the claim, judging again on all logs, launching, ending.
The clock of the store has whole seconds, as some have.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from stoker.core.budget_reservations import launch_request, limits_of_job, waits_for_room_code
from stoker.core.budget_state import compute_budget_state
from stoker.core.budget_verdict import LaunchDenied, judge
from stoker.core.policy_rules import Subject
from stoker.model.job_state import JobState, fold
from stoker.model.log_entries import Claimed, Closed, Ended, Entry, Event, Launched, Submitted, Warned
from stoker.model.observed import Known
from stoker.model.spec import Spec
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import EPOCH, ON_DEMAND, make_spec, nodes

pytestmark = pytest.mark.slow

OF_TEAM, OF_ALL = 8, 12
HOUSE = parse_policy(
    f"rules: [{{name: team, concurrent: {{gpus: {OF_TEAM}, by: team}}}}, "
    f"{{name: all, concurrent: {{gpus: {OF_ALL}}}}}]".encode(),
    "p.yaml",
)
STEPS = settings(max_examples=150, deadline=None)
MACHINE = replace(ON_DEMAND, gpus=2)
Logs = dict[str, list[Entry]]


@dataclass
class Shop:
    """Jobs, their logs, and governors that each remember the logs as they read them last. A job has a team, and a
    number of nodes with two accelerators each."""

    sizes: tuple[tuple[str, int], ...]
    governors: int
    now: datetime = EPOCH
    logs: Logs = field(default_factory=dict)
    read: dict[int, Logs] = field(default_factory=dict)
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
        return tuple(f"job-{n}" for n in range(len(self.sizes)))

    def spec(self, job: str) -> Spec:
        team, count = self.sizes[self.jobs.index(job)]
        return replace(make_spec(count), tags={"team": team})

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
        books = compute_budget_state(HOUSE, [], states, self.now)
        state = self.state(job, logs)
        claim = state.open_claims[0] if claimed else None
        limits = limits_of_job(HOUSE, state, self.spec(job), self.now)
        ask = launch_request(limits, state, MACHINE, self.now, claim)
        found = judge(HOUSE, Subject(self.spec(job), self.now.date(), job), Known(books), self.now, ask)
        return next((each for each in found if isinstance(each, LaunchDenied)), None)

    def claim(self, governor: int, job: str) -> None:
        """On what it read last. An entry that another was quicker with is not written."""
        known = self.read[governor][job]
        state = self.state(job)
        if known != self.logs[job] or state.ended is not None or state.open_claims:
            return
        held = self.held(job, self.read[governor], claimed=False)
        if held is None:
            self.append(job, Claimed(offering=MACHINE, nodes=self.spec(job).nodes))
            self.claims.add(job)
        elif held.machines is not None and (code := waits_for_room_code(state, *held.machines)) is not None:
            self.append(job, Warned(code=code))

    def launch(self, job: str) -> None:
        """Reads all logs, then launches or gives up: all of it may come long after the claim, and in any order."""
        state = self.state(job)
        if job not in self.claims or not state.open_claims or state.open_claims[0].launched is not None:
            return
        number = state.open_claims[0].number
        if self.held(job, self.logs, claimed=True) is not None:
            self.append(job, Closed(claim=number, outcome="abandoned", rule="policy:team", restart=True))
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

    def check(self) -> None:
        """The accelerators of all launched claims that are open are within every limit."""
        used: dict[str, int] = {}
        for job in self.jobs:
            launched = [claim for claim in self.state(job).open_claims if claim.launched is not None]
            team = self.spec(job).tags["team"]
            used[team] = used.get(team, 0) + sum(claim.nodes * claim.offering.gpus for claim in launched)
        told = {job: [entry.event for entry in log] for job, log in self.logs.items()}
        assert max(used.values()) <= OF_TEAM and sum(used.values()) <= OF_ALL, told


@st.composite
def played(draw: st.DrawFn) -> Shop:
    sizes = draw(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1, 2, 3, 4])), min_size=2, max_size=6))
    shop = Shop(tuple(sizes), draw(st.integers(1, 3)))
    for _ in range(draw(st.integers(1, 60))):
        shop.now += timedelta(seconds=draw(st.sampled_from([0.0, 0.0, 0.3, 0.3, 1.0, 60.0, 900.0])))
        job, governor = draw(st.sampled_from(shop.jobs)), draw(st.integers(0, shop.governors - 1))
        match draw(st.sampled_from(["look", "claim", "claim", "launch", "launch", "end", "reclaim"])):
            case "look":
                shop.look(governor)
            case "claim":
                shop.claim(governor, job)
            case "launch":
                shop.launch(job)
            case "end":
                shop.end(job)
            case "reclaim":
                shop.reclaim(job)
    return shop


@STEPS
@given(played())
def test_whatever_the_order_no_more_machines_are_in_use_than_allowed(shop: Shop) -> None:
    shop.check()


@STEPS
@given(played())
def test_each_gets_its_turn_once_others_end(shop: Shop) -> None:
    """No deadlock, and none starves: with passes over all jobs, and jobs that end, all get in."""
    for _ in range(len(shop.jobs) + 1):
        for job in shop.jobs:
            shop.end(job)
        shop.now += timedelta(minutes=11)
        for job in shop.jobs:
            shop.now += timedelta(seconds=2)
            shop.launch(job)
            shop.look(0)
            shop.claim(0, job)
            shop.now += timedelta(seconds=2)
            shop.launch(job)
    for job in shop.jobs:
        shop.end(job)
    assert all(shop.state(job).ended is not None for job in shop.jobs), shop.logs


def test_claims_do_race_in_what_is_played() -> None:
    find(played(), lambda shop: shop.yielded > 1, settings=settings(STEPS, max_examples=1500, phases=[Phase.generate]))
