"""A channel that fails is told of, tried again and given up, and holds nobody up."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from notification_world import ONE, World, news, one_pass
from told_jobs import finished, started, submit

from stoker.model import channel_address
from stoker.model.errors import StoreUnavailable
from stoker.model.policy import Policy
from stoker.notifications import dispatcher as dispatcher_module
from stoker.notifications.dispatcher import NotificationDispatcher
from stoker.notifications.events import Message
from stoker.notifications.outbox import GIVE_UP_AFTER
from stoker.notifications.outbox_store import channel_problems
from stoker.notifications.senders import NotSent, PartlySent, Send, SenderUnavailable, open_sender, resolve_address
from stoker.policy.policy_file import parse_policy
from stoker.testing.memory_store import Fault
from tests.support.sim_data import at, make_spec
from tests.support.webhooks import webhook

pytestmark = pytest.mark.slow


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
        policy = parse_policy(f"notify: [{{to: '{to}', name: bad}}, {{to: '{good.url}', name: good}}]".encode(), "p")
        dispatcher = NotificationDispatcher(world.store, "g", open_=open_sender)
        began_s = time.monotonic()
        jobs = news(world.store)
        dispatcher.begin(policy)
        dispatcher.record(jobs, at(0), active=set(jobs))
        problems = dispatcher.send(world.now, patience_s=1.0)
        assert time.monotonic() - began_s < 5.0
        assert good.events == [("started", "a")], "nothing follows a redirect, and the other channel is not held up"
        if how == "hangs":
            dispatcher.finish(world.now, patience_s=0.1)
            problems = one_pass(NotificationDispatcher(world.store, "h", open_=open_sender), world.store, at(1), policy)
        (name,), (problem,) = problems, problems.values()
        assert name == "notify bad" and "s3cr3t" not in problem and "1 event waits" in problem
        expected = {"500": "answers with 500: oops", "redirects": "elsewhere", "hangs": "came too late"}
        assert expected.get(how, "does not answer") in problem


def test_it_is_tried_again_and_given_up_and_people_are_told() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    world.problem = NotSent("answers with 401")
    dispatcher = world.dispatcher()
    assert one_pass(dispatcher, world.store, world.now()) == {
        "notify json": "answers with 401; failed 1×, 1 event waits",
    }
    assert dispatcher.pending, "it is worth staying for"
    world.now_s = 5.0
    assert one_pass(dispatcher, world.store, world.now()) == {}, "nothing new, and not tried yet"
    for _ in range(12):
        world.now_s += 3601.0
        problems = one_pass(dispatcher, world.store, world.now())
    assert world.now_s > GIVE_UP_AFTER.total_seconds()
    assert not dispatcher.pending
    fresh = one_pass(world.dispatcher(), world.store, world.now())
    assert fresh == {"notify json": "1 event was given up"} and problems == {}
    world.problem = None
    finished(world.store, "a")
    one_pass(dispatcher, world.store, world.now())
    assert world.told() == [("finished", "a")], "the channel is not lost, though that event was"


def test_who_cannot_send_leaves_it_to_who_can(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    submit(world.store, "a", replace(make_spec(), notify=("env:TEAM_CHAT",)))
    started(world.store, "a")
    with webhook() as hook:
        poor = NotificationDispatcher(world.store, "poor", resolve=lambda to: resolve_address(to, {}))
        rich = NotificationDispatcher(
            world.store, "rich", resolve=lambda to: resolve_address(to, {"TEAM_CHAT": hook.url})
        )
        problems = one_pass(poor, world.store, at(0), Policy())
        assert problems == {
            "notify env:TEAM_CHAT": "TEAM_CHAT is not set where the governor runs",
        }
        assert not poor.pending, "it need not stay for what it cannot do"
        told = "TEAM_CHAT is not set where the governor runs; 1 event about a waits, for 6 h at most"
        assert channel_problems(world.store, at(0)) == {"env:TEAM_CHAT": told}
        assert one_pass(rich, world.store, at(1), Policy()) == {}
        assert hook.events == [("started", "a")]
        assert channel_problems(world.store, at(1)) == {}


def test_whatever_a_library_raises_is_the_channels_own(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    world.problem = ZeroDivisionError("somebody's bug")
    (problem,) = one_pass(world.dispatcher(), world.store, world.now()).values()
    assert "somebody's bug" in problem

    def refuse(_to: str) -> Send:
        raise SenderUnavailable("not installed")

    world.now_s = 90.0
    (problem,) = one_pass(NotificationDispatcher(world.store, "h", open_=refuse), world.store, world.now()).values()
    assert problem == "not installed"


def test_what_nobody_can_send_does_not_keep_a_clock_on_for_ever() -> None:
    world = World()
    submit(world.store, "a", replace(make_spec(), notify=("env:NOBODY",)))
    started(world.store, "a")
    poor = NotificationDispatcher(world.store, "poor", resolve=lambda to: resolve_address(to, {}))
    one_pass(poor, world.store, world.now(), Policy())
    assert poor.unsent and not poor.pending
    world.now_s = GIVE_UP_AFTER.total_seconds() + 60
    poor = NotificationDispatcher(world.store, "poor", resolve=lambda to: resolve_address(to, {}))
    poor.begin(Policy())
    poor.record({}, world.now(), active=set())
    poor.send(world.now)
    assert not poor.unsent


@pytest.mark.parametrize("problem", [SenderUnavailable("AccessDenied"), NotSent("answers with 500")])
def test_who_fails_all_the_time_holds_up_nobody_who_can(problem: Exception) -> None:
    world = World()

    def cannot(_to: str) -> Send:
        def send(_message: Message) -> None:
            raise problem

        return send

    poor, rich = (
        NotificationDispatcher(world.store, "laptop", open_=cannot),
        NotificationDispatcher(world.store, "lambda", open_=world.open),
    )
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    for step in range(40):
        world.now_s = 15.0 * step
        one_pass(rich if step % 4 == 3 else poor, world.store, world.now())
        if world.messages:
            break
    assert world.told() == [("started", "a")] and world.now_s <= 120


def test_one_that_hangs_makes_no_other_repeat() -> None:
    world, gate, got = World(), threading.Event(), []
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    slow, quick = sorted(["json://one", "json://two"], key=channel_address.digest)

    def open_(to: str) -> Send:
        if to == slow:
            gate.wait(20)

        def send(_message: Message) -> None:
            time.sleep(0.2)
            got.append(to)

        return send

    policy = parse_policy(f"notify: ['{slow}', '{quick}']".encode(), "p")
    for moment in (0.0, 30.0, 400.0, 900.0):
        world.now_s = moment
        jobs, dispatcher = news(world.store), NotificationDispatcher(world.store, "g", open_=open_)
        dispatcher.begin(policy)
        dispatcher.record(jobs, world.now(), active=set(jobs))
        dispatcher.send(world.now, patience_s=0.8)
        time.sleep(0.3)
    gate.set()
    assert got == [quick]


def test_a_single_pass_begins_nothing_that_it_cannot_see_the_end_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher_module, "_ANSWER_S", 0.8)
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")

    def slowly(to: str) -> Send:
        time.sleep(0.5)
        return world.open(to)

    jobs, dispatcher = news(world.store), NotificationDispatcher(world.store, "g", open_=slowly)
    dispatcher.begin(ONE)
    dispatcher.record(jobs, at(0), active=set(jobs))
    dispatcher.send(world.now, patience_s=1.0)
    assert world.messages == [] and dispatcher.pending
    time.sleep(0.5)
    dispatcher.send(world.now, patience_s=1.0)
    assert len(world.messages) == 1, "by then it is open"


def test_a_channel_whose_log_cannot_be_written_stops_no_other() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    bad = channel_address.digest("json://one")
    mine = world.store.client(lambda operation, key: Fault() if operation == "create" and bad in key else None)
    dispatcher, jobs = world.dispatcher(mine), news(world.store)
    policy = parse_policy(b"notify: ['json://one', 'json://two']", "p")
    dispatcher.begin(policy)
    with pytest.raises(StoreUnavailable):
        dispatcher.record(jobs, world.now(), active=set(jobs))
    dispatcher.send(world.now)
    assert [to for to, _ in world.messages] == ["json://two"]


def test_where_no_more_threads_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")

    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        (problem,) = one_pass(world.dispatcher(), world.store, world.now()).values()
    assert "can't start new thread" in problem
    one_pass(world.dispatcher(), world.store, world.now())
    assert len(world.messages) == 1


def test_what_some_there_have_is_not_sent_again_and_complained_of() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    world.problem = PartlySent("some receivers were not reached: 404")
    dispatcher = world.dispatcher()
    assert one_pass(dispatcher, world.store, world.now()) == {"notify json": "some receivers were not reached: 404"}
    assert not dispatcher.unsent


@pytest.mark.parametrize("variable", ["AWS_LAMBDA_FUNCTION_NAME", "K_SERVICE"])
@pytest.mark.parametrize("kept", ["written", "a secret"])
def test_a_job_does_not_send_a_function_into_itself(monkeypatch: pytest.MonkeyPatch, kept: str, variable: str) -> None:
    with webhook() as hook:
        monkeypatch.setenv("JANES", hook.url)
        to = hook.url if kept == "written" else "env:JANES"
        for place in ("here", "function"):
            world = World()
            submit(world.store, "a", replace(make_spec(), notify=(to,)))
            started(world.store, "a")
            if place == "function":
                monkeypatch.setenv(variable, "governor")
            problems = one_pass(NotificationDispatcher(world.store, "g"), world.store, world.now(), Policy())
            assert bool(problems) is (place == "function") and len(hook.bodies) == 1
        assert "where no job sends anything" in str(problems)
        policy = parse_policy(f"notify: ['{to}']".encode(), "p")
        one_pass(NotificationDispatcher(world.store, "g"), world.store, world.now(), policy)
        assert len(hook.bodies) == 2, "the policy says so"


def test_the_policy_tells_nothing_more_through_what_it_no_longer_names() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    world.problem = NotSent("answers with 500")
    one_pass(world.dispatcher(), world.store, world.now())
    world.problem, world.now_s = None, 600.0
    one_pass(world.dispatcher(), world.store, world.now(), Policy())
    assert world.messages == []
    one_pass(world.dispatcher(), world.store, world.now())
    assert world.told() == [("started", "a")]
