"""Approvals beside training jobs that others started: each covers the job that it names, and no other."""

from __future__ import annotations

from external_world import World, events

from stoker.external_jobs.clone_chain import Stopping
from stoker.policy import approvals
from stoker.policy.approvals import Approval

BIG = "- {name: big, max_nodes: 1, approvers: ['os:lead@*']}"
LEAD, LAST = "os:lead@laptop", "2999-12-31"


def stopped(world: World) -> list[str]:
    return [event.rule for event in events(world) if isinstance(event, Stopping)]


def test_an_approval_for_one_job_leaves_the_rule_on_for_all_others() -> None:
    world = World(BIG)
    approvals.write(world.store, Approval("other", "big", LEAD, LAST, "demo"))
    world.account.clock.move(60)
    world.account.start()
    world.wake()
    assert stopped(world) == ["policy:big"], "the rule is older than the job, whatever was approved since"
