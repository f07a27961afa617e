"""Rounds of the output sync: when it looks, what it sends in one, and how it ends."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoint_world import JOB, Clock, memory_store, write
from plain_store import wait_for

from stoker.agent import output_sync
from stoker.agent.checkpoints.folder_snapshot import File, scan
from stoker.agent.output_files import OutputFiles, OutputSource
from stoker.agent.output_sync import OutputSync
from stoker.model import keys
from stoker.store.base import FileChanged
from stoker.testing.memory_store import Fault, MemoryStore

PREFIX = keys.outputs(JOB, 1)
LIMIT_S = 60.0


class World:
    """An output folder, a store that notes what is written, and a sync with a clock of its own."""

    def __init__(self, root: Path, *, is_local: bool = True, **more: float) -> None:
        self.folder = root / "out"
        self.folder.mkdir(parents=True)
        self.memory = memory_store(is_local=is_local)
        self.written: list[str] = []
        self.before: Callable[[str, str], Fault | None] = lambda _method, _key: None
        self.clock = Clock()
        self.client = self.memory.client(self._call)
        self.sync = OutputSync(self.client, JOB, 1, 0, self.folder, monotonic=self.clock, **more)

    def _call(self, method: str, key: str) -> Fault | None:
        fault = self.before(method, key)
        if method in ("create", "put", "put_file"):
            self.written.append(key.rpartition("/")[2])
        return fault

    def write(self, name: str, data: str | bytes) -> None:
        write(self.folder / name, data)

    def tick(self, rounds: int = 1, every_s: float = 0.5) -> None:
        for _ in range(rounds):
            self.clock.s += every_s
            self.sync.tick()

    def plain(self) -> dict[str, bytes]:
        return plain(self.memory)


def plain(store: MemoryStore) -> dict[str, bytes]:
    """What a person finds under plain names."""
    found = {}
    for meta in store.list(PREFIX):
        got = store.get(meta.key)
        assert got is not None
        found[meta.key[len(PREFIX) :]] = got.data
    return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# ── When it looks, and what is ready ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("is_local", "settle_s", "cost_s", "expected_s"),
    [
        (True, 10.0, 0.0, 1.0),
        (False, 10.0, 0.0, 5.0),
        (True, 0.25, 0.0, 0.25),
        (True, 10.0, 0.02, 2.0),  # A hundredth of the time at most goes into looking.
        (True, 10.0, 5.0, 60.0),
    ],
)
def test_looks_are_apart_by_what_they_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool, settle_s: float, cost_s: float, expected_s: float
) -> None:
    world = World(tmp_path, is_local=is_local, settle_s=settle_s)
    spent = iter([7.0, 7.0 + cost_s])
    monkeypatch.setattr(output_sync, "time", SimpleNamespace(thread_time=lambda: next(spent), sleep=time.sleep))
    world.sync.tick()
    assert world.sync._scan_at == pytest.approx(world.clock.s + expected_s)


def test_between_looks_nothing_is_looked_for(world: World) -> None:
    world.tick()
    world.write("a", "1")
    world.clock.s += 0.9
    world.sync.tick()
    assert world.sync.status().files == 0
    world.clock.s += 0.1
    world.sync.tick()
    assert world.sync.status().files == 1


def test_a_file_rests_from_its_last_change_on(world: World) -> None:
    world.write("a", "1")
    world.tick()
    world.clock.s += 0.9
    world.sync._scan_at = 0.0
    world.sync.tick()
    assert world.plain() == {}
    world.write("a", "22")
    world.sync._scan_at = 0.0
    world.tick(every_s=0.9)
    assert world.plain() == {}
    world.tick(every_s=1.0)
    assert world.plain() == {"a": b"22"}


def test_a_log_that_never_rests_is_put_every_now_and_then(world: World) -> None:
    for number in range(200):
        world.write("log", f"{number:03d}")
        world.tick()
    assert len([name for name in world.written if name == "log"]) in (5, 6), (
        "of 100 s: thrice, under two names but once"
    )


def test_a_large_file_that_never_rests_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_sync, "WHOLE_BYTES", 10)
    for number in range(100):
        world.write("large", f"{number:011d}")
        world.write("small", f"{number:010d}")
        world.tick()
    assert "small" in world.written and "large" not in world.written


def test_a_file_that_is_caught_in_the_middle_of_a_write_is_put_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, writing = output_sync.signature_of, [True]

    def changed(path: Path, file: object) -> object:
        if writing[0]:
            write(path, path.read_text() + "x")
        return own(path, file)  # type: ignore[arg-type]

    monkeypatch.setattr(output_sync, "signature_of", changed)
    world.write("a", "1")
    world.tick(rounds=20)
    assert world.plain() == {} and world.sync.status().unsynced_bytes > 0
    writing[0] = False
    world.tick(rounds=8)
    assert world.plain()["a"].startswith(b"1x")
    assert world.sync.status().unsynced_bytes == 0


def test_a_file_that_changed_while_it_was_sent_is_sent_again(world: World) -> None:
    def change(_method: str, _key: str) -> None:
        if not world.written:
            world.write("a", "22")

    world.before = change
    world.write("a", "1")
    world.tick(rounds=8)
    assert world.plain() == {"a": b"22"} and world.sync.status().unsynced_bytes == 0


def test_a_large_file_that_changes_in_the_middle_is_sent_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_sync, "WHOLE_BYTES", 10)
    own, changes = world.sync._writer.write_file, [1]

    def write_file(path: str, held: Path) -> int:
        if changes:
            changes.pop()
            raise FileChanged("it changed")
        return own(path, held)

    monkeypatch.setattr(world.sync._writer, "write_file", write_file)
    world.write("large", "1" * 20)
    world.tick(rounds=4)
    assert world.plain() == {"large": b"1" * 20}
    assert world.sync.status() == output_sync.OutputStatus(files=1, unsynced_bytes=0, bytes_moved=20)


def test_a_file_of_exactly_the_size_that_memory_takes_passes_through_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_sync, "WHOLE_BYTES", 10)
    parts: list[str] = []
    own = world.sync._writer.write_file
    monkeypatch.setattr(world.sync._writer, "write_file", lambda path, held: parts.append(path) or own(path, held))
    world.write("whole", "1" * 10)
    world.write("parts", "1" * 11)
    world.tick(rounds=6)
    assert parts == ["parts"] and set(world.plain()) == {"whole", "parts"}


def test_nothing_more_is_sent_while_it_is_held_but_everything_at_the_end(world: World) -> None:
    world.sync.pause()
    world.write("a", "1")
    world.tick(rounds=10)
    assert world.plain() == {}
    assert world.sync.final(LIMIT_S)
    assert world.plain() == {"a": b"1"}


def test_of_a_file_that_was_removed_nothing_is_reported(world: World) -> None:
    world.write("a", "1")
    world.write("b", "22")
    world.tick(rounds=6)
    (world.folder / "a").unlink()
    assert world.sync.final(LIMIT_S)
    report = world.sync.report()
    assert (report.files, report.size, report.left_out) == (1, 2, 0)


def test_a_file_that_is_removed_and_made_again_rests_anew(world: World) -> None:
    world.write("a", "1")
    world.tick(every_s=30.0)
    (world.folder / "a").unlink()
    world.tick(every_s=30.0)
    world.write("a", "2")
    world.tick(every_s=30.0)
    assert world.plain() == {}, "it is as new as any other"


# ── What cannot be kept ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_is_gone_when_it_is_to_be_sent_and_is_written_anew_is_sent(world: World) -> None:
    """Other files are sent between the scan and the file's turn, which may take minutes."""
    world.write("a", "1")
    world.write("b", "1")
    world.tick(rounds=2)

    def remove_other(_method: str, key: str) -> Fault | None:
        (world.folder / ("b" if key.endswith("a") else "a")).unlink(missing_ok=True)
        return None

    world.before = remove_other
    world.tick()
    world.before = lambda _method, _key: None
    assert len(world.plain()) == 1
    world.write("a", "2")
    world.write("b", "2")
    assert world.sync.final(LIMIT_S)
    assert world.plain() == {"a": b"2", "b": b"2"}


