"""What the training prints reaches the reader: all of it, once, in order, whatever happens in between."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_store import PlainStore

from stoker.agent.logs.log_pump import durable_offset
from stoker.model import keys
from stoker.model.errors import StoreDenied, StoreUnavailable
from stoker.read import log_cursor, node_chunks
from stoker.read.log_cursor import NodeCursor
from stoker.read.logs import UNREADABLE, LogLine, NodeLog, follow, read_lines, read_tail
from stoker.store.log_chunks import (
    MAX_CHUNK_BYTES,
    SEAL_BYTES,
    ChunkWriter,
    Segment,
    encode_segment,
    list_chunks,
    parse_segments,
)

JOB = "job-1"
NODE = NodeLog(attempt=1, claim=2, rank=0, instance="i-1")
PATIENCE_S = 60.0


def folder(node: NodeLog, boot: int = 0) -> str:
    return keys.node(JOB, node.claim, node.rank, keys.boot(node.instance, boot))


def text(lines: Iterable[LogLine]) -> str:
    return "".join(line.text + line.end for line in lines)


def put_log(store: PlainStore, node: NodeLog, *pieces: tuple[int, bytes], boot: int = 0, chunk: int = 0) -> None:
    """Append segments to a chunk; the offset is where the node's log stands by now."""
    key = keys.log_chunk(folder(node, boot), chunk)
    data = store.objects.get(key, b"")
    end = max(
        (
            segment.end
            for name, stored in store.objects.items()
            if name.startswith(keys.node(JOB, node.claim, node.rank, node.instance))
            for segment in parse_segments(stored).segments
        ),
        default=0,
    )
    for at_ms, piece in pieces:
        data += encode_segment(Segment(at_ms, end, piece))
        end += len(piece)
    store.objects[key] = data


