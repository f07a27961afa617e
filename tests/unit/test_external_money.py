"""The cost of external training jobs counts in the budgets of the policy, once, running or over."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest
from external_world import HOUR_S, REGION, World, events, told

from stoker.core.daily_costs import DaySums, KnownSum
from stoker.external_jobs.clone_chain import RuleWarning
from stoker.governor.budget_tracker import BudgetTracker
from stoker.governor.cost_ledger import read_daily_costs
from stoker.governor.external_costs import expenses_of, read_rows, record_costs
from stoker.governor.observe import Memory
from stoker.model.errors import StoreDenied, Transient
from stoker.model.observed import Known
from stoker.model.policy import Policy
from stoker.policy.versions import current, parsed_policy
from stoker.providers.price_book import Price
from stoker.read.cost_records import read_accounts
from stoker.store import external_job_index
from stoker.store.base import Store
from stoker.store.external_job_index import ExternalJobRow

BUDGET = "- {name: money, budget: {dollars: 100, period: month, by: team}}"
ROOM = "- {name: room, concurrent: {nodes: 3, by: team}}"
SPOTLESS = {"EnableManagedSpotTraining": False, "StoppingCondition": {"MaxRuntimeInSeconds": 432000}}


@pytest.fixture(autouse=True)
def priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host costs 10 dollars an hour."""
    price = Price(10.0, "the test", date(2026, 11, 1))
    monkeypatch.setattr("stoker.providers.sagemaker.prices.on_demand", lambda _region, _name: price)


def rules_of(world: World) -> Policy:
    return parsed_policy(current(world.store))


def spent(world: World, value: str = "nlp") -> tuple[float, tuple[str, ...]]:
    """In the budget of a team, and whose part of it nobody knows. Whoever looks keeps nothing of what was before."""
    budget_state = BudgetTracker(world.store, Memory()).read_state(rules_of(world), world.account.clock.now())
    assert isinstance(budget_state, Known)
    standing = budget_state.value.statuses["money", value]
    return round(standing.spent, 6), standing.unpriced


def test_one_that_trains_and_one_that_is_over_count_once() -> None:
    world = World(BUDGET)
    world.account.start(training_s=HOUR_S, **SPOTLESS)
    world.wake()
    assert spent(world) == (20.0, ())
    world.account.train("bert", HOUR_S)
    world.account.jobs.enter(world.account.job(), "Completed")
    for _ in range(3):
        world.wake()
        world.governor.tick()
    assert spent(world) == (40.0, ())
    sums = [each.sums for each in read_daily_costs(world.store, ["spent/"])]
    assert sum(each.spent.known for each in sums) == pytest.approx(40.0)
    assert sum(each.on_demand.known for each in sums) == pytest.approx(40.0) and all(
        each.on_demand.whole for each in sums
    )


def test_what_has_left_the_list_still_counts() -> None:
    world = World(BUDGET)
    world.account.start(training_s=HOUR_S, **SPOTLESS)
    world.account.jobs.enter(world.account.job(), "Completed")
    world.wake()
    external_job_index.write(world.store, REGION, {}, world.account.clock.now())
    assert expenses_of(read_rows(world.store, rules_of(world))) == [] and spent(world) == (20.0, ())


def test_costs_tells_of_those_that_are_over() -> None:
    world = World(BUDGET)
    world.account.start(training_s=HOUR_S, **SPOTLESS)
    world.account.jobs.enter(world.account.job(), "Completed")
    world.wake()
    (found,) = read_accounts(world.store, world.account.clock.now()).removed
    assert found.tags == {"team": "nlp"} and found.sums.spent.known == pytest.approx(20.0)
    assert found.job.startswith("sagemaker.us-east-1.bert.")


def test_days_have_their_share() -> None:
    world = World(BUDGET)
    world.account.start(training_s=24 * HOUR_S, **SPOTLESS)
    world.wake()
    days = {each.day.day: round(each.dollars, 6) for each in expenses_of(read_rows(world.store, rules_of(world)))}
    assert days == {2: 300.0, 3: 180.0}


def test_what_spot_costs_is_not_known_before_its_end() -> None:
    world = World(BUDGET)
    world.account.start(training_s=HOUR_S)
    world.wake()
    found, unknown = spent(world)
    assert found == 0.0 and len(unknown) == 1


def test_one_that_begins_while_a_budget_is_spent_is_told_and_goes_on() -> None:
    world = World(BUDGET)
    world.account.start("first", training_s=6 * HOUR_S, **SPOTLESS)
    world.wake("first")
    world.account.start(**SPOTLESS)
    for _ in range(2):
        world.wake()
    assert world.account.job().status == "InProgress"
    given = [event for event in events(world) if isinstance(event, RuleWarning)]
    assert [event.rule for event in given] == ["policy:money"]


def test_where_the_budget_refuses_it_is_stopped_before_it_trains() -> None:
    world = World(BUDGET.replace("}}", "}, then: refuse}"))
    world.account.start("first", training_s=6 * HOUR_S, **SPOTLESS)
    world.wake("first")
    world.account.start(**SPOTLESS)
    world.account.start("other", Tags=[{"Key": "team", "Value": "vision"}], **SPOTLESS)
    world.wake()
    world.wake("other")
    assert world.account.statuses() == {"first": "InProgress", "bert": "Stopping", "other": "InProgress"}


def test_one_that_trains_is_left_alone_when_the_budget_is_reached() -> None:
    world = World(BUDGET.replace("}}", "}, then: refuse}"))
    world.account.start(training_s=6 * HOUR_S, **SPOTLESS)
    world.wake()
    assert spent(world) == (120.0, ()) and world.account.job().status == "InProgress"


