"""Budgets: what they say to a job that wants a machine, and what they never do."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta, timezone

import pytest

from stoker.core.budget_state import BudgetState, Expense, compute_budget_state, period_of
from stoker.core.budget_verdict import unreported_warnings, without_reported
from stoker.core.costs import job_cost
from stoker.core.daily_costs import by_day, paid_spans
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.snapshot import Append, JobSnapshot, Launch, Plan
from stoker.model.job_state import JobState
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, Warned
from stoker.model.observed import Known, Observed, Unknown
from stoker.model.offerings import Offering
from stoker.model.policy import Budget
from stoker.model.spec import Limits, Spec
from stoker.notifications.events import budget_notification, event_line, message_title
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import (
    EPOCH,
    ON_DEMAND,
    SPOT_A,
    at,
    hard_notice,
    make_beat,
    make_facts,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

TODAY = EPOCH.date()
BUDGET = "name: money, budget: {dollars: 10, period: day}"
# What it may cost is little beside the budget: these tests are about what is spent.
SMALL = make_spec(limits=Limits(max_cost=0.3))


def settings(*texts: str) -> GovernorSettings:
    text = "rules:\n" + "".join(f"- {{{each}}}\n" for each in texts)
    return replace(DEFAULT, policy=parse_policy(text.encode(), "p.yaml", version=1))


def spent(dollars: float | None, *, day: date = TODAY, job: str = "other-1", **tags: str) -> Expense:
    return Expense(job, tags, day, dollars or 0.0, whole=dollars is not None)


def tagged(**tags: str) -> Spec:
    return replace(SMALL, tags=tags)


def decided(
    by: GovernorSettings,
    *kept: Expense,
    state: JobState | None = None,
    spec: Spec | None = None,
    now_s: float = 100.0,
    job: JobSnapshot | None = None,
) -> Plan:
    """A job that wants a machine, with the books of everybody."""
    job = job or make_snapshot(state or make_state(), spec=spec or SMALL)
    books = compute_budget_state(by.policy, kept, [(job.state, job.spec)], at(now_s))
    return decide_job(replace(job, budget_state=Known(books)), by, at(now_s))


def events(plan: Plan) -> list[Event]:
    return [action.event for action in plan.actions if isinstance(action, Append)]


def after_words(by: GovernorSettings, *kept: Expense, spec: Spec | None = None) -> Plan:
    """What is decided when all has been told."""
    told: list[Event] = []
    for _ in range(5):
        plan = decided(by, *kept, state=make_state(*told), spec=spec, now_s=100.0)
        found = events(plan)
        if not found or not isinstance(found[0], Warned):
            return plan
        told.append(found[0])
    raise AssertionError("it never stops talking")


def test_a_full_budget_keeps_a_job_waiting_and_says_why() -> None:
    by = settings(BUDGET)
    plan = decided(by, spent(9.7), state=make_state(Warned(code="policy:money:2026-01-01:warning")))
    assert isinstance(events(plan)[0], Claimed), "it is not full yet"
    first = decided(by, spent(10.5))
    assert [type(event) for event in events(first)] == [Warned]
    plan = after_words(by, spent(10.5))
    assert plan.actions == ()
    assert plan.waiting["job-1"] == (
        "policy money: no machine until 2026-01-02 00:00 UTC: $10.50 of $10.00 a day are spent (105%)"
    )
    assert plan.wake_at == at(86400.0)


def test_it_is_told_once_a_period_and_the_next_period_begins_anew() -> None:
    by = settings(BUDGET)
    (warning,) = events(decided(by, spent(8.0)))
    assert warning == Warned(code="policy:money:2026-01-01:warning")
    assert isinstance(events(decided(by, spent(8.0), state=make_state(warning)))[0], Claimed)
    tomorrow = decided(by, spent(12.0), state=make_state(warning), now_s=86400.0)
    assert isinstance(events(tomorrow)[0], Claimed), "what was spent yesterday counts no more"


def test_one_job_tells_for_all() -> None:
    by = settings(BUDGET)
    states = [make_state(job="job-1"), make_state(job="job-2")]
    books = compute_budget_state(by.policy, [spent(9.0)], [(state, SMALL) for state in states], at(100))
    jobs = [replace(make_snapshot(state, spec=SMALL), budget_state=Known(books)) for state in states]
    told = [events(decide_job(job, by, at(100)))[0] for job in jobs]
    assert isinstance(told[0], Warned) and isinstance(told[1], Claimed)
    states[1] = make_state(Warned(code="policy:money:2026-01-01:warning"), job="job-2")
    books = compute_budget_state(by.policy, [spent(9.0)], [(state, make_spec()) for state in states], at(100))
    assert books.statuses["money", ""].reporter is None, "another has told already"


def test_a_running_job_tells_and_goes_on() -> None:
    by = settings("name: money, budget: {dollars: 1, period: day}")
    state = make_state(Claimed(offering=ON_DEMAND, nodes=1), Launched(2, nodes(2)))
    running = make_snapshot(state, make_facts(2, beat=make_beat(7000.0)), states={"i-2-0": "running"})
    plan = decided(by, job=running, now_s=7000.0)
    assert events(plan) == [Warned(code="policy:money:2026-01-01:full")], "nothing that runs is ended"


def test_that_it_is_spent_is_told_also_after_it_was_nearly_spent_and_nobody_wants_a_machine() -> None:
    by = settings("name: money, budget: {dollars: 1, period: day}")
    nearly = Warned(code="policy:money:2026-01-01:warning")
    state = make_state(Claimed(offering=ON_DEMAND, nodes=1), Launched(2, nodes(2)), nearly)
    running = make_snapshot(state, make_facts(2, beat=make_beat(7000.0)), states={"i-2-0": "running"})
    assert events(decided(by, job=running, now_s=7000.0)) == [Warned(code="policy:money:2026-01-01:full")]


def test_who_waits_for_a_budget_that_is_spent_tells_it_once() -> None:
    by = settings(BUDGET)
    (full,) = events(decided(by, spent(11.0)))
    assert full == Warned(code="policy:money:2026-01-01:full")
    assert decided(by, spent(11.0), state=make_state(full)).actions == ()


def test_a_rule_that_is_called_budget_says_so_once() -> None:
    by = settings("name: budget, budget: {dollars: 10, period: day, by: team}")
    spent = Expense("old-1", {"team": "nlp"}, TODAY, 12.0)
    (found,) = unreported_warnings(by.policy, compute_budget_state(by.policy, [spent], (), at(100)))
    told = budget_notification(found, at(100))
    assert message_title((told,), {}) == "budget of team=nlp is spent"
    assert event_line(told).startswith("budget of team=nlp is spent: policy budget: $12.00 of $10.00 a day of team=nlp")


def test_what_no_job_is_left_to_tell_of_is_told_without_one() -> None:
    scope = "{stage: sweep, kind: [a, b], who: /x+/, at: any}"
    by = settings(f"name: money, budget: {{dollars: 10, period: day, by: team}}, for: {scope}")

    def expense(dollars: float) -> Expense:
        return Expense("old-1", {"team": "nlp", "stage": "sweep", "kind": "a", "who": "x", "at": "1"}, TODAY, dollars)

    assert list(unreported_warnings(by.policy, compute_budget_state(by.policy, [expense(7.9)], (), at(100)))) == []
    books = compute_budget_state(by.policy, [expense(8.0)], (), at(100))
    (nearly,) = unreported_warnings(by.policy, books)
    assert nearly.title == "budget money of team=nlp is nearly spent" and nearly.tags == {
        "team": "nlp",
        "stage": "sweep",
    }
    assert nearly.reason == (
        "policy money: $8.00 of $10.00 a day of team=nlp are spent (80%), until 2026-01-02 00:00 UTC"
    )
    (full,) = unreported_warnings(by.policy, compute_budget_state(by.policy, [expense(12.0)], (), at(100)))
    assert full.mark == replace(nearly.mark, kind="full") and full.order > nearly.order
    assert full.reason.endswith("; no new machines until then")
    told = without_reported(by.policy, books, lambda mark: mark == nearly.mark)
    assert list(unreported_warnings(by.policy, told)) == []
    assert list(unreported_warnings(by.policy, without_reported(by.policy, books, lambda mark: mark == full.mark))) == [
        nearly
    ]


def test_restarts_and_hand_overs_wait_as_well() -> None:
    by = settings(BUDGET)
    attempt: tuple[Event, ...] = (Claimed(offering=ON_DEMAND, nodes=1), Launched(2, nodes(2)))
    codes = [Warned(code=f"policy:money:2026-01-01:{kind}") for kind in ("warning", "full")]
    restarted = make_state(*attempt, Closed(claim=2, outcome="reclaimed", rule="notice", restart=True), *codes)
    assert decided(by, spent(11.0), state=restarted).actions == ()
    noticed = make_snapshot(
        make_state(*attempt, *codes),
        make_facts(2, beat=make_beat(95.0), notice=hard_notice(95.0)),
        states={"i-2-0": "running"},
        spec=SMALL,
    )
    assert decided(by, spent(11.0), job=noticed).actions == ()
    assert any(isinstance(action, Launch) for action in decided(by, spent(1.0), job=noticed).actions)


@pytest.mark.parametrize("books", [None, Unknown("the store does not answer")])
def test_what_nobody_knows_launches_nothing(books: Observed[BudgetState] | None) -> None:
    job = replace(make_snapshot(make_state()), budget_state=books)
    plan = decide_job(job, settings(BUDGET), at(100))
    assert plan.actions == ()
    assert "policy money: what was spent is not known" in plan.waiting["job-1"]
    for harmless in (f"{BUDGET}, then: warn", f"{BUDGET}, audit: true", f"{BUDGET}, for: {{team: vision}}"):
        assert any(isinstance(event, Claimed) for event in events(decide_job(job, settings(harmless), at(100))))


def test_the_longest_wait_counts_while_a_budget_is_full() -> None:
    spec = make_spec(limits=Limits(max_wait_s=50.0))
    (event,) = events(after_words(settings(BUDGET), spent(11.0), spec=spec))
    assert isinstance(event, Ended) and event.rule == "max_wait"


def test_a_budget_that_refuses_ends_what_never_began_and_lets_the_rest_wait() -> None:
    by = settings(f"{BUDGET}, then: refuse")
    (event,) = events(after_words(by, spent(11.0)))
    assert event == Ended(outcome="failed", rule="policy:money")
    codes = [Warned(code=f"policy:money:2026-01-01:{kind}") for kind in ("warning", "full")]
    ran = make_state(
        Claimed(offering=ON_DEMAND, nodes=1),
        Launched(2, nodes(2)),
        Closed(claim=2, outcome="lost", rule="gone", restart=True),
        *codes,
    )
    assert decided(by, spent(11.0), state=ran).actions == ()


@pytest.mark.parametrize("only", ["then: warn", "audit: true"])
def test_a_word_is_only_a_word(only: str) -> None:
    plan = after_words(settings(f"{BUDGET}, {only}"), spent(50.0))
    assert [type(event) for event in events(plan)] == [Claimed]


def test_each_value_of_a_tag_has_its_own_and_those_without_share_one() -> None:
    by = settings("name: money, budget: {dollars: 10, period: day, by: team}")
    kept = (spent(12.0, team="vision"), spent(3.0, job="other-2", team="nlp"), spent(11.0, job="other-3"))
    assert "of team=vision" in after_words(by, *kept, spec=tagged(team="vision")).waiting["job-1"]
    assert any(isinstance(event, Claimed) for event in events(after_words(by, *kept, spec=tagged(team="nlp"))))
    assert "of jobs without team" in after_words(by, *kept, spec=tagged(project="x")).waiting["job-1"]


def test_whose_money_counts_and_who_is_let_through() -> None:
    scoped = settings("name: money, budget: {dollars: 10, period: day}, for: {stage: sweep}")
    kept = (spent(12.0, stage="final"), spent(3.0, job="other-2", stage="sweep"))
    assert any(isinstance(event, Claimed) for event in events(after_words(scoped, *kept, spec=tagged(stage="sweep"))))
    exempt = settings(f"{BUDGET}, except: [{{job: job-1, until: 2026-01-01, why: a demo}}]")
    plan = after_words(exempt, spent(12.0))
    assert any(isinstance(event, Claimed) for event in events(plan)), "it may go on"
    books = compute_budget_state(exempt.policy, [spent(12.0, job="job-1")], [], at(0))
    assert books.statuses["money", ""].spent == 12.0, "its money is spent all the same"


def test_what_has_no_price_is_told_and_blocks_nothing() -> None:
    by = settings(BUDGET)
    first = decided(by, spent(None), spent(5.0, job="other-2"))
    (event,) = events(first)
    assert event == Warned(code="policy:money:2026-01-01:unpriced")
    assert [type(each) for each in events(after_words(by, spent(None)))] == [Claimed]
    unpriced = replace(ON_DEMAND, price=None, spot=True)
    state = make_state(Claimed(offering=unpriced, nodes=1), (Launched(2, nodes(2)), 0.0))
    books = compute_budget_state(by.policy, [], [(state, make_spec())], at(7200.0))
    assert books.statuses["money", ""].spent == pytest.approx(6.0), "at most what it costs on-demand"


def test_a_budget_leaves_machines_without_a_price_out_while_others_have_one() -> None:
    unpriced = replace(ON_DEMAND, machine="m9", price=None, on_demand_price=None)
    day = make_spec(limits=Limits(max_runtime_s=7200.0))
    day = replace(day, resources=replace(day.resources, spot="never"))

    def plan(text: str, *offerings: Offering) -> Plan:
        return decided(settings(text), job=replace(make_snapshot(make_state(), spec=day), offerings=Known(offerings)))

    few, claimed = "name: money, budget: {dollars: 1, period: day}", Claimed(unpriced, 1)
    assert events(plan(few, unpriced, SPOT_A)) == [claimed], "spot is nothing for this job"
    assert events(plan(few, unpriced)) == [claimed]
    assert events(plan(f"{few}, then: warn", unpriced)) == [claimed]
    enough = plan(BUDGET, unpriced, ON_DEMAND)
    assert [each.offering for each in events(enough) if isinstance(each, Claimed)] == [ON_DEMAND]
    short = plan(few, unpriced, ON_DEMAND)
    assert not any(isinstance(each, Claimed) for each in events(short)), "an unknown price does not get around it"
    (waits,) = short.waiting.values()
    assert waits.startswith("policy money: needs $")


def test_of_an_active_job_its_log_counts_and_not_what_was_kept_of_it() -> None:
    """One that was resumed has its earlier end in `spent/`, and all of it in its log."""
    by = settings(BUDGET)
    state = make_state(Claimed(offering=ON_DEMAND, nodes=1), (Launched(2, nodes(2)), 0.0))
    books = compute_budget_state(by.policy, [spent(3.0, job="job-1")], [(state, make_spec())], at(3600.0))
    assert books.statuses["money", ""].spent == pytest.approx(3.0)


def test_machines_that_may_be_held_count() -> None:
    by = settings(BUDGET)
    spec = replace(make_spec(), retry=replace(make_spec().retry, hold_on_failure_s=3600.0))
    state = make_state(
        Claimed(offering=ON_DEMAND, nodes=1),
        (Launched(2, nodes(2)), 0.0),
        (
            Ended(
                outcome="failed",
                rule="user-error",
                claim=2,
                closing=Closed(claim=2, outcome="failed", rule="user-error"),
            ),
            3600.0,
        ),
    )
    books = compute_budget_state(by.policy, [], [(state, spec)], at(2 * 3600.0))
    assert books.statuses["money", ""].spent == pytest.approx(6.0)
    later = compute_budget_state(by.policy, [], [(state, spec)], at(9 * 3600.0))
    assert later.statuses["money", ""].spent == pytest.approx(6.0), "no longer than they may be"


@pytest.mark.parametrize(
    ("period", "start", "end"),
    [
        ("day", date(2026, 11, 18), date(2026, 11, 19)),
        ("week", date(2026, 11, 16), date(2026, 11, 23)),
        ("month", date(2026, 11, 1), date(2026, 12, 1)),
    ],
)
def test_periods_are_calendar_periods_in_utc(period: str, start: date, end: date) -> None:
    budget_notification = Budget(dollars=1, period=period)  # type: ignore[arg-type]
    elsewhere = timezone(timedelta(hours=-8))
    for now in (datetime(2026, 11, 18, 0, tzinfo=timezone.utc), datetime(2026, 11, 18, 15, tzinfo=elsewhere)):
        found = period_of(budget_notification, now)
        assert (found.start, found.end) == (start, end)
    last = period_of(Budget(dollars=1, period="month"), datetime(2026, 12, 31, 23, tzinfo=timezone.utc))
    assert (last.start, last.end) == (date(2026, 12, 1), date(2027, 1, 1))


def test_days_sum_to_what_the_job_cost() -> None:
    state = make_state(
        Claimed(offering=ON_DEMAND, nodes=2),
        (Launched(2, nodes(2, 2)), 80000.0),
        (Closed(claim=2, outcome="lost", rule="gone", restart=True), 300000.0),
        Claimed(offering=replace(ON_DEMAND, price=1.0), nodes=1),
        (Launched(5, nodes(5)), 301000.0),
    )
    now = at(400000.0)
    days = by_day(paid_spans(state, now))
    assert sorted(days) == [TODAY + timedelta(days=n) for n in range(5)]
    assert sum(sums.spent.known for sums in days.values()) == pytest.approx(job_cost(state, now).spent)
    assert days[TODAY].spent.known == pytest.approx(6400 / 3600 * 2 * 3.0)
    assert sum(each.machine_s for each in paid_spans(state, now, since=at(399000.0))) == pytest.approx(1000.0)


def test_a_claim_that_was_left_behind_is_not_launched_on_money_that_is_spent() -> None:
    by = settings(BUDGET)
    left = make_snapshot(make_state((Claimed(offering=ON_DEMAND, nodes=1), 0.0)), spec=SMALL)
    warned = Warned(code="policy:money:2026-01-01:full")

    def plan(dollars: float, now_s: float) -> Plan:
        return decided(by, spent(dollars), job=left, now_s=now_s)

    assert [type(action) for action in plan(11.0, 59.0).actions] == [Launch, Append], "somebody is just launching it"
    assert events(plan(11.0, 59.0)) == [warned]
    (closed,) = events(plan(11.0, 60.0))
    assert closed == Closed(claim=2, outcome="abandoned", rule="policy:money", restart=True)
    assert isinstance(plan(7.0, 60.0).actions[0], Launch)
    (closed,) = events(plan(9.8, 60.0))
    assert isinstance(closed, Closed) and closed.rule == "policy:money", "nor on money that is left, and too little"
    unknown = decide_job(replace(left, budget_state=Unknown("no answer")), by, at(1000.0))
    assert [type(action) for action in unknown.actions] == [Launch], "it was decided on when the sum was known"


def test_a_budget_that_is_not_divided_names_no_tag_of_its_own() -> None:
    by = settings("name: money, budget: {dollars: 10, period: day}, for: {stage: sweep}")
    spent = Expense("old-1", {"stage": "sweep", "team": "nlp"}, TODAY, 12.0)
    (found,) = unreported_warnings(by.policy, compute_budget_state(by.policy, [spent], (), at(100)))
    assert found.tags == {"stage": "sweep"}
    divided = settings("name: money, budget: {dollars: 10, period: day, by: team}, for: {stage: sweep}")
    untagged = Expense("old-1", {"stage": "sweep"}, TODAY, 12.0)
    (found,) = unreported_warnings(divided.policy, compute_budget_state(divided.policy, [untagged], (), at(100)))
    assert found.tags == {"stage": "sweep"}, "jobs without the tag share one budget"
