"""Many governors tell through one store: each event once, whoever dies and whatever is lost."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from notification_world import ONE, World, news, one_pass
from told_jobs import append, finished, started, submit

from stoker.governor.loop import Governor
from stoker.governor.pass_record import record_pass
from stoker.model import codec, keys
from stoker.model.errors import StoreUnavailable
from stoker.model.log_entries import Claimed, Closed
from stoker.model.policy import Policy
from stoker.notifications.dispatcher import NotificationDispatcher
from stoker.notifications.events import Message, orphan_notification
from stoker.notifications.outbox import SENDING_LEASE, Outbox
from stoker.notifications.outbox_store import channel_problems
from stoker.notifications.senders import Send
from stoker.policy import versions
from stoker.policy.policy_file import parse_policy
from stoker.store.base import open_store
from stoker.testing.memory_store import Fault
from tests.support.sim_data import SPOT_A, at, make_spec
from tests.support.webhooks import webhook

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_of_many_governors_one_tells(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Threads with stores of their own, a real webhook, and real time."""
    url = str(tmp_path / "store") if place == "folder" else request.getfixturevalue("s3_url")
    store = open_store(url)
    jobs, errors = 12, []
    with webhook() as hook:
        policy = parse_policy(f"notify: [{{to: '{hook.url}', at_most: 200}}]".encode(), "p")
        ready = threading.Barrier(5)

        def govern() -> None:
            mine = open_store(url)
            dispatcher = NotificationDispatcher(mine, threading.current_thread().name)
            try:
                ready.wait()
                while not done.is_set():
                    one_pass(dispatcher, mine, datetime.now(timezone.utc), policy)
                one_pass(dispatcher, mine, datetime.now(timezone.utc), policy)
            except Exception as error:  # noqa: BLE001 - a thread's error is the test's
                errors.append(error)

        done = threading.Event()
        threads = [threading.Thread(target=govern) for _ in range(4)]
        for thread in threads:
            thread.start()
        ready.wait()
        for number in range(jobs):
            submit(store, f"job-{number}", make_spec())
            started(store, f"job-{number}")
            if number % 4 == 3:
                time.sleep(0.1)
        done.set()
        for thread in threads:
            thread.join()
        assert errors == []
        assert Counter(hook.events) == Counter({("started", f"job-{n}"): 1 for n in range(jobs)})
        ids = [header["X-Stoker-Message"] for header in hook.headers]
        assert len(set(ids)) == len(ids) and ids == [body["id"] for body in hook.bodies]


class Crash(BaseException):
    """A governor dies here."""


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_whoever_dies_wherever_each_event_is_told(seed: int) -> None:
    """Governors die before and after any call. An event is told again only if who sent it died before saying so."""
    rolls, world = random.Random(seed), World()
    died = 0

    def strike(operation: str, key: str) -> Fault | None:
        if quiet or rolls.random() > 0.06:
            return None
        if rolls.random() < 0.5:
            raise Crash
        return Fault(after=True, error=Crash())  # type: ignore[arg-type]

    quiet = False
    lives = [0.0, 0.0, 0.0]
    tellers: list[NotificationDispatcher | None] = [None, None, None]
    seqs: dict[str, int] = {}
    for step in range(40):
        world.now_s += rolls.choice((1.0, 20.0, 200.0))
        if rolls.random() < 0.4 and len(seqs) < 6:
            job = f"job-{len(seqs)}"
            submit(world.store, job, make_spec())
            seqs[job] = started(world.store, job)
        elif seqs and rolls.random() < 0.4:
            job = rolls.choice(sorted(seqs))
            claim = (Closed(2, "reclaimed", "x", restart=True), Claimed(offering=SPOT_A, nodes=1))
            if seqs[job] < 5:
                seqs[job] = append(world.store, job, seqs[job], *claim)
        who = rolls.randrange(3)
        if step == 39:
            quiet = True
        try:
            mine = tellers[who] = tellers[who] or world.dispatcher(world.store.client(strike))
            one_pass(mine, world.store, world.now())
        except Crash:
            tellers[who], died, lives[who] = None, died + 1, world.now_s
    quiet = True
    last = world.dispatcher()
    for _ in range(30):
        world.now_s += SENDING_LEASE.total_seconds() + 1
        one_pass(last, world.store, world.now())
    told = Counter(world.told())
    expected = {("started", job) for job in seqs} | {("reclaimed", job) for job, seq in seqs.items() if seq > 4}
    assert set(told) == expected
    assert sum(told.values()) - len(told) <= 6 * died
    if not died:
        assert all(count == 1 for count in told.values())
    assert not last.pending


def test_who_died_between_taking_it_on_and_sending_it_is_followed_by_another() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    creates = []

    def strike(operation: str, key: str) -> Fault | None:
        if operation == "create":
            creates.append(key)
            if len(creates) == 2:  # The first is the note.
                return Fault(after=True, error=Crash())  # type: ignore[arg-type]
        return None

    with pytest.raises(Crash):
        one_pass(world.dispatcher(world.store.client(strike)), world.store, world.now())
    other = world.dispatcher()
    world.now_s = SENDING_LEASE.total_seconds() - 1
    one_pass(other, world.store, world.now())
    assert world.messages == [] and other.pending, "somebody else may still be sending"
    world.now_s += 2
    one_pass(other, world.store, world.now())
    assert world.told() == [("started", "a")] and not other.pending


