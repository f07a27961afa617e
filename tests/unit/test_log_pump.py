"""What the training prints is brought to the store: the pump, and the file that it reads."""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_store import PlainStore, wait_for
from test_logs import JOB, NODE, PATIENCE_S, append, folder, printed, put_log, text

from stoker.agent.logs import file_tail as tail_module
from stoker.agent.logs import log_pump
from stoker.agent.logs.file_tail import KEEP_BYTES, PUNCH_STEP_BYTES, FileTail
from stoker.agent.logs.log_pump import LogPump, durable_offset, last_lines, say
from stoker.model.errors import StoreUnavailable
from stoker.read.logs import read_lines
from stoker.store.log_chunks import MAX_CHUNK_BYTES, SEAL_BYTES, last_chunk, parse_segments

# ── The pump ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_all(store: PlainStore) -> str:
    return text(read_lines(store, JOB, [NODE]))


def test_everything_printed_is_durable_after_a_drain(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "train.log"
    pump = LogPump(store, folder(NODE), path)
    pump.start()
    assert pump.drain(PATIENCE_S), "a log that is not there yet has nothing to drain"
    append(path, b"hello\nwor")
    assert pump.drain(PATIENCE_S)
    append(path, b"ld\n")
    assert pump.drain(PATIENCE_S)
    pump.stop()
    assert read_all(store) == "hello\nworld\n"
    assert len(store.objects) == 1, "a small chunk grows"
    assert pump.status.durable_offset == pump.status.offset == 12
    assert pump.status.error is None


def test_the_pump_sends_without_being_asked(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "train.log"
    pump = LogPump(store, folder(NODE), path)
    pump.start()
    append(path, b"a line\n")
    wait_for(lambda: bool(store.objects))
    pump.stop()
    assert read_all(store) == "a line\n"


def test_nothing_new_no_call(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "train.log"
    append(path, b"a line\n")
    pump = LogPump(store, folder(NODE), path)
    pump.start()
    for _ in range(5):
        assert pump.drain(PATIENCE_S)
    pump.stop()
    assert len(store.puts) == 1


def test_large_chunks_are_sealed_and_bounded(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "train.log"
    data = b"x" * (10 * 1024 * 1024) + b"\n" + os.urandom(1000).replace(b"\r", b"") + b"\nend\n"
    pump = LogPump(store, folder(NODE), path)
    pump.start()
    append(path, b"small\n")
    assert pump.drain(PATIENCE_S)
    append(path, data)
    assert pump.drain(PATIENCE_S)
    append(path, b"more\n")
    assert pump.drain(PATIENCE_S)
    pump.stop()
    assert read_all(store) == (b"small\n" + data + b"more\n").decode("utf-8", "replace")
    sizes = [len(stored) for stored in store.objects.values()]
    assert max(sizes) <= MAX_CHUNK_BYTES
    assert sum(size >= SEAL_BYTES for size in sizes) == 3
    longest = max(read_lines(store, JOB, [NODE]), key=lambda line: len(line.text))
    assert len(longest.text) == 10 * 1024 * 1024


def test_an_outage_loses_nothing_and_holds_little(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "train.log"
    append(path, b"before\n")
    pump = LogPump(store, folder(NODE), path)
    pump.start()
    assert pump.drain(PATIENCE_S)
    store.down = True
    append(path, b"during " * 2_000_000)
    wait_for(lambda: store.refused > 0)
    assert not pump.drain(0.01)
    assert "StoreUnavailable" in (pump.status.error or "")
    assert pump.status.offset <= 7 + MAX_CHUNK_BYTES
    assert pump.status.durable_offset == 7
    store.down = False
    assert pump.drain(PATIENCE_S)
    pump.stop()
    assert read_all(store) == "before\n" + "during " * 2_000_000


def test_a_lost_reply_duplicates_nothing(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "train.log"
    store.lose_replies = 2
    append(path, b"once\n")
    pump = LogPump(store, folder(NODE), path)
    pump.start()
    assert pump.drain(PATIENCE_S)
    append(path, b"more\n")
    assert pump.drain(PATIENCE_S)
    pump.stop()
    assert read_all(store) == "once\nmore\n"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(printed, st.sampled_from(["drain", "kill", "lost reply", "outage"])), max_size=6))
def test_agents_killed_at_any_point_lose_and_repeat_nothing(acts: list[tuple[bytes, str]]) -> None:
    with TemporaryDirectory() as where:
        store, path, everything, boot = PlainStore(), Path(where) / "train.log", b"", 0

        def begin() -> LogPump:
            pump = LogPump(store, folder(NODE, boot), path, earlier=[folder(NODE, n) for n in range(boot)])
            pump.start()
            return pump

        pump = begin()
        for data, how in acts:
            if how == "outage":
                store.down = True
            if how == "lost reply" and data:
                store.lost.clear()
                store.lose_replies, store.down_after_loss = 1, True
            append(path, data)
            everything += data
            if how == "drain":
                assert pump.drain(PATIENCE_S)
                continue
            if how == "lost reply" and data:
                assert store.lost.wait(PATIENCE_S)
            pump.stop()
            store.down, store.lose_replies = False, 0
            boot += 1
            pump = begin()
        assert pump.drain(PATIENCE_S)
        pump.stop()
        assert read_all(store) == everything.decode("utf-8", "replace")


def test_the_durable_offset_is_the_furthest_of_all_boots() -> None:
    store = PlainStore()
    put_log(store, NODE, (1, b"0123"))
    put_log(store, NODE, (1, b"4567"), chunk=1)
    put_log(store, NODE, (1, b"89"), boot=1)
    folders = [folder(NODE, boot) for boot in range(3)]
    assert durable_offset(store, folders) == 10
    assert durable_offset(store, folders[:1]) == 8
    assert durable_offset(store, []) == 0


def test_a_report_quotes_the_last_lines_unless_it_asks_for_more(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    append(path, b"".join(b"line %03d\n" % number for number in range(100)))
    pump = LogPump(PlainStore(), folder(NODE), path)
    assert pump.tail() == tuple(f"line {number:03d}" for number in range(80, 100))
    assert pump.tail(2) == ("line 098", "line 099") and pump.tail(5, 12) == ("line 099",)


def test_a_tap_that_fails_does_not_hold_up_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, path = PlainStore(), tmp_path / "train.log"
    blocks: list[bytes] = []

    def tap(data: bytes, _at: float) -> None:
        blocks.append(data)
        raise RuntimeError("a bad expression")

    append(path, b"a line\n")
    pump = LogPump(store, folder(NODE), path, tap=tap)
    pump.start()
    assert pump.drain(PATIENCE_S)
    pump.stop()
    assert b"".join(blocks) == b"a line\n"
    assert read_all(store) == "a line\n"
    assert [one.getMessage() for one in caplog.records] == ["reading metrics from the log failed"]


# ── The file ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_disk_behind_what_is_durable_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    size = 3 * PUNCH_STEP_BYTES
    append(path, b"x" * size)
    os.sync()
    before = path.stat().st_blocks
    tail = FileTail(path)
    while tail.read(MAX_CHUNK_BYTES):
        tail.forget(tail.offset)
    assert path.stat().st_size == size
    assert path.stat().st_blocks * 512 < before * 512 - 2 * PUNCH_STEP_BYTES
    assert path.read_bytes()[-KEEP_BYTES:] == b"x" * KEEP_BYTES
    assert path.read_bytes()[:4096] == bytes(4096)


def test_holes_are_not_sent_by_the_next_boot(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "train.log"
    append(path, b"x" * (3 * PUNCH_STEP_BYTES))
    first = LogPump(store, folder(NODE), path)
    first.start()
    assert first.drain(PATIENCE_S)
    first.stop()
    append(path, b"\nlast words\n")
    second = LogPump(store, folder(NODE, 1), path, earlier=[folder(NODE)])
    second.start()
    assert second.drain(PATIENCE_S)
    second.stop()
    assert 0 < len(last_chunk(store, f"{folder(NODE, 1)}/log/")) < 100
    third = LogPump(store, folder(NODE, 2), path, earlier=[folder(NODE), folder(NODE, 1)])
    third.start()
    assert third.drain(PATIENCE_S)
    third.stop()
    assert third.status.offset == third.status.durable_offset == path.stat().st_size
    assert read_all(store) == "x" * (3 * PUNCH_STEP_BYTES) + "\nlast words\n"


def test_a_file_cut_short_goes_on_from_its_new_beginning(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    append(path, b"a long first line\n")
    tail = FileTail(path)
    assert tail.read(100) == b"a long first line\n"
    path.write_bytes(b"short\n")
    assert tail.read(100) == b"short\n"
    append(path, b"more\n")
    assert tail.read(100) == b"more\n"
    assert tail.offset == 18 + 6 + 5


def test_a_file_that_lost_its_end_in_a_crash_is_not_sent_again(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"known\n")
    tail = FileTail(path, offset=100)
    assert tail.waiting() == 0
    append(path, b"new\n")
    assert tail.read(100) == b"new\n"
    assert tail.offset == 104


def test_say_stands_on_lines_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    say(path, "restored step-900")
    append(path, b"step 901 ...")
    say(path, "notice: 30 s\nsaving")
    append(path, b"done\n")
    say(path, "bye")
    assert path.read_text() == (
        "[stoker] restored step-900\nstep 901 ...\n[stoker] notice: 30 s\n[stoker] saving\ndone\n[stoker] bye\n"
    )
    say(tmp_path / "no such folder" / "train.log", "nobody hears this")


def test_last_lines_are_what_a_person_would_see(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    assert last_lines(path) == ()
    path.write_bytes(b"first\n 10%\r 20%\r 30%\nbad \xff byte\r\nunended")
    assert last_lines(path, 3) == (" 30%", "bad \ufffd byte", "unended")
    path.write_bytes(b"y" * 50_000 + b"\nlast\n")
    assert last_lines(path) == ("last",)
    path.write_bytes(b"z" * 50_000)
    (line,) = last_lines(path)
    assert set(line) <= set("z …") and len(line) <= 2000
    path.write_bytes(b"['python', " + b"'--option', " * 900 + b"] exits with return code = -9\n")
    (line,) = last_lines(path)
    assert line.startswith("['python', ") and line.endswith("] exits with return code = -9") and len(line) <= 2000


def test_a_turn_says_whether_more_is_to_be_sent_at_once(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "train.log"
    pump = LogPump(store, folder(NODE), path)
    path.touch()
    assert pump._turn(hurry=False) == "idle"
    append(path, b"x" * (2 * MAX_CHUNK_BYTES + 100))
    assert pump._turn(hurry=False) == "busy", "more than a chunk is waiting"
    assert pump._turn(hurry=True) == "busy"
    assert pump._turn(hurry=True) == "idle"
    append(path, b"a line\n")
    assert pump._turn(hurry=False) == "waiting", "a line waits for others to come"
    assert pump._turn(hurry=True) == "idle"


def test_a_far_store_gets_what_comes_after_a_silence_at_once_and_the_rest_in_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path, clock = PlainStore(is_local=False), tmp_path / "train.log", [0.0]
    monkeypatch.setattr(log_pump, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time))
    pump = LogPump(store, folder(NODE), path)
    append(path, b"one\n")
    assert pump._turn(hurry=False) == "idle" and read_all(store) == "one\n"
    append(path, b"two\n")
    clock[0] = 1.9
    assert pump._turn(hurry=False) == "waiting" and read_all(store) == "one\n"
    clock[0] = 2.0
    assert pump._turn(hurry=False) == "idle" and read_all(store) == "one\ntwo\n"
    append(path, b"x" * 1024 * 1024)
    assert pump._turn(hurry=False) == "idle", "so much is worth a put"
    near = LogPump(store, folder(NODE, 1), path, path.stat().st_size, is_local=True)
    append(path, b"three\n")
    near._turn(hurry=False)
    append(path, b"four\n")
    clock[0] = 2.2
    assert near._turn(hurry=False) == "idle"


def test_a_clock_that_is_set_back_does_not_turn_lines_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, path, clock = PlainStore(), tmp_path / "train.log", [100.0]
    monkeypatch.setattr(log_pump, "time", SimpleNamespace(monotonic=time.monotonic, time=lambda: clock[0]))
    times: list[float] = []
    pump = LogPump(store, folder(NODE), path, tap=lambda _data, at: times.append(at))
    for clock[0] in (100.0, 50.0, 200.5):
        append(path, b"a line\n")
        pump._turn(hurry=True)
    assert times == [100.0, 100.0, 200.5]
    found = parse_segments(last_chunk(store, f"{folder(NODE)}/log/")).segments
    assert [(segment.at_ms, segment.offset) for segment in found] == [(100_000, 0), (100_000, 7), (200_500, 14)]


def test_a_chunk_that_was_not_taken_is_sent_before_anything_new_is_read(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "train.log"
    pump = LogPump(store, folder(NODE), path)
    append(path, b"one\n")
    store.down = True
    with pytest.raises(StoreUnavailable):
        pump._turn(hurry=True)
    assert (pump.status.offset, pump.status.durable_offset) == (4, 0)
    store.down = False
    assert pump._turn(hurry=True) == "idle"
    assert pump.status.durable_offset == 4


def test_earlier_boots_are_asked_once_and_do_not_turn_the_log_back(tmp_path: Path) -> None:
    store, path = PlainStore(), tmp_path / "train.log"
    append(path, b"0123456789")
    put_log(store, NODE, (1, b"0123"))
    ahead = LogPump(store, folder(NODE, 1), path, 6, earlier=[folder(NODE)])
    ahead._turn(hurry=True)
    assert store.objects and parse_segments(last_chunk(store, f"{folder(NODE, 1)}/log/")).segments[0].offset == 6
    behind = LogPump(store, folder(NODE, 2), path, 2, earlier=[folder(NODE)])
    asked = len(store.gets)
    behind._turn(hurry=True)
    assert parse_segments(last_chunk(store, f"{folder(NODE, 2)}/log/")).segments[0].offset == 4
    after = len(store.gets)
    behind._turn(hurry=True)
    assert asked < after and len(store.gets) == after


def test_last_lines_since_a_line_hold_nothing_before_it(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"before\nfirst\nsecond\n")
    assert last_lines(path, since=7) == ("first", "second")
    assert last_lines(path, since=100) == ()
    assert last_lines(path, max_bytes=9) == ("second",), "a line whose beginning is missing is left out"
    assert last_lines(path, max_bytes=4) == ("ond",), "unless there is no other"
    assert last_lines(path, max_bytes=20) == ("before", "first", "second")
    path.write_bytes(b"x" * 2000 + b"\n" + b"y" * 2001 + b"\n")
    exact, longer = last_lines(path)
    assert exact == "x" * 2000 and "…" in longer and len(longer) == 2000


def test_a_log_that_was_replaced_by_a_pipe_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    os.mkfifo(path)
    assert FileTail(path).waiting() == 0 and last_lines(path) == ()
    say(path, "not heard")
    assert FileTail(tmp_path / "missing").read(10) == b""


def test_disk_is_given_back_in_large_steps_and_from_the_new_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, punched = tmp_path / "train.log", []
    monkeypatch.setattr(tail_module, "_punch", lambda _path, start, length: punched.append((start, length)))
    step, keep = PUNCH_STEP_BYTES, KEEP_BYTES
    tail = FileTail(path)
    tail.forget(step + keep - 1)
    assert punched == []
    tail.forget(step + keep)
    tail.forget(step + keep)
    assert punched == [(0, step)]
    tail.forget(2 * step + keep + 5000)
    assert punched[1:] == [(step, step + 4096)]
    # Somebody empties the file.
    path.write_bytes(b"x")
    tail.waiting()
    tail.offset = 3 * step
    tail.waiting()
    tail.forget(3 * step + step + keep)
    assert punched[2:] == [(0, step)]


def test_a_file_system_without_holes_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(*_: object) -> None:
        asked.append(1)
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(tail_module, "_punch", refuse)
    tail = FileTail(tmp_path / "train.log")
    for number in range(2, 5):
        tail.forget(number * (PUNCH_STEP_BYTES + KEEP_BYTES))
    assert asked == [1]


def test_what_cannot_be_punched_says_why(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"x")
    with pytest.raises(OSError, match="Invalid argument"):
        tail_module._punch(path, 0, 0)