@pytest.mark.parametrize("rule", [BUDGET, ROOM])
@pytest.mark.parametrize("then", ["wait", "refuse", "warn"])
def test_one_that_trains_when_it_is_first_seen_is_judged_once(rule: str, then: str) -> None:
    """Warm pools start in seconds, and events may come late."""
    world = World(rule.replace("}}", f"}}, then: {then}}}"))
    world.account.start("first", training_s=60.0, **SPOTLESS)
    world.wake("first")
    world.account.clock.move(6 * HOUR_S)
    world.wake("first")
    world.account.start(training_s=300.0, **SPOTLESS)
    world.account.start("other", training_s=1.0, Tags=[{"Key": "team", "Value": "vision"}], **SPOTLESS)
    for name in ("bert", "other", "first"):
        world.wake(name)
    stopped = "Stopping" if then == "refuse" else "InProgress"
    assert world.account.statuses() == {"first": "InProgress", "bert": stopped, "other": "InProgress"}
    assert len(warnings(world)) == (0 if then == "refuse" else 1)
    world.account.start("third", Tags=[{"Key": "team", "Value": "vision"}], **SPOTLESS)
    for _ in range(3):
        world.account.clock.move(2 * HOUR_S)
        world.wake("other")
    assert world.account.job("other").status == "InProgress", "it began when there was money and room"


@pytest.mark.parametrize("rule", [BUDGET, ROOM])
def test_one_that_has_trained_for_long_when_it_is_first_seen_is_told_and_goes_on(rule: str) -> None:
    """No governor ran: there may have been money and room when it began."""
    world = World(rule.replace("}}", "}, then: refuse}"))
    world.account.start("first", training_s=6 * HOUR_S, **SPOTLESS)
    world.wake("first")
    world.account.start(training_s=HOUR_S, **SPOTLESS)
    world.wake()
    world.wake()
    assert world.account.job().status == "InProgress"
    (reason,) = warnings(world)
    assert reason.endswith("; it had trained for 1 h when it was first seen, and goes on")


def test_one_that_trained_before_the_rule_goes_on() -> None:
    world = World("- max_nodes: 9")
    world.account.start("first", training_s=6 * HOUR_S, **SPOTLESS)
    world.account.start(training_s=60.0, **SPOTLESS)
    world.legislate(BUDGET.replace("}}", "}, then: refuse}"))
    world.wake("first")
    world.wake()
    assert world.account.job().status == "InProgress"
    assert warnings(world)[0].endswith("it was there before the rule, and goes on")


def test_a_stop_that_sagemaker_did_not_take_is_asked_for_again() -> None:
    world = World(BUDGET.replace("}}", "}, then: refuse}"))
    world.account.start("first", training_s=6 * HOUR_S, **SPOTLESS)
    world.wake("first")
    world.account.start(training_s=600.0, **SPOTLESS)
    world.account.trouble = down
    assert "does not answer" in str(world.governor.wake(REGION, "bert").problems)
    world.account.trouble = lambda _operation: False
    world.account.clock.move(600.0)
    world.wake()
    assert world.account.job().status == "Stopping"


def warnings(world: World) -> list[str]:
    return [record.reason for record in told(world) if isinstance(record.event, RuleWarning)]


def down(operation: str) -> bool:
    if operation == "StopTrainingJob":
        raise Transient("SageMaker does not answer")
    return False


def test_books_that_cannot_be_read_stop_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_store: Store, _prefixes: object, _known: object) -> list[object]:
        raise StoreDenied("no")

    world = World(BUDGET.replace("}}", "}, then: refuse}"))
    monkeypatch.setattr("stoker.governor.budget_tracker.read_daily_costs", denied)
    world.account.start(**SPOTLESS)
    world.wake()
    assert world.account.job().status == "InProgress"
    assert not [event for event in events(world) if isinstance(event, RuleWarning)]


def test_a_budget_that_refuses_leaves_what_trains_on_spot() -> None:
    """It is asked for when spot is to be given up, and means the clone."""
    world = World(BUDGET.replace("}}", "}, then: refuse}"))
    world.account.start("first", training_s=6 * HOUR_S, **SPOTLESS)
    world.wake("first")
    world.account.start(training_s=9000)
    world.account.interrupt(times=4)
    world.wake()
    assert world.account.job().status == "InProgress"


def test_what_stoker_itself_started_is_counted_as_a_job() -> None:
    world = World(BUDGET)
    world.account.start(training_s=HOUR_S, **SPOTLESS)
    world.wake()
    rows = external_job_index.read(world.store, REGION).rows
    ours = {name: replace(row, own=True) for name, row in rows.items()}
    external_job_index.write(world.store, REGION, ours, world.account.clock.now())
    assert expenses_of(read_rows(world.store, rules_of(world))) == []


@pytest.mark.parametrize(
    ("cost", "spot", "spent", "on_demand"),
    [
        (5.0, False, KnownSum(5.0), KnownSum(5.0)),
        (5.0, True, KnownSum(5.0), KnownSum(5.0, whole=False)),
        (None, False, KnownSum(whole=False), KnownSum(whole=False)),
    ],
)
def test_the_on_demand_price_of_spot_training_is_known_in_part(
    cost: float | None, spot: bool, spent: KnownSum, on_demand: KnownSum
) -> None:
    world = World(BUDGET)
    now = world.account.clock.now()
    row = ExternalJobRow("bert", REGION, "bert", "Completed", "", now, now, trained_s=600.0, spot=spot, cost=cost)
    record_costs(world.store, replace(row, created_at=now - timedelta(seconds=600)))
    (found,) = read_daily_costs(world.store, ["spent/"])
    assert found.sums == DaySums(spent, on_demand, spent)
