"""Following a job while governing it: what is said, who governs from then on, and what is left to do at the end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stoker.governor import background, thread
from stoker.governor.background import GovernorChoice
from stoker.governor.thread import governing_in_thread
from stoker.model import codec, keys
from stoker.model.errors import StokerError, StoreDenied
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, Record, Submitted
from stoker.model.spec import Spec
from stoker.model.submission import Submission
from stoker.read import govern_while_following
from stoker.read.govern_while_following import FollowResult, follow_and_govern
from stoker.store import job_index, job_log
from stoker.store.base import Store, open_store
from tests.support.sim_data import SPOT_A, nodes

JOB = "gpt-abcd"
TOOK_OVER = GovernorChoice(by="fn")
NOBODY = GovernorChoice(problem="no way", is_governed=False)


class Guard:
    """Notes what it is told. Stands in for the process that watches over this one."""

    def __init__(self, problem: str | None = None) -> None:
        self.problem = problem
        self.told: list[str] = []

    def job(self, job: str) -> None:
        self.told.append(job)

    def passed(self) -> None:
        self.told.append("passed")

    def close(self) -> None:
        self.told.append("closed")


class Screen:
    shows_status = False
    room = 0

    def __init__(self) -> None:
        self.events: list[str] = []

    def event(self, text: str) -> None:
        self.events.append(text)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_store(str(tmp_path / "store"))
    data = codec.dumps(Submission(JOB, Spec("gpt", "true"), "jane"))
    made.put(keys.spec(JOB), data)
    put(made, Submitted(codec.digest(data), "jane"))
    return made


def put(store: Store, *events: Event) -> None:
    state = job_log.read(store, JOB)
    for seq, event in enumerate(events, (state.seq if state else 0) + 1):
        job_log.append(store, JOB, seq, Record("t", "jane", f"{event.kind} at {seq}", event))


@pytest.fixture
def following(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[FollowResult, Screen, Guard]]:
    """Follows the job; what happens meanwhile is given. Nobody governs but `handed` says who takes over."""

    def follow(
        meanwhile: Callable[[], object], handed: GovernorChoice = TOOK_OVER, guard: Guard | None = None, since: int = 0
    ) -> tuple[FollowResult, Screen, Guard]:
        screen, watching = Screen(), guard or Guard()

        @contextmanager
        def governing(url: str, on_pass: Callable[[], None], on_problem: Callable[[str], None]) -> Iterator[None]:
            assert url == store.url
            on_pass()
            on_problem("a problem")
            yield

        class Following:
            def __init__(self, *_: Any, since: int) -> None:
                screen.events.append(f"since {since}")

            def run(self, tail: int | None) -> None:
                screen.events.append(f"tail {tail}")
                meanwhile()

        monkeypatch.setattr(govern_while_following, "governing_in_thread", governing)
        monkeypatch.setattr(govern_while_following, "Follower", Following)
        monkeypatch.setattr(background, "ensure_governed", lambda _store, jobs: handed if list(jobs) == [JOB] else None)
        result = follow_and_govern(store, JOB, screen, since=since, guard=watching)  # type: ignore[arg-type]
        return result, screen, watching

    return follow


def raising(error: BaseException) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


def test_a_job_that_ends_is_indexed_as_ended(store: Store, following: Any) -> None:
    result, screen, guard = following(lambda: put(store, Ended("stopped", "user-stop")))
    assert (result.reason, result.record.summary.phase, result.governor) == ("ended", "stopped", None)
    assert screen.events == ["a problem", "since 0", "tail None"] and guard.told == ["passed"]
    indexed = job_index.read_index(store, JOB)
    assert indexed is not None and indexed.summary.phase == "stopped"


def test_after_a_resumption_older_lines_are_not_shown_again(store: Store, following: Any) -> None:
    _, screen, _ = following(lambda: put(store, Ended("stopped", "user-stop")), since=7)
    assert screen.events[1:] == ["since 7", "tail 0"]


@pytest.mark.parametrize(
    ("leaving", "reason"),
    [
        (raising(KeyboardInterrupt()), "interrupted"),
        (lambda: signal.raise_signal(signal.SIGTERM), "hung-up"),
        (lambda: signal.raise_signal(signal.SIGHUP), "hung-up"),
        (raising(BrokenPipeError("gone")), "output-lost"),
    ],
)
@pytest.mark.parametrize("handed", [TOOK_OVER, NOBODY])
def test_every_way_of_leaving_hands_the_job_over(
    following: Any, leaving: Callable[[], object], reason: str, handed: GovernorChoice
) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    result, _, guard = following(leaving, handed)
    assert (result.reason, result.record, result.governor) == (reason, None, handed)
    assert str(result.error) == ("gone" if reason == "output-lost" else "None")
    # Where nobody took over, the guard tries once more: it does when it is closed without a release.
    assert ("closed" in guard.told) is not handed.is_governed
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)) == before


def test_a_signal_that_is_ignored_stays_ignored(store: Store, following: Any) -> None:
    """`nohup` means that the command goes on."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:

        def meanwhile() -> None:
            signal.raise_signal(signal.SIGHUP)
            put(store, Ended("stopped", "user-stop"))

        assert following(meanwhile)[0].reason == "ended"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_error_names_the_job_that_was_submitted(following: Any) -> None:
    with pytest.raises(StokerError, match=f"^denied; {JOB} was submitted: look with `stoker show {JOB}`$"):
        following(raising(StoreDenied("denied")))


