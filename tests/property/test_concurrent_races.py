"""Governors that claim at the same time, on what each knew a while ago: together they never launch more machines than
the limits of machines at the same time allow.

The order of all steps is drawn: see `racing_governors`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from racing_governors import Race, let_all_finish, play

from stoker.core.budget_reservations import waits_for_room_code
from stoker.core.budget_verdict import LaunchDenied
from stoker.model.job_state import JobState
from stoker.model.spec import Spec
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import ON_DEMAND, make_spec

pytestmark = pytest.mark.slow

OF_TEAM, OF_ALL = 8, 12
POLICY = parse_policy(
    f"rules: [{{name: team, concurrent: {{gpus: {OF_TEAM}, by: team}}}}, "
    f"{{name: all, concurrent: {{gpus: {OF_ALL}}}}}]".encode(),
    "p.yaml",
)
STEPS = settings(max_examples=150, deadline=None)


class MachineRace(Race):
    """Jobs of teams, with a number of nodes that have two accelerators each, under limits of accelerators in use."""

    def __init__(self, sizes: tuple[tuple[str, int], ...], governors: int) -> None:
        self.sizes = sizes
        super().__init__(governors, POLICY, replace(ON_DEMAND, gpus=2), "policy:team")

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(f"job-{n}" for n in range(len(self.sizes)))

    def spec(self, job: str) -> Spec:
        team, count = self.sizes[self.jobs.index(job)]
        return replace(make_spec(count), tags={"team": team})

    def waiting_code(self, state: JobState, held: LaunchDenied) -> str | None:
        return None if held.machines is None else waits_for_room_code(state, *held.machines)

    def check(self) -> None:
        """The accelerators of all launched claims that are open are within every limit."""
        used: dict[str, int] = {}
        for job in self.jobs:
            launched = [claim for claim in self.state(job).open_claims if claim.launched is not None]
            team = self.spec(job).tags["team"]
            used[team] = used.get(team, 0) + sum(claim.nodes * claim.offering.gpus for claim in launched)
        events = {job: [entry.event for entry in log] for job, log in self.logs.items()}
        assert max(used.values()) <= OF_TEAM and sum(used.values()) <= OF_ALL, events


@st.composite
def played(draw: st.DrawFn) -> MachineRace:
    sizes = draw(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1, 2, 3, 4])), min_size=2, max_size=6))
    return play(draw, MachineRace(tuple(sizes), draw(st.integers(1, 3))), [0.0, 0.0, 0.3, 0.3, 1.0, 60.0, 900.0])


@STEPS
@given(played())
def test_whatever_the_order_no_more_machines_are_in_use_than_allowed(race: MachineRace) -> None:
    race.check()


@STEPS
@given(played())
def test_each_gets_its_turn_once_others_end(race: MachineRace) -> None:
    """No deadlock, and none starves: with passes over all jobs, and jobs that end, all get in."""
    let_all_finish(race, timedelta(minutes=11))


def test_claims_do_race_in_what_is_played() -> None:
    find(played(), lambda race: race.yielded > 1, settings=settings(STEPS, max_examples=1500, phases=[Phase.generate]))
