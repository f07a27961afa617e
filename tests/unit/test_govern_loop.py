"""The governor's loop: when it looks again, what ends it, and what is written before a job is forgotten."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from scripted_cloud import ScriptedWorld

from stoker.core.snapshot import Append, Plan, Terminate, Unmark
from stoker.governor import loop, market_records, pass_notifier
from stoker.governor.loop import TICK_FAR_S, TICK_NEAR_S, Pass
from stoker.model import codec, keys
from stoker.model.errors import StoreDenied, StoreUnavailable, Transient
from stoker.model.log_entries import Claimed, Closed, Ended, Launched, Warned
from stoker.model.offerings import Leftover
from stoker.notifications.background_call import BackgroundCall
from stoker.notifications.dispatcher import LOOP_WAIT_S, SINGLE_PASS_WAIT_S
from stoker.notifications.events import Notification
from stoker.store import job_log
from stoker.store.job_index import read_summary
from tests.support.sim_data import CAPABILITIES, SPOT_A, at, make_beat, make_snapshot, make_spec, make_state, nodes

A = "a-aaaa"


@pytest.fixture
def world() -> ScriptedWorld:
    return ScriptedWorld()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the loop slept for; the jitter is left out."""
    found: list[float] = []
    monkeypatch.setattr(loop.time, "sleep", found.append)
    monkeypatch.setattr(loop.random, "uniform", lambda low, high: (low + high) / 2)
    return found


# ── Sleeping ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("is_local", "wake_in_s", "pause_s"),
    [
        (True, None, TICK_NEAR_S),
        (False, None, TICK_FAR_S),
        (True, 0.5, 0.5),
        (True, 100.0, TICK_NEAR_S),
        (False, 5.0, 5.0),
        (True, 0.0, 0.02),
        (True, -3.0, 0.02),
    ],
)
def test_it_sleeps_until_a_deadline_or_the_tick(
    is_local: bool, wake_in_s: float | None, pause_s: float, pauses: list[float]
) -> None:
    ScriptedWorld(is_local=is_local).governor().sleep(wake_in_s)
    assert pauses == [pytest.approx(pause_s)]