def append(path: Path, data: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(data)


# ── The format ────────────────────────────────────────────────────────────────────────────────────────────────────────

segments = st.lists(
    st.builds(Segment, st.integers(0, 10**14), st.integers(0, 10**17), st.binary(max_size=40) | st.just(b"@1 2 3\n@")),
    max_size=6,
)


@settings(deadline=None)
@given(segments, st.data())
def test_segments_survive_any_cut(written: list[Segment], data: st.DataObject) -> None:
    whole = b"".join(map(encode_segment, written))
    cut = data.draw(st.integers(0, len(whole)))
    first = parse_segments(whole[:cut])
    second = parse_segments(first.rest + whole[cut:])
    assert not first.broken and not second.broken
    assert list(first.segments + second.segments) == written
    assert second.rest == b""


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_parsed_without_harm(junk: bytes) -> None:
    parsed = parse_segments(junk)
    assert sum(len(segment.data) for segment in parsed.segments) <= len(junk)


@pytest.mark.parametrize("junk", [b"junk", b"@1 2 9999999\n", b"@1 2\n", b"@" + b"1" * 80, b"\x00" * 70])
def test_what_is_no_segment_is_broken(junk: bytes) -> None:
    assert parse_segments(junk).broken


def test_every_size_of_a_chunk_has_a_name_of_its_own_and_the_smaller_go() -> None:
    store = PlainStore()
    writer = ChunkWriter(store, lambda n, size: f"row/{n:08d}/{size}")
    writer.add(b"a")
    store.lose_replies = 1
    with pytest.raises(StoreUnavailable):
        writer.push()
    writer.add(b"b")
    writer.push()
    assert store.objects == {"row/00000000/2": b"ab"}
    writer.add(b"c")
    store.delete = lambda keys: (_ for _ in ()).throw(StoreUnavailable("down"))  # type: ignore[method-assign]
    writer.push()
    assert [key for key, _ in store.puts] == [f"row/00000000/{size}" for size in (1, 2, 3)]
    del store.delete  # type: ignore[attr-defined]
    writer.add(b"d")
    writer.push()
    assert store.objects == {"row/00000000/4": b"abcd"}, "also what could not be deleted before"
    writer.add(b"x" * SEAL_BYTES)
    writer.push()
    writer.add(b"y")
    writer.push()
    assert [meta.key for _, meta in list_chunks(store, "row/")] == [f"row/00000000/{4 + SEAL_BYTES}", "row/00000001/1"]


def test_a_put_that_lands_late_shortens_nothing() -> None:
    """obstore tries again by itself: the first try may land when the chunk has long grown, and the agent is gone."""
    path_of = folder(NODE)
    for near in (True, False):
        store = PlainStore(is_local=near)
        writer = ChunkWriter(store, lambda n, size: keys.log_chunk(path_of, n, size))
        offset, late = 0, {}
        for number in range(5):
            piece = b"line %d\n" % number
            writer.add(encode_segment(Segment(number, offset, piece)))
            writer.push()
            offset += len(piece)
            late |= store.objects
        store.objects |= late
        assert len(store.objects) == 5
        assert [line.text for line in read_lines(store, JOB, [NODE])] == [f"line {n}" for n in range(5)]
        assert [line.text for line in read_tail(store, JOB, [NODE], 2)] == ["line 3", "line 4"]
        assert durable_offset(store, [path_of]) == offset


def test_following_a_log_that_does_not_grow_is_one_call_for_an_object() -> None:
    store = PlainStore(is_local=False)
    put_log(store, NODE, (1, b"one\n"))
    cursor = NodeCursor(store, JOB, NODE)
    assert [line.text for line in cursor.lines()] == ["one"]
    calls: list[str] = []
    store.head = lambda key, head=store.head: calls.append(f"head {key}") or head(key)  # type: ignore[method-assign, func-returns-value, misc]
    store.list = lambda prefix, found=store.list: calls.append(f"list {prefix}") or found(prefix)  # type: ignore[method-assign, func-returns-value, misc]
    assert list(cursor.read()) == []
    assert calls == [f"head {keys.log_chunk(folder(NODE), 0)}"]


def test_a_later_boot_is_read_by_few_lists_however_many_chunks_it_has() -> None:
    lists = {}
    for chunks in (5, 50):
        store = PlainStore(is_local=False)
        put_log(store, NODE, (1, b"one\n"))
        for chunk in range(chunks):
            put_log(store, NODE, (2, b"two\n"), boot=1, chunk=chunk)
        calls: list[str] = []
        store.list = lambda prefix, found=store.list, calls=calls: calls.append(prefix) or found(prefix)  # type: ignore[method-assign, func-returns-value, misc]
        assert len(list(NodeCursor(store, JOB, NODE).lines())) > 1
        lists[chunks] = len(calls)
    assert lists[5] == lists[50]


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────

printed = st.lists(
    st.binary(max_size=12) | st.sampled_from([b"\n", b"\r", b"\r\n", "ä€🙂".encode(), b"\xff", b"@1 0 5\n", b"\x00"]),
    max_size=12,
).map(b"".join)


@settings(deadline=None)
@given(printed, st.booleans(), st.data())
def test_reader_gives_back_what_was_printed(data: bytes, tidy: bool, draw: st.DataObject) -> None:
    """Any bytes, cut anywhere into segments, chunks and boots, parts of them sent twice.

    Tidy is what agents write: only a new boot sends again, and never what lies before the last boot's beginning.
    """
    store = PlainStore(is_local=draw.draw(st.booleans()))
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=6)))
    boot = chunk = boot_start = 0
    fresh = True
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        earliest = (boot_start if fresh else start) if tidy else 0
        start = draw.draw(st.integers(earliest, start), label="sent from")
        boot_start = start if fresh else boot_start
        if start == end:
            continue
        key = keys.log_chunk(folder(NODE, boot), chunk)
        segment = encode_segment(Segment(1, start, data[start:end]))
        store.objects[key] = store.objects.get(key, b"") + segment
        choices = [(boot, chunk), (boot, chunk + 1), (boot + 1, 0)]
        before, (boot, chunk) = boot, draw.draw(st.sampled_from(choices), label="the next piece goes to")
        fresh = boot > before
    expected = data.decode("utf-8", "replace")
    lines = list(read_lines(store, JOB, [NODE]))
    assert text(lines) == expected
    pieces = [*re.split(r"(\r\n|\n|\r)", expected), ""]
    whole = zip(pieces[::2], pieces[1::2], strict=True)
    assert [(line.text, line.end) for line in lines] == [piece for piece in whole if any(piece)]
    if tidy:
        n = draw.draw(st.integers(1, 5))
        assert read_tail(store, JOB, [NODE], n) == lines[-n:]


