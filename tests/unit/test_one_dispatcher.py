"""What one teller reads, opens again, repeats, waits for and leaves to others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from notification_world import ONE, World, news, one_pass
from plain_store import wait_for
from told_jobs import append, finished, started, submit

from stoker.model import channel_address, keys
from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.model.log_entries import StopAsked
from stoker.model.policy import Policy
from stoker.notifications import background_call, sender_cache
from stoker.notifications import dispatcher as dispatcher_module
from stoker.notifications.dispatcher import NotificationDispatcher
from stoker.notifications.events import Message, Notification
from stoker.notifications.outbox import Outbox, Sending
from stoker.notifications.outbox_store import OutboxStore, channel_problem, channel_problems
from stoker.notifications.senders import NotSent, Send, SenderUnavailable
from stoker.policy.policy_file import parse_policy
from stoker.testing.memory_store import Fault
from tests.support.sim_data import at, make_spec

FAILURES = parse_policy(b"notify: [{to: 'json://one', events: [failed]}]", "p")


class Ahead:
    """The teller's own clock, which a test can set forward."""

    def __init__(self) -> None:
        self.by_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.by_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Ahead:
    found = Ahead()
    for module in (dispatcher_module, sender_cache, background_call):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=found.monotonic))
    return found


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hangs in a test goes on when the test is over."""
    found = threading.Event()
    yield found
    found.set()


def job(world: World, name: str = "a", **changes: object) -> None:
    submit(world.store, name, replace(make_spec(), **changes))  # type: ignore[arg-type]
    started(world.store, name)


# ── Reading logs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_log_is_told_as_far_as_the_job_was_read_and_each_entry_once() -> None:
    world = World()
    job(world)
    before = news(world.store)
    finished(world.store, "a")
    dispatcher = world.dispatcher()
    dispatcher.begin(ONE)
    dispatcher.record(before, at(0))
    dispatcher.send(world.now)
    assert world.told() == [("started", "a")], "the end was not looked at yet"
    one_pass(dispatcher, world.store, at(1))
    one_pass(world.dispatcher(), world.store, at(2))
    assert world.told() == [("started", "a"), ("finished", "a")]


@pytest.mark.parametrize(("jobs", "entries", "written"), [(1, 8, False), (1, 9, True), (9, 8, False), (10, 8, True)])
def test_how_far_logs_were_read_without_news_is_written_down_before_it_is_much(
    jobs: int, entries: int, written: bool
) -> None:
    world = World()
    for name in (f"j{number}" for number in range(jobs)):
        submit(world.store, name, make_spec())
        append(world.store, name, 2, *(StopAsked("jane") for _ in range(entries - 1)))
    one_pass(world.dispatcher(), world.store, at(0), FAILURES)
    assert bool(list(world.store.list(keys.OUTBOX))) is written
    mine = world.store.client()
    dispatcher, known = world.dispatcher(mine), news(world.store)
    dispatcher.begin(FAILURES)
    dispatcher.record(known, at(1), active=set(known))
    read = mine.counts.get("get", 0)
    assert read == (1 if written else jobs * (entries - 1)), "the outbox alone; else every log after its first entry"


def test_a_log_that_cannot_be_read_keeps_no_other_job_from_being_told_and_is_told_later() -> None:
    world = World()
    for name in ("a", "b"):
        job(world, name)
    jobs = news(world.store)
    entry = world.store.get(keys.log_entry("a", 3))
    assert entry is not None
    world.store.put(entry.meta.key, b"no json")
    dispatcher = world.dispatcher()
    dispatcher.begin(ONE)
    dispatcher.record(jobs, at(0), active=set(jobs))
    dispatcher.send(world.now)
    assert world.told() == [("started", "b")]
    world.store.put(entry.meta.key, entry.data)
    one_pass(world.dispatcher(), world.store, at(1))
    assert world.told() == [("started", "b"), ("started", "a")]


def test_a_log_that_nobody_wrote_to_for_hours_is_not_read_for_a_new_channel() -> None:
    world = World()
    job(world)
    mine, jobs = world.store.client(), news(world.store)
    dispatcher = world.dispatcher(mine)
    dispatcher.begin(ONE)
    dispatcher.record(jobs, at(4 * 3600.0), active=set(jobs))
    assert mine.counts == {"list": 1} and not dispatcher.unsent


# ── Complaints ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_channel_that_only_a_newer_stoker_can_read_is_complained_of_and_left_to_it() -> None:
    world = World()
    job(world)
    world.store.put(keys.outbox(channel_address.digest("json://one"), 7), b'{"strange": 1}')
    assert one_pass(world.dispatcher(), world.store, at(0)) == {
        "notify json": "a newer Stoker uses this channel; update this one"
    }
    assert world.messages == []


def test_a_complaint_that_has_not_changed_is_repeated_after_a_while(clock: Ahead) -> None:
    world = World()
    job(world)
    world.problem = NotSent("answers with 500")
    dispatcher = world.dispatcher()
    complaint = one_pass(dispatcher, world.store, at(0))
    assert list(complaint) == ["notify json"]
    clock.by_s = 60.0
    assert one_pass(dispatcher, world.store, at(0)) == {}
    clock.by_s = 3600.0
    assert one_pass(dispatcher, world.store, at(0)) == complaint
    assert one_pass(dispatcher, world.store, at(0)) == {}


# ── Opening channels ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_channel_is_opened_again_now_and_then(clock: Ahead) -> None:
    world, opened = World(), list[str]()

    def open_(to: str) -> Send:
        opened.append(to)
        return world.open(to)

    dispatcher = NotificationDispatcher(world.store, "g", open_=open_)
    for number, (ahead_s, times) in enumerate([(0.0, 1), (60.0, 1), (3600.0, 2)]):
        clock.by_s, world.now_s = ahead_s, 3600.0 * number
        job(world, f"j{number}")
        one_pass(dispatcher, world.store, world.now())
        assert len(opened) == times and len(world.messages) == number + 1


def test_a_channel_that_could_not_be_opened_is_tried_again_sooner(clock: Ahead) -> None:
    world, opened = World(), list[str]()

    def open_(to: str) -> Send:
        opened.append(to)
        if len(opened) == 1:
            raise SenderUnavailable("not installed")
        return world.open(to)

    job(world)
    dispatcher = NotificationDispatcher(world.store, "g", open_=open_)
    for ahead_s, times in ((0.0, 1), (20.0, 1), (300.0, 2)):
        clock.by_s = ahead_s
        one_pass(dispatcher, world.store, world.now())
        assert len(opened) == times
    assert world.told() == [("started", "a")]


def test_a_channel_that_failed_is_opened_again_for_its_secret_may_have_changed() -> None:
    world, opened = World(), list[str]()

    def open_(to: str) -> Send:
        opened.append(to)
        return world.open(to)

    job(world)
    world.problem = NotSent("answers with 401")
    dispatcher = NotificationDispatcher(world.store, "g", open_=open_)
    one_pass(dispatcher, world.store, world.now())
    world.problem, world.now_s = None, 60.0
    one_pass(dispatcher, world.store, world.now())
    assert len(opened) == 2 and world.told() == [("started", "a")]


def test_channels_of_the_policy_come_before_those_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher_module, "_MAX_PARALLEL", 1)
    first, second = sorted(["json://one", "json://two"], key=channel_address.digest)
    world = World()
    job(world, notify=(first,))
    one_pass(world.dispatcher(), world.store, at(0), parse_policy(f"notify: ['{second}']".encode(), "p"))
    assert [to for to, _ in world.messages] == [second, first]


# ── Waiting for answers ───────────────────────────────────────────────────────────────────────────────────────────────


def under_way(world: World, gate: threading.Event) -> NotificationDispatcher:
    """A teller whose only message is being sent, and hangs."""
    sending = threading.Event()

    def open_(_to: str) -> Send:
        def send(_message: Message) -> None:
            sending.set()
            gate.wait(60)

        return send

    job(world)
    dispatcher, jobs = NotificationDispatcher(world.store, "g", open_=open_), news(world.store)
    dispatcher.begin(ONE)
    dispatcher.record(jobs, at(0), active=set(jobs))

    def is_sent() -> bool:
        dispatcher.send(world.now, 0.02)
        return sending.is_set()

    wait_for(is_sent)
    return dispatcher


def test_a_message_that_is_not_answered_has_failed(clock: Ahead, gate: threading.Event) -> None:
    world = World()
    dispatcher = under_way(world, gate)
    assert dispatcher.send(world.now, 0.02) == {} and dispatcher.pending
    clock.by_s = 60.0
    problem = f"no answer within {dispatcher_module._ANSWER_TIMEOUT_S:g} s; failed 1×, 1 event waits"
    assert dispatcher.send(world.now, 0.02) == {"notify json": problem}


def test_who_leaves_tells_others_of_a_message_whose_answer_it_never_saw(gate: threading.Event) -> None:
    world = World()
    under_way(world, gate).finish(world.now, 0.02)
    problem = "its answer came too late to be read; failed 1×, 1 event waits"
    assert list(channel_problems(world.store, at(0)).values()) == [f"{problem}; `stoker govern` sends it"]
    world.now_s = 60.0
    one_pass(world.dispatcher(), world.store, world.now())
    assert world.told() == [("started", "a")], "another one sends it, and need not wait for this one"


def test_nothing_is_waited_for_where_everything_is_out() -> None:
    world = World()
    job(world)
    dispatcher = world.dispatcher()
    one_pass(dispatcher, world.store, at(0))
    mine = world.store.client(lambda _operation, _key: pytest.fail("there is nothing to look at"))
    dispatcher._store = dispatcher._outboxes._store = dispatcher._job_events._store = mine
    dispatcher.finish(world.now)
    assert not dispatcher.pending and not dispatcher.unsent


def test_a_governor_stays_for_a_channel_that_failed_a_few_times_and_no_longer() -> None:
    world = World()
    job(world)
    world.problem = NotSent("answers with 500")
    dispatcher = world.dispatcher()
    for failures in range(1, 6):
        one_pass(dispatcher, world.store, world.now())
        assert dispatcher.unsent and dispatcher.pending is (failures <= dispatcher_module._STAY_FOR_FAILURES), failures
        world.now_s += 3601.0


def test_what_others_left_is_looked_for_again_after_a_while(clock: Ahead) -> None:
    world = World()
    mine = world.store.client()
    dispatcher = world.dispatcher(mine)
    for ahead_s, looks in ((0.0, 1), (60.0, 1), (600.0, 2)):
        clock.by_s = ahead_s
        dispatcher.begin(Policy())
        dispatcher.record({}, at(0), active=set())
        dispatcher.send(world.now)
        assert mine.counts == {"list": looks}


@pytest.mark.parametrize("worse", ["json://one", "json://two"])
def test_that_the_store_does_not_answer_is_raised_before_anything_else(worse: str) -> None:
    world = World()
    job(world)

    def fault(operation: str, key: str) -> Fault | None:
        error: StoreError = (
            StoreUnavailable("away") if channel_address.digest(worse) in key else StoreDenied("not yours")
        )
        return Fault(error=error) if operation == "create" else None

    dispatcher, jobs = world.dispatcher(world.store.client(fault)), news(world.store)
    dispatcher.begin(parse_policy(b"notify: ['json://one', 'json://two']", "p"))
    with pytest.raises(StoreUnavailable, match="away"):
        dispatcher.record(jobs, at(0), active=set(jobs))


# ── What is wrong with a channel ──────────────────────────────────────────────────────────────────────────────────────

BOX = Outbox("json://one", "json")
EVENT = Notification("failed", "a", at(0), "it broke", seq=2)
WAITING = replace(BOX, waiting=(EVENT,))
SENT = Sending("t", "id", "g", at(0), (EVENT, EVENT))
FOR_ONE = "1 event waits for a governor that can send it"


@pytest.mark.parametrize(
    ("box", "now_s", "told"),
    [
        (BOX, 9000.0, ""),
        (WAITING, 600.0, ""),
        (WAITING, 601.0, FOR_ONE),
        (replace(WAITING, sent=(at(0),)), 3599.0, ""),
        (replace(WAITING, sent=(at(0),)), 3601.0, FOR_ONE),
        (replace(WAITING, more={"failed": 2}), 601.0, "3 events wait for a governor that can send them"),
        (replace(BOX, sending=SENT), 290.0, ""),
        (replace(BOX, sending=SENT), 601.0, "2 events wait for a governor that can send them"),
        (replace(WAITING, sending=SENT), 601.0, "3 events wait for a governor that can send them"),
        (replace(WAITING, failures=2, problem="500"), 0.0, "500; failed 2×, 1 event waits"),
        (replace(BOX, failures=2, problem="500"), 0.0, ""),
        (replace(WAITING, problem="not installed"), 0.0, "not installed; 1 event about a waits, for 6 h at most"),
        (replace(BOX, problem="not installed"), 0.0, "not installed"),
        (replace(WAITING, problem="not installed", lost=1), 0.0, "1 event was given up"),
        (replace(BOX, lost=2), 0.0, "2 events were given up"),
        (
            replace(WAITING, failures=1, problem="500", lost=2),
            0.0,
            "500; failed 1×, 1 event waits; 2 events were given up",
        ),
    ],
)
def test_what_is_wrong_with_a_channel_is_one_line(box: Outbox, now_s: float, told: str) -> None:
    assert channel_problem(box, at(now_s)) == told


def test_where_no_governor_runs_nothing_should_wait() -> None:
    assert channel_problem(WAITING, at(1), governed=False) == FOR_ONE
    assert channel_problem(WAITING, at(0), governed=False) == "" and channel_problem(BOX, at(1), governed=False) == ""


def test_people_are_told_how_what_waits_is_sent() -> None:
    store = World().store
    boxes = {
        "late": WAITING,
        "full": replace(WAITING, more={"failed": 2}),
        "away": replace(WAITING, failures=1, problem="500"),
        "poor": replace(WAITING, problem="not installed"),
        "lost": replace(BOX, lost=1),
        "well": BOX,
    }
    for name, box in boxes.items():
        OutboxStore(store).change(name, lambda _, box=box, name=name: replace(box, name=name), at(0))  # type: ignore[misc]
    assert channel_problems(store, at(601)) == {
        "late": f"{FOR_ONE}; `stoker govern` sends it",
        "full": "3 events wait for a governor that can send them; `stoker govern` sends them",
        "away": "500; failed 1×, 1 event waits; `stoker govern` sends it",
        "poor": "not installed; 1 event about a waits, for 6 h at most",
        "lost": "1 event was given up",
    }
    assert "late" not in channel_problems(store, at(60)) and "late" in channel_problems(store, at(60), governed=False)
