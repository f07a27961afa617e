"""Many governors tell through one store: each event once, whoever dies, and a channel that fails harms nobody."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from told_jobs import append, finished, started, submit

from stoker import codec, layout, log, policies
from stoker.core.outbox import GIVE_UP, SENDING, Outbox
from stoker.core.telling import Letter, orphan
from stoker.errors import StoreDenied, StoreUnavailable
from stoker.governor import telling
from stoker.governor.clock import record_pass
from stoker.governor.govern import Governor
from stoker.governor.mailbox import troubles
from stoker.governor.telling import News, Send, Teller
from stoker.index import read_submission
from stoker.model import Claimed, Closed
from stoker.notify import address
from stoker.notify.senders import NotHere, NotSent, PartlySent, open_sender
from stoker.policyfile import parse_policy
from stoker.rules import House
from stoker.store import Store, open_store
from stoker.testing.memory import Fault, MemoryStore
from stoker.testing.sim_data import SPOT_A, SPOT_B, at, make_spec
from stoker.testing.webhooks import webhook

ONE = parse_policy(b"notify: ['json://one']", "p")


class World:
    """A store with a clock, and whoever listens."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.store = MemoryStore(lambda: at(self.now_s), near=True)
        self.letters: list[tuple[str, Letter]] = []
        self.problem: Exception | None = None

    def now(self) -> datetime:
        return at(self.now_s)

    def open(self, to: str) -> Send:
        def send(letter: Letter) -> None:
            if self.problem is not None:
                raise self.problem
            self.letters.append((to, letter))

        return send

    def teller(self, store: Store | None = None) -> Teller:
        return Teller(store or self.store, "g", open_=self.open)

    def told(self) -> list[tuple[str, str]]:
        return [(told.kind, told.job) for _, letter in self.letters for told in letter.events]


def news(store: Store) -> dict[str, News]:
    found = {}
    for job in store.folders(layout.JOBS):
        state = log.read(store, job)
        if state is not None:
            found[job] = News(state, read_submission(store, state).spec)
    return found


def one_pass(teller: Teller, store: Store, now: datetime, house: House = ONE) -> dict[str, str]:
    """As a governor does it."""
    jobs = news(store)
    teller.begin(house)
    teller.note(jobs, now, active=set(jobs))
    return teller.send(lambda: now)


# ── What it costs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_channel_there_is_a_look_at_what_others_left_and_no_more() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    mine = world.store.client()
    teller, jobs = world.teller(mine), news(world.store)
    teller.begin(House())
    teller.note(jobs, at(0), active=set(jobs))
    for _ in range(3):
        assert teller.send(world.now) == {} and mine.counts == {"list": 1} and not teller.pending
        teller.begin(House())
        teller.note(jobs, at(0), active=set(jobs))


def test_a_storm_is_one_message_and_a_handful_of_calls() -> None:
    world = World()
    for number in range(300):
        submit(world.store, f"job-{number}", make_spec())
        started(world.store, f"job-{number}")
    one_pass(world.teller(), world.store, at(0))
    assert len(world.letters) == 1 and len(world.told()) == 300
    for number in range(300):
        again = (Closed(2, "reclaimed", "reclaimed", restart=True), Claimed(offering=SPOT_B, nodes=1))
        append(world.store, f"job-{number}", 4, *again)
    mine = world.store.client()
    teller = world.teller(mine)
    one_pass(teller, mine, at(60))
    assert len(world.letters) == 2 and Counter(kind for kind, _ in world.told())["reclaimed"] == 300
    jobs = news(world.store)
    before = dict(mine.counts)
    teller.begin(ONE)
    teller.note(jobs, at(61), active=set(jobs))
    teller.send(world.now)
    spent = {name: count - before.get(name, 0) for name, count in mine.counts.items() if count != before.get(name, 0)}
    assert spent == {"list": 1}, "nothing is new"


def test_a_storm_over_hours_stays_within_the_limit() -> None:
    world = World()
    house = parse_policy(b"notify: [{to: 'json://one', at_most: 6}]", "p")
    tellers = [world.teller(), world.teller()]
    for number in range(120):
        world.now_s = 60.0 * number
        submit(world.store, f"job-{number}", make_spec())
        started(world.store, f"job-{number}")
        one_pass(tellers[number % 2], world.store, world.now(), house)
    assert len(world.letters) <= 6 * 2 + 3
    world.now_s += 3600
    one_pass(tellers[0], world.store, world.now(), house)
    assert Counter(world.told()) == Counter({("started", f"job-{n}"): 1 for n in range(120)})


