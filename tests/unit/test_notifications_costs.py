"""Telling takes few messages, few calls and few states, however many events and channels there are."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from notification_world import ONE, World, news, one_pass
from told_jobs import append, started, submit

from stoker.model import keys
from stoker.model.errors import StoreDenied
from stoker.model.log_entries import Claimed, Closed
from stoker.model.policy import Policy
from stoker.notifications.dispatcher import NotificationDispatcher
from stoker.notifications.events import Message
from stoker.notifications.job_events import JobWithSpec
from stoker.notifications.senders import Send
from stoker.policy.policy_file import parse_policy
from stoker.store import job_log
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sim_data import SPOT_B, at, make_spec


def test_without_a_channel_there_is_a_look_at_what_others_left_and_no_more() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    mine = world.store.client()
    dispatcher, jobs = world.dispatcher(mine), news(world.store)
    dispatcher.begin(Policy())
    dispatcher.record(jobs, at(0), active=set(jobs))
    for _ in range(3):
        assert dispatcher.send(world.now) == {} and mine.counts == {"list": 1} and not dispatcher.pending
        dispatcher.begin(Policy())
        dispatcher.record(jobs, at(0), active=set(jobs))


def test_a_storm_is_one_message_and_a_handful_of_calls() -> None:
    world = World()
    for number in range(300):
        submit(world.store, f"job-{number}", make_spec())
        started(world.store, f"job-{number}")
    one_pass(world.dispatcher(), world.store, at(0))
    assert len(world.messages) == 1 and len(world.told()) == 300
    for number in range(300):
        again = (Closed(2, "reclaimed", "reclaimed", restart=True), Claimed(offering=SPOT_B, nodes=1))
        append(world.store, f"job-{number}", 4, *again)
    mine = world.store.client()
    dispatcher = world.dispatcher(mine)
    one_pass(dispatcher, mine, at(60))
    assert len(world.messages) == 2 and Counter(kind for kind, _ in world.told())["reclaimed"] == 300
    jobs = news(world.store)
    before = dict(mine.counts)
    dispatcher.begin(ONE)
    dispatcher.record(jobs, at(61), active=set(jobs))
    dispatcher.send(world.now)
    spent = {name: count - before.get(name, 0) for name, count in mine.counts.items() if count != before.get(name, 0)}
    assert spent == {"list": 1}, "nothing is new"


@pytest.mark.slow
def test_a_storm_over_hours_stays_within_the_limit() -> None:
    world = World()
    policy = parse_policy(b"notify: [{to: 'json://one', at_most: 6}]", "p")
    tellers = [world.dispatcher(), world.dispatcher()]
    for number in range(120):
        world.now_s = 60.0 * number
        submit(world.store, f"job-{number}", make_spec())
        started(world.store, f"job-{number}")
        one_pass(tellers[number % 2], world.store, world.now(), policy)
    assert len(world.messages) <= 6 * 2 + 3
    world.now_s += 3600
    one_pass(tellers[0], world.store, world.now(), policy)
    assert Counter(world.told()) == Counter({("started", f"job-{n}"): 1 for n in range(120)})


@pytest.mark.slow
def test_a_storm_leaves_few_states() -> None:
    world = World()
    dispatcher = world.dispatcher()
    policy = parse_policy(b"notify: [{to: 'json://one', at_most: 1}]", "p")
    for number in range(400):
        world.now_s = 2.0 * number
        submit(world.store, f"job-{number}", make_spec())
        started(world.store, f"job-{number}")
        state = job_log.read(world.store, f"job-{number}")
        assert state is not None
        dispatcher.begin(policy)
        dispatcher.record({f"job-{number}": JobWithSpec(state, make_spec())}, world.now())
        dispatcher.send(world.now)
    assert len(list(world.store.list(keys.OUTBOX))) < 150


def test_old_states_are_removed_and_channels_that_nobody_names_too() -> None:
    world = World()
    dispatcher = world.dispatcher()
    for number in range(30):
        world.now_s += 1800.0
        submit(world.store, f"job-{number}", make_spec())
        started(world.store, f"job-{number}")
        one_pass(dispatcher, world.store, world.now())
    assert len(list(world.store.list(keys.OUTBOX))) < 20
    world.now_s += timedelta(days=8).total_seconds()
    other = parse_policy(b"notify: ['json://two']", "p")
    one_pass(world.dispatcher(), world.store, world.now(), other)
    one_pass(world.dispatcher(), world.store, world.now(), other)
    assert list(world.store.list(keys.OUTBOX)) == []


def test_who_may_not_remove_anything_tells_all_the_same() -> None:
    world = World()
    refused = world.store.client(
        lambda operation, _key: Fault(error=StoreDenied("no")) if operation == "delete" else None
    )
    dispatcher = world.dispatcher(refused)
    for number in range(4):
        world.now_s = 86400.0 * 9 * number
        submit(world.store, f"job-{number}", make_spec())
        started(world.store, f"job-{number}")
        one_pass(dispatcher, refused, world.now(), ONE if number != 2 else parse_policy(b"notify: ['json://two']", "p"))
    assert len(world.told()) == 4


def test_many_addresses_are_noted_at_once_and_sent_a_few_at_a_time() -> None:
    world = World()
    world.store = MemoryStore(lambda: at(world.now_s), is_local=False)
    alive: list[int] = []

    def open_(to: str) -> Send:
        def send(message: Message) -> None:
            alive.append(sum(thread.name == "background-call" for thread in threading.enumerate()))
            time.sleep(0.01)
            world.messages.append((to, message))

        return send

    for number in range(80):
        submit(world.store, f"j{number}", replace(make_spec(), notify=(f"json://own{number}",)))
        started(world.store, f"j{number}")
    mine = world.store.client(lambda _operation, _key: time.sleep(0.02))
    dispatcher, jobs = NotificationDispatcher(mine, "g", open_=open_), news(world.store)
    dispatcher.begin(Policy())
    began_s = time.monotonic()
    dispatcher.record(jobs, world.now())
    assert time.monotonic() - began_s < 2.0, "one after another they would take 3 s and more"
    dispatcher.send(world.now, 20.0)
    assert len(world.messages) == 80 and max(alive) <= 40 and not dispatcher.pending