def test_a_line_end_of_two_characters_may_come_in_two_pieces() -> None:
    store = PlainStore()
    put_log(store, NODE, (1, b"a\r"), (2, b"\nb\r"), (3, b"c\r"))
    lines = [(line.text, line.end) for line in read_lines(store, JOB, [NODE])]
    assert lines == [("a", "\r\n"), ("b", "\r"), ("c", "\r")]


def test_nodes_of_an_attempt_are_merged_by_time_in_whole_lines() -> None:
    store = PlainStore()
    other = NodeLog(1, 2, 1, "i-2")
    put_log(store, NODE, (1000, b"a1\na"), (3000, b"2\na3\n"))
    put_log(store, other, (2000, b"b1\nb2 is"), (4000, b" late\nb3 unended"))
    lines = list(read_lines(store, JOB, [other, NODE]))
    assert [(line.rank, line.at, line.text) for line in lines] == [
        (0, 1.0, "a1"),
        (1, 2.0, "b1"),
        (0, 3.0, "a2"),
        (0, 3.0, "a3"),
        (1, 4.0, "b2 is late"),
        (1, 4.0, "b3 unended"),
    ]
    assert [line.end for line in lines] == ["\n"] * 5 + [""]


def test_a_clock_set_back_does_not_turn_a_nodes_lines_around() -> None:
    store = PlainStore()
    other = NodeLog(1, 2, 1, "i-2")
    put_log(store, NODE, (5000, b"first\n"), (1000, b"second\n"), (6000, b"third\n"))
    put_log(store, other, (5500, b"other\n"))
    lines = [(line.text, line.at) for line in read_lines(store, JOB, [NODE, other])]
    assert lines == [("first", 5.0), ("second", 5.0), ("other", 5.5), ("third", 6.0)]


def test_attempts_come_in_order_whatever_their_clocks_say() -> None:
    store = PlainStore()
    second = NodeLog(2, 5, 0, "i-9")
    put_log(store, NODE, (9000, b"old\n"), (9100, b"cut"))
    put_log(store, second, (10, b"new\n"))
    lines = list(read_lines(store, JOB, [second, NODE]))
    assert [(line.attempt, line.text) for line in lines] == [(1, "old"), (1, "cut"), (2, "new")]


def test_only_the_instance_that_was_named_is_read() -> None:
    store = PlainStore()
    put_log(store, NODE, (1, b"mine\n"))
    put_log(store, NodeLog(1, 2, 0, "i-1x"), (1, b"nobody's\n"))
    put_log(store, NodeLog(1, 2, 0, "i-1.0"), (1, b"nobody's\n"))
    assert [line.text for line in read_lines(store, JOB, [NODE])] == ["mine"]


def test_boots_are_in_order_of_their_numbers() -> None:
    store = PlainStore()
    for boot in range(12):
        put_log(store, NODE, (1, b"%d\n" % boot), boot=boot)
    assert [line.text for line in read_lines(store, JOB, [NODE])] == [str(boot) for boot in range(12)]


@pytest.mark.parametrize("near", [True, False])
def test_many_chunks_keep_their_order(near: bool) -> None:
    store = PlainStore(is_local=near)
    for chunk in range(30):
        put_log(store, NODE, (chunk, b"line %d\n" % chunk), chunk=chunk)
    assert [line.text for line in read_lines(store, JOB, [NODE])] == [f"line {n}" for n in range(30)]


@pytest.mark.parametrize(
    "junk", [b"\x00\x01junk", b"@1 0 9999999\nshort", b"@1 8 20\ntorn", b"x" * (2 * MAX_CHUNK_BYTES + 1)]
)
@pytest.mark.parametrize("near", [True, False])
def test_a_chunk_that_makes_no_sense_costs_one_line(junk: bytes, near: bool) -> None:
    store = PlainStore(is_local=near)
    put_log(store, NODE, (1, b"before\n"))
    put_log(store, NODE, (1, b"after\n"), chunk=2)
    put_log(store, NODE, (1, b"the end\n"), chunk=3)
    store.objects[keys.log_chunk(folder(NODE), 1)] = junk
    lines = [line.text for line in read_lines(store, JOB, [NODE])]
    assert lines == ["before", UNREADABLE, "after", "the end"]


