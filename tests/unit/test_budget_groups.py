"""Budgets by two tags, by quarter, and with a forecast."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import pytest
from test_reservations import running, spec

from stoker.core.budget_reservations import micro
from stoker.core.budget_state import FORECAST, FULL, NEARLY, BudgetState, Expense, compute_budget_state, period_of
from stoker.core.budget_verdict import BudgetMark, mark_of_code, unreported_warnings, warnings_of_job
from stoker.core.tag_groups import group_of, group_text, values_of_group
from stoker.governor.budget_tracker import _prefixes
from stoker.model.observed import Known
from stoker.model.policy import Budget, Policy
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import EPOCH, at

DAY = 86400.0


def policy(text: str) -> Policy:
    return parse_policy(f"rules:\n- {{{text}}}\n".encode(), "p.yaml")


def state(by: Policy, spent: list[tuple[dict[str, str], date, float]], now: datetime) -> BudgetState:
    found = [Expense(f"job-{n}", tags, day, dollars) for n, (tags, day, dollars) in enumerate(spent)]
    return compute_budget_state(by, found, [], now)


@pytest.mark.parametrize(
    ("tags", "text"),
    [
        ({"team": "nlp", "project": "x"}, "team=nlp and project=x"),
        ({"team": "a/b", "project": "%"}, "team=a/b and project=%"),
        ({"team": "nlp"}, "team=nlp without project"),
        ({}, "jobs without team and project"),
    ],
)
def test_groups_of_two_tags(tags: dict[str, str], text: str) -> None:
    by = ("team", "project")
    group = group_of(by, {**tags, "other": "z"})
    assert values_of_group(by, group) == tags and group_text(by, group) == text
    assert group_of("team", tags) == tags.get("team", ""), "of one tag, its value alone"


def test_each_combination_has_a_budget_of_its_own() -> None:
    by = policy("name: b, budget: {dollars: 10, period: month, by: [team, project]}")
    day = EPOCH.date()
    found = state(
        by,
        [
            ({"team": "nlp", "project": "x"}, day, 4.0),
            ({"team": "nlp", "project": "x"}, day, 5.0),
            ({"team": "nlp", "project": "y"}, day, 1.0),
            ({"team": "nlp/x", "project": ""}, day, 2.0),
        ],
        at(3600),
    )
    assert {group: status.spent for (_, group), status in found.statuses.items()} == {
        "nlp/x": 9.0,
        "nlp/y": 1.0,
        "nlp%2Fx/": 2.0,
    }
    (warning,) = unreported_warnings(by, found)
    assert warning.title == "budget b of team=nlp and project=x is nearly spent"
    assert warning.tags == {"team": "nlp", "project": "x"}


@pytest.mark.parametrize(
    ("now", "start", "end"),
    [
        ("2026-01-01", "2026-01-01", "2026-04-01"),
        ("2026-03-31", "2026-01-01", "2026-04-01"),
        ("2026-05-15", "2026-04-01", "2026-07-01"),
        ("2026-09-30", "2026-07-01", "2026-10-01"),
        ("2026-12-31", "2026-10-01", "2027-01-01"),
    ],
)
def test_quarters(now: str, start: str, end: str) -> None:
    moment = datetime.fromisoformat(f"{now}T12:00:00+00:00")
    period = period_of(Budget(dollars=1, period="quarter"), moment)
    assert (period.start.isoformat(), period.end.isoformat()) == (start, end)


def test_all_months_of_a_quarter_are_read() -> None:
    by = policy("budget: {dollars: 1, period: quarter}")
    assert _prefixes(by, datetime(2026, 6, 15, tzinfo=timezone.utc)) == (
        *("spent/2026-04/", "spent/2026-05/", "spent/2026-06/"),
    )
    assert _prefixes(by, datetime(2026, 4, 1, tzinfo=timezone.utc)) == ("spent/2026-04/",)


@pytest.mark.parametrize(("period", "days"), [("day", [17]), ("week", [15, 16, 17])])
def test_the_days_of_a_short_period_are_read(period: str, days: list[int]) -> None:
    by = policy(f"budget: {{dollars: 1, period: {period}}}")
    found = _prefixes(by, datetime(2026, 6, 17, 12, tzinfo=timezone.utc))
    assert found == tuple(f"spent/2026-06/{day}/" for day in days)


# ── Forecasts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

MONTH = "name: b, budget: {dollars: 100, period: month%s}"


@pytest.mark.parametrize(
    ("dollars", "days", "due"),
    [
        (30.0, 15.5, ""),
        (60.0, 15.5, FORECAST),
        (60.0, 30.0, ""),
        (85.0, 15.5, NEARLY),
        (100.0, 15.5, FULL),
        (60.0, 1.0, ""),
    ],
)
def test_what_will_be_spent_at_this_pace_is_warned_of_before_it_is(dollars: float, days: float, due: str) -> None:
    found = state(policy(MONTH % ""), [({}, EPOCH.date(), dollars)], at(days * DAY))
    (status,) = found.statuses.values()
    assert status.due == due
    if days > 3.1:
        assert status.forecast == pytest.approx(dollars * 31 / days)
    assert (
        not state(policy(MONTH % ", forecast: false"), [({}, EPOCH.date(), 60.0)], at(15.5 * DAY)).statuses["b", ""].due
    )


def test_the_warning_says_how_much_and_is_written_once() -> None:
    by = policy(MONTH % "")
    found = state(by, [({}, EPOCH.date(), 60.0)], at(15.5 * DAY))
    (warning,) = unreported_warnings(by, found)
    assert warning.mark == BudgetMark("b", EPOCH.date(), "", FORECAST)
    assert warning.title == "budget b will be spent before its end"
    assert warning.reason.endswith(
        "$60.00 of $100.00 a month are spent (60%), until 2026-02-01 00:00 UTC; at this pace $120.00 by its end (120%)"
    )
    job = running("job-1", since_s=15.5 * DAY)
    budget = compute_budget_state(by, [Expense("old", {}, EPOCH.date(), 60.0)], [(job, spec(5.0))], at(15.5 * DAY))
    (told,) = warnings_of_job(by, "job-1", {}, Known(budget), at(15.5 * DAY))
    assert mark_of_code(by, {}, told.code) == warning.mark
    orders = [
        found.order for kind in (FORECAST, NEARLY, FULL) for found in unreported_warnings(by, with_due(budget, kind))
    ]
    assert orders == sorted(orders)


def with_due(budget: BudgetState, kind: str) -> BudgetState:
    from dataclasses import replace

    return replace(
        budget, statuses={key: replace(one, due=kind, reporter=None) for key, one in budget.statuses.items()}
    )


def test_running_jobs_count_until_they_end_and_not_before_a_tenth_of_the_period() -> None:
    by = policy(MONTH % "")
    job = running("job-1", since_s=0.0)
    bounded = compute_budget_state(by, [], [(job, spec(40.0))], at(3600))
    assert bounded.statuses["b", ""].forecast == pytest.approx(40.0)
    endless = compute_budget_state(by, [], [(job, spec())], at(3600))
    assert endless.statuses["b", ""].forecast == pytest.approx(31 * 24 * 3.0), "$3 an hour, to the end of the month"
    assert endless.statuses["b", ""].due == FORECAST
    assert micro(bounded.statuses["b", ""].spent) == micro(3.0)
    assert timedelta(days=31).total_seconds() == 31 * DAY