def test_a_command_without_a_guard_says_so(store: Store, following: Any) -> None:
    ended = lambda: put(store, Ended("stopped", "user-stop"))  # noqa: E731
    _, screen, _ = following(ended, guard=Guard("no processes are left"))
    (warning,) = [text for text in screen.events if text.startswith("warning")]
    assert warning == (
        f"warning: if this command is killed, {JOB} has no governor (no processes are left); "
        "run `stoker govern --watch` then"
    )


def test_without_a_guard_of_the_caller_there_is_an_own_one(
    store: Store, following: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Guard()

    @contextmanager
    def guarding(url: str) -> Iterator[Guard]:
        assert url == store.url
        yield own
        own.told.append("left")

    put(store, Ended("stopped", "user-stop"))
    following(lambda: None)
    monkeypatch.setattr(govern_while_following, "guarding", guarding)
    assert follow_and_govern(store, JOB, Screen()).reason == "ended"  # type: ignore[arg-type]
    assert own.told == [JOB, "passed", "left"]


class TestTheEnd:
    """Machines leave by themselves, and other jobs of the store go on."""

    @pytest.fixture
    def waited(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        waits: list[float] = []
        monkeypatch.setattr(govern_while_following.time, "sleep", waits.append)
        monkeypatch.setattr(govern_while_following.time, "monotonic", lambda: sum(waits))
        monkeypatch.setattr(background, "ensure_governor", lambda _url: None)
        return waits

    def test_machines_are_waited_for_with_a_bound(self, store: Store, following: Any, waited: list[float]) -> None:
        store.put(keys.active(JOB, 2), b"")
        put(store, Claimed(SPOT_A, 1), Launched(2, nodes(2)))
        following(lambda: put(store, Closed(2, "succeeded", "finished"), Ended("succeeded", "finished")))
        assert set(waited) == {0.05} and 20.0 <= sum(waited) < 20.1

    def test_once_they_have_left_nothing_is_waited_for(self, store: Store, following: Any, waited: list[float]) -> None:
        put(store, Claimed(SPOT_A, 1), Launched(2, nodes(2)))
        following(lambda: put(store, Closed(2, "succeeded", "finished"), Ended("succeeded", "finished")))
        assert waited == []

    def test_a_job_that_never_had_a_machine_waits_for_none(
        self, store: Store, following: Any, waited: list[float]
    ) -> None:
        store.put(keys.active(JOB, 1), b"")
        following(lambda: put(store, Ended("stopped", "user-stop")))
        assert waited == []

    @pytest.mark.parametrize(("warning", "told"), [(None, []), ("slow", ["warning: slow"])])
    def test_others_get_a_governor(
        self, store: Store, following: Any, monkeypatch: pytest.MonkeyPatch, warning: str | None, told: list[str]
    ) -> None:
        asked: list[str] = []

        def ensure(url: str) -> str | None:
            asked.append(url)
            return warning

        monkeypatch.setattr(background, "ensure_governor", ensure)
        put(store, Ended("stopped", "user-stop"))
        assert following(lambda: None)[1].events[3:] == [] and asked == []
        store.put(keys.active("other-abcd", 1), b"")
        assert following(lambda: None)[1].events[3:] == told and asked == [store.url]

    def test_what_fails_there_is_said_and_the_job_has_ended(
        self, store: Store, following: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def ensure(_url: str) -> str:
            raise StoreDenied("denied")

        monkeypatch.setattr(background, "ensure_governor", ensure)
        put(store, Ended("stopped", "user-stop"))
        store.put(keys.active("other-abcd", 1), b"")
        result, screen, _ = following(lambda: None)
        assert result.reason == "ended" and screen.events[3:] == ["denied"]


# ── The governor in a thread ──────────────────────────────────────────────────────────────────────────────────────────


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
