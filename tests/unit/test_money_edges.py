"""Money at the edge: what is reserved, queued for, spent and held, to the dollar and the second."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest

from stoker.core.budget_reservations import (
    START_S,
    UNBOUNDED_S,
    LaunchRequest,
    Need,
    Reserved,
    Waiting,
    first_need,
    launch_request,
    leaves_code,
    limits_of_job,
    micro,
    queued,
    reservation,
    waits_code,
)
from stoker.core.budget_state import BudgetState, BudgetStatus, Expense, UnreadableJob, compute_budget_state, expenses
from stoker.core.budget_verdict import (
    BudgetMark,
    BudgetWarning,
    LaunchDenied,
    describe_budgets,
    forecast,
    judge,
    mark_of_code,
    unreported_warnings,
)
from stoker.core.costs import Cost, claim_cost, in_dollars, job_cost, machine_hours, valid_span_s
from stoker.core.daily_costs import KnownSum, days
from stoker.core.governor_settings import DEFAULT
from stoker.core.hold import LEAVE_S, allowed_s, hold_of, is_held, longest_held, qualifies_for_hold
from stoker.core.policy_rules import Subject, effective_limits
from stoker.model.durations import span_text
from stoker.model.job_state import JobState
from stoker.model.log_entries import Claimed, Closed, Draining, Ended, Event, Launched, ResumeAsked, StopAsked, Warned
from stoker.model.observed import Known, Unknown
from stoker.model.policy import Policy
from stoker.model.spec import Limits, Retry, Spec
from stoker.policy.policy_file import parse_policy
from tests.support.sim_data import EPOCH, ON_DEMAND, SPOT_A, at, make_spec, make_state, nodes

HOUR = 3600.0
TODAY = EPOCH.date()
SAVE_S = make_spec().checkpoints.grace_s + DEFAULT.leave_s
# Dollars a second of a machine on demand.
RATE = 3.0 / HOUR


def policy(*rules: str) -> Policy:
    return parse_policy(("rules:\n" + "".join(f"- {{{each}}}\n" for each in rules)).encode(), "p.yaml", version=1)


TEN = policy("name: money, budget: {dollars: 10, period: day}")
RULE = TEN.rules[0]


def spec(max_cost: float | None = None, hours: float | None = None, **tags: str) -> Spec:
    limits = Limits(max_cost=max_cost, max_runtime_s=None if hours is None else hours * HOUR)
    return replace(make_spec(limits=limits), tags=tags)


def state(*more: Event | tuple[Event, float], job: str = "job-1") -> JobState:
    """A job with a machine since the beginning."""
    return make_state((Claimed(ON_DEMAND, 1), 0), (Launched(2, nodes(2)), 0), *more, job=job)


def need(of: JobState, what: Spec, now_s: float) -> Need | None:
    found = reservation(TEN, of, what, at(now_s))
    return None if found is None else found.need


# ── Reservations ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("dollars", "millionths"), [(1.5, 1_500_000), (0.0, 0), (-1.0, 0), (float("nan"), 0)])
def test_amounts_are_exact(dollars: float, millionths: int) -> None:
    assert micro(dollars) == millionths
    assert micro(float("inf")) == 10**18


def test_a_need_is_bounded_by_its_dollars_and_by_its_time() -> None:
    found = Need(10.0, 1.0, "so")
    assert found.within(4.0) == 4_000_000 and found.within(40.0) == 10_000_000 and found.within(-1.0) == 0
    assert found.after(4.0, 100.0) == 6_000_000 and found.after(4.0, 5.0) == 5_000_000
    assert found.after(40.0, 5.0) == 0 and found.after(-4.0, 100.0) == 10_000_000 and found.after(0.0, -1.0) == 0
    assert replace(found, rolling=True).after(40.0, 5.0) == 5_000_000


def test_the_tightest_bound_is_what_a_job_may_cost() -> None:
    def first(of: Spec) -> Need:
        return first_need(effective_limits(TEN, Subject(of, TODAY, "job-1")), ON_DEMAND)

    assert first(spec(5.0)).dollars == 5.0 and first(spec(5.0)).why == "limits.max_cost"
    by_time = first(spec(None, 1.0))
    assert by_time.dollars == pytest.approx((HOUR + START_S + SAVE_S) * RATE)
    assert by_time.why == "limits.max_runtime at $3.00/h" and not by_time.rolling
    assert first(spec(1.0, 1.0)).dollars == 1.0 and first(spec(500.0, 1.0)).dollars == by_time.dollars
    unbounded = first(spec())
    assert unbounded.dollars == pytest.approx(UNBOUNDED_S * RATE) and unbounded.rolling
    assert unbounded.why == "an estimate, 24 h at $3.00/h: limits.max_cost is not set"
    assert not first(spec(5.0)).rolling and unbounded.dollars_per_s == pytest.approx(RATE)


def test_time_that_a_machine_takes_to_start_is_no_training() -> None:
    of = spec(None, 1.0)
    for now_s, left_s in ((0, HOUR + START_S), (START_S - 1, HOUR + 1), (START_S + 60, HOUR - 60)):
        found = need(state(), of, now_s)
        assert found is not None and found.dollars == pytest.approx((left_s + SAVE_S) * RATE)


def test_a_job_that_is_asked_to_stop_or_ends_at_a_bound_reserves_its_last_save() -> None:
    for last in (StopAsked("jane"), Draining(2, "limit", "max_cost")):
        found = need(state((last, 100)), spec(5.0), 200)
        assert found is not None and found.why == "the last save"
        assert found.dollars == pytest.approx(SAVE_S * RATE) and found.dollars_per_s == pytest.approx(RATE)
    assert need(make_state(StopAsked("jane")), spec(5.0), 200) is None
    moved = need(state((Draining(2, "lost", "gang"), 100)), spec(5.0), 0)
    assert moved is not None and moved.why == "limits.max_cost"


def test_a_job_past_its_bounds_still_reserves_its_save() -> None:
    found = need(state(), spec(1.0), 2 * HOUR)
    assert found is not None and found.dollars == pytest.approx(SAVE_S * RATE)


def test_an_older_attempt_that_saves_beside_the_new_one_is_paid_for() -> None:
    both = state((Claimed(ON_DEMAND, 1, successor_of=2), 0), (Launched(4, nodes(4)), 0))
    by_time, by_money = need(both, spec(None, 1.0), 0), need(both, spec(5.0), 0)
    assert by_time is not None and by_money is not None
    assert by_time.dollars == pytest.approx((HOUR + START_S + 2 * SAVE_S) * RATE)
    assert by_time.dollars_per_s == pytest.approx(2 * RATE) and by_money.dollars == 5.0


def test_between_attempts_a_job_is_idle_and_has_begun() -> None:
    closed = (Closed(2, "reclaimed", "notice", restart=True), 60)
    found = reservation(TEN, state(closed), spec(5.0), at(100))
    assert found is not None and found.idle and found.begun and found.at == at(0)
    running = reservation(TEN, state(), spec(5.0), at(100))
    assert running is not None and not running.idle and running.begun
    claimed = reservation(TEN, make_state((Claimed(ON_DEMAND, 1), 30)), spec(5.0), at(100))
    assert claimed is not None and not claimed.idle and not claimed.begun and claimed.at == at(30)
    assert claimed.job == "job-1" and claimed.since == at(0)


def test_what_is_asked_for_has_the_age_of_its_claim() -> None:
    of, what = state(), spec(5.0)
    bounds = limits_of_job(TEN, of, what, at(HOUR))
    asked = launch_request(bounds, of, ON_DEMAND, at(HOUR), of.open_claims[0])
    assert asked.claimed_at == at(0) and asked.need.dollars == pytest.approx(2.0)
    assert launch_request(bounds, of, ON_DEMAND, at(HOUR)).claimed_at is None


# ── The queue for money ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_place_in_the_queue_is_taken_for_an_amount_and_given_up() -> None:
    new = make_state()
    assert waits_code(new, 5) == "budget:waits:0:0:5" and leaves_code(new) is None and queued(new, spec()) is None
    waits = make_state(Warned("budget:waits:0:0:5"))
    assert waits_code(waits, 5) is None and waits_code(waits, 4) is None
    assert waits_code(waits, 6) == "budget:waits:0:1:6" and leaves_code(waits) == "budget:leaves:0:1"
    found = queued(waits, spec(team="nlp"))
    assert found == Waiting("job-1", at(0), 5, {"team": "nlp"}) and found.place == (at(0), "job-1")
    left = make_state(Warned("budget:waits:0:0:5"), Warned("budget:leaves:0:1"))
    assert queued(left, spec()) is None and leaves_code(left) is None and waits_code(left, 5) == "budget:waits:0:2:5"


def test_who_has_a_machine_or_is_over_waits_for_no_money() -> None:
    word = Warned("budget:waits:0:0:5")
    assert queued(make_state(word, StopAsked("jane")), spec()) is None
    assert queued(make_state(word, Claimed(ON_DEMAND, 1)), spec()) is None
    assert queued(make_state(word, Ended("failed", "max_wait", None)), spec()) is None
    # What was said before its last claim is of no use any more.
    taken = state((Closed(2, "reclaimed", "notice", restart=True), 60))
    assert waits_code(taken, 5) == "budget:waits:2:0:5"


def books(
    *active: tuple[JobState, Spec], kept: tuple[Expense, ...] = (), by: Policy = TEN, now_s: float = 100.0
) -> BudgetState:
    return compute_budget_state(by, kept, active, at(now_s))


def waiter(job: str, millionths: int) -> tuple[JobState, Spec]:
    return make_state(Warned(f"budget:waits:0:0:{millionths}"), job=job), spec()


def test_who_can_get_the_money_in_this_period_is_in_the_queue() -> None:
    kept = (Expense("gone", {}, TODAY, 4.0, True),)
    found = books(waiter("b", 6_000_000), waiter("a", 1_000_000), waiter("c", 6_000_001), kept=kept)
    assert [each.job for each in found.of(RULE, {}).queue] == ["a", "b"]
    for by in (TEN, policy("name: money, budget: {dollars: 10, period: day, by: team}")):
        untouched = books(waiter("a", 10_000_000), waiter("b", 10_000_001), by=by)
        assert [each.job for each in untouched.of(by.rules[0], {}).queue] == ["a"]
    only_told = policy("name: money, budget: {dollars: 10, period: day}, then: warn")
    assert books(waiter("a", 1), by=only_told).of(only_told.rules[0], {}).queue == ()


# ── What is spent ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_what_was_spent_in_the_period_counts() -> None:
    def spent(rule: str, *on: date) -> float:
        by = policy(rule)
        return books(kept=tuple(Expense(str(day), {}, day, 1.0, True) for day in on), by=by).of(by.rules[0], {}).spent

    day = timedelta(days=1)
    assert spent("budget: {dollars: 10, period: day}", TODAY - day, TODAY, TODAY + day) == 1.0
    month = "budget: {dollars: 10, period: month}"
    assert spent(month, date(2025, 12, 31), date(2026, 1, 1), date(2026, 1, 31), date(2026, 2, 1)) == 2.0
    week = "budget: {dollars: 10, period: week}"
    assert spent(week, date(2025, 12, 28), date(2025, 12, 29), date(2026, 1, 4), date(2026, 1, 5)) == 2.0


def test_a_job_whose_log_makes_no_sums_is_named_with_its_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OverflowError("too long")

    for function in ("expenses", "reservation"):
        with monkeypatch.context() as patch:
            patch.setattr(f"stoker.core.budget_state.{function}", broken)
            found = books((state(), spec(team="nlp")))
        (lost,) = found.unreadable
        assert (lost.job, lost.tags) == ("job-1", {"team": "nlp"}) and "too long" in lost.why


def test_who_cannot_be_read_concerns_the_budgets_that_it_may_be_in() -> None:
    by = policy("name: nlp, budget: {dollars: 10, period: day, by: team}, for: {site: a}")
    rule = by.rules[0]

    def concerns(tags: dict[str, str] | None) -> bool:
        return (
            BudgetState(at(0), unreadable=(UnreadableJob("x", "gone", tags),)).unreadable_of(
                rule, {"team": "nlp", "site": "a"}
            )
            is not None
        )

    assert concerns(None) and concerns({"team": "nlp", "site": "a"})
    assert not concerns({"team": "cv", "site": "a"}) and not concerns({"team": "nlp", "site": "b"})


def test_of_a_job_that_is_active_its_log_counts_alone() -> None:
    kept = (Expense("job-1", {}, TODAY, 7.0, True), Expense("other", {}, TODAY, 1.0, False))
    found = books((state(), spec()), kept=kept, now_s=HOUR).of(RULE, {})
    assert found.spent == pytest.approx(4.0) and found.unpriced == ("other",)
    assert sum(each.dollars for each in expenses(state(), spec(), at(HOUR))) == pytest.approx(3.0)


def test_what_is_reserved_is_set_aside_the_dearest_first() -> None:
    standing = BudgetStatus(
        spent=2.0, reserved=(Reserved("a", at(0), 3_000_000, at(0)), Reserved("b", at(0), 1_000_000, at(0)))
    )
    assert RULE.budget is not None and standing.set_aside == 4.0 and standing.left_of(RULE.budget) == 4.0
    assert replace(standing, spent=20.0).left_of(RULE.budget) == 0.0
    found = books((state(job="a"), spec(1.0)), (state(job="b"), spec(4.0)), now_s=0).of(RULE, {})
    assert [(each.job, each.amount) for each in found.reserved] == [("b", 4_000_000), ("a", 1_000_000)]


@pytest.mark.parametrize(("dollars", "due"), [(7.99, ""), (8.0, "warning"), (9.99, "warning"), (10.0, "full")])
def test_what_there_is_to_tell_of_a_budget_is_told_by_the_first_living_job(dollars: float, due: str) -> None:
    by = policy("name: money, budget: {dollars: 10, period: day, warn_at: 80%}")
    kept = (Expense("gone", {}, TODAY, dollars, True),)
    living = [(make_state(job=job), spec()) for job in ("b", "a")]
    stopped = (make_state(StopAsked("jane"), job="0"), spec())
    found = books(*living, stopped, kept=kept, by=by).of(by.rules[0], {})
    assert (found.due, found.reporter) == (due, "a" if due else None)
    told = (make_state(Warned(f"policy:money:2026-01-01:{due}"), job="c"), spec())
    assert books(*living, told, kept=kept, by=by).of(by.rules[0], {}).due == ""
    assert books(kept=kept, by=by).of(by.rules[0], {}).reporter is None


def test_a_word_names_its_budget_and_its_period() -> None:
    by = policy("name: money, budget: {dollars: 10, period: day, by: team}")
    for kind in ("warning", "full"):
        assert mark_of_code(by, {"team": "nlp"}, f"policy:money:2026-01-01:{kind}") == BudgetMark(
            "money", TODAY, "nlp", kind
        )
    for other in ("policy:money:2026-01-01:unpriced", "policy:money", "policy:money2:2026-01-01:full", "stall:2"):
        assert mark_of_code(by, {}, other) is None


def test_a_budget_whose_jobs_are_over_is_told_of_with_what_they_share() -> None:
    by = policy("name: nlp, budget: {dollars: 10, period: day, by: team}, for: {site: a}")
    kept = tuple(Expense(f"j{n}", {"team": "nlp", "site": "a"}, TODAY, 5.0, True) for n in range(2))
    (found,) = unreported_warnings(by, books(kept=kept, by=by))
    assert found.title == "budget nlp of team=nlp is spent" and found.tags == {"site": "a", "team": "nlp"}
    assert found.mark == BudgetMark("nlp", TODAY, "nlp", "full") and not found.audit
    (nearly,) = unreported_warnings(by, books(kept=(replace(kept[0], dollars=9.9),), by=by))
    assert nearly.title == "budget nlp of team=nlp is nearly spent"
    assert found.order == nearly.order + 1
    next_day = replace(nearly, mark=replace(nearly.mark, start=TODAY + timedelta(days=1)))
    assert next_day.order > found.order
    without = replace(kept[0], tags={"site": "a"}, dollars=10.0)
    (shared,) = unreported_warnings(by, books(kept=(without,), by=by))
    assert shared.title == "budget nlp of jobs without team is spent" and shared.tags == {"site": "a"}


# ── What keeps a launch back ──────────────────────────────────────────────────────────────────────────────────────────


def ask(dollars: float, dollars_per_s: float = 1.0, **rest: object) -> LaunchRequest:
    return LaunchRequest(Need(dollars, dollars_per_s, "so"), at(0), **rest)  # type: ignore[arg-type]


def held(standing: BudgetStatus, asked: LaunchRequest, by: Policy = TEN, job: str = "me") -> LaunchDenied | None:
    found = judge(by, Subject(spec(), TODAY, job), Known(BudgetState(at(0), {("money", ""): standing})), at(100), asked)
    return next((each for each in found if isinstance(each, LaunchDenied)), None)


def test_what_is_left_to_the_millionth_is_enough() -> None:
    """Each amount was rounded: two millionths more are no reason to wait."""
    assert held(BudgetStatus(spent=4.0), ask(6.0)) is None and held(BudgetStatus(spent=4.0), ask(6.000002)) is None
    lacks = held(BudgetStatus(spent=4.0), ask(6.00001))
    assert lacks is not None and lacks.amount == 6_000_010 and not lacks.refuses and not lacks.never
    assert lacks.until == at(86400) and lacks.rule == "policy:money"
    assert lacks.waits == "policy money: waits for $6.00 of $10.00 a day: $4.00 is spent or reserved"
    assert lacks.reason == "policy money: needs $6.00 (so) of $10.00 a day: $4.00 is spent, $0.00 reserved"


def others(*jobs: str, amount: int = 2_000_000, **rest: object) -> tuple[Reserved, ...]:
    return tuple(Reserved(job, at(10), amount, at(10), **rest) for job in jobs)  # type: ignore[arg-type]


def test_what_is_reserved_for_others_is_named() -> None:
    lacks = held(BudgetStatus(spent=1.0, reserved=others("a", "b", "c", "d")), ask(2.0))
    assert lacks is not None
    assert lacks.waits.endswith(": $9.00 is spent or reserved for a, b, c and 1 more")
    assert held(BudgetStatus(spent=1.0, reserved=others("a", "b", "c", "me")), ask(2.0)) is None, "its own is its own"


def test_who_stands_before_it_in_the_queue_comes_first() -> None:
    ahead = Waiting("a", at(-10), 9_000_000, {})
    lacks = held(BudgetStatus(queue=(ahead,)), ask(2.0))
    assert lacks is not None and lacks.waits.endswith("; a is before it")
    two = held(BudgetStatus(queue=(ahead, replace(ahead, job="b"))), ask(2.0))
    assert two is not None and two.waits.endswith("; a, b are before it")
    assert held(BudgetStatus(queue=(replace(ahead, since=at(10)),)), ask(2.0)) is None
    assert held(BudgetStatus(queue=(ahead,)), ask(2.0, claimed_at=at(50))) is None, "its claim was made already"
    begun = others("me", begun=True)
    assert held(BudgetStatus(queue=(ahead,), reserved=begun), ask(2.0)) is None, "it has begun"


def test_a_claim_yields_to_those_that_are_as_old() -> None:
    taken = BudgetStatus(reserved=others("a", amount=9_000_000))
    assert held(taken, ask(2.0, claimed_at=at(10))) is not None
    assert held(taken, ask(2.0, claimed_at=at(9))) is None


def test_of_idle_jobs_that_have_begun_the_oldest_goes_first() -> None:
    mine = others("me", begun=True, idle=True)
    younger = BudgetStatus(reserved=(*mine, *others("a", amount=9_000_000, begun=True, idle=True)))
    assert held(younger, ask(2.0)) is None, "the other one was opened later"
    older = replace(younger.reserved[1], since=at(-5))
    assert held(replace(younger, reserved=(*mine, older)), ask(2.0)) is not None
    busy = replace(younger.reserved[1], idle=False)
    assert held(replace(younger, reserved=(*mine, busy)), ask(2.0)) is not None


def test_what_no_period_has_enough_for_is_refused_with_advice() -> None:
    never = held(BudgetStatus(), ask(10.00001))
    assert never is not None and never.never and never.until is None
    assert never.reason.endswith("and can never have so much; set limits.max_cost to at most $10.00")
    assert held(BudgetStatus(), ask(10.000001)) is None
    assert held(BudgetStatus(reserved=others("me", begun=True)), ask(10.00001)) is not None, "it waits for its turn"
    told = forecast(TEN, Subject(spec(), TODAY, "me"), Known(BudgetState(at(0))), at(100), ask(11.0))
    assert [then for _, then in told] == ["refuse"]
    refusing = policy("name: money, budget: {dollars: 10, period: day}, then: refuse")
    found = held(BudgetStatus(), ask(11.0), refusing)
    assert found is not None and found.refuses and never.refuses is False


def test_what_reaches_into_the_next_period_needs_room_there() -> None:
    """Three hours before midnight, at a dollar an hour."""
    now = at(86400 - 3 * HOUR)
    asked = LaunchRequest(Need(8.0, 1.0 / HOUR, "so"), now)

    def lacks(*reserved: Reserved) -> LaunchDenied | None:
        found = judge(
            TEN,
            Subject(spec(), TODAY, "me"),
            Known(BudgetState(now, {("money", ""): BudgetStatus(reserved=reserved)})),
            now,
            asked,
        )
        return next((each for each in found if isinstance(each, LaunchDenied)), None)

    other = Reserved("a", at(0), 0, at(0), later=5_000_000)
    assert lacks() is None and lacks(other) is None
    more = replace(other, later=5_000_010)
    found = lacks(more)
    assert found is not None and found.until == at(86400) and found.amount == 3_000_000
    assert found.waits == (
        "policy money: waits for $5.00 of $10.00 a day from 2026-01-02 00:00 UTC: $5.00 is reserved then for a"
    )
    own = Reserved("me", at(0), 0, at(0), begun=True, later=5_000_000)
    assert lacks(more, own) is None, "as much is reserved there for it already"
    assert lacks(more, replace(own, later=4_999_000)) is not None


def test_what_is_not_known_keeps_back_and_what_only_warns_does_not() -> None:
    subject = Subject(spec(), TODAY, "me")
    (unknown,) = judge(TEN, subject, Unknown("no answer"), at(0))
    assert isinstance(unknown, LaunchDenied) and unknown.unknown
    assert unknown.reason == "policy money: what was spent is not known: no answer"
    (unasked,) = judge(TEN, subject, None, at(0))
    assert isinstance(unasked, LaunchDenied) and unasked.reason.endswith("no governor has looked")
    for only in ("then: warn", "audit: true"):
        assert judge(policy(f"name: money, budget: {{dollars: 10, period: day}}, {only}"), subject, None, at(0)) == ()
    unreadable = BudgetState(at(0), unreadable=(UnreadableJob("x", "it is gone", None),))
    (lost,) = judge(TEN, subject, Known(unreadable), at(0))
    assert isinstance(lost, LaunchDenied) and lost.unknown and lost.reason.endswith("x cannot be read: it is gone")


def test_a_full_budget_tells_and_keeps_back_until_its_period_is_over() -> None:
    full = Known(BudgetState(at(0), {("money", ""): BudgetStatus(spent=10.0, unpriced=("a", "b", "c"))}))
    unpriced, word, kept = judge(TEN, Subject(spec(), TODAY, "me"), full, at(100))
    assert isinstance(unpriced, BudgetWarning) and unpriced.code == "policy:money:2026-01-01:unpriced"
    assert unpriced.reason.endswith("; and an unknown amount: a and 2 more had machines without a price")
    assert isinstance(word, BudgetWarning) and word.code == "policy:money:2026-01-01:full"
    assert isinstance(kept, LaunchDenied) and kept.until == at(86400) and not kept.refuses and not kept.unknown
    assert kept.waits.startswith(
        "policy money: no machine until 2026-01-02 00:00 UTC: $10.00 of $10.00 a day are spent"
    )
    assert word.reason == kept.reason and kept.reason.endswith("until 2026-01-02 00:00 UTC; no new machines until then")
    audited = policy("name: money, budget: {dollars: 10, period: day}, audit: true")
    found = judge(audited, Subject(spec(), TODAY, "me"), full, at(100))
    assert [type(each) for each in found] == [BudgetWarning, BudgetWarning] and found[1].reason.endswith(
        "; audit: nothing is done"
    )


def test_a_plan_says_what_is_left() -> None:
    standing = BudgetStatus(spent=2.0, reserved=others("a"))
    (said,) = describe_budgets(
        TEN, Subject(spec(), TODAY, "me"), BudgetState(at(0), {("money", ""): standing}), at(0), ask(3.0)
    )
    assert said == ("policy money: $10.00 a day: $2.00 spent, $2.00 reserved, $6.00 left; this job reserves $3.00 (so)")


# ── Machines that are held for a look ─────────────────────────────────────────────────────────────────────────────────


def failed_job(*more: Event | tuple[Event, float], hold_s: float | None = None, rule: str = "user-error") -> JobState:
    closing = Closed(2, "failed", rule, hold_s=hold_s)
    return state((Ended("failed", rule, 2, closing=closing), 100), *more)


HOLDING = replace(make_spec(), retry=Retry(hold_on_failure_s=600.0))


def test_machines_of_a_failed_job_are_kept_for_as_long_as_it_asks() -> None:
    found = hold_of(failed_job(), HOLDING)
    assert found is not None and (found.claim, found.since, found.until) == (2, at(100), at(700))
    assert found.longest_s == 600.0 and found.ends_at == at(700 + LEAVE_S)
    for now_s, kept in ((700, True), (700 + LEAVE_S - 1, True), (700 + LEAVE_S, False)):
        assert is_held(failed_job(), HOLDING, "i-2-0", at(now_s)) is kept
    assert not is_held(failed_job(), HOLDING, "i-9-0", at(200))


def test_nothing_is_kept_where_nobody_asked_or_somebody_asked_for_the_end() -> None:
    assert hold_of(failed_job(), make_spec()) is None and hold_of(state(), HOLDING) is None
    assert hold_of(failed_job(rule="max_cost"), HOLDING) is None
    assert hold_of(failed_job((StopAsked("jane"), 200)), HOLDING) is None
    assert hold_of(failed_job(hold_s=0.0), HOLDING) is None
    told = hold_of(failed_job(hold_s=60.0), HOLDING)
    assert told is not None and told.until == at(160)
    more = hold_of(failed_job(hold_s=6000.0), HOLDING)
    assert more is not None and more.until == at(700)


def test_a_hold_lasts_as_long_as_its_money() -> None:
    """An hour is three dollars; a minute is set aside for powering off."""
    of = replace(HOLDING, limits=Limits(max_cost=1.0))
    ended = state()
    claim = ended.open_claims[0]
    assert allowed_s(ended, claim, of, at(600)) == pytest.approx(600.0 - LEAVE_S)
    assert allowed_s(ended, claim, of, at(1200)) == 0.0 and allowed_s(ended, claim, HOLDING, at(1200)) == 600.0
    free = make_state((Claimed(replace(ON_DEMAND, price=0.0), 1), 0), (Launched(2, nodes(2)), 0))
    assert allowed_s(free, free.open_claims[0], of, at(600)) == 600.0
    unknown = make_state((Claimed(replace(ON_DEMAND, price=None), 1), 0), (Launched(2, nodes(2)), 0))
    assert allowed_s(unknown, unknown.open_claims[0], of, at(600)) == 0.0


def test_until_when_machines_were_held_at_most() -> None:
    assert longest_held(failed_job(), HOLDING, at(300)) == {2: at(300)}
    assert longest_held(failed_job(), HOLDING, at(9000)) == {2: at(700)}
    assert longest_held(failed_job((StopAsked("jane"), 250)), HOLDING, at(9000)) == {2: at(250)}
    resumed = failed_job((ResumeAsked("jane"), 400), (Claimed(ON_DEMAND, 1), 500))
    assert longest_held(resumed, HOLDING, at(9000)) == {2: at(400)}
    late = failed_job((ResumeAsked("jane"), 5000), (Claimed(ON_DEMAND, 1), 5500))
    assert longest_held(late, HOLDING, at(9000)) == {2: at(700)}
    assert longest_held(state(), HOLDING, at(9000)) == {}
    (claim,) = failed_job().claims
    assert qualifies_for_hold(claim, HOLDING) and not qualifies_for_hold(claim, make_spec())
    assert not qualifies_for_hold(state().claims[0], HOLDING)


def test_a_fold_that_does_not_say_when_machines_were_let_go_is_read_by_what_followed() -> None:
    """An older Stoker kept it so."""
    resumed = failed_job((ResumeAsked("jane"), 400), (Claimed(ON_DEMAND, 1), 500))
    older = replace(resumed, claims=tuple(replace(claim, released_at=None) for claim in resumed.claims))
    assert longest_held(older, HOLDING, at(9000)) == {2: at(500)}
    alone = failed_job((ResumeAsked("jane"), 400))
    older = replace(alone, claims=tuple(replace(claim, released_at=None) for claim in alone.claims))
    assert longest_held(older, HOLDING, at(9000)) == {2: at(400)}


# ── Sums and words ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_costs_are_by_the_hour_and_unknown_ones_stay_unknown() -> None:
    (claim,) = state().claims
    assert machine_hours(claim, at(HOUR)) == 1.0 and machine_hours(claim, at(-5)) == 0.0
    assert claim_cost(claim, at(HOUR), held_h=1.0) == Cost(6.0, 6.0)
    spot = make_state((Claimed(replace(SPOT_A, price=None), 2), 0), (Launched(2, nodes(2, 2)), 0))
    assert job_cost(spot, at(HOUR)) == Cost(None, 6.0) and job_cost(spot, at(0)) == Cost(0.0, 0.0)
    assert (
        Cost(1.0, 4.0).saved_share == 0.75
        and Cost(None, 4.0).saved_share is None
        and Cost(1.0, 0.0).saved_share is None
    )
    assert Cost(None, 4.0).at_most == 4.0 and Cost(1.0, 4.0).at_most == 1.0
    assert valid_span_s(-1.0) == 0.0 and valid_span_s(float("inf")) == 10 * 365 * 86400.0 and valid_span_s(5.0) == 5.0


def test_a_span_is_parted_at_midnight() -> None:
    midnight = at(86400)
    assert list(days(at(86000), at(86500))) == [(at(86000), midnight), (midnight, at(86500))]
    assert list(days(at(86000), midnight)) == [(at(86000), midnight)] and list(days(at(5), at(5))) == []


def test_a_sum_keeps_what_is_known() -> None:
    assert KnownSum().plus(2.0).plus(None) == KnownSum(2.0, whole=False) == KnownSum().plus(None).plus(2.0)
    assert KnownSum().plus(float("nan")) == KnownSum(0.0, whole=False)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "0.5 s"),
        (9.99, "10 s"),
        (10, "10 s"),
        (119, "119 s"),
        (120, "2 min"),
        (150, "2 min 30 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h"),
        (5400, "1 h 30 min"),
        (4 * 86400 - 60, "95 h 59 min"),
        (4 * 86400, "4 d"),
        (4 * 86400 + 3600, "4 d 1 h"),
        (float("inf"), "inf s"),
    ],
)
def test_spans_in_words(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


@pytest.mark.parametrize(("amount", "text"), [(0.0, "$0.00"), (0.05, "$0.0500"), (0.1, "$0.10"), (1234.5, "$1,234.50")])
def test_dollars_in_words(amount: float, text: str) -> None:
    assert in_dollars(amount) == text
