"""What the training prints is brought to the store: the pump, and the file that it reads."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_store import PlainStore, wait_for
from test_logs import JOB, NODE, PATIENCE_S, append, folder, printed, put_log, text

from stoker.agent.logs import LogPump, durable_offset, last_lines, say
from stoker.agent.tail import KEEP_BYTES, PUNCH_STEP_BYTES, FileTail
from stoker.chunks import MAX_CHUNK_BYTES, SEAL_BYTES, last_chunk
from stoker.reading.logs import read_lines

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


def test_a_tap_that_fails_does_not_hold_up_the_log(tmp_path: Path) -> None:
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
    if not tail._can_punch:
        pytest.skip("this file system has no holes")
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
