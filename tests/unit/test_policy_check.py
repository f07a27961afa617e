"""A job is held against the policy before it is submitted: what the budgets will say, and bounds in words."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from scripted_cloud import ScriptedWorld

from stoker.core.daily_costs import DaySums, KnownSum
from stoker.governor.cost_ledger import DailyCost, record_daily_cost
from stoker.model.errors import PolicyRefused, UserError
from stoker.model.log_entries import Claimed, Closed, Ended, Launched
from stoker.model.observed import Unknown
from stoker.model.offerings import Offering
from stoker.model.policy import NO_RULES, Policy
from stoker.model.spec import Limits, Spec
from stoker.policy import versions
from stoker.policy.policy_file import parse_policy
from stoker.store.base import open_store
from stoker.submit import policy_check
from stoker.submit.policy_check import (
    BudgetForecast,
    check_policy,
    check_used_limits,
    forecast_budgets,
    limit_text,
    refusals_without_machines,
)
from tests.support.sim_data import ON_DEMAND, SPOT_A, make_spec, make_state, nodes

# A job of one hour at $1 or $3 an hour, with ten minutes for the start and the time to save.
HOUR = make_spec(limits=Limits(max_runtime_s=3600.0))
CHEAP, DEAR = replace(SPOT_A, price=1.0), replace(ON_DEMAND, machine="m2", price=3.0)


NOON = datetime(2026, 1, 14, 12, tzinfo=timezone.utc)


class Noon(datetime):
    """The computer's clock stands at noon: a budget's day is not over while a test runs."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return NOON


@pytest.fixture(autouse=True)
def _noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_check, "datetime", Noon)


def policy(*rules: str) -> Policy:
    return parse_policy(("rules:\n" + "\n".join(f"- {rule}" for rule in rules)).encode(), "p")


def coming(rules: Policy, spec: Spec = HOUR, *offerings: Offering) -> list[str]:
    return [
        then for _, then in forecast_budgets(ScriptedWorld().store, rules, spec, offerings or (DEAR, CHEAP)).exceeded
    ]


def budget(dollars: float, then: str = "refuse") -> str:
    return f"{{budget: {{dollars: {dollars}, period: day}}, then: {then}}}"


def test_without_a_budget_nothing_is_asked_of_the_store() -> None:
    class Untouched:
        def __getattr__(self, name: str) -> object:
            pytest.fail(f"{name} was asked for")

    found = forecast_budgets(Untouched(), policy("max_nodes: 4"), HOUR, (CHEAP,))  # type: ignore[arg-type]
    assert found == BudgetForecast((), ())


def test_a_job_is_judged_by_the_cheapest_offering_that_would_do() -> None:
    assert coming(policy(budget(2.0))) == [], "the cheapest costs less than $2"
    assert coming(policy(budget(2.0)), HOUR, DEAR) == ["refuse"]
    assert coming(policy(budget(0.5))) == ["refuse"]
    assert coming(policy(budget(0.5, "wait"))) == ["refuse"], "it would wait for ever"
    assert coming(policy(budget(0.5, "warn"))) == ["warn"]


def test_an_unknown_price_is_not_free() -> None:
    unpriced, store = replace(CHEAP, machine="m9", price=None, on_demand_price=None), ScriptedWorld().store
    assert coming(policy(budget(0.5)), HOUR, unpriced, CHEAP) == ["refuse"]
    found = forecast_budgets(store, policy(budget(10.0)), HOUR, (unpriced, DEAR))
    assert "this job reserves $3.58 (limits.max_runtime at $3.00/h)" in found.balances[0]
    found = forecast_budgets(store, policy(budget(10.0)), HOUR, (unpriced,))
    assert found.balances[0].endswith("this job reserves nothing: no price of its machines is known")
    zones = (unpriced, replace(unpriced, zone="b"), CHEAP)
    any_kind = replace(HOUR, resources=replace(HOUR.resources, spot="prefer"))
    checked = check_policy(policy(budget(10.0)), any_kind, zones, store)
    assert checked.offerings == (CHEAP,), "as governors do"
    (line,) = checked.warnings
    assert line.startswith("policy budget: m9 is left out: no price is known, and other machines have one; `stoker pri")
    assert len(check_policy(policy(budget(10.0, "warn")), any_kind, zones, store).offerings) == 3


def test_an_offering_that_the_rules_leave_out_is_not_the_cheapest() -> None:
    assert coming(policy(budget(2.0), "machines: [m2]")) == ["refuse"]


def test_how_the_budgets_stand_is_told() -> None:
    (told,) = forecast_budgets(ScriptedWorld().store, policy(budget(10.0)), HOUR, (CHEAP,)).balances
    assert "$10" in told


def test_budgets_that_cannot_be_read_are_not_said_to_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_check, "read_budget_state", lambda *_: Unknown("a log cannot be read"))
    found = forecast_budgets(ScriptedWorld().store, policy(budget(10.0)), HOUR, (CHEAP,))
    ((why, then),) = found.exceeded
    assert "a log cannot be read" in why and then == "wait"
    assert (found.balances, found.in_use) == ((), ())


def test_a_job_that_no_budget_concerns_hears_of_none() -> None:
    rules = policy("{budget: {dollars: 1, period: day}, for: {team: nlp}}")
    store = ScriptedWorld().store
    assert forecast_budgets(store, rules, HOUR, (DEAR,)) == BudgetForecast()
    concerned = forecast_budgets(store, rules, replace(HOUR, tags={"team": "nlp"}), (DEAR,))
    assert concerned.balances and concerned.exceeded


