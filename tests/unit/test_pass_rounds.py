"""The rounds of one pass: each sees what the ones before it did. A plan that is only shown sees what a pass sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scripted_cloud import ScriptedWorld

from stoker.core import market
from stoker.core.place_capacity import UNDECIDED
from stoker.core.snapshot import Append, Plan, Unmark
from stoker.governor import loop
from stoker.governor.cost_ledger import read_daily_costs
from stoker.model import keys
from stoker.model.errors import NoCapacity
from stoker.model.log_entries import Claimed, Closed, Ended, Launched, Warned
from stoker.model.spec import Limits
from stoker.policy import versions
from tests.support.sim_data import OFFERINGS, SPOT_A, SPOT_B, at, make_spec, nodes

A, B = "a-aaaa", "b-bbbb"
RUNNING = (Claimed(SPOT_A, 1), Launched(2, nodes(2)))


@pytest.fixture
def world() -> ScriptedWorld:
    return ScriptedWorld()


def test_each_round_begins_with_what_the_one_before_it_wrote(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit(A, *RUNNING)
    world.cloud.now_s = 3600.0
    ended = Ended("failed", "user-error", 2, closing=Closed(2, "failed", "user-error", exit_code=1))
    plans = [
        Plan((Append(A, 4, ended, "its script failed"),), problems={"x-xxxx": "no spec"}),
        Plan((Unmark(A, (1,), "it has ended"),), problems={"y-yyyy": "no log"}, wake_at=at(3605)),
    ]
    governor, applied = world.governor(), list[Any]()
    apply = governor.applier.apply
    monkeypatch.setattr(loop, "decide", lambda *_: plans.pop(0))
    monkeypatch.setattr(governor.applier, "apply", lambda plan, *rest: applied.append(plan) or apply(plan, *rest))
    done = governor.run_pass()
    assert [type(action) for action in done.actions] == [Append, Unmark] and len(applied) == 2
    (spent,) = read_daily_costs(world.store, [keys.SPENT])
    assert spent.seq == 4, "its costs are those until its end"
    assert done.problems == {"x-xxxx": "no spec", "y-yyyy": "no log"} and done.wake_in_s == 5.0


def test_a_pass_whose_plan_grew_old_ends(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.submit(A)
    governor, applied = world.governor(), list[Any]()
    apply = governor.applier.apply
    monkeypatch.setattr(loop.Freshness, "still", lambda _: False)
    monkeypatch.setattr(governor.applier, "apply", lambda plan, *rest: applied.append(plan) or apply(plan, *rest))
    done = governor.run_pass()
    assert done.problems.keys() == {"clock"} and len(applied) == 1 and done.wake_in_s == 0.0
    assert world.state(A).claims == ()


def test_only_a_pass_over_all_jobs_decides_whose_turn_it_is_and_does_so_in_each_round(world: ScriptedWorld) -> None:
    bounded = tuple(replace(each, most_nodes=1) for each in OFFERINGS)
    world.cloud.offerings = lambda resources: bounded  # type: ignore[method-assign]
    world.cloud.errors["launch"] = NoCapacity("there is none")
    for job in (A, B):
        world.submit(job)
    governor = world.governor()
    assert governor.run_pass(only={A}).waiting == {A: UNDECIDED} and world.state(A).claims == ()
    assert UNDECIDED not in governor.run_pass().waiting.values()
    assert len(world.state(A).claims) > 1, "after the first place, the second is tried in the same pass"


def test_a_plan_that_is_only_shown_counts_what_all_jobs_spent(world: ScriptedWorld) -> None:
    versions.write(world.store, "rules: [{name: money, budget: {dollars: 10, period: day}}]", "jane")
    world.submit(A, spec=make_spec(limits=Limits(max_cost=2.0)))
    assert [type(action) for action in world.governor().plan()[0].actions][:1] == [Append]
    world.submit(B, Claimed(replace(SPOT_A, price=1e6), 1), Launched(2, nodes(2)))
    world.cloud.now_s = 3600.0
    plan, _ = world.governor().plan()
    claimed = {each.job for each in plan.actions if isinstance(each, Append) and isinstance(each.event, Claimed)}
    assert claimed == set()


def test_a_plan_that_is_only_shown_knows_the_market(world: ScriptedWorld) -> None:
    state = world.submit(B, Claimed(SPOT_B, 1), Launched(2, nodes(2)), Closed(2, "reclaimed", "notice", restart=True))
    assert state.last_claim is not None
    key = market.observation_key(B, state.last_claim)
    assert key is not None
    world.store.put(key, b"")
    world.submit(A)
    _, seen = world.governor().plan()
    (job,) = (each for each in seen.snapshot.jobs if each.state.job == A)
    assert job.market != market.NO_HISTORY


def test_a_plan_that_is_only_shown_lists_only_where_its_jobs_are(world: ScriptedWorld) -> None:
    world.submit(A, *RUNNING)
    world.store.put(keys.place("sim", "far-away"), b"")
    world.governor().plan()
    assert "far-away" not in world.cloud.called("list_instances")
    world.governor().run_pass()
    assert "far-away" in world.cloud.called("list_instances"), "a pass looks for orphans there"


def test_the_places_of_its_jobs_are_those_that_their_specs_name(world: ScriptedWorld) -> None:
    spec = make_spec()
    world.submit(A, *RUNNING, spec=replace(spec, resources=replace(spec.resources, region=("r1", "r2"))))
    governor = world.governor()
    governor.run_pass()
    assert governor.places() == {("sim", "r1"), ("sim", "r2")}


def test_notifications_and_warnings_of_a_pass(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over some jobs does not know which others are over; warnings that were written are not written again."""
    for job in (A, B):
        world.submit(job, *RUNNING)
    governor, begun, active, warned = world.governor(), list[Any](), list[Any](), list[Any]()
    begin, notify = governor.dispatcher.begin, governor.notifier.notify
    warning = Append(A, 4, Warned("budget", "soon"), "nearly spent")
    monkeypatch.setattr(governor.dispatcher, "begin", lambda policy: begun.append(policy) or begin(policy))
    monkeypatch.setattr(governor.notifier, "notify", lambda *how: active.append(how[2]) or notify(*how))
    monkeypatch.setattr(governor.budget_tracker, "record_warning", lambda _policy, done: warned.append(done))
    plans = iter([Plan((warning,)), *[Plan()] * 9])
    monkeypatch.setattr(loop, "decide", lambda *_: next(plans))
    governor.run_pass(only={A})
    governor.run_pass()
    assert begun == [governor.settings.policy] * 2 and active == [None, {A, B}] and warned == [warning]
