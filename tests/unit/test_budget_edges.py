"""The last moment before a launch: what budgets say between two looks, at the edge of the money and of the day."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.core.budget_state import BudgetState, BudgetStatus
from stoker.core.budget_verdict import BudgetWarning, LaunchDenied, judge
from stoker.core.daily_costs import DaySums, KnownSum
from stoker.core.policy_rules import Subject
from stoker.core.snapshot import Append, Launch, Plan, Snapshot
from stoker.governor import budget_tracker
from stoker.governor.apply import Applier, ApplyResult
from stoker.governor.budget_tracker import REREAD_AFTER_S, BudgetTracker
from stoker.governor.connected_providers import Fleet
from stoker.governor.cost_ledger import DailyCost, record_daily_cost
from stoker.governor.observe import Memory
from stoker.model import codec, keys
from stoker.model.errors import StokerError, StoreDenied, StoreUnavailable
from stoker.model.job_state import JobState
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, Submitted
from stoker.model.observed import Known, Unknown
from stoker.model.offerings import Offering
from stoker.model.policy import Policy
from stoker.model.spec import Limits
from stoker.model.submission import Submission
from stoker.policy.policy_file import parse_policy
from stoker.store import job_log
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sim_data import EPOCH, JOB, ON_DEMAND, SPOT_A, at, make_snapshot, make_spec, nodes

HOUR = 3600.0
TEAM = replace(make_spec(limits=Limits(max_cost=2.0)), tags={"team": "a"})


def policy(period: str = "day") -> Policy:
    return parse_policy(f"rules:\n- {{name: money, budget: {{dollars: 10, period: {period}}}}}\n".encode(), "p.yaml")


def books(spent: float) -> BudgetState:
    return BudgetState(at(0), {("money", ""): BudgetStatus(spent=spent)})


def subject(now_s: float) -> Subject:
    return Subject(TEAM, at(now_s).date(), JOB)


# ── The edge of the money ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("spent", "full"), [(9.99, False), (10.0, True), (10.01, True)])
def test_all_of_it_is_spent_at_a_hundred_per_cent(spent: float, full: bool) -> None:
    found = judge(policy(), subject(0), Known(books(spent)), at(0))
    assert any(isinstance(each, LaunchDenied) for each in found) is full
    assert any(isinstance(each, BudgetWarning) for each in found) is full


# ── The keeper ────────────────────────────────────────────────────────────────────────────────────────────────────────


def put_job(store: MemoryStore, job: str, *events: Event) -> None:
    data = codec.dumps(Submission(job, TEAM, "jane"))
    store.put(keys.spec(job), data)
    for event in (Submitted(codec.digest(data), "jane"), *events):
        append(store, job, event)
    store.put(keys.active(job, 1), b"")


def append(store: MemoryStore, job: str, event: Event) -> None:
    job_log.append_next(store, job, None, lambda _state: (event, "for the test"), "jane")


def read(store: MemoryStore, job: str) -> JobState:
    found = job_log.read(store, job)
    assert found is not None
    return found


class Shop:
    """A keeper of the books for a job that wants a machine, and another that has one at three dollars an hour."""

    def __init__(self) -> None:
        self.broken = False
        self.read: list[str] = []
        self.store = MemoryStore(lambda: EPOCH)
        put_job(self.store, "job-1")
        put_job(self.store, "other-1", Claimed(ON_DEMAND, 1), Launched(2, nodes(2)))
        self.keeper = BudgetTracker(self.store.client(self._faults), Memory())
        self.keeper.begin(("job-1", "other-1"), now=at(0))

    def _faults(self, _operation: str, key: str) -> Fault | None:
        self.read.append(key)
        return Fault(error=StoreUnavailable("no answer")) if self.broken else None

    def run_dear(self) -> None:
        """The other job gets a machine that costs more than there is."""
        append(self.store, "other-1", Closed(2, "reclaimed", "reclaimed", restart=True))
        append(self.store, "other-1", Claimed(replace(ON_DEMAND, price=1e6), 1))
        append(self.store, "other-1", Launched(5, nodes(5)))

    def launch_denied(self, now_s: float) -> str | None:
        self.keeper.refresh_before_launch(policy(), "job-1", at(now_s))
        return self.keeper.launch_denied(policy(), "job-1", ON_DEMAND, at(now_s))


def test_what_is_not_known_keeps_everybody_back() -> None:
    shop = Shop()
    shop.broken = True
    assert isinstance(shop.keeper.read_state(policy(), at(0)), Unknown)
    shop.broken = False
    shop.keeper.memory.submissions["job-1"] = Submission("job-1", TEAM, "jane")
    assert shop.launch_denied(1.0) == "policy money: what was spent is not known: no answer"
    assert shop.launch_denied(REREAD_AFTER_S) is None, "it is looked up again"


def test_nobody_who_has_not_looked_lets_anything_through() -> None:
    shop = Shop()
    shop.keeper.memory.submissions["job-1"] = Submission("job-1", TEAM, "jane")
    assert shop.launch_denied(1.0) == "policy money: what was spent is not known: no governor has looked"


def test_it_is_read_again_once_it_is_old_and_not_before() -> None:
    shop = Shop()
    assert isinstance(shop.keeper.read_state(policy(), at(0)), Known)
    assert shop.launch_denied(1.0) is None
    put_job(shop.store, "late-1", Claimed(replace(ON_DEMAND, price=1e6), 1), Launched(2, nodes(2)))
    assert shop.launch_denied(REREAD_AFTER_S - 1) is None, "it was read a moment ago"
    assert "are spent" in (shop.launch_denied(REREAD_AFTER_S) or "")


@pytest.mark.parametrize(("began_s", "old_s"), [(0.0, REREAD_AFTER_S), (None, 10.0 + REREAD_AFTER_S)])
def test_what_was_read_is_as_old_as_its_pass_or_as_the_first_look(began_s: float | None, old_s: float) -> None:
    shop = Shop()
    shop.keeper.begin(("job-1", "other-1"), now=None if began_s is None else at(began_s))
    assert isinstance(shop.keeper.read_state(policy(), at(10.0)), Known)
    put_job(shop.store, "late-1", Claimed(replace(ON_DEMAND, price=1e6), 1), Launched(2, nodes(2)))
    assert shop.launch_denied(old_s - 1) is None
    assert "are spent" in (shop.launch_denied(old_s) or "")


def test_before_a_launch_logs_count_and_not_what_a_partial_pass_knew() -> None:
    shop = Shop()
    shop.keeper.begin(("job-1", "other-1"), whole=False, now=at(0))
    shop.keeper.with_budget_state(Snapshot((), (), {}, partial=True), policy(), at(0), passed_s=0.0)
    assert isinstance(shop.keeper.read_state(policy(), at(0)), Known)
    shop.run_dear()
    assert shop.launch_denied(REREAD_AFTER_S - 1) is None
    assert "are spent" in (shop.launch_denied(REREAD_AFTER_S) or "")


def test_a_pass_over_a_few_counts_the_others_by_what_was_read_of_them_in_the_last_minute() -> None:
    shop = Shop()
    shop.keeper.with_budget_state(Snapshot((), (), {}), policy(), at(0), passed_s=0.0)
    shop.run_dear()
    found: list[bool] = []
    for now_s in (30.0, 120.0):
        shop.keeper.begin(("job-1", "other-1"), whole=False, now=at(now_s))
        shop.keeper.with_budget_state(Snapshot((), (), {}, partial=True), policy(), at(now_s), passed_s=now_s)
        shop.keeper.read_state(policy(), at(now_s))
        found.append(shop.launch_denied(now_s + 1) is None)
    assert found == [True, False]


def test_a_pass_over_all_jobs_counts_each_by_its_log() -> None:
    shop = Shop()
    shop.keeper.with_budget_state(Snapshot((), (), {}), policy(), at(0), passed_s=0.0)
    assert isinstance(shop.keeper.read_state(policy(), at(0)), Known)
    shop.run_dear()
    shop.keeper.begin(("job-1", "other-1"), now=at(30.0))
    assert shop.launch_denied(31.0) == "policy money: what was spent is not known: no governor has looked"
    assert shop.keeper.unreported(policy()) == [], "nothing was read in this pass"
    assert isinstance(shop.keeper.read_state(policy(), at(30.0)), Known)
    assert "are spent" in (shop.launch_denied(31.0) or "")


def test_a_job_that_was_resumed_counts_by_its_log_also_in_a_pass_over_a_few() -> None:
    shop = Shop()
    shop.keeper.with_budget_state(Snapshot((), (), {}), policy(), at(0), passed_s=0.0)
    assert isinstance(shop.keeper.read_state(policy(), at(0)), Known)
    shop.run_dear()
    for now_s, active in ((10.0, ("job-1",)), (20.0, ("job-1", "other-1"))):
        shop.keeper.begin(active, whole=False, now=at(now_s))
        shop.keeper.with_budget_state(Snapshot((), (), {}, partial=True), policy(), at(now_s), passed_s=now_s)
        assert isinstance(shop.keeper.read_state(policy(), at(now_s)), Known)
    assert "are spent" in (shop.launch_denied(21.0) or "")


def test_a_job_that_the_pass_is_about_is_not_read_again_for_its_budget() -> None:
    shop = Shop()
    state = shop.keeper.memory.states["other-1"] = read(shop.store, "other-1")
    running = replace(make_snapshot(state, spec=TEAM), offerings=None, budget_state=None)
    shop.keeper.with_budget_state(Snapshot((running,), (), {}), policy(), at(0), passed_s=1000.0)
    shop.keeper.begin(("job-1", "other-1"), whole=False, now=at(30.0))
    shop.read.clear()
    shop.keeper.with_budget_state(Snapshot((), (), {}, partial=True), policy(), at(30.0), passed_s=1030.0)
    assert isinstance(shop.keeper.read_state(policy(), at(30.0)), Known)
    assert [key for key in shop.read if "other-1" in key and "/log/" in key] == []


def test_the_whole_cost_of_a_job_is_looked_at_after_each_of_its_ends() -> None:
    shop = Shop()
    append(shop.store, "other-1", Ended("failed", "user-error", 2, closing=Closed(2, "failed", "user-error")))
    over = replace(make_snapshot(read(shop.store, "other-1"), spec=TEAM), offerings=None, budget_state=None)
    looked: list[bool] = []
    for now_s, active in ((0.0, ("other-1",)), (10.0, ("other-1",)), (20.0, ("job-1",)), (30.0, ("other-1",))):
        shop.keeper.begin(active, now=at(now_s))
        seen = Snapshot((over,) if "other-1" in active else (), (), {}, partial=True)
        found = shop.keeper.with_budget_state(seen, policy(), at(now_s), now_s).jobs
        looked += [job.budget_state is not None for job in found]
    assert looked == [True, False, True], "it was resumed, and ended again"


def test_a_job_that_this_governor_does_not_know_is_not_its_to_hold_back() -> None:
    shop = Shop()
    assert isinstance(shop.keeper.read_state(policy(), at(0)), Known)
    assert shop.keeper.launch_denied(policy(), "never-1", ON_DEMAND, at(1.0)) is None
    assert shop.keeper.launch_conflict(policy(), "never-1", 2, at(1.0)) is None
    shop.keeper.memory.states.pop("other-1")
    shop.keeper.count_claim("other-1")
    assert shop.launch_denied(1.0) is None, "it counts by what was read of it"


def test_what_was_spent_is_unknown_where_the_next_period_cannot_be_read() -> None:
    shop = Shop()
    assert isinstance(shop.keeper.read_state(policy(), at(0)), Known)
    shop.broken = True
    denied = shop.keeper.launch_denied(policy(), "job-1", ON_DEMAND, at(24 * HOUR + 1))
    assert denied == "policy money: what was spent is not known: no answer"


def test_where_nobody_wants_a_machine_budgets_are_looked_at_now_and_then() -> None:
    shop = Shop()
    state = job_log.read(shop.store, "other-1")
    assert state is not None
    running = replace(make_snapshot(state, spec=TEAM), offerings=None, budget_state=None)
    looked: list[bool] = []
    for passed_s in (0.0, 60.0, 600.0, 660.0):
        (job,) = shop.keeper.with_budget_state(Snapshot((running,), (), {}), policy(), at(passed_s), passed_s).jobs
        looked.append(job.budget_state is not None)
    assert looked == [True, False, True, False]


def test_a_look_that_took_long_is_not_repeated_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shop, times_s = Shop(), iter([1000.0, 1060.0, 2000.0, 2001.0])
    monkeypatch.setattr(budget_tracker.time, "monotonic", lambda: next(times_s))
    assert isinstance(shop.keeper.read_state(policy(), at(0)), Known)
    put_job(shop.store, "late-1", Claimed(replace(ON_DEMAND, price=1e6), 1), Launched(2, nodes(2)))
    assert shop.launch_denied(100.0) is None, "looking would take up most of the pass"
    assert "are spent" in (shop.launch_denied(600.0) or "")


def test_a_store_that_does_not_answer_any_more_keeps_everybody_back() -> None:
    shop = Shop()
    assert isinstance(shop.keeper.read_state(policy(), at(0)), Known)
    shop.broken = True
    assert "no answer" in (shop.launch_denied(REREAD_AFTER_S) or "")
    assert isinstance(shop.keeper.read_state(policy(), at(REREAD_AFTER_S)), Unknown)
    shop.broken = False
    assert shop.launch_denied(REREAD_AFTER_S + 1) is None


def test_what_was_claimed_here_since_counts_and_what_others_claimed_is_read_before_a_launch() -> None:
    shop = Shop()
    assert isinstance(shop.keeper.read_state(policy(), at(0)), Known)
    for job, now_s in (("late-1", 1.0), ("late-2", 2.0), ("late-3", 3.0), ("late-4", 3.5)):
        assert shop.launch_denied(now_s) is None, "it was read a moment ago"
        put_job(shop.store, job, Claimed(ON_DEMAND, 1))
    append(shop.store, "job-1", Claimed(ON_DEMAND, 1))
    held = shop.keeper.launch_conflict(policy(), "job-1", 2, at(4.0))
    # They were all written at the same moment, by the clock of this store: five of two dollars each, and two before.
    assert held is not None and held.rule == "policy:money" and "late-1" in held.waits
    shop.broken = True
    with pytest.raises(StokerError, match="no answer"):
        shop.keeper.launch_conflict(policy(), "job-1", 2, at(5.0))


def test_a_claim_is_not_launched_where_what_was_spent_before_cannot_be_read() -> None:
    shop = Shop()
    append(shop.store, "job-1", Claimed(ON_DEMAND, 1))
    shop.keeper.memory.submissions["job-1"] = Submission("job-1", TEAM, "jane")
    shop.keeper.store = shop.store.client(
        lambda _operation, key: Fault(error=StoreDenied("not allowed")) if key.startswith(keys.SPENT) else None
    )
    with pytest.raises(StokerError, match="what was spent is not known: not allowed"):
        shop.keeper.launch_conflict(policy(), "job-1", 2, at(4.0))


def test_a_job_that_was_forgotten_since_the_last_look_counts_by_what_it_left() -> None:
    shop = Shop()
    append(shop.store, "job-1", Claimed(ON_DEMAND, 1))
    assert isinstance(shop.keeper.read_state(policy(), at(0)), Known)
    assert shop.keeper.launch_conflict(policy(), "job-1", 2, at(4.0)) is None
    record_daily_cost(
        shop.store,
        DailyCost("other-1", at(0).date(), 3, DaySums(KnownSum(50.0), KnownSum(50.0), KnownSum(50.0)), TEAM.tags),
    )
    shop.store.delete([keys.active("other-1", 1)])
    held = shop.keeper.launch_conflict(policy(), "job-1", 2, at(5.0))
    assert held is not None and held.rule == "policy:money"


def test_every_pass_reads_what_forgotten_jobs_spent_anew() -> None:
    shop = Shop()
    assert isinstance(shop.keeper.read_state(policy(), at(0)), Known)
    record_daily_cost(
        shop.store,
        DailyCost("gone-1", at(0).date(), 3, DaySums(KnownSum(50.0), KnownSum(50.0), KnownSum(50.0)), TEAM.tags),
    )
    assert shop.launch_denied(1.0) is None, "it was read a moment ago"
    shop.keeper.begin(("job-1", "other-1"), now=at(2.0))
    assert isinstance(shop.keeper.read_state(policy(), at(2.0)), Known)
    assert "are spent" in (shop.launch_denied(3.0) or "")


def test_what_another_job_claimed_in_this_pass_counts_without_another_look() -> None:
    shop = Shop()
    assert isinstance(shop.keeper.read_state(policy(), at(0)), Known)
    assert shop.launch_denied(1.0) is None
    shop.run_dear()
    newest = job_log.read(shop.store, "other-1")
    assert newest is not None
    shop.keeper.memory.states["other-1"] = newest
    assert shop.launch_denied(2.0) is None
    shop.keeper.count_claim("other-1")
    assert "are spent" in (shop.launch_denied(2.0) or "")


def test_a_claim_that_has_enough_is_launched() -> None:
    shop = Shop()
    assert isinstance(shop.keeper.read_state(policy(), at(0)), Known)
    append(shop.store, "job-1", Claimed(ON_DEMAND, 1))
    for job in ("late-1", "late-2", "late-3"):
        put_job(shop.store, job, Claimed(ON_DEMAND, 1))
    assert shop.keeper.launch_conflict(policy(), "job-1", 2, at(4.0)) is None, "five times two dollars are all of it"


# ── Carrying out ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Guard:
    """Says the same to all, and remembers who asked. `lost`: a claim that was made must not be launched."""

    def __init__(self, why: str | None, lost: LaunchDenied | None) -> None:
        self.why = why
        self.lost = lost
        self.asked: list[str] = []

    def launch_denied(self, job: str, _offering: Offering) -> str | None:
        self.asked.append(job)
        return self.why

    def launch_conflict(self, job: str, number: int) -> LaunchDenied | None:
        self.asked.append(f"{job} {number}")
        return self.lost

    def count_claim(self, job: str) -> None:
        pass


TOO_LATE = LaunchDenied("policy:money", "another was quicker", waits="waits")


def applied(
    why: str | None, *actions: Append | Launch, lost: LaunchDenied | None = None
) -> tuple[ApplyResult, list[str], JobState | None]:
    """What comes of it, who asked, and the log. The claim is of a provider that is not there: a launch is a problem."""
    store = MemoryStore(lambda: EPOCH)
    put_job(store, JOB, Claimed(SPOT_A, 1))
    budget_guard = Guard(why, lost)
    found = Applier(store, Fleet(store.url), Memory(), "me").apply(Plan(actions), budget_guard)
    return found, budget_guard.asked, job_log.read(store, JOB)


def test_a_claim_of_another_governor_is_finished_only_if_there_is_money() -> None:
    kept, asked, state = applied(None, Launch(JOB, 2, "first attempt"), lost=TOO_LATE)
    assert kept.waiting == {JOB: "waits"} and asked == [f"{JOB} 2"]
    assert not kept.done and not kept.moved and not kept.problems
    assert state is not None and state.open_claims, "the other may be launching it"
    tried, asked, _ = applied(None, Launch(JOB, 2, "first attempt"))
    assert JOB in tried.moved and JOB in tried.problems and asked == [f"{JOB} 2"]


def test_a_claim_is_made_only_if_there_is_money_and_judged_again_before_its_launch() -> None:
    claim = Append(JOB, 3, Claimed(SPOT_A, 1), "next"), Launch(JOB, 3, "next")
    kept, asked, _ = applied("it is spent", *claim)
    assert kept.waiting == {JOB: "it is spent"} and not kept.done and not kept.moved and asked == [JOB]
    tried, asked, _ = applied(None, *claim)
    assert tried.done == [claim[0]] and asked == [JOB, f"{JOB} 3"]
    lost, _, state = applied(None, *claim, lost=TOO_LATE)
    assert lost.done == [claim[0]] and lost.moved == {JOB} and lost.waiting == {JOB: "waits"}
    closed = state.claims[-1].closed if state is not None else None
    assert closed == Closed(claim=3, outcome="abandoned", rule="policy:money", restart=True)