def test_names_that_no_store_takes_are_reported_with_their_size_and_folders_by_a_link_are_not(world: World) -> None:
    long = "/".join(["d" * 200] * 4 + ["e" * 97])
    world.write(long, "long")
    world.write(long[:-1], "just fits")
    world.write("new\nline", "odd")
    world.write("real/a", "1")
    (world.folder / "link").symlink_to("real")
    assert world.sync.final(LIMIT_S)
    report = world.sync.report()
    assert set(world.plain()) == {"real/a", long[:-1]}
    assert [(one.path, one.size, one.why) for one in report.named] == [
        (long, 4, "its name cannot be kept in the store"),
        ("new\\nline", 3, "its name cannot be kept in the store"),
    ]
    assert (report.left_out, report.left_out_size) == (2, 7)


def test_of_what_is_left_out_the_largest_is_named_first_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_sync, "MOST_NAMED", 2)
    for name, size in (("a", 1), ("b", 3), ("c", 3), ("d", 2)):
        write(tmp_path / "work" / name, "x" * size)
    sync = OutputSync(memory_store(), JOB, 1, 0, OutputFiles([], OutputSource(tmp_path / "work"), most_bytes=0))
    assert sync.final(LIMIT_S)
    report = sync.report()
    assert [one.path for one in report.named] == ["b", "c"]
    assert (report.left_out, report.left_out_size) == (4, 9)


