"""Training jobs that others started obey the policy: stopped as soon as they are seen to break one."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from external_world import (
    HOUR_S,
    INTERNAL,
    REGION,
    World,
    events,
    kinds,
    told,
)

from stoker.external_jobs.clone_chain import GaveUp, JobEnded, JobSeen, RuleWarning, Stopping
from stoker.model import keys
from stoker.providers.price_book import Price
from stoker.store import external_job_index


def test_nothing_is_governed_that_the_policy_did_not_ask_for() -> None:
    for policy in ("rules: []\n", "sagemaker: {regions: [eu-west-1]}\n"):
        world = World(policy=policy)
        world.account.start(training_s=0)
        assert world.wake() == [] and world.governor.tick().done == []
        assert world.account.calls == [] and not list(world.store.list(keys.EXTERNAL_JOBS))


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("tags: {project: any}", "tags.project is missing; start it with that tag"),
        ("tags: {project: any, owner: any}", "tags project and owner are missing; start it with those tags"),
        ("tags: {team: [vision]}", "tags.team: nlp is not allowed"),
        ("providers: [ec2, gce]", "sagemaker may not be used"),
        ("regions: [eu-*]", "us-east-1 may not be used"),
        ("machines: [ml.g5.xlarge]", "ml.g5.12xlarge may not be used"),
        ("images: ['*/house/*']", "the image 1234.dkr.ecr/bert:1 is not allowed"),
        ("max_nodes: 1", "2 nodes are more than 1"),
        ("{max_runtime: 1h, then: refuse}", "5 d is more than 1 h"),
    ],
)
def test_what_would_have_been_refused_is_stopped_when_it_is_seen(rule: str, why: str) -> None:
    world = World(f"- {rule}")
    world.account.start()
    (done,) = world.wake()
    assert why in done and world.account.job().status == "Stopping"
    seen, stopping = events(world)
    assert isinstance(seen, JobSeen) and seen.in_progress
    assert isinstance(stopping, Stopping) and stopping.rule.startswith("policy:") and stopping.after == ""
    assert why in told(world)[1].reason and len(told(world)[1].policy) == 64
    # It was not ended for its own sake: no clone.
    world.account.jobs.advance(world.account.job(), "Stopped")
    assert world.wake() == [] and world.clones == [] and kinds(world) == ["JobSeen", "Stopping", "JobEnded"]


@pytest.mark.parametrize("how", ["audit: true", "then: warn"])
def test_a_rule_that_only_tells_tells_once(how: str) -> None:
    world = World(f"- max_nodes: 1\n  {how}")
    world.account.start()
    for _ in range(3):
        assert world.wake() == []
    _, warning = events(world)
    assert isinstance(warning, RuleWarning) and "2 nodes are more" in told(world)[1].reason
    assert world.account.job().status == "InProgress"


@pytest.mark.parametrize("beside", ["for: {team: vision}", "except: [{job: bert, until: 2026-11-02, why: the demo}]"])
def test_scopes_and_exemptions_hold(beside: str) -> None:
    world = World(f"- max_nodes: 1\n  {beside}")
    world.account.start()
    assert world.wake() == []
    if beside.startswith("except"):
        world.account.clock.move(24 * HOUR_S)
        assert "2 nodes" in world.wake()[0]


def test_the_longest_runtime_is_of_a_job_and_its_clones() -> None:
    world = World("- max_runtime: 10h")
    world.account.start(training_s=6 * HOUR_S)
    world.wake()
    world.account.fail(reason=INTERNAL)
    world.wake()
    (clone,) = world.clones
    world.account.train(clone, 3 * HOUR_S)
    assert world.wake(clone) == []
    world.account.clock.move(1.1 * HOUR_S)
    assert "max-runtime: 10 h of training are reached" in world.wake(clone)[0]


def test_the_longest_wait() -> None:
    world = World("- max_wait: 6h")
    world.account.start()
    world.account.clock.move(5 * HOUR_S)
    assert world.wake() == []
    world.account.clock.move(HOUR_S)
    assert "it waited for a machine for 6 h" in world.wake()[0]


@pytest.mark.parametrize("then", ["stop", "refuse"])
def test_the_most_dollars(monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    """It cannot ask for less beforehand, so it is not refused for that."""
    world = World(f"- {{max_cost: 100, then: {then}}}")
    known = {"ml.g5.12xlarge": Price(10.0, "a table", date(2026, 11, 1))}
    monkeypatch.setattr("stoker.providers.sagemaker.prices.on_demand", lambda _region, name: known.get(name))
    dear = {"EnableManagedSpotTraining": False, "StoppingCondition": {"MaxRuntimeInSeconds": 432000}}
    world.account.start(training_s=4.9 * HOUR_S, **dear)
    world.account.start("spot", training_s=0)
    assert world.wake() == []
    world.account.clock.move(600)
    assert "max-cost: $100 are reached" in world.wake()[0]
    world.account.clock.move(100 * HOUR_S)
    # Nobody knows what spot costs until it is over.
    assert world.wake("spot") == []
    world.account.jobs.advance(world.account.job("spot"), "Completed")
    world.wake("spot")
    over = events(world, "spot")[-1]
    assert isinstance(over, JobEnded) and over.cost is not None and over.cost > 0
    assert external_job_index.read(world.store, REGION).rows["spot"].cost == over.cost


def test_a_price_that_nobody_knows_reaches_no_bound() -> None:
    world = World("- max_cost: 1")
    world.account.start(training_s=100 * HOUR_S)
    assert world.wake() == []


def test_a_hopeless_experiment() -> None:
    world = World("- metric: {name: loss, above: 100, after: 1h}")
    world.account.start(training_s=60)
    world.account.job().metrics = ({"MetricName": "loss", "Value": 1e6, "Timestamp": world.account.clock.now()},)
    assert world.wake() == []
    world.account.clock.move(HOUR_S)
    assert "loss is 1e+06, above 100" in world.wake()[0]


def test_a_rule_that_was_taken_back_stops_nothing() -> None:
    world = World("- max_nodes: 1")
    world.account.start()
    world.account.clock.move(60)
    world.legislate("- max_nodes: 2")
    assert world.wake() == []
    assert world.account.job().status == "InProgress"


def test_a_job_that_was_there_before_the_rule_goes_on_and_is_not_cloned() -> None:
    world = World()
    world.account.start(training_s=9000)
    world.wake()
    world.legislate("- max_nodes: 1")
    assert world.wake() == [] and world.account.job().status == "InProgress"
    assert "it was there before the rule, and goes on" in told(world)[-1].reason
    # A version that has the rule, too, makes it no younger for who came in between.
    world.account.start("between")
    world.account.clock.move(60)
    world.legislate("- max_nodes: 1\n- max_runtime: 90d")
    assert "2 nodes are more than 1" in world.wake("between")[0] and world.wake() == []
    world.account.fail(reason=INTERNAL)
    world.wake()
    assert world.clones == [] and events(world)[-1] == GaveUp("bert", "policy:max-nodes")


def test_an_exemption_holds_for_clones() -> None:
    world = World("- max_nodes: 1\n  except: [{job: bert, until: 2026-12-31, why: the demo}]")
    world.account.start(training_s=9000)
    world.wake()
    world.account.fail(reason=INTERNAL)
    world.wake()
    (clone,) = world.clones
    assert world.wake(clone) == [] and world.account.job(clone).status == "InProgress"


def test_rules_that_cannot_be_read_cause_nothing() -> None:
    world = World()
    world.account.start()
    text = '{"text":"rules: [{no_such: 1}]","author":"newer"}'
    world.store.create(keys.rules(2), text.encode())
    looked = world.governor.wake(REGION, "bert")
    assert "update this one" in looked.problems["policy"] and world.account.calls == []
    assert "update this one" in world.governor.tick().problems["policy"]


@pytest.mark.parametrize(
    ("rule", "minutes"),
    [
        ("tags: {team: any}", 15),
        ("max_cost: 500", 5),
        ("metric: {name: loss, above: 9}", 5),
        ("max_runtime: 1h10m", 10),
    ],
)
def test_a_rule_that_time_can_break_is_looked_at_sooner(
    rule: str, minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    price = Price(10.0, "the test", date(2026, 11, 1))
    monkeypatch.setattr("stoker.providers.sagemaker.prices.on_demand", lambda _region, _name: price)
    world = World(f"- {rule}")
    world.account.start(training_s=HOUR_S)
    world.wake()
    world.governor.tick()
    due = external_job_index.read(world.store, REGION).rows["bert"].look_at
    assert due is not None
    assert due - world.account.clock.now() == timedelta(minutes=minutes)
