"""A rule about money that cannot be enforced, for want of a price, is told: when the policy is set, when a job is
submitted, and when a training job of others is seen, each once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from external_world import HOUR_S, World, events, told
from stopped_job import NOW

from stoker.external_jobs import notifications
from stoker.external_jobs.clone_chain import ChainEntry, JobSeen, RuleWarning, Stopping
from stoker.policy.policy_file import parse_policy
from stoker.policy.price_warnings import price_warnings
from stoker.submit.policy_check import check_policy
from tests.support.sim_data import ON_DEMAND, make_spec

MACHINES = {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 8, "VolumeSizeInGB": 50}
ON_DEMAND_JOB = {
    "ResourceConfig": MACHINES,
    "EnableManagedSpotTraining": False,
    "StoppingCondition": {"MaxRuntimeInSeconds": 432000},
}
NO_LONGER_SOLD = {**ON_DEMAND_JOB, "ResourceConfig": {**MACHINES, "InstanceType": "ml.p2.xlarge"}}


def warnings(world: World) -> list[str]:
    return [record.reason for record in told(world) if isinstance(record.event, RuleWarning)]


def test_eight_p4d_do_not_train_for_thirty_hours_under_500_dollars() -> None:
    """With the packaged prices alone: a function has no home, and its role may not ask for prices."""
    world = World("- max_cost: 500")
    world.account.start(**ON_DEMAND_JOB)
    world.wake()
    world.account.train("bert", 2.4 * HOUR_S)
    assert world.wake() == []
    world.account.clock.move(0.2 * HOUR_S)
    assert "max-cost: $500 are reached" in world.wake()[0]
    assert isinstance(events(world)[-2], Stopping) or isinstance(events(world)[-1], Stopping)
    assert warnings(world) == []


@pytest.mark.parametrize(
    ("rule", "name", "what"),
    [
        ("max_cost: 500", "max-cost", "nothing stops it at that cost"),
        ("{max_cost: 500, then: warn}", "max-cost", "nothing stops it at that cost"),
        ("budget: {dollars: 1000, period: month}", "budget", "its cost is not counted"),
    ],
)
def test_an_unknown_price_is_told_once(rule: str, name: str, what: str) -> None:
    world = World(f"- {rule}")
    world.account.start(**NO_LONGER_SOLD)
    for _ in range(3):
        world.wake()
        world.account.clock.move(HOUR_S)
    found = [each for each in warnings(world) if "not enforced" in each]
    (text,) = found
    assert text == (
        f"policy {name} is not enforced: there is no price of ml.p2.xlarge in us-east-1; "
        f"`stoker prices --provider sagemaker --refresh --region us-east-1` may bring one; {what}"
    )


def test_it_is_a_notification_about_the_rule() -> None:
    world = World("- max_cost: 500")
    world.account.start(**NO_LONGER_SOLD)
    world.wake()
    (record,) = [record for record in told(world) if isinstance(record.event, RuleWarning)]
    policy = parse_policy(b"rules: [{max_cost: 500}]", "p")
    context = notifications.JobContext("bert", "us-east-1")
    sent = notifications.notification_of(ChainEntry(2, NOW, record), context, policy)
    assert sent is not None and (sent.kind, sent.rule) == ("rule", "policy:max-cost")


def test_what_spot_costs_is_told_to_be_unknown_while_it_trains() -> None:
    world = World("- max_cost: 500\n- budget: {dollars: 9999, period: month}")
    world.account.start()
    world.wake()
    world.wake()
    (text,) = warnings(world)
    assert text == (
        "policy max-cost is not enforced: what it costs on spot is known only when it is over; "
        "nothing stops it at that cost before"
    )


def test_a_job_that_no_rule_about_money_covers_is_not_told_of() -> None:
    world = World("- {max_cost: 500, for: {team: vision}}\n- max_nodes: 100")
    world.account.start(**NO_LONGER_SOLD)
    world.wake()
    assert [type(event) for event in events(world)] == [JobSeen]


def test_setting_a_policy_tells_of_regions_without_prices() -> None:
    def of(text: str) -> list[str]:
        return list(price_warnings(parse_policy(text.encode(), "p")))

    regions = "sagemaker: {regions: [us-east-1, il-central-1]}\n"
    first, spot = of(regions + "rules: [{max_cost: 500}, {budget: {dollars: 9, period: month}}]")
    assert "policy max-cost, policy budget: not enforced for training jobs in il-central-1" in first
    assert "`stoker prices --provider sagemaker --refresh --region il-central-1`" in first
    assert spot.startswith("warning: policy max-cost: not enforced for training jobs on managed spot")
    assert of(regions + "rules: [{max_nodes: 4}]") == []
    assert of("rules: [{max_cost: 500}]") == []
    assert of("sagemaker: {regions: [us-east-1]}\nrules: [{budget: {dollars: 9, period: month}}]") == []


def test_submitting_tells_of_a_budget_that_cannot_count_the_job() -> None:
    policy = parse_policy(b"rules: [{budget: {dollars: 9, period: month}}, {max_nodes: 9}]", "p")
    unpriced = replace(ON_DEMAND, price=None, on_demand_price=None)
    (line,) = check_policy(policy, make_spec(), (unpriced,)).warnings
    assert line.startswith("policy budget: not enforced for this job, since no price of its machines on ")
    assert check_policy(policy, make_spec(), (ON_DEMAND,)).warnings == ()
    assert check_policy(parse_policy(b"rules: [{max_nodes: 9}]", "p"), make_spec(), (unpriced,)).warnings == ()
