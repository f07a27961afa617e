"""The copy of a log for a service: how blocks become lines and batches, and what is told when some are missing."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from stoker.agent.logs import cloud_copy
from stoker.agent.logs.cloud_copy import BatchRefused, LogCopy, SinkLimits, SinkLine, _LineCutter

ROOMY = SinkLimits(batch_bytes=10**6, batch_lines=1000, line_bytes=1000)


class Service:
    """A log service in memory: each character of a line counts."""

    name = "the service"
    field = "logs.service: place"
    note: str | None = None

    def __init__(self, limits: SinkLimits = ROOMY) -> None:
        self.limits = limits
        self.batches: list[list[SinkLine]] = []
        self.trouble: list[Exception] = []

    def size(self, text: str) -> int:
        return len(text)

    def put(self, lines: Sequence[SinkLine]) -> None:
        self.batches.append(list(lines))
        if self.trouble:
            raise self.trouble.pop(0)

    @property
    def texts(self) -> list[list[str]]:
        return [[line.text for line in batch] for batch in self.batches]


def fed(service: Service, *blocks: bytes, **more: int) -> LogCopy:
    copy = LogCopy(service, **more)
    for number, block in enumerate(blocks):
        copy.feed(block, float(number))
    return copy


def drained(copy: LogCopy) -> None:
    while copy._turn(True) == "busy":
        pass


def test_a_turn_sends_a_batch_and_says_whether_there_is_more() -> None:
    service = Service(SinkLimits(batch_bytes=10**6, batch_lines=2, line_bytes=1000))
    copy = fed(service, b"1\n2\n3\n", b"4\n5")
    assert [copy._turn(False) for _ in range(4)] == ["busy", "idle", "idle", "idle"]
    assert service.texts == [["1", "2"], ["3", "4"]], "a line that is not ended waits"
    assert copy._turn(True) == "idle"
    assert service.texts[2:] == [["5"]]


def test_in_a_hurry_a_line_that_is_not_ended_is_more_to_send() -> None:
    service = Service(SinkLimits(batch_bytes=10**6, batch_lines=1, line_bytes=1000))
    copy = fed(service, b"1\n2")
    assert [copy._turn(True) for _ in range(3)] == ["busy", "idle", "idle"]
    assert service.texts == [["1"], ["2"]]


def test_blocks_that_came_meanwhile_are_more_to_send() -> None:
    service = Service(SinkLimits(batch_bytes=1, batch_lines=1000, line_bytes=1000))
    copy = fed(service, b"1\n", b"2\n")
    assert copy._turn(False) == "busy"
    assert service.texts == [["1"]]


def test_lines_are_numbered_one_by_one_and_have_the_time_of_their_block() -> None:
    service = Service()
    copy = fed(service, b"a\nb\n", b"c\n")
    drained(copy)
    assert [(line.number, line.at_ms, line.text, line.size) for line in service.batches[0]] == [
        *((0, 0, "a", 1), (1, 0, "b", 1), (2, 1000, "c", 1)),
    ]


def test_a_batch_holds_as_many_bytes_as_the_service_takes_and_no_more() -> None:
    service = Service(SinkLimits(batch_bytes=6, batch_lines=1000, line_bytes=1000))
    drained(fed(service, b"abc\nabc\na\nabcde\n", b"abcdefghi\na\n"))
    assert service.texts == [["abc", "abc"], ["a", "abcde"], ["abcdefghi"], ["a"]]


def test_a_batch_spans_less_than_the_service_takes() -> None:
    service = Service(SinkLimits(batch_bytes=10**6, batch_lines=1000, line_bytes=1000, span_ms=2000))
    drained(fed(service, b"0\n", b"1\n", b"2\n", b"3\n", b"4\n"))
    assert service.texts == [["0", "1"], ["2", "3"], ["4"]]


def test_large_blocks_are_cut_into_lines_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_copy, "_SLICE_BYTES", 4)
    service = Service(SinkLimits(batch_bytes=10**6, batch_lines=2, line_bytes=1000))
    copy = fed(service, b"a\nb\nc\nd\ne\nf\n")
    copy._turn(False)
    assert len(copy._lines) == 0 and copy._waiting_bytes == 8, "as much as a batch needs"
    drained(copy)
    assert service.texts == [["a", "b"], ["c", "d"], ["e", "f"]] and copy._waiting_bytes == 0


def test_what_was_cut_for_an_earlier_batch_counts_for_the_next() -> None:
    service = Service(SinkLimits(batch_bytes=4, batch_lines=1000, line_bytes=1000))
    copy = fed(service, b"aa\naaa\nbbb\n", b"c\n")
    copy._turn(False)
    assert len(copy._lines) == 2
    copy._turn(False)
    assert len(copy._blocks) == 1, "two lines are enough for a batch"
    drained(copy)
    assert service.texts == [["aa"], ["aaa"], ["bbb", "c"]]


# ── What does not fit ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_does_not_fit_is_skipped_and_counted() -> None:
    service = Service()
    copy = fed(service, b"1234567\nbeg", b"dropped\n", b"in\n8901\n", max_bytes=9)
    drained(copy)
    told = "[stoker] 19 bytes are missing here: the service took too long; the store has them"
    assert service.texts == [[told, "8901"]], "the end of a line without its beginning is none"
    assert service.batches[0][0].at_ms == 2000


def test_a_line_whose_end_was_skipped_counts_as_skipped() -> None:
    service = Service()
    copy = fed(service, b"whole\nbegun", max_bytes=12)
    copy._turn(False)
    copy.feed(b"x" * 12, 1.0)
    copy.feed(b"rest\nnext\n", 2.0)
    drained(copy)
    told = "[stoker] 17 bytes are missing here: the service took too long; the store has them"
    assert service.texts == [["whole"], [told, "next"]]


def test_as_much_as_fits_waits_and_a_block_that_is_too_large_alone_is_kept() -> None:
    service = Service()
    drained(fed(service, b"1234\n", b"5678\n", max_bytes=10))
    drained(fed(service, b"1" * 50 + b"\n", max_bytes=10))
    assert service.texts == [["1234", "5678"], ["1" * 50]]


def test_what_was_sent_makes_room() -> None:
    service = Service()
    copy = LogCopy(service, max_bytes=10)
    for number in range(5):
        copy.feed(b"12345678\n", float(number))
        drained(copy)
    assert service.texts == [["12345678"]] * 5


def test_skipping_makes_room_by_as_much_as_was_skipped() -> None:
    service = Service()
    copy = fed(service, b"1234\n", b"5678\n", b"9012\n", b"3456\n", max_bytes=10)
    assert (copy._waiting_bytes, copy._skipped_bytes) == (10, 10)
    drained(copy)
    assert service.texts[0][0].startswith("[stoker] 10 bytes are missing here") and service.texts[0][1:] == ["3456"]


# ── A service that fails ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_is_sent_again_as_it_was_until_it_is_taken() -> None:
    service = Service()
    service.trouble = [OSError("reset"), OSError("reset")]
    copy = fed(service, b"a\n")
    for _ in range(2):
        with pytest.raises(OSError, match="reset"):
            copy._turn(False)
        copy.feed(b"b\n", 1.0)
    drained(copy)
    first, second, third, *rest = service.batches
    assert first == second == third
    assert [[line.text for line in batch] for batch in rest] == [["b", "b"]]


def test_a_batch_that_is_refused_is_told_and_left_out() -> None:
    service = Service()
    service.trouble = [BatchRefused("bad lines")]
    copy = fed(service, b"a\nb\n", b"c\n")
    drained(copy)
    copy.feed(b"d\n", 3.0)
    drained(copy)
    assert service.texts == [["a", "b", "c"], ["d"]]
    assert copy.warning == "logs.service: 3 lines are missing in place: bad lines"


def test_a_note_of_the_service_is_told_and_what_went_wrong_comes_first() -> None:
    service = Service()
    copy = LogCopy(service)
    assert copy.warning is None
    service.note = "by the way"
    assert copy.warning == "by the way"
    copy._missing = "lines are missing"
    assert copy.warning == "lines are missing"
    for error, told in (("OSError: it: is away", "it: is away"), ("bare", "bare")):
        copy._thread._error = error
        assert copy.warning == f"logs.service: place does not get the log: {told}"


def test_calls_are_apart_as_the_service_asks_also_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(cloud_copy, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=slept.append))
    service = Service(SinkLimits(batch_bytes=10**6, batch_lines=1, line_bytes=1000, pause_s=5.0))
    service.trouble = [OSError("reset")]
    copy = fed(service, b"a\nb\nc\nd\n")
    with pytest.raises(OSError, match="reset"):
        copy._turn(False)
    assert slept == []
    clock.now = 101.0
    copy._turn(False)
    assert slept == [4.0]
    clock.now = 106.0
    copy._turn(False)
    assert slept == [4.0], "it is time"
    copy._turn(False)
    assert slept == [4.0, 5.0]


# ── Lines ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def cut(most_bytes: int, *blocks: bytes) -> list[str]:
    cutter = _LineCutter(most_bytes)
    found = [text for block in blocks for _, text in cutter.feed(1, block)]
    return [*found, *(text for _, text in cutter.finish())]


def test_a_line_is_cut_at_the_length_that_a_service_takes_and_never_inside_a_character() -> None:
    assert cut(4, b"abcd\nabcde\n\n") == ["abcd", "abcd", "e", ""]
    assert cut(4, "abcä\n€€\n😀😀\n".encode()) == ["abc", "ä", "€", "€", "😀", "😀"]
    assert cut(4, b"\x80\x80\x80\x80\x80\n") == ["\ufffd"] * 5, "a byte that is none becomes three"


def test_a_long_line_that_is_not_ended_is_sent_in_parts() -> None:
    cutter = _LineCutter(4)
    assert cutter.feed(1, b"abc") == [] and cutter.waiting
    assert cutter.feed(2, b"d") == []
    assert cutter.feed(3, b"efghi") == [(3, "abcd"), (3, "efgh")]
    assert cutter.finish() == [(3, "i")] and not cutter.waiting
    assert cutter.finish() == []


def test_of_a_progress_bar_the_last_state_counts() -> None:
    assert cut(100, b" 10%\r 20%\r 30%\nnext\r\n", b"a\rb", b"c\rd") == [" 30%", "next", "d"]
    assert cut(6, b"10%\r20%\r30%\r4", b"0%\n") == ["40%"], "a state that is not complete is waited for"


def test_after_a_gap_lines_begin_at_the_next_line_end() -> None:
    cutter = _LineCutter(100)
    cutter.feed(1, b"begun")
    assert cutter.break_off() == 5
    assert cutter.feed(2, b"no end") == []
    assert cutter.feed(3, b" of it\nwhole\nbe") == [(3, "whole")]
    assert cutter.feed(4, b"gun\n") == [(4, "begun")]
    assert cutter.break_off() == 0
