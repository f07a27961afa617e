"""The guard beside a process that governs: what it takes over, when, and when it lets go."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.governor import background, handover_guard
from stoker.governor.handover_guard import HandoverGuard, guarding, watch
from stoker.model.errors import StoreDenied, UserError
from stoker.processes import detached

URL = "file:///somewhere"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            pass


class Spawned:
    """The guards that were started: the reading ends of their pipes, as their processes would hold them."""

    def __init__(self) -> None:
        self.readers: list[int] = []
        self.stores: list[str] = []

    def spawn(self, store_url: str, reader: int, _output: Path) -> None:
        self.stores.append(store_url)
        self.readers.append(os.dup(reader))
        os.set_blocking(self.readers[-1], False)

    def read(self, number: int = -1) -> bytes:
        return os.read(self.readers[number], 4096)

    def result(self, number: int = -1) -> tuple[str, ...] | None:
        """What the guard would do now that its pipe was closed."""
        return watch(self.readers[number], silent_s=0.0)

    def kill(self, number: int = -1) -> None:
        os.close(self.readers[number])
        self.readers[number] = -1


def open_files() -> list[str]:
    """What this process holds open, by name."""
    found: list[str] = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(path.readlink()))
    return found


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Spawned]:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    found = Spawned()
    monkeypatch.setattr(handover_guard, "_spawn", found.spawn)
    yield found
    for reader in found.readers:
        if reader >= 0:
            os.close(reader)


# ── The guard's own process ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_jobs_of_a_process_that_ended_are_taken_over(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, b"job a-aaaa\npass\njob b-bbbb\n")
    os.close(writer)
    assert watch(reader) == ("a-aaaa", "b-bbbb")


def test_a_process_that_ended_before_it_had_a_job_leaves_a_submission(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(writer)
    assert watch(reader) == ()


def test_released_jobs_are_nobodys_business(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.write(writer, b"job a-aaaa\nreleased\n")
    assert watch(reader) is None


def test_a_line_may_come_in_parts(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover_guard, "_READ_BYTES", 3)
    reader, writer = pipe
    os.write(writer, b"job a-aaaa\njob b-bb")
    os.close(writer)
    assert watch(reader) == ("a-aaaa",), "the last line was never finished"


def selecting(monkeypatch: pytest.MonkeyPatch, waits: list[float | None], advance: Callable[[float], None]) -> None:
    """A `select` that records how long it would wait, and lets that time pass at once."""
    real = handover_guard.select.select

    def select(readers: list[int], _w: object, _x: object, wait_s: float | None) -> object:
        waits.append(wait_s)
        ready = real(readers, [], [], 0)
        if not ready[0] and wait_s is not None:
            advance(wait_s)
        return ready if ready[0] or wait_s is not None else pytest.fail("it would wait for ever")

    monkeypatch.setattr(handover_guard.select, "select", select)


def test_a_process_that_passed_and_fell_silent_is_taken_over(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, waits = [100.0], list[float | None]()
    selecting(monkeypatch, waits, lambda seconds: now_s.__setitem__(0, now_s[0] + seconds))
    reader, writer = pipe
    os.write(writer, b"job a-aaaa\npass\n")
    assert watch(reader, 90.0, lambda: now_s[0]) == ("a-aaaa",)
    assert waits == [None, 90.0], "before the first pass it waits without a bound"
    assert now_s[0] == 190.0


def test_a_governor_that_passes_every_quarter_of_a_minute_is_not_silent(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []
    selecting(monkeypatch, waits, lambda _: None)
    reader, writer = pipe
    os.write(writer, b"pass\n")
    assert watch(reader, monotonic=lambda: 100.0) == ()
    assert waits[0] is None and waits[1] is not None and waits[1] > 30.0


def test_each_pass_begins_the_wait_anew(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    moments, waits = iter([0.0, 60.0, 60.0, 60.0]), list[float | None]()
    monkeypatch.setattr(handover_guard, "_READ_BYTES", len(b"pass\n"))
    selecting(monkeypatch, waits, lambda _: None)
    reader, writer = pipe
    os.write(writer, b"pass\npass\n")
    # Read at 0: passed. At 60 there are 30 s left, and the second line is there.
    assert watch(reader, 90.0, lambda: next(moments)) == ()
    assert waits == [None, 30.0, 90.0]


def test_time_that_is_over_is_no_negative_wait(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    moments, waits = iter([0.0, 500.0]), list[float | None]()
    selecting(monkeypatch, waits, lambda _: None)
    reader, writer = pipe
    os.write(writer, b"pass\n")
    assert watch(reader, 90.0, lambda: next(moments)) == ()
    assert waits == [None, 0.0]


def test_the_guard_closes_its_pipe_before_it_takes_over(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was only stopped notices by that, and starts another guard."""
    reader, writer = pipe
    taken: list[tuple[str, tuple[str, ...]]] = []

    def take_over(store_url: str, jobs: tuple[str, ...]) -> None:
        taken.append((store_url, jobs))
        with pytest.raises(OSError):
            os.fstat(reader)

    os.set_inheritable(reader, True)
    inheritable: list[bool] = []

    def watching(pipe: int) -> tuple[str, ...]:
        inheritable.append(os.get_inheritable(pipe))
        return watch(pipe)  # type: ignore[return-value]

    monkeypatch.setattr(background, "take_over", take_over)
    monkeypatch.setattr(handover_guard, "watch", watching)
    monkeypatch.setattr(handover_guard.sys, "argv", ["guard", str(reader), URL])
    os.write(writer, b"job a-aaaa\n")
    os.close(writer)
    handover_guard.main()
    assert taken == [(URL, ("a-aaaa",))]
    assert inheritable == [False], "the governor that it starts must not hold the pipe"


