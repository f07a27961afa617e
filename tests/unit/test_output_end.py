"""The end of the output sync: its time, and what is left out."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoint_world import JOB, memory_store, write
from output_world import LIMIT_S, World, plain, world
from plain_store import wait_for

from stoker.agent import output_sync
from stoker.agent.checkpoints.folder_snapshot import File, scan
from stoker.agent.output_files import OutputFiles, OutputSource
from stoker.agent.output_sync import OutputSync

__all__ = ["world"]


def test_what_there_is_no_time_for_is_not_begun(world: World) -> None:
    def slow(_method: str, _key: str) -> None:
        world.clock.s += 10.0

    world.before = slow
    for name in ("a", "b", "c"):
        world.write(name, "1")
    assert not world.sync.final(5.0)
    wait_for(lambda: not world.sync._thread.is_alive())  # type: ignore[union-attr]
    assert len(world.written) == 1
    report = world.sync.report()
    assert (report.files, report.left_out) == (1, 2)
    assert {one.why for one in report.named} == {"there was no time left"}


def unreadable(monkeypatch: pytest.MonkeyPatch, broken: dict[str, OSError]) -> list[str]:
    """Reading a file of `broken` fails as a bad sector or a stale handle does. Returns the files that were tried."""
    tried: list[str] = []
    put_bytes = OutputSync._put_bytes

    def reads(self: OutputSync, file: File, source: Path, pinned: Path) -> bool:
        tried.append(file.path)
        if file.path in broken:
            raise broken[file.path]
        return put_bytes(self, file, source, pinned)

    monkeypatch.setattr(OutputSync, "_put_bytes", reads)
    return tried


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_file_that_cannot_be_read_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    broken: dict[str, OSError] = {"a": OSError(number, os.strerror(number))}
    tried = unreadable(monkeypatch, broken)
    for name in "abc":
        world.write(name, name)
    world.tick(rounds=20)
    assert world.plain() == {"b": b"b", "c": b"c"}
    assert world.sync.status().error == f"a cannot be read ({os.strerror(number)})"
    assert 3 <= tried.count("a") <= 6, "it is tried again after longer and longer pauses"
    assert len(caplog.records) == 1
    # A mount that came back.
    broken.clear()
    world.tick(rounds=20)
    assert world.plain().keys() == {"a", "b", "c"} and world.sync.status().error is None


def test_a_file_that_can_never_be_read_delays_the_end_by_a_minute_and_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = unreadable(monkeypatch, {"a": OSError(errno.EIO, "Input/output error")})
    monkeypatch.setattr(output_sync, "_POLL_S", 0.001)
    thread_time = SimpleNamespace(thread_time=time.thread_time, sleep=lambda _: world.clock.advance(0.5))
    monkeypatch.setattr(output_sync, "time", thread_time)
    for name in "abc":
        world.write(name, name)
    began_s = world.clock()
    assert world.sync.final(1800.0)
    assert output_sync._READ_FOR_S <= world.clock() - began_s < 2 * output_sync._READ_FOR_S
    assert tried.index("c") < 3 and tried.count("a") < 12
    report = world.sync.report()
    assert world.plain().keys() == {"b", "c"} and report.files == 2
    assert [(one.path, one.why) for one in report.named] == [("a", "cannot be read (Input/output error)")]


def test_a_file_that_cannot_be_read_before_the_end_is_named_with_its_own_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable(monkeypatch, {"a": OSError(errno.EIO, "Input/output error")})
    for name in "ab":
        world.write(name, name)
    assert not world.sync.final(10_000.0, lambda: 0.0 if world.sync.status().files else float("inf"))
    assert [(one.path, one.why) for one in world.sync.report().named] == [("a", "cannot be read (Input/output error)")]


def test_an_end_that_moves_later_gives_more_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_sync, "_JOIN_S", 0.001)
    world.client.outage(True)
    world.write("a", "1")
    ends_s = [world.clock() + 100.0]

    def moving() -> float:
        world.clock.advance(1.0)
        if world.clock() > 500.0:
            world.client.outage(False)
        ends_s.append(max(ends_s[-1], min(world.clock() + 100.0, 1000.0)))
        return ends_s[-1]

    assert world.sync.final(None, moving), "it took longer than the first end"


def test_an_end_that_moves_closer_is_heeded(world: World) -> None:
    world.client.outage(True)
    world.write("a", "1")
    ends = iter([2000.0, 2000.0])
    assert not world.sync.final(10_000.0, lambda: next(ends, 0.0))


def test_a_later_end_gives_no_more_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_sync, "_JOIN_S", 0.001)
    world.client.outage(True)
    world.write("a", "1")

    def later() -> float:
        world.clock.s += 1.0
        return float("inf")

    assert not world.sync.final(5.0, later)


def test_the_end_tells_what_went_wrong_last(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.client.outage(True)
    world.write("a", "1")

    def until() -> float:
        return 0.0 if world.sync._backoff.error else float("inf")

    caplog.clear()
    assert not world.sync.final(10_000.0, until)
    assert world.sync.report().named[0].why.startswith("StoreUnavailable: ")
    assert len(caplog.records) == 1, "at the end it is said once more, however often it failed before"


def test_saves_that_no_commit_has_are_sent_at_the_end(tmp_path: Path) -> None:
    write(tmp_path / "work/checkpoints/step-3.pt", "weights")
    work = OutputSource(tmp_path / "work", takes=lambda path: not path.startswith("checkpoints/"))
    memory = memory_store()
    sync = OutputSync(memory, JOB, 1, 0, OutputFiles([], work))
    sync.keep_saves(tmp_path / "work/checkpoints", scan(tmp_path / "work/checkpoints"))
    assert sync.stored_saves() == []
    assert sync.final(LIMIT_S)
    assert plain(memory) == {"perhaps-unfinished/checkpoints/step-3.pt": b"weights"}
    assert (sync.report().files, sync.report().unfinished) == (1, 1)
    assert sync.stored_saves() == ["perhaps-unfinished/checkpoints/step-3.pt"]


def test_saves_for_which_there_is_no_room_are_not_said_to_be_kept(tmp_path: Path) -> None:
    saves = tmp_path / "work/checkpoints"
    write(saves / "small.pt", "weights")
    write(saves / "large.pt", "w" * 100)
    work = OutputSource(tmp_path / "work", takes=lambda path: not path.startswith("checkpoints/"))
    sync = OutputSync(memory_store(), JOB, 1, 0, OutputFiles([], work, most_bytes=50))
    sync.keep_saves(saves, scan(saves))
    assert sync.final(LIMIT_S)
    assert sync.stored_saves() == ["perhaps-unfinished/checkpoints/small.pt"]
    assert [one.path for one in sync.report().named] == ["perhaps-unfinished/checkpoints/large.pt"]


@pytest.mark.parametrize("publish", [True, False])
def test_plain_names_of_large_files_follow_at_the_end_where_that_is_asked(
    world: World, monkeypatch: pytest.MonkeyPatch, publish: bool
) -> None:
    monkeypatch.setattr(output_sync, "WHOLE_BYTES", 10)
    for number in (1, 2):
        world.write("large", f"{number}" * (19 + number))
        world.write("sub/large", f"{number}" * (19 + number))
        if number == 1:
            (world.folder / "link").symlink_to("large")
        world.tick(rounds=6)
    assert world.sync.final(LIMIT_S, publish=publish)
    wait_for(lambda: not world.sync._thread.is_alive())  # type: ignore[union-attr]
    last = b"2" * 21 if publish else b"1" * 20
    assert world.plain() == {"large": last, "link": last, "sub/large": last}


def test_an_end_is_a_success_when_only_plain_names_are_left_to_follow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_sync, "WHOLE_BYTES", 10)
    for number in (1, 2):
        world.write("large", f"{number}" * (19 + number))
        world.tick(rounds=6)
    release = threading.Event()

    def publish(_path: str, _held: Path) -> None:
        world.clock.s += 1000.0
        release.wait(LIMIT_S)

    monkeypatch.setattr(world.sync._writer, "publish", publish)
    try:
        assert world.sync.final(LIMIT_S, publish=True)
        assert world.sync._thread is not None and world.sync._thread.is_alive()
    finally:
        release.set()
        world.sync._thread.join(LIMIT_S)  # type: ignore[union-attr]


@pytest.mark.parametrize("trouble", ["fails", "time"])
def test_a_plain_name_that_cannot_follow_is_no_failure(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    monkeypatch.setattr(output_sync, "WHOLE_BYTES", 10)
    for number in (1, 2):
        for name in ("a", "b"):
            world.write(name, f"{number}" * (19 + number))
        world.tick(rounds=6)
    own, published = world.sync._writer.publish, []

    def publish(path: str, held: Path) -> None:
        published.append(path)
        if trouble == "time":
            world.clock.s += 1000.0
        elif path == "a":
            raise OSError("no")
        own(path, held)

    monkeypatch.setattr(world.sync._writer, "publish", publish)
    assert world.sync.final(LIMIT_S, publish=True)
    wait_for(lambda: not world.sync._thread.is_alive())  # type: ignore[union-attr]
    assert published == (["a", "b"] if trouble == "fails" else ["a"])
    logged = ["a has an older version under its plain name: no"] if trouble == "fails" else []
    assert [one.getMessage() for one in caplog.records] == logged


def test_closing_ends_it_without_a_last_round(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write("a", "1")
    world.sync.start()
    world.sync.close()
    assert world.sync._thread is not None
    world.sync._thread.join(LIMIT_S)
    assert not world.sync._thread.is_alive() and world.plain() == {}
    world.client.outage(True)
    assert not world.sync.final(0.05)


@pytest.mark.parametrize("how", ["close", "final"])
def test_an_end_is_not_slept_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(output_sync, "_POLL_S", 10_000.0)
    world = World(tmp_path)
    sync = world.sync
    sync.start()
    wait_for(lambda: sync._scan_at > 0)
    assert sync._thread is not None
    if how == "close":
        sync.close()
        sync._thread.join(10.0)
    else:
        sync._monotonic = time.monotonic
        assert sync.final(10.0)
    assert not sync._thread.is_alive()


def test_declared_files_are_sent_before_those_beside_the_code(tmp_path: Path) -> None:
    memory, written = memory_store(), []
    client = memory.client(lambda method, key: written.append(key) if method == "create" else None)
    write(tmp_path / "work/a", "1")
    write(tmp_path / "out/z", "1")
    os.utime(tmp_path / "out/z", (0, 0))
    files = OutputFiles([OutputSource(tmp_path / "out", takes_all=True)], OutputSource(tmp_path / "work"))
    assert OutputSync(client, JOB, 1, 0, files).final(LIMIT_S)
    assert [key.rpartition("/")[2] for key in written] == ["z", "a"]
