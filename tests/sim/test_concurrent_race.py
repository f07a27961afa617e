"""Governors that race for machines under a limit of machines at the same time, while stores and clouds fail."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime

import pytest

from stoker.core.budget_reservations import WAITS_FOR_ROOM
from stoker.governor.apply import Applier
from stoker.model.job_state import fold
from stoker.model.log_entries import Claimed, Entry, Event, Launched, Warned
from stoker.policy import versions
from stoker.store import job_log
from tests.support.sim import World
from tests.support.sim_data import make_spec
from tests.support.sim_scenario import RATES, Scenario, SimJob, make_scenario

MOST = 2
POLICY = f"rules:\n- {{name: fair, concurrent: {{nodes: {MOST}, by: team}}}}\n"


def make_world(seed: int) -> World:
    source = random.Random(seed)
    scenario, _ = make_scenario(seed, source)
    rates = {name: source.choice(chances) for name, chances in RATES.items() if name != "quota"} | {"quota": 0.0}
    scenario = Scenario(
        seed=seed,
        governors=3,
        skewed=True,
        capabilities=scenario.capabilities,
        rates=rates,
        incidents=tuple((source.uniform(0.0, 1500.0), what) for what in ("notice", "vanish", "notice", "agent_death")),
        faults_until_s=3000.0,
    )
    jobs = [
        SimJob(
            f"job-{n}",
            replace(make_spec(source.choice((1, 1, 2)), user_errors=2), tags={"team": source.choice(("a", "a", "b"))}),
            work=source.choice((60, 200, 400)),
            every=20,
            pace=1.0,
        )
        for n in range(6)
    ]
    return World(scenario, {job.name: job for job in jobs}, source)


def play(seed: int) -> World:
    world = make_world(seed)
    versions.write(world.store, POLICY, "jane")
    for job in world.jobs.values():
        world.after(world.random.uniform(0.0, 600.0), lambda job=job: world.submit(job))  # type: ignore[misc]
    for caller in world.callers:
        world.after(world.random.uniform(0.0, 20.0), lambda caller=caller: world.tick(caller))  # type: ignore[misc]
    for moment_s, what in world.scenario.incidents:
        world.after(moment_s, lambda what=what: world.strike(what))  # type: ignore[misc]
    world.run_until(3000.0)
    world.quiet = True
    world.run_until(world.now_s + 6000.0)
    return world


def logs(world: World) -> dict[str, list[Entry]]:
    return {job: list(job_log.entries(world.store, job)) for job in world.jobs}


def in_use(world: World, told: dict[str, list[Entry]], team: str, moment: datetime) -> int:
    """Nodes of the team that were launched and not over at that moment, by the logs."""
    total = 0
    for job, entries in told.items():
        state = fold(job, [entry for entry in entries if entry.at <= moment])
        if state is not None and world.jobs[job].spec.tags["team"] == team:
            total += sum(claim.nodes for claim in state.open_claims if claim.launched is not None)
    return total


@pytest.mark.parametrize("seed", range(20))
def test_no_more_machines_at_the_same_time_than_the_limit(seed: int) -> None:
    world = play(seed)
    told = logs(world)
    for job, entries in told.items():
        team = world.jobs[job].spec.tags["team"]
        for entry in entries:
            if isinstance(entry.event, Launched):
                found = in_use(world, told, team, entry.at)
                assert found <= MOST, "\n".join([f"{job} #{entry.seq}: {found} nodes", *world.trace])
    ended = [job for job, entries in told.items() if (state := fold(job, entries)) is not None and state.ended]
    assert len(ended) == len(told), "a limit lets all jobs have their turn"


def test_jobs_do_wait_in_what_is_played() -> None:
    entries = [entry for seed in range(4) for log in logs(play(seed)).values() for entry in log]
    assert any(isinstance(entry.event, Warned) and entry.event.code.startswith(WAITS_FOR_ROOM) for entry in entries)


def test_two_governors_that_claim_at_once_do_not_both_launch() -> None:
    """B claims and launches its job after A has judged, and before A has claimed: as close as a race can be."""
    world = make_world(1)
    world.scenario = replace(world.scenario, rates=dict.fromkeys(RATES, 0.0))
    world.quiet = True
    spec = replace(make_spec(2), tags={"team": "a"})
    world.jobs = {name: SimJob(name, spec, work=10**6, every=20, pace=1.0) for name in ("job-1", "job-2")}
    versions.write(world.store, POLICY, "jane")
    for job in world.jobs.values():
        world.submit(job)
    append, raced = Applier._append, list[bool]()

    def slow(self: Applier, job: str, seq: int, event: Event, reason: str) -> bool:
        if isinstance(event, Claimed) and not raced:
            raced.append(True)
            world._new_governor(world.callers[1]).run_pass(only={"job-2"})
            world.run_until(world.now_s + 5.0)
        return append(self, job, seq, event, reason)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Applier, "_append", slow)
        done = world._new_governor(world.callers[0]).run_pass(only={"job-1"})
    states = {job: fold(job, entries) for job, entries in logs(world).items()}
    (lost,) = states["job-1"].claims  # type: ignore[union-attr]
    assert states["job-2"].open_claims and lost.closed is not None  # type: ignore[union-attr]
    assert (lost.closed.outcome, lost.closed.rule) == ("abandoned", "policy:fair")
    waits = "policy fair: waits for 2 nodes: 2 of 2 nodes of team=a are in use by job-2"
    assert done.waiting["job-1"] == waits