def test_a_released_guard_takes_nothing_over(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pipe
    monkeypatch.setattr(background, "take_over", lambda *_: pytest.fail("it was released"))
    monkeypatch.setattr(handover_guard.sys, "argv", ["guard", str(reader), URL])
    os.write(writer, b"job a-aaaa\nreleased\n")
    handover_guard.main()


# ── The guarded process ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_guard_is_told_of_jobs_passes_and_the_release(spawned: Spawned) -> None:
    guarded = HandoverGuard(URL)
    assert spawned.stores == [URL] and guarded.problem is None
    guarded.job("a-aaaa")
    guarded.passed()
    assert spawned.read() == b"job a-aaaa\npass\n"
    guarded.release()
    assert spawned.result() is None
    assert spawned.read() == b"", "its end of the pipe is closed"


def test_closing_without_a_release_makes_the_guard_take_over(spawned: Spawned) -> None:
    guarded = HandoverGuard(URL)
    guarded.job("a-aaaa")
    guarded.close()
    assert spawned.result() == ("a-aaaa",)


def test_a_guard_that_was_killed_is_replaced_and_told_the_jobs_again(spawned: Spawned) -> None:
    guarded = HandoverGuard(URL)
    guarded.job("a-aaaa")
    guarded.job("b-bbbb")
    first = guarded._pipe
    spawned.kill()
    guarded.passed()
    assert len(spawned.stores) == 2, "the broken pipe is noticed at the next line"
    assert spawned.read() == b"job a-aaaa\njob b-bbbb\n"
    guarded.passed()
    assert spawned.read() == b"pass\n"
    assert first is not None
    guarded.release()


def test_the_pipe_of_a_guard_that_was_killed_is_closed(spawned: Spawned) -> None:
    guarded = HandoverGuard(URL)
    assert guarded._pipe is not None
    broken = str(Path(f"/proc/self/fd/{guarded._pipe}").readlink())
    spawned.kill()
    guarded.passed()
    assert len(spawned.stores) == 2 and broken not in open_files()
    guarded.release()


def test_where_no_new_guard_can_be_started_nothing_is_written_anywhere(
    spawned: Spawned, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = HandoverGuard(URL)
    spawned.kill()

    def fail() -> tuple[int, int]:
        raise OSError("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(handover_guard.os, "pipe", fail)
        guarded.passed()
    assert guarded.problem == "too many open files"
    # The number of the closed end is another file's by now: the guard must not write there, nor close it.
    other = os.open(os.devnull, os.O_RDWR)
    try:
        guarded.passed()
        guarded.job("a-aaaa")
        guarded.release()
        os.fstat(other)
    finally:
        os.close(other)
    assert guarded._pipe is None and len(spawned.stores) == 1


def test_a_full_pipe_holds_the_governor_up_no_moment(spawned: Spawned) -> None:
    guarded = HandoverGuard(URL)
    for _ in range(20_000):
        guarded.passed()
    assert spawned.read().startswith(b"pass\npass\n")
    guarded.close()


def test_a_closed_guard_may_be_told_more(spawned: Spawned) -> None:
    guarded = HandoverGuard(URL)
    guarded.close()
    guarded.passed()
    guarded.release()
    guarded.close()
    assert len(spawned.stores) == 1 and spawned.read() == b""


def test_a_guard_that_cannot_be_started_is_a_problem_and_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))

    def fail(*_: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(handover_guard, "_spawn", fail)
    guarded = HandoverGuard(URL)
    guarded.job("a-aaaa")
    assert guarded.problem == "no memory" and guarded.jobs == ["a-aaaa"]


def test_a_block_that_ends_well_releases_its_guard(spawned: Spawned) -> None:
    with guarding(URL) as guarded:
        guarded.job("a-aaaa")
    assert spawned.result() is None


@pytest.mark.parametrize(
    ("error", "with_job", "released"),
    [
        (UserError("no such file"), False, True),
        (UserError("no such file"), True, False),
        (StoreDenied("not yours"), False, False),
        (KeyboardInterrupt(), True, False),
    ],
)
def test_a_block_that_raises_leaves_its_jobs_to_the_guard(
    spawned: Spawned, error: BaseException, with_job: bool, released: bool
) -> None:
    with pytest.raises(type(error)), guarding(URL) as guarded:
        if with_job:
            guarded.job("a-aaaa")
        raise error
    assert spawned.result() == (None if released else ("a-aaaa",) if with_job else ())


def test_the_guard_runs_in_a_session_of_its_own_and_says_things_in_the_governors_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    started: list[tuple[list[str], dict[str, object]]] = []
    monkeypatch.setattr(detached.subprocess, "Popen", lambda line, **how: started.append((line, how)))
    output = tmp_path / "home" / "governors" / "x.log"
    output.parent.mkdir(parents=True)
    output.write_bytes(b"before\n")
    handover_guard._spawn(URL, 7, output)
    ((line, how),) = started
    assert line[1:] == ["-m", "stoker.governor.handover_guard", "7", URL]
    assert how["start_new_session"] is True and how["pass_fds"] == (7,) and how["cwd"] == output.parent
    assert output.read_bytes() == b"before\n", "what a governor said before is kept"