def test_tail_reads_the_end_alone() -> None:
    store = PlainStore()
    for chunk in range(50):
        put_log(store, NODE, (chunk, b"".join(b"%d.%d\n" % (chunk, n) for n in range(10))), chunk=chunk)
    store.gets.clear()
    lines = read_tail(store, JOB, [NODE], 12)
    assert [line.text for line in lines] == [f"48.{n}" for n in (8, 9)] + [f"49.{n}" for n in range(10)]
    assert keys.log_chunk(folder(NODE), 40) not in store.gets


@pytest.mark.parametrize(
    ("chunks", "n", "told", "read"),
    [
        # A chunk that begins within a line does not have the whole of it.
        ([b"1\n2\n", b"aaa", b"bbb\nc\n"], 2, ["aaabbb", "c"], 3),
        ([b"1\n2\n", b"aaa", b"bbb\nc\n"], 1, ["c"], 1),
        ([b"1\n2\n3\n", b"4\n5\n6\n"], 2, ["5", "6"], 1),
        ([b"1\n2\n3\n", b"4\n5\n6\n"], 3, ["4", "5", "6"], 2),
        # The end of one line lies in two chunks.
        ([b"0\n1\n2\r", b"\n3\n"], 2, ["2", "3"], 2),
        ([b"8\r\n9\r", b"\n1\r", b"\n2\r", b"\n3\n"], 3, ["1", "2", "3"], 3),
    ],
)
def test_tail_goes_back_as_far_as_whole_lines_need(chunks: list[bytes], n: int, told: list[str], read: int) -> None:
    store = PlainStore()
    for chunk, data in enumerate(chunks):
        put_log(store, NODE, (chunk, data), chunk=chunk)
    cursor = NodeCursor(store, JOB, NODE)
    fetched: list[str] = []
    store.get_from = lambda key, start, inner=store.get_from: fetched.append(key) or inner(key, start)  # type: ignore[method-assign, func-returns-value, misc]
    cursor.seek_tail(n)
    assert len(fetched) == read
    assert [line.text for line in [*cursor.lines(), *cursor.finish()]][-n:] == told


def test_tail_gives_up_on_lines_that_are_too_far_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store = PlainStore()
    for chunk in range(9):
        put_log(store, NODE, (chunk, b"x" * 30), chunk=chunk)
    size = len(store.objects[keys.log_chunk(folder(NODE), 8)])
    monkeypatch.setattr(log_cursor, "_MAX_TAIL_BYTES", 2 * size)
    (line,) = read_tail(store, JOB, [NODE], 1)
    assert line.text == "x" * 90, "three chunks are more than two"


def test_tail_passes_over_a_chunk_that_no_agent_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    store = PlainStore()
    put_log(store, NODE, (1, b"a\nb\n"))
    put_log(store, NODE, (2, b"c" * 500), chunk=1)
    put_log(store, NODE, (3, b"d\n"), chunk=2)
    monkeypatch.setattr(log_cursor, "MAX_READ_BYTES", 200)
    monkeypatch.setattr(node_chunks, "MAX_READ_BYTES", 200)
    assert [line.text for line in read_tail(store, JOB, [NODE], 3)] == ["b", UNREADABLE, "d"]


def test_a_line_without_an_end_is_shown_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_cursor, "MAX_LINE_BYTES", 10)
    store = PlainStore()
    put_log(store, NODE, *((n, b"%d" % n * 6) for n in range(5)), (6, b"\nend\n"))
    assert [(line.text, line.end) for line in read_lines(store, JOB, [NODE])] == [
        ("000000111111", ""),
        ("222222333333", ""),
        ("444444", "\n"),
        ("end", "\n"),
    ]
    put_log(store, NODE, (7, b"0123456789"))
    assert [line.text for line in read_lines(store, JOB, [NODE])][-1] == "0123456789", "as long as it may be"