def test_a_refusal_names_all_rules_and_a_warning_is_told() -> None:
    store = ScriptedWorld().store
    with pytest.raises(UserError) as error:
        check_policy(policy("max_nodes: 1", budget(0.5)), replace(HOUR, nodes=2), (CHEAP,), store)
    assert "2 nodes are more than 1" in str(error.value) and "; " in str(error.value)
    found = check_policy(
        policy("{max_nodes: 1, then: warn}", budget(0.5, "warn")), replace(HOUR, nodes=2), (CHEAP,), store
    )
    assert len(found.warnings) == 2 and "2 nodes are more than 1" in found.warnings[0]
    without = check_policy(policy(budget(0.5)), HOUR, (CHEAP,))
    assert without.warnings == (), "how budgets stand is asked of the store alone"


def test_forbidden_machines_do_not_hide_what_budgets_and_limits_refuse() -> None:
    rules = policy(
        "machines: [m9]", budget(0.5), "{name: room, concurrent: {gpus: 4}}", "{name: never, concurrent: {nodes: 1}}"
    )
    with pytest.raises(PolicyRefused) as error:
        check_policy(rules, replace(HOUR, nodes=2), (replace(CHEAP, gpus=4),), ScriptedWorld().store)
    found = [line.partition(":")[0] for line in error.value.problems]
    assert found == ["policy machines", "policy budget", "policy room", "policy never"]


def test_a_budget_that_is_spent_is_told_where_no_machine_fits() -> None:
    rules, store = policy("max_nodes: 1", "{budget: {dollars: 1, period: month}, then: refuse}"), ScriptedWorld().store
    assert len(refusals_without_machines(rules, replace(HOUR, nodes=2), store)) == 1
    record_daily_cost(store, DailyCost("old-1", NOON.date(), 9, DaySums(counted=KnownSum(2.0)), {}))
    found = refusals_without_machines(rules, replace(HOUR, nodes=2), store)
    assert [line.partition(":")[0] for line in found] == ["policy max-nodes", "policy budget"]


def test_the_rules_of_a_store_are_those_that_were_written(tmp_path: Path) -> None:
    assert policy_check.read_policy(None) == NO_RULES
    store = open_store((tmp_path / "store").as_uri())
    versions.write(store, "rules: [{max_nodes: 4}]", "jane")
    assert policy_check.read_policy(store).rules[0].max_nodes == 4


def test_bounds_are_noted_in_words() -> None:
    rules = policy(
        "max_runtime: 72h",
        "max_wait: 2h",
        "{max_cost: 1400, then: stop}",
        "spot: {on_demand_after: 2}",
    )
    noted = check_policy(rules, HOUR, (CHEAP,)).notes
    assert [each.partition(": ")[2] for each in noted if "max-wait" in each] == ["at most 2 h without a machine"]
    assert any("at most $1,400.00" in each for each in noted)
    assert any("on-demand after more reclaims than 2" in each for each in noted)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("max_cost", 1400.5, "$1,400.50"),
        ("max_cost", None, "none"),
        ("on_demand_after", 2.0, "2"),
        ("resumes", 3, "3"),
        ("max_runtime", 7200.0, "2 h"),
        ("max_wait", 60.0, "60 s"),
    ],
)
def test_a_bound_is_told_as_people_read_it(field: str, value: float | None, text: str) -> None:
    assert limit_text(field, value) == text


def test_a_job_whose_bounds_are_used_up_is_not_opened_again() -> None:
    ended = Ended("failed", "max_runtime", 2, closing=Closed(2, "failed", "max_runtime", trained_s=7200.0))
    state = make_state(Claimed(SPOT_A, 1), Launched(2, nodes(2)), ended)
    check_used_limits(policy("max_runtime: 3h"), HOUR, state, (CHEAP,))
    check_used_limits(NO_RULES, HOUR, state, (CHEAP,))
    with pytest.raises(UserError, match=r"counts all attempts of a job, and it has trained for 2 h.*list job-1 under"):
        check_used_limits(policy("max_runtime: 2h"), HOUR, state, (CHEAP,))


def test_money_that_pays_for_no_machine_any_more_opens_no_job() -> None:
    # One dollar an hour from 20 to 3620: a dollar is spent.
    ended = Ended("failed", "max_cost", 2, closing=Closed(2, "failed", "max_cost"))
    state = make_state(Claimed(CHEAP, 1), Launched(2, nodes(2)), (ended, 3620.0))
    check_used_limits(policy("{max_cost: 5, then: stop}"), HOUR, state, (CHEAP,))
    with pytest.raises(UserError, match=r"\$1.00 are spent"):
        check_used_limits(policy("{max_cost: 1, then: stop}"), HOUR, state, (CHEAP,))
    with pytest.raises(UserError, match="raise the limit"):
        check_used_limits(policy("{max_cost: 1.001, then: stop}"), HOUR, state, (CHEAP,))


def test_what_the_policy_says_of_cost_is_part_of_the_spec() -> None:
    rules = policy("{max_cost: 5, then: stop}")
    found = policy_check.policy_limits(rules, HOUR)
    assert found.spec.limits.max_cost == 5.0
    assert found.spec.limits.max_runtime_s == 3600.0
    assert found.named("max_cost") == "policy max-cost"
