"""A governor in a thread of this process: each pass is told, and what breaks there is told and repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from stoker.governor import thread
from stoker.governor.thread import governing_in_thread


class Pending:
    def __init__(self, pending: bool) -> None:
        self.pending = pending


class FakeGovernor:
    """Passes until it is told that this is enough; the first pass of each may fail."""

    made: ClassVar[list[FakeGovernor]] = []
    fails = False
    pending = False

    def __init__(self, _store: object) -> None:
        self.dispatcher = Pending(self.pending)
        self.passes = 0
        self.made.append(self)

    def watch(self, *, until: Callable[[object], bool], on_error: Callable[[object], None]) -> None:
        self.passes += 1
        on_error(None)
        if self.fails and self.passes == 1:
            raise RuntimeError("odd")
        while not until(None):
            pass


@pytest.fixture
def governor(monkeypatch: pytest.MonkeyPatch) -> type[FakeGovernor]:
    monkeypatch.setattr(FakeGovernor, "made", [])
    monkeypatch.setattr(thread, "Governor", FakeGovernor)
    monkeypatch.setattr(thread, "open_store", lambda url: url)
    return FakeGovernor


def test_each_pass_is_told_also_one_that_failed(governor: type[FakeGovernor]) -> None:
    passes: list[int] = []
    with governing_in_thread("memory://", lambda: passes.append(1), pytest.fail):
        while len(passes) < 3:
            pass
    assert len(governor.made) == 1


def test_a_governor_that_breaks_is_told_of_and_goes_on(
    governor: type[FakeGovernor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governor, "fails", True)
    told: list[str] = []

    def problem(text: str) -> None:
        told.append(text)
        raise OSError("the terminal is gone")

    class Enough(thread.threading.Event):  # type: ignore[name-defined, misc]
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            return super().wait(0)

    waited: list[float | None] = []
    monkeypatch.setattr(thread.threading, "Event", Enough)
    with governing_in_thread("memory://", lambda: None, problem):
        while not governor.made or governor.made[0].passes < 2:
            pass
    assert told == ["the governor met an error and continues (RuntimeError: odd)"]
    assert 1.0 in waited and len(governor.made) == 1


@pytest.mark.parametrize("pending", [True, False])
def test_notifications_that_are_still_to_be_sent_are_waited_for(
    governor: type[FakeGovernor], monkeypatch: pytest.MonkeyPatch, pending: bool
) -> None:
    joined: list[float | None] = []
    real = thread.threading.Thread.join

    def join(self: Any, timeout: float | None = None) -> None:
        joined.append(timeout)
        real(self, timeout)

    monkeypatch.setattr(governor, "pending", pending)
    with governing_in_thread("memory://", lambda: None, pytest.fail):
        while not governor.made:
            pass
        monkeypatch.setattr(thread.threading.Thread, "join", join)
    assert joined == ([10.0] if pending else [])
