"""The last moment before a launch: what budgets say between two looks, at the edge of the money and of the day."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker import codec, layout, log
from stoker.core.books import Books, Standing, Started, later
from stoker.core.budgets import Held, Word, judge
from stoker.core.governance import Subject
from stoker.core.snapshot import Append, Launch, Plan
from stoker.errors import StoreUnavailable
from stoker.governor.apply import Applied, Applier
from stoker.governor.bookkeeping import LOOK_AGAIN_S, Bookkeeper
from stoker.governor.fleet import Fleet
from stoker.governor.observe import Memory
from stoker.model import Claimed, Event, Known, Launched, Submitted, Unknown
from stoker.policyfile import parse_policy
from stoker.rules import House
from stoker.spec import Submission
from stoker.testing.memory import Fault, MemoryStore
from stoker.testing.sim_data import EPOCH, JOB, ON_DEMAND, SPOT_A, at, make_spec, nodes

HOUR = 3600.0
TEAM = replace(make_spec(), tags={"team": "a"})


def house(period: str = "day") -> House:
    return parse_policy(f"rules:\n- {{name: money, budget: {{dollars: 10, period: {period}}}}}\n".encode(), "p.yaml")


def books(spent: float, per_s: float = 0.0, at_s: float = 0.0) -> Books:
    return Books(at(at_s), {("money", ""): Standing(spent=spent, per_s=per_s)})


def subject(now_s: float) -> Subject:
    return Subject(TEAM, at(now_s).date(), JOB)


# ── The edge of the money ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("spent", "full"), [(9.99, False), (10.0, True), (10.01, True)])
def test_all_of_it_is_spent_at_a_hundred_per_cent(spent: float, full: bool) -> None:
    found = judge(house(), subject(0), Known(books(spent)), at(0))
    assert any(isinstance(each, Held) for each in found) is full
    assert any(isinstance(each, Word) for each in found) is full


def spent_later(before: Books, now_s: float, *started: Started) -> float:
    found = later(house(), before, started, subject(now_s), at(now_s))
    assert isinstance(found, Known) and found.value.at == at(now_s)
    return found.value.standings["money", ""].spent


def test_what_ran_when_the_books_were_closed_runs_on() -> None:
    assert spent_later(books(2.0, per_s=3 / HOUR), 2 * HOUR) == pytest.approx(2 + 6)
    assert spent_later(books(2.0, per_s=3 / HOUR, at_s=HOUR), 0.0) == 2.0, "no clock runs backwards"


def test_what_was_started_since_runs_as_well() -> None:
    mine = Started({"team": "a"}, at(HOUR), 6 / HOUR)
    assert spent_later(books(2.0), 2 * HOUR, mine, mine) == pytest.approx(2 + 12)
    assert spent_later(books(2.0, per_s=3 / HOUR), 2 * HOUR, mine) == pytest.approx(2 + 6 + 6)


def test_books_of_yesterday_say_nothing_of_today() -> None:
    tonight, tomorrow = 23 * HOUR, 25 * HOUR
    found = later(house(), books(2.0, at_s=tonight), (), subject(tomorrow), at(tomorrow))
    assert isinstance(found, Unknown) and "next period" in found.error
    monthly = later(house("month"), books(2.0, at_s=tonight), (), subject(tomorrow), at(tomorrow))
    assert isinstance(monthly, Known), "its period goes on"


# ── The keeper ────────────────────────────────────────────────────────────────────────────────────────────────────────


def put_job(store: MemoryStore, job: str, *events: Event) -> None:
    data = codec.dumps(Submission(job, TEAM, "jane"))
    store.put(layout.spec(job), data)
    for event in (Submitted(codec.digest(data), "jane"), *events):
        log.append_next(store, job, None, lambda _state, event=event: (event, "for the test"), "jane")  # type: ignore[misc]
    store.put(layout.active(job, 1), b"")


class Shop:
    """A keeper of the books for a job that wants a machine, and another that has one at three dollars an hour."""

    def __init__(self) -> None:
        self.broken = False
        self.store = MemoryStore(lambda: EPOCH)
        put_job(self.store, "job-1")
        put_job(self.store, "other-1", Claimed(ON_DEMAND, 1), Launched(2, nodes(2)))
        self.keeper = Bookkeeper(self.store.client(self._faults), Memory())
        self.keeper.begin(("job-1", "other-1"), now=at(0))

    def _faults(self, _operation: str, _key: str) -> Fault | None:
        return Fault(error=StoreUnavailable("no answer")) if self.broken else None

    def keeps_back(self, now_s: float) -> str | None:
        self.keeper.look_again(house(), "job-1", at(now_s))
        return self.keeper.keeps_back(house(), "job-1", at(now_s))


def test_what_is_not_known_keeps_everybody_back() -> None:
    shop = Shop()
    shop.broken = True
    assert isinstance(shop.keeper.look(house(), at(0)), Unknown)
    shop.broken = False
    shop.keeper.memory.submissions["job-1"] = Submission("job-1", TEAM, "jane")
    assert shop.keeps_back(1.0) == "policy money: what was spent is not known: no answer"
    assert shop.keeps_back(LOOK_AGAIN_S) is None, "it is looked up again"


def test_nobody_who_has_not_looked_lets_anything_through() -> None:
    shop = Shop()
    shop.keeper.memory.submissions["job-1"] = Submission("job-1", TEAM, "jane")
    assert shop.keeps_back(1.0) == "policy money: what was spent is not known: nobody looked"


def test_it_is_read_again_once_it_is_old_and_not_before() -> None:
    shop = Shop()
    assert isinstance(shop.keeper.look(house(), at(0)), Known)
    assert shop.keeps_back(1.0) is None
    put_job(shop.store, "late-1", Claimed(replace(ON_DEMAND, price=1e6), 1), Launched(2, nodes(2)))
    assert shop.keeps_back(LOOK_AGAIN_S - 1) is None, "it was read a moment ago"
    assert "are spent" in (shop.keeps_back(LOOK_AGAIN_S) or "")


def test_a_store_that_does_not_answer_any_more_keeps_everybody_back() -> None:
    shop = Shop()
    assert isinstance(shop.keeper.look(house(), at(0)), Known)
    shop.broken = True
    assert "no answer" in (shop.keeps_back(LOOK_AGAIN_S) or "")
    shop.broken = False
    assert shop.keeps_back(LOOK_AGAIN_S + 1) is None


# ── Carrying out ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Purse:
    """Says the same to everybody, and remembers who asked."""

    def __init__(self, why: str | None) -> None:
        self.why = why
        self.asked: list[str] = []

    def keeps_back(self, job: str) -> str | None:
        self.asked.append(job)
        return self.why

    def launched(self, job: str, number: int) -> None:
        pass


def applied(why: str | None, *actions: Append | Launch) -> tuple[Applied, list[str]]:
    """What comes of it, and who asked. The claim is of a provider that nobody has: a launch is a problem."""
    store = MemoryStore(lambda: EPOCH)
    put_job(store, JOB, Claimed(SPOT_A, 1))
    purse = Purse(why)
    return Applier(store, Fleet(store.url), Memory(), "me").apply(Plan(actions), purse), purse.asked


def test_a_claim_that_was_made_before_is_finished_only_if_there_is_money() -> None:
    kept, asked = applied("it is spent", Launch(JOB, 2, "first attempt"))
    assert kept.waiting == {JOB: "it is spent"} and asked == [JOB]
    assert not kept.done and not kept.moved and not kept.problems
    tried, asked = applied(None, Launch(JOB, 2, "first attempt"))
    assert JOB in tried.moved and JOB in tried.problems and asked == [JOB]


def test_a_claim_is_made_only_if_there_is_money_and_launched_without_asking_again() -> None:
    claim = Append(JOB, 3, Claimed(SPOT_A, 1), "next"), Launch(JOB, 3, "next")
    kept, _ = applied("it is spent", *claim)
    assert kept.waiting == {JOB: "it is spent"} and not kept.done and not kept.moved
    tried, asked = applied(None, *claim)
    assert tried.done == [claim[0]] and asked == [JOB]