def test_tail_counts_what_came_twice_once() -> None:
    store = PlainStore()
    for boot, (offset, data) in enumerate([(0, b"a\nb\nc\n"), (6, b"d\n"), *[(6, b"d\ne\n")] * 9]):
        key = keys.log_chunk(folder(NODE, boot), 0)
        store.objects[key] = encode_segment(Segment(1, offset, data))
    assert [line.text for line in read_tail(store, JOB, [NODE], 4)] == ["b", "c", "d", "e"]


def test_tail_goes_back_over_attempts_and_nodes() -> None:
    store = PlainStore()
    other, second = NodeLog(1, 2, 1, "i-2"), NodeLog(2, 5, 0, "i-9")
    put_log(store, NODE, (1, b"a\n"), (3, b"c\n"))
    put_log(store, other, (2, b"b\n"), (4, b"d\n"))
    put_log(store, second, (1, b"e\nf\n"))
    nodes = [NODE, other, second]
    assert [line.text for line in read_tail(store, JOB, nodes, 4)] == ["c", "d", "e", "f"]
    assert [line.text for line in read_tail(store, JOB, nodes, 100)] == ["a", "b", "c", "d", "e", "f"]
    assert read_tail(store, JOB, nodes, 0) == []


# ── Following ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Script:
    """Plays a job: the next act is done whenever the follower goes to sleep; the job ends behind the last."""

    def __init__(self, store: PlainStore) -> None:
        self.nodes: list[NodeLog] = []
        self.store = store
        self._acts: list[list[Callable[[], None]]] = []
        self._naps = 0
        self.ended = False

    def act(self, *parts: Callable[[], None]) -> None:
        self._acts.append(list(parts))

    def joins(self, *nodes: NodeLog) -> Callable[[], None]:
        return lambda: self.nodes.extend(nodes)

    def prints(self, node: NodeLog, at_ms: int, data: bytes, *, boot: int = 0, chunk: int = 0) -> Callable[[], None]:
        return lambda: put_log(self.store, node, (at_ms, data), boot=boot, chunk=chunk)

    def play(self, tail: int | None = None) -> list[LogLine]:
        return list(follow(self.store, JOB, self.watch, 0.01, tail=tail, sleep=self.sleep))

    def watch(self) -> tuple[Sequence[NodeLog], bool]:
        return tuple(self.nodes), self.ended

    def sleep(self, _seconds: float) -> None:
        self._naps += 1
        assert self._naps < 500, "it follows for ever"
        if not self._acts:
            self.ended = True
            return
        for part in self._acts.pop(0):
            part()


SECOND = NodeLog(2, 5, 0, "i-9")


def test_follow_goes_on_across_chunks_boots_and_attempts() -> None:
    script = Script(PlainStore())
    script.act(script.joins(NODE))
    script.act(script.prints(NODE, 1, b"one\ntw"))
    script.act(script.prints(NODE, 2, b"o\n"))
    # Grown, and another one begun, between two looks.
    script.act(script.prints(NODE, 3, b"three\n"), script.prints(NODE, 4, b"four\n", chunk=1))
    script.act(script.prints(NODE, 5, b"cut sho", boot=1))
    script.act(script.joins(SECOND))
    script.act(script.prints(SECOND, 1, b"five\n"))
    script.act(script.prints(SECOND, 2, b"rest"))
    assert [(line.attempt, line.text) for line in script.play()] == [
        *((1, word) for word in ("one", "two", "three", "four", "cut sho")),
        *((2, word) for word in ("five", "rest")),
    ]


def test_follow_ends_an_attempts_last_line_before_the_next_attempts_first() -> None:
    script = Script(PlainStore())
    script.act(script.joins(NODE), script.prints(NODE, 1, b"cut"))
    script.act(script.joins(SECOND))
    script.act(script.prints(SECOND, 1, b"new\n"))
    seen = script.play()
    assert [(line.attempt, line.text, line.end) for line in seen] == [(1, "cut", ""), (2, "new", "\n")]


def test_follow_hears_an_old_attempt_that_speaks_late() -> None:
    script = Script(PlainStore())
    script.act(script.joins(NODE), script.prints(NODE, 1, b"early\n"))
    script.act(script.joins(SECOND), script.prints(SECOND, 1, b"new\n"))
    for _ in range(100):
        script.act()
    script.act(script.prints(NODE, 2, b"late\n"))
    for _ in range(100):
        script.act()
    script.act(script.prints(SECOND, 2, b"last\n"))
    assert [line.text for line in script.play()] == ["early", "new", "late", "last"]


