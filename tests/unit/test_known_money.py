"""Money that is known stays known, whatever else is not: a price, a log, a hold that somebody ended, a bad key."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date, timedelta

import pytest

from stoker.core.budget_state import Expense, UnreadableJob, compute_budget_state, expenses
from stoker.core.budget_verdict import judge
from stoker.core.daily_costs import DaySums, KnownSum
from stoker.core.decide import decide, decide_job
from stoker.core.governor_settings import DEFAULT, GovernorSettings
from stoker.core.policy_rules import Subject
from stoker.core.snapshot import Append, Snapshot
from stoker.core.summary import summarize
from stoker.governor.budget_tracker import BudgetTracker
from stoker.governor.cost_ledger import (
    DailyCost,
    ParsedKeys,
    _key,
    read_daily_costs,
    record_daily_cost,
    record_job_costs,
)
from stoker.governor.observe import Memory
from stoker.model import codec, keys
from stoker.model.log_entries import (
    Claimed,
    Closed,
    Draining,
    Ended,
    Event,
    Launched,
    ResumeAsked,
    StopAsked,
    Submitted,
    Warned,
)
from stoker.model.observed import Known
from stoker.model.offerings import Offering
from stoker.model.spec import Limits, Retry, Spec
from stoker.model.submission import Submission
from stoker.policy.policy_file import parse_policy
from stoker.read.costs import report, whole_days
from stoker.store import job_log
from stoker.store.job_index import IndexRecord, read_submission, write_index
from stoker.testing.memory_store import MemoryStore
from tests.support.sim_data import (
    EPOCH,
    ON_DEMAND,
    SPOT_A,
    at,
    make_beat,
    make_facts,
    make_snapshot,
    make_spec,
    make_state,
    nodes,
)

HOUR = 3600.0
TODAY = EPOCH.date()
UNPRICED = replace(ON_DEMAND, price=None, on_demand_price=None)
BUDGET = "name: money, budget: {dollars: 10, period: day}"


def settings(*texts: str) -> GovernorSettings:
    text = "rules:\n" + "".join(f"- {{{each}}}\n" for each in texts)
    return replace(DEFAULT, policy=parse_policy(text.encode(), "p.yaml"))


def attempt(offering: Offering, claim: int, start_s: float, hours: float | None) -> list[tuple[Event, float]]:
    found: list[tuple[Event, float]] = [
        (Claimed(offering=offering, nodes=1), start_s),
        (Launched(claim=claim, nodes=nodes(claim)), start_s),
    ]
    if hours is not None:
        closed = Closed(claim=claim, outcome="reclaimed", rule="x", restart=True)
        found.append((closed, start_s + hours * HOUR))
    return found


# ── One unknown price ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_machine_without_a_price_leaves_the_rest_of_the_day_known() -> None:
    state = make_state(*attempt(ON_DEMAND, 2, 0.0, 4.0), *attempt(UNPRICED, 5, 5 * HOUR, None))
    now = at(6 * HOUR)
    assert list(expenses(state, make_spec(), now)) == [Expense("job-1", {}, TODAY, 12.0, whole=False)]
    books = compute_budget_state(settings(BUDGET).policy, [], [(state, make_spec())], now)
    standing = books.statuses["money", ""]
    assert standing.spent == 12.0 and standing.unpriced == ("job-1",)


def test_each_spell_counts_by_the_dearest_that_is_known_of_it() -> None:
    """One has a spot price alone, another an on-demand price alone: both are known."""
    spot, full = replace(SPOT_A, price=5.0, on_demand_price=None), replace(SPOT_A, price=None, on_demand_price=9.0)
    state = make_state(*attempt(spot, 2, 0.0, 2.0), *attempt(full, 5, 3 * HOUR, 1.0))
    assert list(expenses(state, make_spec(), at(5 * HOUR))) == [Expense("job-1", {}, TODAY, 19.0)]


def ended(*events: tuple[Event, float], at_s: float, claim: int = 5) -> list[tuple[Event, float]]:
    return [*events, (Ended(outcome="succeeded", rule="finished", claim=claim), at_s)]


def test_what_is_kept_of_a_removed_job_says_what_is_known() -> None:
    store = MemoryStore(lambda: at(9 * HOUR))
    events = [*attempt(ON_DEMAND, 2, 0.0, 4.0), *attempt(UNPRICED, 5, 5 * HOUR, None)]
    state = make_state(*ended(*events, at_s=6 * HOUR))
    record_job_costs(store, state, make_spec(), at(9 * HOUR))
    (found,) = read_daily_costs(store, [keys.SPENT])
    assert found.sums == DaySums(*(KnownSum(12.0, whole=False),) * 3)
    total = report([], [found], "day", at(9 * HOUR)).total
    assert total.spent.known == 12.0 and not total.spent.complete


@pytest.mark.parametrize("price", [1.7e308, 1e300, math.inf, math.nan])
def test_an_absurd_price_makes_a_key_all_the_same(price: float) -> None:
    store = MemoryStore(lambda: at(9 * HOUR))
    state = make_state(*ended(*attempt(replace(ON_DEMAND, price=price), 2, 0.0, None), at_s=20 * HOUR, claim=2))
    record_job_costs(store, state, make_spec(), at(21 * HOUR))
    (found,) = read_daily_costs(store, [keys.SPENT])
    assert len(next(iter(store.list(keys.SPENT))).key.rpartition("/")[2]) < 255
    assert math.isfinite(found.sums.spent.known) and (found.sums.spent.known > 1e11 or not found.sums.spent.whole)


@pytest.mark.parametrize("value", ["", "\ud800 half a letter"])
def test_an_odd_tag_makes_a_key_all_the_same(value: str) -> None:
    store = MemoryStore(lambda: at(9 * HOUR))
    state = make_state(*ended(*attempt(ON_DEMAND, 2, 0.0, None), at_s=4 * HOUR, claim=2))
    record_job_costs(store, state, replace(make_spec(), tags={"team": value}), at(9 * HOUR))
    (found,) = read_daily_costs(store, [keys.SPENT])
    assert found.sums.spent == KnownSum(12.0) and found.tags == {"team": value.replace("\ud800", "?")}


@pytest.mark.parametrize("then", ["limit", "od"])
def test_the_bound_on_money_holds_after_an_attempt_without_a_price(then: str) -> None:
    running = ON_DEMAND if then == "limit" else replace(ON_DEMAND, price=None)
    state = make_state(*attempt(UNPRICED, 2, 0.0, 0.01), *attempt(running, 5, 100.0, None))
    job = make_snapshot(state, make_facts(5, beat=make_beat(100 * HOUR)), spec=make_spec(limits=Limits(max_cost=100.0)))
    (action,) = decide_job(job, DEFAULT, at(100 * HOUR)).actions
    assert isinstance(action, Append) and isinstance(action.event, Draining) and action.event.rule == "max_cost"


# ── Holds ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def held_spec() -> Spec:
    return replace(make_spec(), retry=Retry(hold_on_failure_s=8 * HOUR))


def test_a_machine_that_was_held_stays_paid_for_when_somebody_ends_the_hold() -> None:
    closing = Closed(claim=2, outcome="failed", rule="user-error")
    end = Ended(outcome="failed", rule="user-error", claim=2, closing=closing)
    events = [*attempt(ON_DEMAND, 2, 0.0, None), (end, HOUR)]

    def dollars(*more: tuple[Event, float], now_s: float) -> float:
        return sum(each.dollars for each in expenses(make_state(*events, *more), held_spec(), at(now_s)))

    assert dollars(now_s=8 * HOUR) == pytest.approx(24.0)
    assert dollars((StopAsked(by="joe"), 8 * HOUR), now_s=20 * HOUR) == pytest.approx(24.0)
    assert dollars((ResumeAsked(by="joe"), 8 * HOUR), now_s=20 * HOUR) == pytest.approx(24.0)
    again = attempt(ON_DEMAND, 6, 20 * HOUR, 1.0)
    assert dollars((ResumeAsked(by="joe"), 8 * HOUR), *again, now_s=22 * HOUR) == pytest.approx(24.0 + 3.0)
    assert dollars(now_s=30 * HOUR) == pytest.approx(27.0), "the hold is over by itself"


def test_what_is_written_counts_the_hold_of_an_attempt_before_a_resume() -> None:
    now_s = [0.0]
    store = MemoryStore(lambda: at(now_s[0]))
    closing = Closed(claim=2, outcome="failed", rule="user-error")
    end = Ended(outcome="failed", rule="user-error", claim=2, closing=closing)
    events = [*attempt(ON_DEMAND, 2, 0.0, None), (end, HOUR), (ResumeAsked(by="joe"), 3 * HOUR)]
    state = make_state(*events, (Ended(outcome="stopped", rule="stop"), 4 * HOUR))
    now_s[0] = 3 * HOUR
    node = keys.node("job-1", 2, 0, keys.boot(nodes(2)[0].instance, 0))
    store.put(keys.heartbeat(node), codec.dumps(make_beat(3 * HOUR, "held").value))
    record_job_costs(store, state, held_spec(), at(5 * HOUR))
    (found,) = read_daily_costs(store, [keys.SPENT])
    assert found.sums.spent == KnownSum(9.0)


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name",
    [
        "00000004.-900000000000.-900000000000.",
        f"00000004.{'9' * 320}.0.",
        "00000004.1_000.1.",
        "4.1.1.",
        "٠٠٠٠٠٠٠٤.1.1.",
        "00000004.1.1.a=b&a=c",
        "00000004.1.1.nonsense",
        "00000004.1-1.a=b",
        "00000004.1-1--1.a=b",
        "00000004.1.1.~",
        "1.2",
    ],
)
def test_a_key_that_nobody_here_wrote_is_passed_over(name: str) -> None:
    store = MemoryStore(lambda: EPOCH)
    store.put(f"{keys.spent_day(TODAY)}evil-1/{name}", b"no tags")
    store.put(f"{keys.SPENT}2026-13/77/evil-1/00000004.1.1.", b"")
    key, data = _key(DailyCost("job-1", TODAY, 4, DaySums(*(KnownSum(1.0),) * 3), {"a": "1.5"}))
    store.put(key, data)
    assert [each.job for each in read_daily_costs(store, [keys.SPENT])] == ["job-1"]


def test_a_key_is_read_once() -> None:
    class Counting(MemoryStore):
        gets = 0

        def get(self, key: str, **rest: object) -> object:  # type: ignore[override]
            type(self).gets += 1
            return super().get(key, **rest)  # type: ignore[arg-type]

    store = Counting(lambda: EPOCH)
    long = {f"tag-{n}": "value" * 9 for n in range(9)}
    for n in range(20):
        key, data = _key(DailyCost(f"job-{n}", TODAY, 4, DaySums(*(KnownSum(1.0),) * 3), long))
        store.put(key, data)
    known: ParsedKeys = {}
    for _ in range(3):
        assert len(read_daily_costs(store, [keys.spent_day(TODAY)], known)) == 20
    assert Counting.gets == 20
    assert all(each.tags == long for each in read_daily_costs(store, [keys.spent_day(TODAY)], known))


# ── Costs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tag_may_be_called_as_a_column_is() -> None:
    gone = DailyCost("old-1", date(2026, 1, 3), 9, DaySums(*(KnownSum(5.0),) * 3), {"day": "monday"})
    assert [row.name for row in report([], [gone], "tags.day", at(0)).rows] == ["monday"]
    assert [row.name for row in report([], [gone], "day", at(0)).rows] == ["2026-01-03"]
    assert [row.name for row in report([], [gone], "tags.job", at(0)).rows] == ["(none)"]


def test_who_is_counted_with_more_than_was_asked_for() -> None:
    gone = [DailyCost(f"old-{n}", date(2026, 1, n), 9, DaySums(), {}) for n in (1, 2)]
    assert whole_days(gone, at(HOUR)) == ["old-1"]
    assert whole_days(gone, EPOCH) == whole_days(gone, None) == []


# ── Jobs that make no sense ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_nothing_can_be_decided_about_concerns_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.core import decide as deciding

    real = deciding.decide_job

    def stumbling(job: object, *rest: object, **more: object) -> object:
        if job.state.job == "job-1":  # type: ignore[attr-defined]
            raise OverflowError("date value out of range")
        return real(job, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(deciding, "decide_job", stumbling)
    jobs = tuple(make_snapshot(make_state(job=f"job-{n}")) for n in (1, 2))
    plan = decide(Snapshot(jobs), DEFAULT, at(100))
    assert {action.job for action in plan.actions} == {"job-2"}
    assert plan.problems == {"job-1": "OverflowError: date value out of range"}


def test_a_grace_past_the_end_of_the_calendar_is_no_error() -> None:
    spec = make_spec()
    spec = replace(spec, checkpoints=replace(spec.checkpoints, grace_s=1e300))
    state = make_state(*attempt(ON_DEMAND, 2, 0.0, None), (StopAsked(by="joe"), 10.0))
    job = make_snapshot(state, make_facts(2, beat=make_beat(90.0)), spec=spec)
    assert decide_job(job, DEFAULT, at(100)).actions == ()


def test_one_that_cannot_be_read_holds_the_budgets_that_it_can_be_in() -> None:
    by = settings("name: mine, budget: {dollars: 10, period: day, by: team}").policy
    now = at(100)

    def held(team: str, unreadable: UnreadableJob) -> bool:
        books = compute_budget_state(by, [], [], now, [unreadable])
        subject = Subject(replace(make_spec(), tags={"team": team}), now.date(), "job-1")
        return bool(judge(by, subject, Known(books), now))

    assert held("a", UnreadableJob("bad-1", "nonsense", {"team": "a"}))
    assert not held("b", UnreadableJob("bad-1", "nonsense", {"team": "a"}))
    assert held("b", UnreadableJob("bad-1", "nonsense", None)), "it may be in any"


def put_job(store: MemoryStore, job: str, spec: Spec, *events: Event) -> None:
    data = codec.dumps(Submission(job=job, spec=spec, submitter="jane"))
    store.put(keys.spec(job), data)
    for event in (Submitted(codec.digest(data), "jane"), *events):
        job_log.append_next(store, job, None, lambda _state, event=event: (event, "for the test"), "jane")  # type: ignore[misc]
    store.put(keys.active(job, 1), b"")


def test_an_unreadable_log_is_told_with_its_tags() -> None:
    store = MemoryStore(lambda: EPOCH)
    put_job(store, "bad-1", replace(make_spec(), tags={"team": "a"}))
    put_job(store, "job-1", replace(make_spec(), tags={"team": "b"}))
    store.put(keys.log_entry("bad-1", 2), b"garbage")
    keeper = BudgetTracker(store, Memory())
    keeper.begin(("bad-1", "job-1"))
    books = keeper.read_state(settings(BUDGET).policy, at(100))
    assert isinstance(books, Known)
    (unreadable,) = books.value.unreadable
    assert (unreadable.job, unreadable.tags) == ("bad-1", {"team": "a"}) and "not a log entry" in unreadable.why


def test_a_pass_over_a_few_makes_one_call_for_each_of_the_others() -> None:
    read: list[str] = []

    class Counting(MemoryStore):
        def get(self, key: str, **rest: object) -> object:  # type: ignore[override]
            read.append(key)
            return super().get(key, **rest)  # type: ignore[arg-type]

    store = Counting(lambda: EPOCH)
    for n in range(3):
        put_job(store, f"job-{n}", make_spec(), Claimed(offering=ON_DEMAND, nodes=1), Launched(2, nodes(2)))
        state = job_log.read(store, f"job-{n}")
        assert state is not None
        write_index(store, IndexRecord(state, summarize(state, read_submission(store, state), {}, EPOCH)))
    keeper = BudgetTracker(store, Memory())
    for _ in range(2):
        read.clear()
        keeper.begin(tuple(f"job-{n}" for n in range(3)), whole=False)
        books = keeper.read_state(settings(BUDGET).policy, at(HOUR))
        assert isinstance(books, Known) and books.value.statuses["money", ""].spent == pytest.approx(9.0)
        assert not {key for key in read if "/log/" in key and not key.endswith("4.json")}, "at most the next entry"
    assert len(read) == 3, "and of what never changes, nothing twice"
    waits = make_snapshot(make_state(job="new-1"))
    for passed_s, gets in ((0.0, 3), (30.0, 0), (61.0, 3)):
        read.clear()
        keeper.begin((*(f"job-{n}" for n in range(3)), "new-1"), whole=False)
        snapshot = Snapshot((replace(waits, offerings=Known((ON_DEMAND,))),), partial=True)
        (job,) = keeper.with_budget_state(snapshot, settings(BUDGET).policy, at(HOUR), passed_s).jobs
        assert isinstance(job.budget_state, Known) and job.budget_state.value.statuses[
            "money", ""
        ].spent == pytest.approx(9.0)
        assert len([key for key in read if key.startswith("jobs/job-")]) == gets


def test_what_a_pass_has_read_is_not_read_again_however_long_that_took() -> None:
    read: list[str] = []

    class Counting(MemoryStore):
        def get(self, key: str, **rest: object) -> object:  # type: ignore[override]
            read.append(key)
            return super().get(key, **rest)  # type: ignore[arg-type]

    store = Counting(lambda: EPOCH)
    for n in range(3):
        put_job(store, f"job-{n}", make_spec(), Claimed(offering=ON_DEMAND, nodes=1), Launched(2, nodes(2)))
    states = [job_log.read(store, f"job-{n}") for n in range(3)]
    keeper = BudgetTracker(store, Memory())
    keeper.begin(tuple(f"job-{n}" for n in range(3)), now=at(0))
    jobs = tuple(replace(make_snapshot(state), offerings=Known((ON_DEMAND,))) for state in states if state is not None)
    read.clear()
    (first, *_) = keeper.with_budget_state(Snapshot(jobs), settings(BUDGET).policy, at(HOUR), 0.0).jobs
    assert isinstance(first.budget_state, Known) and not [key for key in read if "/log/" in key]


def test_one_that_is_over_is_counted_once_though_its_machine_is_held() -> None:
    store = MemoryStore(lambda: EPOCH)
    over: tuple[Event, ...] = (Claimed(offering=ON_DEMAND, nodes=1), Launched(2, nodes(2)), Ended("failed", "x", 2))
    put_job(store, "job-1", make_spec(), *over)
    keeper = BudgetTracker(store, Memory())
    looked = []
    for passed_s in (0.0, 10.0, 20.0):
        keeper.begin(("job-1",), now=at(HOUR))
        snapshot = Snapshot((replace(make_snapshot(make_state(*over)), offerings=None),), partial=True)
        (job,) = keeper.with_budget_state(snapshot, settings(BUDGET).policy, at(HOUR), passed_s).jobs
        looked.append(job.budget_state is not None)
    assert looked == [True, False, False]


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_is_told_once_a_period_though_the_job_that_told_it_is_forgotten() -> None:
    policy = settings(BUDGET).policy
    store = MemoryStore(lambda: EPOCH)
    put_job(store, "short-1", make_spec())
    key, data = _key(DailyCost("old-1", TODAY, 4, DaySums(*(KnownSum(9.0),) * 3), {}))
    store.put(key, data)

    def herald(day: int = 0) -> str | None:
        keeper = BudgetTracker(store, Memory())
        keeper.begin(("short-1",))
        books = keeper.read_state(policy, at(100 + day * 86400.0))
        assert isinstance(books, Known)
        standing = books.value.statuses.get(("money", ""))
        return standing.reporter if standing else None

    assert herald() == "short-1"
    keeper = BudgetTracker(store, Memory())
    keeper.begin(("short-1",))
    keeper.read_state(policy, at(100))
    for code in ("policy:other:2026-01-01:warning", "policy:money:2026-01-01:unpriced"):
        keeper.record_warning(policy, Append("short-1", 2, Warned(code=code), ""))
    assert herald() == "short-1"
    keeper.record_warning(policy, Append("short-1", 2, Warned(code="policy:money:2026-01-01:warning"), ""))
    assert herald() is None
    key, data = _key(DailyCost("old-2", TODAY + timedelta(days=1), 4, DaySums(*(KnownSum(9.0),) * 3), {}))
    store.put(key, data)
    assert herald(day=1) == "short-1", "the next period is another"


def test_nobody_who_knows_that_it_is_full_hears_that_it_nearly_is() -> None:
    policy = settings(BUDGET).policy
    full = make_state(Warned(code="policy:money:2026-01-01:full"))
    kept = [Expense("old-1", {}, TODAY, 11.0)]
    untold = compute_budget_state(policy, kept, [(make_state(), make_spec())], at(100)).statuses["money", ""]
    assert untold.due == "full" and untold.reporter == "job-1"
    told = compute_budget_state(policy, kept, [(full, make_spec())], at(100)).statuses["money", ""]
    assert told.due == "" and told.reporter is None


# ── Tags of what was spent ────────────────────────────────────────────────────────────────────────────────────────────


def spent_by(job: str, tags: dict[str, str]) -> DailyCost:
    return DailyCost(job, TODAY, 3, DaySums(KnownSum(1.0), KnownSum(2.0), KnownSum(1.5)), tags)


def test_what_was_spent_is_read_with_one_list_where_tags_fit_into_a_name() -> None:
    store = MemoryStore(lambda: EPOCH, is_local=False)
    spent = [spent_by(job, {"team": "nlp", "by": "jane & joe"}) for job in ("a-1", "b-1")]
    for each in spent:
        record_daily_cost(store, each)
    mine = store.client()
    assert read_daily_costs(mine, [keys.SPENT]) == spent and mine.counts == {"list": 1}


def test_tags_that_do_not_fit_into_a_name_are_read_once() -> None:
    store = MemoryStore(lambda: EPOCH, is_local=False)
    spent = [spent_by(job, {"team": "nlp", "by": "j" * 300}) for job in ("a-1", "b-1")]
    for each in spent:
        record_daily_cost(store, each)
    mine, known = store.client(), ParsedKeys()
    assert read_daily_costs(mine, [keys.SPENT], known) == spent and mine.counts == {"list": 1, "get": 2}
    assert read_daily_costs(mine, [keys.SPENT], known) == spent and mine.counts == {"list": 2, "get": 2}
    first, second = known
    store.delete([first])
    assert read_daily_costs(mine, [keys.SPENT], known) == spent[1:] and known.keys() == {second}
    store.put(second, b"no json")
    assert read_daily_costs(mine, [keys.SPENT]) == [], "no Stoker wrote that"