def test_the_tick_is_jittered_by_a_fifth(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(loop.time, "sleep", slept.append)
    for _ in range(200):
        world.governor().sleep(None)
    assert min(slept) >= 0.8 * TICK_NEAR_S and max(slept) <= 1.2 * TICK_NEAR_S
    assert len(set(slept)) > 1, "many governors must not march in step"


@pytest.mark.parametrize("wakes", [True, False])
def test_a_provider_that_wakes_is_waited_for(world: ScriptedWorld, pauses: list[float], wakes: bool) -> None:
    waited: list[float] = []
    world.cloud.capabilities = replace(CAPABILITIES, wakes=wakes)
    world.cloud.wait = waited.append  # type: ignore[attr-defined]
    governor = world.governor()
    governor.sleep(0.5)
    assert (waited, pauses) == ([], [0.5]), "no provider was used so far"
    world.fleet.provider("sim")
    governor.sleep(0.5)
    governor.sleep(0.0)
    assert (waited, pauses[1:]) == (([0.5, 0.02], []) if wakes else ([], [0.5, 0.02]))


# ── The loop ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def passing(active: int, wake_in_s: float | None = None) -> Pass:
    return Pass(active=active, at=at(0), wake_in_s=wake_in_s)


class Loop:
    """A governor whose passes are given, and what its loop did between them."""

    def __init__(self, world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch, *passes: Pass | Exception) -> None:
        self.governor = world.governor()
        self.did: list[object] = []
        given = iter(passes)

        def run_pass() -> Pass:
            found = next(given)
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(self.governor, "run_pass", run_pass)
        monkeypatch.setattr(self.governor, "sleep", lambda wake_in_s: self.did.append(("sleep", wake_in_s)))
        monkeypatch.setattr(self.governor.notifier, "finish", lambda _clock: self.did.append("told the rest"))


def test_it_passes_until_it_is_enough_and_sleeps_as_long_as_each_pass_says(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(world, monkeypatch, passing(2, 3.0), passing(1), passing(0))
    assert loop.governor.notifier.patience_s == SINGLE_PASS_WAIT_S
    loop.governor.watch(lambda done: done.active == 0, lambda done: loop.did.append(done.active))
    assert loop.did == [2, ("sleep", 3.0), 1, ("sleep", None), 0, "told the rest"]
    assert loop.governor.notifier.patience_s == LOOP_WAIT_S, "a loop can wait for messages in its next pass"


def test_a_store_that_does_not_answer_is_tried_again(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    away = StoreUnavailable("did not answer")
    loop = Loop(world, monkeypatch, away, passing(0))
    loop.governor.watch(lambda _: True, on_error=loop.did.append)
    assert loop.did == [away, ("sleep", None), "told the rest"]
    quiet = Loop(world, monkeypatch, away, passing(0))
    quiet.governor.watch(lambda _: True)
    assert quiet.did == [("sleep", None), "told the rest"], "no one need listen"


def test_what_is_not_told_when_the_loop_ends_never_raises(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    governor = world.governor()
    finished: list[object] = []

    def finish(now: Any) -> None:
        finished.append(now())
        raise StoreDenied("not yours")

    monkeypatch.setattr(governor.dispatcher, "finish", finish)
    governor.notifier.finish(governor._clock)
    assert finished == [], "without a pass there is no clock, and nothing to tell"
    governor.run_pass()
    governor.notifier.finish(governor._clock)
    assert finished == [at(0)]


def test_a_pass_is_idle_when_nothing_is_active_and_everything_told() -> None:
    assert passing(0).idle and not passing(1).idle and not replace(passing(0), can_send=True).idle


# ── Before a job is forgotten ─────────────────────────────────────────────────────────────────────────────────────────

ENDED = Ended("failed", "user-error", 2, closing=Closed(2, "failed", "user-error", exit_code=1))


def ended_world(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch, error: Exception | None, after_s: float) -> bool:
    """Whether the marker of a job that ended `after_s` ago is kept, where noting its end raises this."""
    world.submit(A, Claimed(SPOT_A, 1), Launched(2, nodes(2)), ENDED)
    world.cloud.machines = {"i-2-0": replace(_running("i-2-0", 2), state="gone")}
    world.cloud.now_s += after_s
    governor = world.governor()
    note, noted = governor.dispatcher.record, []

    def noting(jobs: Any, now: Any, **rest: Any) -> None:
        noted.append(sorted(jobs))
        if error is not None and not rest:
            raise error
        note(jobs, now, **rest)

    monkeypatch.setattr(governor.dispatcher, "record", noting)
    governor.run_pass()
    assert noted[0] == [A], "its end is noted before its marker is removed"
    return world.store.holds(keys.active(A, 1))


@pytest.mark.parametrize(
    ("error", "after_s", "kept"),
    [
        (None, 0.0, False),
        (StoreUnavailable("did not answer"), 0.0, True),
        (StoreUnavailable("did not answer"), 60.0, True),
        (StoreUnavailable("did not answer"), pass_notifier.RECORD_WITHIN_S - 1, True),
        (StoreUnavailable("did not answer"), pass_notifier.RECORD_WITHIN_S, False),
        (StoreDenied("may not write there"), 0.0, False),
        (RuntimeError("a bug in telling"), 0.0, False),
    ],
)
def test_an_end_that_cannot_be_noted_keeps_its_job_for_a_while(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch, error: Exception | None, after_s: float, kept: bool
) -> None:
    assert ended_world(world, monkeypatch, error, after_s) is kept


def test_only_what_ended_lately_is_held_back_and_nothing_else_of_the_plan(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    governor = world.governor()
    governor.run_pass()
    clock = governor._clock
    assert clock is not None

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("did not answer")

    monkeypatch.setattr(governor.dispatcher, "record", away)
    late = replace(make_state(ENDED, job="old-aaaa"), job="old-aaaa")
    assert late.ended is not None
    late = replace(late, ended=replace(late.ended, at=clock.now() - timedelta(seconds=pass_notifier.RECORD_WITHIN_S)))
    new = make_state(ENDED, job="new-aaaa")
    assert new.ended is not None
    new = replace(new, ended=replace(new.ended, at=clock.now()))
    newest = {"old-aaaa": make_snapshot(late), "new-aaaa": make_snapshot(new)}
    actions = (
        Terminate("new-aaaa", "i-1", "sim", "the job has ended"),
        Unmark("new-aaaa", (1,), "it has ended"),
        Unmark("old-aaaa", (1,), "it has ended"),
    )
    kept = governor.notifier.record_endings(Plan(actions), newest, clock)
    assert kept.actions == (actions[0], actions[2])


def test_an_end_is_recorded_before_the_marker_is_removed(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.submit(A, Claimed(SPOT_A, 1), Launched(2, nodes(2)), ENDED)
    world.cloud.machines = {"i-2-0": replace(_running("i-2-0", 2), state="gone")}
    world.governor().run_pass()
    summary = read_summary(world.store, A)
    assert summary is not None and summary.phase == "failed" and not world.store.holds(keys.active(A, 1))


def test_a_job_whose_money_cannot_be_written_down_stays_active(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreDenied("may not write there")

    monkeypatch.setattr(loop, "record_job_costs", refuse)
    world.submit(A, Claimed(SPOT_A, 1), Launched(2, nodes(2)), ENDED)
    world.cloud.machines = {"i-2-0": replace(_running("i-2-0", 2), state="gone")}
    done = world.governor().run_pass()
    assert world.store.holds(keys.active(A, 1)) and "may not write there" in done.problems[A]


# ── Telling, sweeping, noting ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "text"), [(StoreDenied("not yours"), "not yours"), (KeyError("bug"), "KeyError: 'bug'")]
)
def test_a_message_that_cannot_be_noted_is_a_problem_and_ends_no_pass(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    governor = world.governor()

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(governor.dispatcher, "record", fail)
    assert governor.run_pass().problems == {"notify": text}


def test_what_was_removed_is_told_by_a_later_pass_where_it_cannot_be_noted(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit(A, Claimed(SPOT_A, 1), Launched(2, nodes(2)))
    world.cloud.machines = {"i-2-0": _running("i-2-0", 2)}
    world.cloud.leftovers = [Leftover("disk", "d-1", "sim", "gone-aaaa", 2)]
    governor = world.governor()
    noted: list[list[Notification]] = []
    answers = iter([StoreUnavailable("did not answer"), None, None])

    def note(_jobs: object, _now: object, *, more: Any = (), active: object = None) -> None:
        noted.append(list(more))
        error = next(answers)
        if error is not None:
            raise error

    monkeypatch.setattr(governor.dispatcher, "record", note)
    first = governor.run_pass()
    assert first.problems["notify"] == "did not answer" and first.unsent
    world.cloud.leftovers = []
    second, third = governor.run_pass(), governor.run_pass()
    assert [[told.job for told in each] for each in noted] == [["gone-aaaa"], ["gone-aaaa"], []]
    assert not second.unsent and not third.unsent


def _running(name: str, claim: int) -> Any:
    from stoker.model.offerings import Instance

    return Instance(name, "sim", A, claim, 0, "running", at(0))


def test_places_are_swept_at_once_and_then_now_and_then(world: ScriptedWorld) -> None:
    world.submit(A, Claimed(SPOT_A, 1), Launched(2, nodes(2)))
    world.cloud.machines = {"i-2-0": _running("i-2-0", 2)}
    governor = world.governor()
    swept: list[int] = []
    for seconds in (0.0, 30.0, loop.SWEEP_EVERY_S - 30.0, 1.0):
        world.cloud.now_s += seconds
        governor.run_pass()
        swept.append(len(world.cloud.called("list_leftovers")))
    assert swept == [1, 1, 2, 2]
    governor.run_pass(only={A})
    assert len(world.cloud.called("list_leftovers")) == 2, "a partial pass sweeps nothing"


def test_a_pass_over_some_jobs_begins_the_accounts_of_all_and_reads_only_these(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in (A, "b-bbbb"):
        world.submit(job, Claimed(SPOT_A, 1), Launched(2, nodes(2)))
    governor = world.governor()
    begun: list[tuple[tuple[str, ...], bool]] = []
    begin = governor.budget_tracker.begin

    def watched(jobs: tuple[str, ...], *, whole: bool, now: Any) -> None:
        begun.append((jobs, whole))
        begin(jobs, whole=whole, now=now)

    monkeypatch.setattr(governor.budget_tracker, "begin", watched)
    assert (governor.run_pass(only={A}).active, governor.run_pass().active) == (1, 2)
    assert begun == [((A, "b-bbbb"), False), ((A, "b-bbbb"), True)]


def test_markets_are_read_anew_now_and_then(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    reader = market_records.MarketReader

    def reading(*args: Any) -> Any:
        made.append(args)
        return reader(*args)

    monkeypatch.setattr(market_records, "MarketReader", reading)
    governor = world.governor()
    counts = []
    for seconds in (0.0, 30.0, market_records.MARKETS_FOR_S - 30.0):
        world.cloud.now_s += seconds
        governor.run_pass()
        counts.append(len(made))
    assert counts == [1, 1, 2]


def test_silence_is_judged_by_a_pass_over_all_jobs_and_not_by_one_over_some(world: ScriptedWorld) -> None:
    for job in (A, "b-bbbb", "c-cccc"):
        world.submit(job, Claimed(SPOT_A, 1), Launched(2, nodes(2)))
        world.store.put(keys.heartbeat(keys.node(job, 2, 0, keys.boot("i-2-0", 0))), codec.dumps(make_beat(1).value))
    world.cloud.now_s = 3600.0
    for job in ("b-bbbb", "c-cccc"):
        world.store.put(keys.heartbeat(keys.node(job, 2, 0, keys.boot("i-2-0", 0))), codec.dumps(make_beat(1).value))
    world.cloud.machines = {"i-2-0": _running("i-2-0", 2)}
    governor = world.governor()
    assert governor.run_pass(only={A}).actions == ()
    assert {action.job for action in governor.run_pass().actions} == {A}


def test_a_plan_is_made_without_doing_anything(world: ScriptedWorld) -> None:
    world.submit(A)
    plan, seen = world.governor().plan()
    assert [type(action) for action in plan.actions][:1] == [Append] and world.state(A).claims == ()
    assert [job.state.job for job in seen.snapshot.jobs] == [A]
    assert list(world.store.list(keys.GOVERNORS)) == [], "what was written to read the clock is removed"


def test_a_pass_tells_what_each_job_waits_for_and_ps_tells_the_same(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in (A, "b-bbbb"):
        world.submit(job)
    governor = world.governor()
    held = {A: "the money is spent"}
    monkeypatch.setattr(governor.budget_tracker, "launch_denied", lambda _policy, job, *_: held.get(job))
    done = governor.run_pass()
    assert done.waiting == held and done.problems == {}
    summary = read_summary(world.store, A)
    assert summary is not None and summary.reason == "the money is spent"
    assert world.state(A).claims == () and world.state("b-bbbb").claims != ()


def test_what_could_not_be_done_is_a_problem_and_what_its_job_waits_for(world: ScriptedWorld) -> None:
    world.submit(A)
    world.cloud.errors["launch"] = Transient("the cloud does not answer")
    done = world.governor().run_pass()
    assert done.problems == done.waiting == {A: "the cloud does not answer"}
    assert world.state(A).open_claims and [type(action) for action in done.actions] == [Append]
    summary = read_summary(world.store, A)
    assert summary is not None and summary.reason == "the cloud does not answer"


@pytest.mark.parametrize("error", [Transient("no list today"), KeyError("no list today")])
def test_a_place_that_cannot_be_swept_is_a_problem_of_no_job(world: ScriptedWorld, error: Exception) -> None:
    world.submit(A, Claimed(SPOT_A, 1), Launched(2, nodes(2)))
    world.cloud.machines = {"i-2-0": _running("i-2-0", 2)}
    world.cloud.errors["list_leftovers"] = error
    governor = world.governor()
    done = governor.run_pass()
    assert "no list today" in " ".join(done.problems.values()) and A not in done.problems and done.waiting == {}
    assert governor.run_pass().problems == {}, "it is swept now and then"


def test_what_a_warning_costs_to_note_is_a_problem_of_its_job(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    governor, problems = world.governor(), {"b-bbbb": "before"}

    def refuse(*_: object) -> None:
        raise StoreDenied("may not write there")

    monkeypatch.setattr(governor.budget_tracker, "record_warning", refuse)
    words = [Append(job, 2, Warned("budget", "soon"), "soon") for job in (A, "b-bbbb")]
    governor._record_warnings([*words, Terminate("c-cccc", "i-1", "sim", "orphan")], problems)
    assert problems.keys() == {A, "b-bbbb"} and problems["b-bbbb"] == "before"
    assert "may not write there" in problems[A]


def test_a_market_that_cannot_be_noted_is_a_problem_of_its_job(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    governor, problems, noted = world.governor(), dict[str, str](), list[Any]()

    def note(before: Any, state: Any) -> None:
        noted.append((before and before.seq, state.job))
        raise OSError("no route")

    monkeypatch.setattr(governor.applier.market, "record", note)
    world.submit(A)
    _, seen = governor.plan()
    governor._record_markets(seen, {}, problems)
    assert "no route" in problems[A]
    governor._record_markets(seen, {A: seen.snapshot.jobs[0]}, problems)
    assert noted == [(None, A), (1, A)]


def test_other_jobs_are_forgotten_and_partial_passes_do_so_too(world: ScriptedWorld) -> None:
    world.submit(A, Claimed(SPOT_A, 1), Launched(2, nodes(2)))
    world.submit("b-bbbb", spec=make_spec())
    world.cloud.machines = {"i-2-0": _running("i-2-0", 2)}
    governor = world.governor()
    governor.run_pass()
    assert governor.memory.states.keys() == {A, "b-bbbb"}
    world.store.delete([keys.active("b-bbbb", 1)])
    for name in [each for each, machine in world.cloud.machines.items() if machine.job == "b-bbbb"]:
        world.cloud.terminate(name)
    governor.run_pass(only={A})
    assert governor.memory.states.keys() == {A}


def test_a_marker_without_a_log_is_cleared_and_no_job(world: ScriptedWorld) -> None:
    world.store.put(keys.active("never-aaaa", 1), b"")
    world.cloud.now_s += 7 * 86400
    done = world.governor().run_pass()
    assert done.problems == {} and done.actions == () and job_log.read(world.store, "never-aaaa") is None


def test_an_errand_that_hangs_keeps_no_process_from_ending() -> None:
    go = threading.Event()
    errand = BackgroundCall(go.wait)
    try:
        running = [thread for thread in threading.enumerate() if thread.name == "background-call"]
        assert running and all(thread.daemon for thread in running) and not errand.over
    finally:
        go.set()