# ── Once ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_of_many_governors_one_tells(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Threads with stores of their own, a real webhook, and real time."""
    url = str(tmp_path / "store") if place == "folder" else request.getfixturevalue("s3_url")
    store = open_store(url)
    jobs, errors = 12, []
    with webhook() as hook:
        house = parse_policy(f"notify: [{{to: '{hook.url}', at_most: 200}}]".encode(), "p")
        ready = threading.Barrier(5)

        def govern() -> None:
            mine = open_store(url)
            teller = Teller(mine, threading.current_thread().name)
            try:
                ready.wait()
                while not done.is_set():
                    one_pass(teller, mine, datetime.now(timezone.utc), house)
                one_pass(teller, mine, datetime.now(timezone.utc), house)
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
    tellers: list[Teller | None] = [None, None, None]
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
            mine = tellers[who] = tellers[who] or world.teller(world.store.client(strike))
            one_pass(mine, world.store, world.now())
        except Crash:
            tellers[who], died, lives[who] = None, died + 1, world.now_s
    quiet = True
    last = world.teller()
    for _ in range(30):
        world.now_s += SENDING.total_seconds() + 1
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
        one_pass(world.teller(world.store.client(strike)), world.store, world.now())
    other = world.teller()
    world.now_s = SENDING.total_seconds() - 1
    one_pass(other, world.store, world.now())
    assert world.letters == [] and other.pending, "somebody else may still be sending"
    world.now_s += 2
    one_pass(other, world.store, world.now())
    assert world.told() == [("started", "a")] and not other.pending


def test_a_job_that_is_over_is_not_told_again_by_who_saw_it_long_ago() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    finished(world.store, "a")
    slow, old = world.teller(), news(world.store)
    slow.begin(ONE)
    one_pass(world.teller(), world.store, world.now())
    assert world.told() == [("started", "a"), ("finished", "a")]
    # It is unmarked meanwhile, and others pass without it.
    quick = world.teller()
    quick.begin(ONE)
    quick.note({}, at(10), active=set())
    slow.note(old, at(11), active={"a"})
    slow.send(lambda: at(11))
    assert len(world.told()) == 2


def test_a_channel_that_is_new_hears_no_old_news() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    seq = started(world.store, "a")
    world.now_s = 86400.0
    one_pass(world.teller(), world.store, world.now())
    assert world.letters == []
    finished(world.store, "a", seq)
    one_pass(world.teller(), world.store, world.now())
    assert world.told() == [("finished", "a")]


def test_one_address_hears_of_it_once_whoever_names_it() -> None:
    world = World()
    spec = replace(make_spec(), notify=("json://one", "json://own"), tags={"team": "nlp"})
    submit(world.store, "a", spec)
    submit(world.store, "b", make_spec())
    started(world.store, "a"), started(world.store, "b")
    house = parse_policy(b"notify: [{to: 'json://one', for: {team: nlp}}, {to: 'json://two', events: failed}]", "p")
    one_pass(world.teller(), world.store, world.now(), house)
    told = sorted((to, told.job) for to, letter in world.letters for told in letter.events)
    assert told == [("json://one", "a"), ("json://own", "a")]


# ── Channels that fail ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["hangs", "500", "closes", "redirects", "nobody"])
def test_a_channel_that_fails_is_told_of_and_holds_nobody_up(how: str) -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    with webhook() as bad, webhook() as good:
        bad.hangs_s = 60.0 if how == "hangs" else 0.0
        bad.closes = how == "closes"
        bad.status, bad.says = {"500": 500, "redirects": 302}.get(how, 204), b"oops, s3cr3t-key"
        bad.location = good.url
        to = "http://127.0.0.1:1/s3cr3t-key" if how == "nobody" else bad.url
        house = parse_policy(f"notify: [{{to: '{to}', name: bad}}, {{to: '{good.url}', name: good}}]".encode(), "p")
        teller = Teller(world.store, "g", open_=open_sender)
        began_s = time.monotonic()
        jobs = news(world.store)
        teller.begin(house)
        teller.note(jobs, at(0), active=set(jobs))
        problems = teller.send(world.now, patience_s=1.0)
        assert time.monotonic() - began_s < 5.0
        assert good.events == [("started", "a")], "nothing follows a redirect, and the other channel is not held up"
        if how == "hangs":
            teller.finish(world.now, patience_s=0.1)
            problems = one_pass(Teller(world.store, "h", open_=open_sender), world.store, at(1), house)
        (name,), (problem,) = problems, problems.values()
        assert name == "notify bad" and "s3cr3t" not in problem and "1 event waits" in problem
        expected = {"500": "answers with 500: oops", "redirects": "elsewhere", "hangs": "nobody waited"}
        assert expected.get(how, "does not answer") in problem


