"""The thread that moves what lies on a node's disk: its turns, how long it rests, and what a drain waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from plain_store import wait_for

from stoker.agent.logs import pump_thread
from stoker.agent.logs.pump_thread import PumpThread, Turn

PATIENCE_S = 60.0
NEVER_S = 10_000.0


class Rests(threading.Condition):
    """Notes how long the thread would rest, and does not."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.noted: list[float | None] = []
        self._most = most

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        self.noted.append(timeout)
        # Enough was seen: from here on it rests like any other.
        return super().wait_for(predicate, timeout if len(self.noted) >= self._most else 0)


def rests(
    monkeypatch: pytest.MonkeyPatch, turns: list[Turn | Exception], poll_s: float = NEVER_S
) -> list[float | None]:
    """How long a thread rests after each of these turns; a turn without a rest leaves no trace."""
    monkeypatch.setattr(pump_thread.random, "uniform", lambda _least, most: most)
    left = list(turns)

    def turn(_hurry: bool) -> Turn:
        found = left.pop(0) if left else "idle"
        if isinstance(found, Exception):
            raise found
        return found

    thread = PumpThread("pump", turn, poll_s)
    expected = sum(one != "busy" for one in turns)
    thread._changed = noted = Rests(expected)
    thread.start()
    wait_for(lambda: len(noted.noted) >= expected)
    thread.stop()
    return noted.noted[:expected]


def test_it_rests_between_turns_but_not_while_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rests(monkeypatch, ["idle", "busy", "busy", "waiting", "busy", "idle"]) == [NEVER_S] * 3


def test_after_failures_it_rests_ever_longer_up_to_a_bound_and_begins_anew_after_a_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trouble = ValueError("away")
    noted = rests(monkeypatch, [*[trouble] * 20, "idle", trouble], poll_s=0.25)
    assert noted[:4] == [1.0, 2.0, 4.0, 8.0]
    assert noted[5:20] == [30.0] * 15
    assert noted[20:] == [0.25, 1.0]


def test_what_went_wrong_last_is_told_until_a_turn_succeeds() -> None:
    errors = [ValueError("first"), OSError("second")]
    go_on = threading.Semaphore(0)

    def turn(_hurry: bool) -> Turn:
        go_on.acquire()
        if errors:
            raise errors.pop(0)
        return "idle"

    thread = PumpThread("pump", turn, 0.001)
    assert thread.error is None
    thread.start()
    for told in ("ValueError: first", "OSError: second", None):
        go_on.release()
        with thread._changed:
            thread._nudge()
        wait_for(lambda told=told: thread.error == told)
    go_on.release(1000)
    thread.stop()


def test_a_drain_hurries_the_turns_and_only_while_it_waits() -> None:
    hurried: list[bool] = []

    def turn(hurry: bool) -> Turn:
        hurried.append(hurry)
        return "idle"

    thread = PumpThread("pump", turn, NEVER_S)
    thread.start()
    wait_for(lambda: thread._idle_turn == 1)
    for _ in range(3):
        assert thread.drain(PATIENCE_S)
    with thread._changed:
        thread._nudge()
    wait_for(lambda: thread._idle_turn == 5)
    thread.stop()
    assert hurried == [False, True, True, True, False], "one turn for each, and none without a reason"


def test_a_drain_shortens_the_rest_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump_thread, "_FIRST_DELAY_S", NEVER_S)
    monkeypatch.setattr(pump_thread, "_LONGEST_DELAY_S", NEVER_S)
    monkeypatch.setattr(pump_thread, "_HURRIED_DELAY_S", 0.01)
    turns: list[bool] = []

    def turn(hurry: bool) -> Turn:
        turns.append(hurry)
        if len(turns) < 5:
            raise ValueError("away")
        return "idle"

    thread = PumpThread("pump", turn, NEVER_S)
    thread.start()
    assert thread.drain(PATIENCE_S)
    thread.stop()


def test_a_turn_that_had_begun_before_the_drain_does_not_count() -> None:
    """What was written since then may not be in it."""
    began, go_on, turns = threading.Event(), threading.Event(), []

    def turn(_hurry: bool) -> Turn:
        turns.append(1)
        began.set()
        go_on.wait(PATIENCE_S)
        return "idle"

    thread = PumpThread("pump", turn, NEVER_S)
    thread.start()
    began.wait(PATIENCE_S)
    drained: list[bool] = []
    waiter = threading.Thread(target=lambda: drained.append(thread.drain(PATIENCE_S)))
    waiter.start()
    wait_for(lambda: thread._waiters == 1)
    go_on.set()
    waiter.join(PATIENCE_S)
    thread.stop()
    assert drained == [True] and len(turns) == 2


def test_a_drain_ends_in_time_with_the_thread_or_when_its_end_moves_closer() -> None:
    thread = PumpThread("pump", lambda _hurry: "waiting", 0.001)
    assert not thread.drain(PATIENCE_S), "nothing was ever looked at"
    thread.start()
    assert not thread.drain(0.01)
    assert not thread.drain(NEVER_S, lambda: 0.0)
    ends = iter([NEVER_S * 10**6] * 3)
    assert not thread.drain(NEVER_S, lambda: next(ends, 0.0))
    thread.stop()
    assert not thread.drain(NEVER_S)


def test_a_drain_is_not_shortened_by_an_end_that_is_later() -> None:
    thread = PumpThread("pump", lambda _hurry: "waiting", 0.001)
    thread.start()
    assert not thread.drain(0.01, lambda: float("inf"))
    thread.stop()


def test_stopping_ends_a_thread_that_rests_and_waits_for_its_present_turn() -> None:
    began, ended = threading.Event(), []

    def turn(_hurry: bool) -> Turn:
        began.set()
        wait_for(lambda: thread._stopping)
        ended.append(1)
        return "busy"

    thread = PumpThread("pump", turn, NEVER_S)
    thread.stop()
    thread = PumpThread("pump", turn, NEVER_S)
    thread.start()
    began.wait(PATIENCE_S)
    thread.stop(PATIENCE_S)
    assert ended == [1] and not thread._thread.is_alive()
    resting = PumpThread("pump", lambda _hurry: "idle", NEVER_S)
    resting.start()
    wait_for(lambda: resting._idle_turn == 1)
    resting.stop(PATIENCE_S)
    assert not resting._thread.is_alive()