# ── Failures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_after_failures_it_waits_ever_longer_up_to_a_bound_and_begins_anew(world: World) -> None:
    world.write("a", "1")
    world.tick(rounds=2)
    world.client.outage(True)
    pauses = []
    for _ in range(14):
        world.clock.s = max(world.clock.s + 1.0, world.sync._backoff.retry_at)
        world.sync.tick()
        pauses.append(world.sync._backoff.retry_at - world.clock.s)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, *[30.0] * 8]
    assert (world.sync.status().error or "").startswith("StoreUnavailable: ")
    tries = len(world.written)
    world.tick(every_s=29.0)
    assert len(world.written) == tries, "not yet"
    world.client.outage(False)
    world.tick()
    world.tick()
    assert world.plain() == {"a": b"1"} and world.sync.status().error is None
    world.client.outage(True)
    world.write("a", "2")
    while world.sync.status().error is None:
        world.tick()
    assert world.sync._backoff.retry_at - world.clock.s == 0.5


def test_the_first_round_of_all_may_fail_and_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    before = world.sync.status()
    assert (before.files, before.unsynced_bytes, before.bytes_moved, before.error) == (0, 0, 0, None)
    world.write("a", "1")
    world.sync._tracker.settle_s = 0.0
    world.client.outage(True)
    world.tick()
    assert world.sync._backoff.retry_at - world.clock.s == 0.5
    world.tick(rounds=3)
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == [
        "outputs cannot be brought to the store now"
    ]
    assert world.sync.status().unsynced_bytes == 1


@pytest.mark.parametrize("started", [True, False])
def test_an_end_whose_first_look_hangs_is_no_success_and_keeps_no_process_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    files = OutputFiles([OutputSource(tmp_path / "out", takes_all=True)])
    release, looking = threading.Event(), threading.Event()
    own = files.declared

    def declared() -> object:
        looking.set()
        release.wait(LIMIT_S)
        return own()

    monkeypatch.setattr(files, "declared", declared)
    sync = OutputSync(memory_store(), JOB, 1, 0, files)
    if started:
        sync.start()
        assert looking.wait(LIMIT_S)
    try:
        assert not sync.final(0.01)
        assert sync._thread is not None and sync._thread.is_alive() and sync._thread.daemon
    finally:
        release.set()
    sync._thread.join(LIMIT_S)
    assert not sync._thread.is_alive()


def test_at_the_end_an_outage_of_before_is_not_waited_out(world: World) -> None:
    world.write("a", "1")
    world.client.outage(True)
    for _ in range(10):
        world.clock.s = max(world.clock.s + 1.0, world.sync._backoff.retry_at)
        world.sync.tick()
    world.client.outage(False)
    assert world.sync.final(LIMIT_S)
    assert world.plain() == {"a": b"1"}


def test_one_bad_round_does_not_end_the_syncing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(output_sync, "_POLL_S", 0.001)
    monkeypatch.setattr(output_sync, "_BACKOFF_S", 0.001)
    write(tmp_path / "out/a", "1")
    memory = memory_store()
    files = OutputFiles([OutputSource(tmp_path / "out", takes_all=True)])
    own, bad = files.declared, [RuntimeError("odd")]
    noted: list[str | None] = []

    def declared() -> object:
        if bad:
            raise bad.pop()
        noted.append(sync._backoff.error)
        return own()

    monkeypatch.setattr(files, "declared", declared)
    sync = OutputSync(memory, JOB, 1, 0, files, settle_s=0.001)
    sync.start()
    wait_for(lambda: plain(memory) == {"a": b"1"})
    sync.close()
    assert sync._thread is not None
    sync._thread.join(LIMIT_S)
    assert not sync._thread.is_alive()
    assert noted[0] == "RuntimeError: odd"
    assert [one.getMessage() for one in caplog.records if one.exc_info] == ["output sync"]


def test_a_fault_that_does_not_pass_ends_the_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(output_sync, "_POLL_S", 0.001)
    files = OutputFiles([OutputSource(tmp_path / "out", takes_all=True)])
    tries = []

    def declared() -> object:
        tries.append(1)
        raise RuntimeError("odd")

    monkeypatch.setattr(files, "declared", declared)
    sync = OutputSync(memory_store(), JOB, 1, 0, files)
    sync.final(10_000.0)
    assert len(tries) == 5
    assert [one.getMessage() for one in caplog.records if one.exc_info] == ["last output sync"] * 5
    assert [(one.path, one.size, one.why) for one in sync.report().named] == [
        (".", 0, "the rest cannot be kept: RuntimeError: odd")
    ]


def test_a_fault_that_passes_leaves_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_sync, "_POLL_S", 0.001)
    monkeypatch.setattr(output_sync, "_BACKOFF_S", 0.001)
    write(tmp_path / "out/a", "1")
    files = OutputFiles([OutputSource(tmp_path / "out", takes_all=True)])
    own, bad = files.declared, [RuntimeError("odd")] * 4
    monkeypatch.setattr(files, "declared", lambda: own() if not bad else (_ for _ in ()).throw(bad.pop()))
    memory = memory_store()
    sync = OutputSync(memory, JOB, 1, 0, files)
    assert sync.final(LIMIT_S)
    assert plain(memory) == {"a": b"1"} and sync.report().left_out == 0


# ── The end ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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