def test_it_is_tried_again_and_given_up_and_people_are_told() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    world.problem = NotSent("answers with 401")
    teller = world.teller()
    assert one_pass(teller, world.store, world.now()) == {
        "notify json": "answers with 401; failed 1×, 1 event waits",
    }
    assert teller.pending, "it is worth staying for"
    world.now_s = 5.0
    assert one_pass(teller, world.store, world.now()) == {}, "nothing new, and not tried yet"
    for _ in range(12):
        world.now_s += 3601.0
        problems = one_pass(teller, world.store, world.now())
    assert world.now_s > GIVE_UP.total_seconds()
    assert not teller.pending
    fresh = one_pass(world.teller(), world.store, world.now())
    assert fresh == {"notify json": "1 event was given up"} and problems == {}
    world.problem = None
    finished(world.store, "a")
    one_pass(teller, world.store, world.now())
    assert world.told() == [("finished", "a")], "the channel is not lost, though that event was"


def test_who_cannot_send_leaves_it_to_who_can(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    submit(world.store, "a", replace(make_spec(), notify=("env:TEAM_CHAT",)))
    started(world.store, "a")
    with webhook() as hook:
        poor = Teller(world.store, "poor", open_=lambda to: open_sender(to, {}))
        rich = Teller(world.store, "rich", open_=lambda to: open_sender(to, {"TEAM_CHAT": hook.url}))
        problems = one_pass(poor, world.store, at(0), House())
        assert problems == {
            "notify env:TEAM_CHAT": "TEAM_CHAT is not set where the governor runs",
        }
        assert not poor.pending, "it need not stay for what it cannot do"
        assert one_pass(rich, world.store, at(1), House()) == {}
        assert hook.events == [("started", "a")]


def test_whatever_a_library_raises_is_the_channels_own(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    world.problem = ZeroDivisionError("somebody's bug")
    (problem,) = one_pass(world.teller(), world.store, world.now()).values()
    assert "somebody's bug" in problem

    def refuse(_to: str) -> Send:
        raise NotHere("not installed")

    world.now_s = 90.0
    (problem,) = one_pass(Teller(world.store, "h", open_=refuse), world.store, world.now()).values()
    assert problem == "not installed"


def test_an_answer_that_could_not_be_written_is_written_later() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    mine = world.store.client()
    teller = world.teller(mine)
    jobs = news(world.store)
    teller.begin(ONE)
    teller.note(jobs, at(0), active=set(jobs))
    creates = []

    def strike(operation: str, key: str) -> Fault | None:
        if operation == "create":
            creates.append(key)
        return Fault() if len(creates) == 2 else None

    mine.faults = strike
    with pytest.raises(Exception, match="injected"):
        teller.send(world.now)
    assert len(world.letters) == 1 and teller.pending
    mine.faults = None
    one_pass(teller, world.store, at(1))
    assert len(world.letters) == 1 and not teller.pending


def test_who_was_slow_does_not_speak_for_who_took_over() -> None:
    """Its message was given up on, and is being sent by another: only that one says what has become of it."""
    world, gate = World(), threading.Event()
    submit(world.store, "a", make_spec())
    started(world.store, "a")

    def slowly(_to: str) -> Send:
        def send(_letter: Letter) -> None:
            gate.wait(30)

        return send

    slow, other = Teller(world.store, "slow", open_=slowly), Teller(world.store, "other", open_=slowly)
    for teller, now in ((slow, at(0)), (other, at(0) + SENDING)):
        teller.begin(ONE)
        teller.note(news(world.store), now)
        teller.send(lambda now=now: now, patience_s=0.2)  # type: ignore[misc]
    gate.set()
    slow.finish(lambda: at(0) + SENDING)
    (key,) = {meta.key.rpartition("/")[0] for meta in world.store.list(layout.TOLD)}
    newest = max(meta.key for meta in world.store.list(f"{key}/"))
    kept = world.store.get(newest)
    assert kept is not None
    box = codec.loads(Outbox, kept.data)
    assert box.sending is not None and box.sending.by == "other"
    other.finish(lambda: at(0) + SENDING)
    assert not other.pending


def test_a_reply_that_is_lost_is_found_again() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    mine = world.store.client(lambda operation, _key: Fault(after=True) if operation == "create" else None)
    teller = world.teller(mine)
    one_pass(teller, world.store, world.now())
    assert world.told() == [("started", "a")] and not teller.pending


def test_old_states_are_removed_and_channels_that_nobody_names_too() -> None:
    world = World()
    teller = world.teller()
    for number in range(30):
        world.now_s += 1800.0
        submit(world.store, f"job-{number}", make_spec())
        started(world.store, f"job-{number}")
        one_pass(teller, world.store, world.now())
    assert len(list(world.store.list(layout.TOLD))) < 20
    world.now_s += timedelta(days=8).total_seconds()
    other = parse_policy(b"notify: ['json://two']", "p")
    one_pass(world.teller(), world.store, world.now(), other)
    one_pass(world.teller(), world.store, world.now(), other)
    assert list(world.store.list(layout.TOLD)) == []


def test_what_a_governor_left_of_a_job_that_is_over_is_found_by_the_next() -> None:
    """Only the job named the channel, and its governor died after it was forgotten."""
    world = World()
    submit(world.store, "a", replace(make_spec(), notify=("json://own",)))
    finished(world.store, "a", started(world.store, "a"))
    dead = world.teller()
    dead.begin(House())
    dead.note(news(world.store), at(0))
    world.now_s = 700.0
    assert troubles(world.store, world.now()) == {
        "json://…": "2 events wait for a governor that can send them; `stoker govern` sends them",
    }
    after = world.teller()
    after.begin(House())
    after.note({}, world.now(), active=set())
    assert after.pending
    after.send(world.now)
    assert world.told() == [("started", "a"), ("finished", "a")] and not after.unsent


def test_what_nobody_can_send_does_not_keep_a_clock_on_for_ever() -> None:
    world = World()
    submit(world.store, "a", replace(make_spec(), notify=("env:NOBODY",)))
    started(world.store, "a")
    poor = Teller(world.store, "poor", open_=lambda to: open_sender(to, {}))
    one_pass(poor, world.store, world.now(), House())
    assert poor.unsent and not poor.pending
    world.now_s = GIVE_UP.total_seconds() + 60
    poor = Teller(world.store, "poor", open_=lambda to: open_sender(to, {}))
    poor.begin(House())
    poor.note({}, world.now(), active=set())
    poor.send(world.now)
    assert not poor.unsent


@pytest.mark.parametrize("problem", [NotHere("AccessDenied"), NotSent("answers with 500")])
def test_who_fails_all_the_time_holds_up_nobody_who_can(problem: Exception) -> None:
    world = World()

    def cannot(_to: str) -> Send:
        def send(_letter: Letter) -> None:
            raise problem

        return send

    poor, rich = Teller(world.store, "laptop", open_=cannot), Teller(world.store, "lambda", open_=world.open)
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    for step in range(40):
        world.now_s = 15.0 * step
        one_pass(rich if step % 4 == 3 else poor, world.store, world.now())
        if world.letters:
            break
    assert world.told() == [("started", "a")] and world.now_s <= 120


def test_one_that_hangs_makes_no_other_repeat() -> None:
    world, gate, got = World(), threading.Event(), []
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    slow, quick = sorted(["json://one", "json://two"], key=address.digest)

    def open_(to: str) -> Send:
        if to == slow:
            gate.wait(20)

        def send(_letter: Letter) -> None:
            time.sleep(0.2)
            got.append(to)

        return send

    house = parse_policy(f"notify: ['{slow}', '{quick}']".encode(), "p")
    for moment in (0.0, 30.0, 400.0, 900.0):
        world.now_s = moment
        jobs, teller = news(world.store), Teller(world.store, "g", open_=open_)
        teller.begin(house)
        teller.note(jobs, world.now(), active=set(jobs))
        teller.send(world.now, patience_s=0.8)
        time.sleep(0.3)
    gate.set()
    assert got == [quick]


def test_a_single_pass_begins_nothing_that_it_cannot_see_the_end_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "_ANSWER_S", 0.8)
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")

    def slowly(to: str) -> Send:
        time.sleep(0.5)
        return world.open(to)

    jobs, teller = news(world.store), Teller(world.store, "g", open_=slowly)
    teller.begin(ONE)
    teller.note(jobs, at(0), active=set(jobs))
    teller.send(world.now, patience_s=1.0)
    assert world.letters == [] and teller.pending
    time.sleep(0.5)
    teller.send(world.now, patience_s=1.0)
    assert len(world.letters) == 1, "by then it is open"


def test_who_may_not_remove_anything_tells_all_the_same() -> None:
    world = World()
    refused = world.store.client(
        lambda operation, _key: Fault(error=StoreDenied("no")) if operation == "delete" else None
    )
    teller = world.teller(refused)
    for number in range(4):
        world.now_s = 86400.0 * 9 * number
        submit(world.store, f"job-{number}", make_spec())
        started(world.store, f"job-{number}")
        one_pass(teller, refused, world.now(), ONE if number != 2 else parse_policy(b"notify: ['json://two']", "p"))
    assert len(world.told()) == 4


def test_a_storm_leaves_few_states() -> None:
    world = World()
    teller = world.teller()
    house = parse_policy(b"notify: [{to: 'json://one', at_most: 1}]", "p")
    for number in range(400):
        world.now_s = 2.0 * number
        submit(world.store, f"job-{number}", make_spec())
        started(world.store, f"job-{number}")
        state = log.read(world.store, f"job-{number}")
        assert state is not None
        teller.begin(house)
        teller.note({f"job-{number}": News(state, make_spec())}, world.now())
        teller.send(world.now)
    assert len(list(world.store.list(layout.TOLD))) < 150


def test_many_addresses_are_noted_at_once_and_sent_a_few_at_a_time() -> None:
    world = World()
    world.store = MemoryStore(lambda: at(world.now_s), near=False)
    alive: list[int] = []

    def open_(to: str) -> Send:
        def send(letter: Letter) -> None:
            alive.append(sum(thread.name == "errand" for thread in threading.enumerate()))
            time.sleep(0.01)
            world.letters.append((to, letter))

        return send

    for number in range(80):
        submit(world.store, f"j{number}", replace(make_spec(), notify=(f"json://own{number}",)))
        started(world.store, f"j{number}")
    mine = world.store.client(lambda _operation, _key: time.sleep(0.02))
    teller, jobs = Teller(mine, "g", open_=open_), news(world.store)
    teller.begin(House())
    began_s = time.monotonic()
    teller.note(jobs, world.now())
    assert time.monotonic() - began_s < 2.0, "one after another they would take 3 s and more"
    teller.send(world.now, 20.0)
    assert len(world.letters) == 80 and max(alive) <= 40 and not teller.pending


def test_a_channel_whose_log_cannot_be_written_stops_no_other() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    bad = address.digest("json://one")
    mine = world.store.client(lambda operation, key: Fault() if operation == "create" and bad in key else None)
    teller, jobs = world.teller(mine), news(world.store)
    house = parse_policy(b"notify: ['json://one', 'json://two']", "p")
    teller.begin(house)
    with pytest.raises(StoreUnavailable):
        teller.note(jobs, world.now(), active=set(jobs))
    teller.send(world.now)
    assert [to for to, _ in world.letters] == ["json://two"]


def test_where_no_more_threads_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")

    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        (problem,) = one_pass(world.teller(), world.store, world.now()).values()
    assert "can't start new thread" in problem
    one_pass(world.teller(), world.store, world.now())
    assert len(world.letters) == 1


def test_what_some_there_have_is_not_sent_again_and_complained_of() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    world.problem = PartlySent("not everybody there was reached: 404")
    teller = world.teller()
    assert one_pass(teller, world.store, world.now()) == {"notify json": "not everybody there was reached: 404"}
    assert not teller.unsent


def test_a_job_does_not_send_a_function_into_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with webhook() as hook:
        for place in ("here", "function"):
            world = World()
            submit(world.store, "a", replace(make_spec(), notify=(hook.url,)))
            started(world.store, "a")
            if place == "function":
                monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "governor")
            problems = one_pass(Teller(world.store, "g"), world.store, world.now(), House())
            assert bool(problems) is (place == "function") and len(hook.bodies) == 1
        assert "where no job sends anything" in str(problems)
        house = parse_policy(f"notify: ['{hook.url}']".encode(), "p")
        one_pass(Teller(world.store, "g"), world.store, world.now(), house)
        assert len(hook.bodies) == 2, "the house knows what it does"


def test_an_orphan_that_could_not_be_noted_is_told_by_the_next_pass() -> None:
    world = World()
    calls = []

    class Stumbling(Teller):
        def note(self, *given: Any, **named: Any) -> None:
            calls.append(named)
            if len(calls) == 1:
                raise StoreUnavailable("a stumble")
            super().note(*given, **named)

    policies.write(world.store, "notify: ['json://one']", "jane")
    governor = Governor(world.store, name="g", teller=Stumbling(world.store, "g", open_=world.open))
    clock = record_pass(world.store, "g", 0, time.monotonic)
    governor.teller.begin(ONE)
    assert governor._tell({}, [orphan("gone-1", "ec2 i-1", "nobody's", world.now())], set(), clock) != {}
    assert governor._tell({}, [], set(), clock) == {} and world.told() == [("orphan", "gone-1")]
    assert governor._tell({}, [], set(), clock) == {} and len(world.told()) == 1