def test_follow_outlasts_an_outage_and_loses_nothing() -> None:
    store = PlainStore()
    other = NodeLog(1, 2, 1, "i-2")
    script = Script(store)
    script.act(script.joins(NODE, other))
    script.act(script.prints(NODE, 1, b"a\n"), script.prints(other, 2, b"b\n"))
    # The first node is read, the second is not.
    script.act(script.prints(NODE, 3, b"c\n"), script.prints(other, 4, b"d\n"), lambda: setattr(store, "heads_left", 2))
    script.act(lambda: setattr(store, "down", True))
    script.act()
    script.act(lambda: setattr(store, "heads_left", None), lambda: setattr(store, "down", False))
    assert sorted(line.text for line in script.play()) == ["a", "b", "c", "d"]
    assert store.refused > 2


def test_follow_does_not_end_before_it_has_read_all() -> None:
    store = PlainStore()
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            store.heads_left = None

    put_log(store, NODE, (1, b"all of it\n"))
    store.heads_left = 0
    seen = [line.text for line in follow(store, JOB, lambda: ([NODE], True), 0.01, sleep=sleep)]
    assert seen == ["all of it"]
    assert naps == sorted(naps) and naps[-1] > naps[0], "a store that is away is asked less often"


def test_a_chunk_that_grows_while_the_next_one_is_looked_for() -> None:
    store = PlainStore()
    put_log(store, NODE, (1, b"one\n"))

    def grow() -> None:
        put_log(store, NODE, (2, b"two\n"))
        put_log(store, NODE, (3, b"three\n"), chunk=1)

    store.before_head[keys.log_chunk(folder(NODE), 1)] = grow
    assert [line.text for line in read_lines(store, JOB, [NODE])] == ["one", "two", "three"]


def test_a_far_store_is_asked_less_often_and_one_that_is_away_ever_more_seldom() -> None:
    def pauses(store: PlainStore, rounds: int) -> list[float]:
        slept: list[float] = []

        def watch() -> tuple[Sequence[NodeLog], bool]:
            if store.down:
                raise StoreUnavailable("down")
            return [NODE], len(slept) >= rounds

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            assert len(slept) < 100, "it follows for ever"
            store.down = store.down and len(slept) < rounds

        list(follow(store, JOB, watch, sleep=sleep))
        return slept

    near, far, away = PlainStore(), PlainStore(is_local=False), PlainStore()
    assert 0 < pauses(near, 1)[0] < 1 < pauses(far, 1)[0] < 5
    away.down = True
    slept = pauses(away, 12)
    assert slept[:3] == [pytest.approx(slept[0] * 2**n) for n in range(3)]
    assert slept[-1] == slept[-2] == 10.0, "and no more seldom than that"


def test_a_node_that_cannot_be_read_is_a_failure_until_it_can() -> None:
    store = PlainStore()
    put_log(store, NODE, (1, b"one\n"))
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert len(slept) < 100, "it follows for ever"
        store.down = len(slept) < 3

    store.down = True
    lines = follow(store, JOB, lambda: ([NODE], len(slept) > 3), 1.0, sleep=sleep)
    assert [line.text for line in lines] == ["one"]
    assert slept == [2.0, 4.0, 8.0, 1.0]


def test_follow_gives_up_when_it_is_refused() -> None:
    store = PlainStore()
    put_log(store, NODE, (1, b"a\n"))
    store.denied = True
    with pytest.raises(StoreDenied):
        list(follow(store, JOB, lambda: ([NODE], False), 0.01, sleep=lambda _s: None))


def test_follow_from_the_tail() -> None:
    store = PlainStore()
    for chunk in range(20):
        put_log(store, NODE, (chunk, b"%d\n" % chunk), chunk=chunk)
    script = Script(store)
    script.nodes.append(NODE)
    script.act(script.prints(NODE, 30, b"new\n", chunk=20))
    assert [line.text for line in script.play(tail=2)] == ["18", "19", "new"]
