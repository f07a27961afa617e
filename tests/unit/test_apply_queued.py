"""Launches that wait in a cloud's queue: the pass goes on, and the next one repeats the request."""

from __future__ import annotations

import pytest
from scripted_cloud import ScriptedWorld

from stoker.core.snapshot import Append, Launch, Plan, Unmark
from stoker.model import keys
from stoker.model.errors import StillQueued
from stoker.model.log_entries import Claimed
from tests.support.sim_data import SPOT_A

A, B = "a-aaaa", "b-bbbb"


@pytest.fixture
def world() -> ScriptedWorld:
    made = ScriptedWorld()
    made.cloud.errors["launch"] = StillQueued("waits in the queue for 8 machines")
    return made


def test_a_queued_request_says_why_its_job_waits_and_is_neither_a_problem_nor_done(world: ScriptedWorld) -> None:
    world.submit(A, Claimed(SPOT_A, 1))
    world.submit(B)
    actions = (Launch(A, 2, "launch"), Unmark(A, (1,), "after it"), Append(B, 2, Claimed(SPOT_A, 1), "claim"))
    applied = world.applier().apply(Plan(actions))
    assert applied.waiting == {A: "waits in the queue for 8 machines"} and applied.problems == {}
    assert [action.job for action in applied.done] == [B], "the rest of the job's plan is dropped, and no other job's"
    assert applied.moved == {B}, "a job whose log has not changed is not decided again in this pass"
    claim = world.state(A).last_claim
    assert claim is not None and claim.open and claim.launched is None and world.store.holds(keys.active(A, 1))


def test_a_claim_that_was_just_made_is_decided_again_though_its_launch_is_queued(world: ScriptedWorld) -> None:
    world.submit(A)
    applied = world.applier().apply(Plan((Append(A, 2, Claimed(SPOT_A, 1), "claim"), Launch(A, 2, "launch"))))
    assert applied.moved == {A} and applied.waiting.keys() == {A}
    world.cloud.errors.clear()
    applier = world.applier()
    assert applier.apply(Plan((Launch(A, 2, "launch"),))).waiting == {}
    claim = world.state(A).last_claim
    assert claim is not None and claim.launched is not None
