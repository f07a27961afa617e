"""Rows of numbered chunks: when one is final, which version counts, and what of a torn one can be read."""

from __future__ import annotations

import pytest
from plain_store import PlainStore

from stoker.model.errors import StoreError
from stoker.model.node_facts import Usage
from stoker.store.log_chunks import (
    HEADER_BYTES,
    MAX_CHUNK_BYTES,
    MAX_READ_BYTES,
    SEAL_BYTES,
    ChunkWriter,
    MetricsMark,
    Sample,
    Segment,
    UsageSample,
    decode_lines,
    encode_line,
    encode_segment,
    find_chunk,
    last_chunk,
    list_chunks,
    parse_segments,
)


def name(n: int, size: int) -> str:
    return f"row/{n:08d}/{size}"


def test_a_chunk_is_final_once_it_is_large_enough_and_not_before() -> None:
    store = PlainStore()
    writer = ChunkWriter(store, name)
    assert writer.room == MAX_CHUNK_BYTES
    writer.push()
    assert store.puts == [], "there is nothing to send"
    writer.add(b"x" * (SEAL_BYTES - 1))
    assert writer.pending and writer.room == MAX_CHUNK_BYTES - SEAL_BYTES + 1
    writer.push()
    assert not writer.pending and set(store.objects) == {name(0, SEAL_BYTES - 1)}
    writer.push()
    assert len(store.puts) == 1, "what was sent is not sent again"
    writer.add(b"y")
    writer.push()
    assert set(store.objects) == {name(0, SEAL_BYTES)} and writer.room == MAX_CHUNK_BYTES
    writer.add(b"z")
    writer.push()
    assert set(store.objects) == {name(0, SEAL_BYTES), name(1, 1)}, "a final chunk is not touched again"


def test_of_a_chunk_the_largest_version_counts_and_other_names_do_not() -> None:
    store = PlainStore()
    for key, data in {
        name(2, 1): b"c",
        name(0, 3): b"aaa",
        name(0, 2): b"aa",
        name(0, 10): b"a" * 10,
        "row/0000001/5": b"short name",
        "row/00000003/x": b"no size",
        "row/00000003/1/2": b"deeper",
    }.items():
        store.objects[key] = data
    assert [(n, meta.key) for n, meta in list_chunks(store, "row/")] == [(0, name(0, 10)), (2, name(2, 1))]
    found = find_chunk(store, "row/", 0)
    assert found is not None and found.key == name(0, 10)
    assert find_chunk(store, "row/", 1) is None
    assert last_chunk(store, "row/") == b"c"
    assert last_chunk(store, "none/") == b""


def test_a_last_chunk_that_no_agent_wrote_is_refused() -> None:
    store = PlainStore()
    store.objects[name(0, 1)] = b"x" * MAX_READ_BYTES
    assert len(last_chunk(store, "row/")) == MAX_READ_BYTES
    store.objects[name(0, 2)] = b"x" * (MAX_READ_BYTES + 1)
    with pytest.raises(StoreError):
        last_chunk(store, "row/")


def test_a_segment_is_as_large_as_a_chunk_and_no_larger() -> None:
    assert parse_segments(encode_segment(Segment(1, 0, b"x" * MAX_CHUNK_BYTES))).segments[0].end == MAX_CHUNK_BYTES
    assert parse_segments(b"@1 0 %d\n" % (MAX_CHUNK_BYTES + 1)).broken
    awaited = parse_segments(b"@1 0 %d\nx" % MAX_CHUNK_BYTES)
    assert not awaited.broken and awaited.rest.endswith(b"\nx")


@pytest.mark.parametrize(
    ("rest", "torn"),
    [
        (b"@12", True),
        (b"@" + b"1" * (HEADER_BYTES - 2), True),
        (b"@" + b"1" * (HEADER_BYTES - 1), False),
        (b"12", False),
        (b"@1\n", False),
    ],
)
def test_a_header_that_may_go_on_is_torn_and_any_other_is_broken(rest: bytes, torn: bool) -> None:
    whole = Segment(5, 7, b"abc")
    found = parse_segments(encode_segment(whole) + rest)
    assert found.segments == (whole,) and found.broken is not torn
    assert found.rest == (rest if torn else b"")


def test_lines_that_make_no_sense_are_left_out() -> None:
    lines = [
        Sample(1.5, 3, {"loss": 0.5}),
        UsageSample(2.0, Usage()),
        MetricsMark(10, 1, 3),
    ]
    data = b"".join(map(encode_line, lines[:1])) + b"junk\n\n{}\n" + b"".join(map(encode_line, lines[1:])) + b'{"at":'
    assert list(decode_lines(data)) == lines
