"""A channel that fails is told of, tried again and given up, and holds nobody up."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from telling_world import ONE, World, news, one_pass
from told_jobs import finished, started, submit

from stoker.model import channel_address
from stoker.model.errors import StoreUnavailable
from stoker.model.policy import House
from stoker.notifications import dispatcher
from stoker.notifications.dispatcher import Send, Teller
from stoker.notifications.events import Letter
from stoker.notifications.outbox import GIVE_UP
from stoker.notifications.outbox_store import troubles
from stoker.notifications.senders import NotHere, NotSent, PartlySent, address_of, open_sender
from stoker.policy.policy_file import parse_policy
from stoker.testing.memory_store import Fault
from tests.support.sim_data import at, make_spec
from tests.support.webhooks import webhook


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
        expected = {"500": "answers with 500: oops", "redirects": "elsewhere", "hangs": "came too late"}
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
        poor = Teller(world.store, "poor", follow=lambda to: address_of(to, {}))
        rich = Teller(world.store, "rich", follow=lambda to: address_of(to, {"TEAM_CHAT": hook.url}))
        problems = one_pass(poor, world.store, at(0), House())
        assert problems == {
            "notify env:TEAM_CHAT": "TEAM_CHAT is not set where the governor runs",
        }
        assert not poor.pending, "it need not stay for what it cannot do"
        assert troubles(world.store, at(0)) == {"env:TEAM_CHAT": "TEAM_CHAT is not set where the governor runs"}
        assert one_pass(rich, world.store, at(1), House()) == {}
        assert hook.events == [("started", "a")]
        assert troubles(world.store, at(1)) == {}


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


def test_what_nobody_can_send_does_not_keep_a_clock_on_for_ever() -> None:
    world = World()
    submit(world.store, "a", replace(make_spec(), notify=("env:NOBODY",)))
    started(world.store, "a")
    poor = Teller(world.store, "poor", follow=lambda to: address_of(to, {}))
    one_pass(poor, world.store, world.now(), House())
    assert poor.unsent and not poor.pending
    world.now_s = GIVE_UP.total_seconds() + 60
    poor = Teller(world.store, "poor", follow=lambda to: address_of(to, {}))
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
    slow, quick = sorted(["json://one", "json://two"], key=channel_address.digest)

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
    monkeypatch.setattr(dispatcher, "_ANSWER_S", 0.8)
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


def test_a_channel_whose_log_cannot_be_written_stops_no_other() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    bad = channel_address.digest("json://one")
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
            problems = one_pass(Teller(world.store, "g"), world.store, world.now(), House())
            assert bool(problems) is (place == "function") and len(hook.bodies) == 1
        assert "where no job sends anything" in str(problems)
        house = parse_policy(f"notify: ['{to}']".encode(), "p")
        one_pass(Teller(world.store, "g"), world.store, world.now(), house)
        assert len(hook.bodies) == 2, "the house knows what it does"


def test_the_house_tells_nothing_more_through_what_it_no_longer_names() -> None:
    world = World()
    submit(world.store, "a", make_spec())
    started(world.store, "a")
    world.problem = NotSent("answers with 500")
    one_pass(world.teller(), world.store, world.now())
    world.problem, world.now_s = None, 600.0
    one_pass(world.teller(), world.store, world.now(), House())
    assert world.letters == []
    one_pass(world.teller(), world.store, world.now())
    assert world.told() == [("started", "a")]