def test_a_job_that_is_over_is_not_told_again_by_who_saw_it_long_ago() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    finished(world.store, "a")
    slow, old = world.dispatcher(), news(world.store)
    slow.begin(ONE)
    one_pass(world.dispatcher(), world.store, world.now())
    assert world.told() == [("started", "a"), ("finished", "a")]
    # It is unmarked meanwhile, and others pass without it.
    quick = world.dispatcher()
    quick.begin(ONE)
    quick.record({}, at(10), active=set())
    slow.record(old, at(11), active={"a"})
    slow.send(lambda: at(11))
    assert len(world.told()) == 2


def test_a_channel_that_is_new_hears_no_old_news() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    seq = started(world.store, "a")
    world.now_s = 86400.0
    one_pass(world.dispatcher(), world.store, world.now())
    assert world.messages == []
    finished(world.store, "a", seq)
    one_pass(world.dispatcher(), world.store, world.now())
    assert world.told() == [("finished", "a")]


def test_one_address_hears_of_it_once_whoever_names_it() -> None:
    world = World()
    spec = replace(make_spec(), notify=("json://one", "json://own"), tags={"team": "nlp"})
    submit(world.store, "a", spec)
    submit(world.store, "b", make_spec())
    started(world.store, "a"), started(world.store, "b")
    policy = parse_policy(b"notify: [{to: 'json://one', for: {team: nlp}}, {to: 'json://two', events: failed}]", "p")
    one_pass(world.dispatcher(), world.store, world.now(), policy)
    told = sorted((to, told.job) for to, message in world.messages for told in message.events)
    assert told == [("json://one", "a"), ("json://own", "a")]


def test_an_answer_that_could_not_be_written_is_written_later() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    mine = world.store.client()
    dispatcher = world.dispatcher(mine)
    jobs = news(world.store)
    dispatcher.begin(ONE)
    dispatcher.record(jobs, at(0), active=set(jobs))
    creates = []

    def strike(operation: str, key: str) -> Fault | None:
        if operation == "create":
            creates.append(key)
        return Fault() if len(creates) == 2 else None

    mine.faults = strike
    with pytest.raises(Exception, match="injected"):
        dispatcher.send(world.now)
    assert len(world.messages) == 1 and dispatcher.pending
    mine.faults = None
    one_pass(dispatcher, world.store, at(1))
    assert len(world.messages) == 1 and not dispatcher.pending


def test_who_was_slow_does_not_speak_for_who_took_over() -> None:
    """Its message was given up on, and is being sent by another: only that one says what has become of it."""
    world, gate = World(), threading.Event()
    submit(world.store, "a", make_spec())
    started(world.store, "a")

    def slowly(_to: str) -> Send:
        def send(_message: Message) -> None:
            gate.wait(30)

        return send

    slow, other = (
        NotificationDispatcher(world.store, "slow", open_=slowly),
        NotificationDispatcher(world.store, "other", open_=slowly),
    )
    for dispatcher, now in ((slow, at(0)), (other, at(0) + SENDING_LEASE)):
        dispatcher.begin(ONE)
        dispatcher.record(news(world.store), now)
        dispatcher.send(lambda now=now: now, patience_s=0.2)  # type: ignore[misc]
    gate.set()
    slow.finish(lambda: at(0) + SENDING_LEASE)
    (key,) = {meta.key.rpartition("/")[0] for meta in world.store.list(keys.OUTBOX)}
    newest = max(meta.key for meta in world.store.list(f"{key}/"))
    kept = world.store.get(newest)
    assert kept is not None
    box = codec.loads(Outbox, kept.data)
    assert box.sending is not None and box.sending.by == "other"
    other.finish(lambda: at(0) + SENDING_LEASE)
    assert not other.pending


def test_a_reply_that_is_lost_is_found_again() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    mine = world.store.client(lambda operation, _key: Fault(after=True) if operation == "create" else None)
    dispatcher = world.dispatcher(mine)
    one_pass(dispatcher, world.store, world.now())
    assert world.told() == [("started", "a")] and not dispatcher.pending


def test_what_a_governor_left_of_a_job_that_is_over_is_found_by_the_next() -> None:
    """Only the job named the channel, and its governor died after it was forgotten."""
    world = World()
    submit(world.store, "a", replace(make_spec(), notify=("json://own",)))
    finished(world.store, "a", started(world.store, "a"))
    dead = world.dispatcher()
    dead.begin(Policy())
    dead.record(news(world.store), at(0))
    world.now_s = 700.0
    assert channel_problems(world.store, world.now()) == {
        "json://…": "2 events wait for a governor that can send them; `stoker govern` sends them",
    }
    after = world.dispatcher()
    after.begin(Policy())
    after.record({}, world.now(), active=set())
    assert after.pending
    after.send(world.now)
    assert world.told() == [("started", "a"), ("finished", "a")] and not after.unsent


def test_an_orphan_that_could_not_be_noted_is_told_by_the_next_pass() -> None:
    world = World()
    calls = []

    class Stumbling(NotificationDispatcher):
        def record(self, *given: Any, **named: Any) -> None:
            calls.append(named)
            if len(calls) == 1:
                raise StoreUnavailable("a stumble")
            super().record(*given, **named)

    versions.write(world.store, "notify: ['json://one']", "jane")
    governor = Governor(world.store, name="g", dispatcher=Stumbling(world.store, "g", open_=world.open))
    clock = record_pass(world.store, "g", 0, time.monotonic)
    governor.dispatcher.begin(ONE)
    assert (
        governor.notifier.notify(
            {}, [orphan_notification("gone-1", "ec2 i-1", "nobody's", world.now())], set(), ONE, clock
        )
        != {}
    )
    assert governor.notifier.notify({}, [], set(), ONE, clock) == {} and world.told() == [("orphan", "gone-1")]
    assert governor.notifier.notify({}, [], set(), ONE, clock) == {} and len(world.told()) == 1
