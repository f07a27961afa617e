"""Frozen data to JSON and back, with nothing coerced and nothing that can bring a reader down."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.model import codec
from stoker.model.errors import CodecError
from stoker.model.log_entries import Claimed, Ended, Launched, Record
from stoker.model.node_facts import Exit, Heartbeat, NoticeFact
from stoker.model.observed import Known
from stoker.store import node_facts
from stoker.store.job_index import IndexRecord
from stoker.testing.memory_store import MemoryStore
from tests.support.sim_data import EPOCH, SPOT_A, at, make_exit, make_state, nodes

NOTICE = {"hard": True, "source": "x", "at": "2026-01-01T00:00:00Z", "grace_s": 120}


def load_notice(**changes: object) -> NoticeFact:
    return codec.loads(NoticeFact, json.dumps({**NOTICE, **changes}).encode())


def test_records_come_back_as_they_were() -> None:
    for event in (Claimed(SPOT_A, 2, successor_of=4), Launched(2, nodes(2)), Ended("failed", "rule", exit_code=1)):
        record = Record(token="t", by="me", reason="because ✓", event=event)
        assert codec.loads(Record, codec.dumps(record)) == record


def test_a_whole_state_comes_back_as_it_was() -> None:
    state = make_state(Claimed(SPOT_A, 1), Launched(2, nodes(2)))
    assert codec.loads(type(state), codec.dumps(state)) == state
    assert IndexRecord.__dataclass_fields__.keys() == {"state", "summary"}


def test_equal_values_have_equal_bytes() -> None:
    assert codec.dumps({"b": 1, "a": 2}) == codec.dumps({"a": 2, "b": 1}) == b'{"a":2,"b":1}'


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_diverged_loss_reaches_the_reader(number: float) -> None:
    left = make_exit("failed", metrics={"loss": number})
    assert repr(codec.loads(Exit, codec.dumps(left)).metrics["loss"]) == repr(number)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"grace_s": "120"}, "grace_s"),
        ({"grace_s": True}, "grace_s"),
        ({"hard": 1}, "hard"),
        ({"source": 5}, "source"),
        ({"at": "yesterday"}, "at"),
        ({"at": "2026-01-01T00:00:00"}, "at"),
        ({"at": "0001-01-01T00:00:00+10:00"}, "at"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, object], path: str) -> None:
    with pytest.raises(CodecError) as found:
        load_notice(**changes)
    assert found.value.path == path


def test_a_missing_field_is_named_and_a_new_one_is_ignored() -> None:
    with pytest.raises(CodecError, match="grace_s: is missing"):
        codec.loads(NoticeFact, b'{"hard":true,"source":"x","at":"2026-01-01T00:00:00Z"}')
    assert load_notice(future={"a": 1}).grace_s == 120.0


def test_times_are_one_moment_whatever_their_zone() -> None:
    elsewhere = EPOCH.astimezone(timezone(timedelta(hours=5)))
    assert load_notice(at=elsewhere.isoformat()).at == EPOCH
    assert codec.dump(elsewhere) == codec.dump(EPOCH) == "2026-01-01T00:00:00Z"


def test_half_a_character_can_be_written_and_read() -> None:
    """A script's last line need not be UTF-8; the entry that quotes it must still be written."""
    assert json.loads(codec.dumps({"tail": "x\ud800"})) == {"tail": "x\ud800"}
    told = load_notice(source="x\ud800y")
    assert told.source == "x?y"
    told.source.encode()


def test_an_unknown_kind_is_refused() -> None:
    tree = {"token": "t", "by": "me", "reason": "", "event": {"kind": "sung"}}
    with pytest.raises(CodecError, match="unknown kind"):
        codec.load(Record, tree)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["outcome", "why", "at", "trained_s", "step", "tail", "checkpoint", "metrics", "phase", "beat"]
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(FIELDS, JSON | st.just("failed") | st.just("2026-01-01T00:00:00Z")),
    st.sampled_from([Exit, Heartbeat]),
)
def test_whatever_a_node_writes_is_a_fact_or_a_codec_error(tree: dict[str, object], cls: type) -> None:
    try:
        fact = codec.loads(cls, json.dumps(tree).encode())
    except CodecError:
        return
    codec.dumps(fact)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_a_fact_or_nothing(data: bytes) -> None:
    store = MemoryStore(lambda: EPOCH)
    store.put("work/j/exit", data)
    assert node_facts.read_fact(store, "work/j/exit", Exit) == Known(None)


def test_an_exit_that_makes_no_sense_says_nothing_and_one_that_is_too_large_neither() -> None:
    """Were they unknown for good, the job could never be closed, not even by a stop."""
    store = MemoryStore(lambda: EPOCH)
    store.put("work/j/exit", b"x" * (node_facts.MAX_FACT_BYTES + 1))
    assert node_facts.read_fact(store, "work/j/exit", Exit) == Known(None)


def test_a_store_that_does_not_answer_is_not_an_absent_fact() -> None:
    store = MemoryStore(lambda: EPOCH)
    store.outage(True)
    assert not isinstance(node_facts.read_fact(store, "work/j/exit", Exit), Known)


def test_dates_are_aware() -> None:
    assert isinstance(at(0), datetime) and at(0).tzinfo is not None


# ── Text of others ────────────────────────────────────────────────────────────────────────────────────────────────────

DEEP = b"[" * 100_000 + b"]" * 100_000
BAD_TEXTS = {
    "empty": b"",
    "cut off": b'{"a":',
    "deep": DEEP,
    "deep and cut off": b"[" * 200_000,
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "as deep as Python allows": b"[" * 400 + b"]" * 400,
    "one level too deep": b"[" * (codec.MAX_DEPTH + 1) + b"]" * (codec.MAX_DEPTH + 1),
    "many digits": b"9" * 5_000,
    "digits": b"1" * 201,
    "infinite": b"1e999",
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "no UTF-8": b'"\xff\xfe"',
    "half of a character": b'"\xed\xa0\x80"',
    "two values": b"{} {}",
    "NUL": b"\0" * 100,
}


@pytest.mark.parametrize("text", BAD_TEXTS.values(), ids=BAD_TEXTS)
def test_text_that_is_no_json_raises_one_error_alone(text: bytes) -> None:
    for read in (codec.parse, codec.parse_object):
        with pytest.raises(CodecError, match=r"^jobs/x: "):
            read(text, where="jobs/x")
    with pytest.raises(CodecError, match=r"^jobs/x: "):
        codec.loads(Exit, text, where="jobs/x")


def test_text_of_others_is_parsed_as_it_stands() -> None:
    tree = {"a": [1, 2.5, "é🙂", None, True], "deep": json.loads("[" * 60 + "]" * 60), "n": 10**199}
    assert codec.parse(json.dumps(tree).encode()) == codec.parse(json.dumps(tree, ensure_ascii=False)) == tree
    assert codec.parse(b"\xef\xbb\xbf{}") == {}
    assert codec.parse(b'"' + b"[" * 1000 + b'"') == "[" * 1000
    assert codec.parse(b"[[],[],[]]" * 1) == [[], [], []]
    flat = b"[" + b",".join([b"[]"] * 1000) + b"]"
    assert codec.parse(flat) == [[]] * 1000
    assert str(codec.parse(b"[NaN,Infinity,1e999]", nonfinite=True)) == "[nan, inf, inf]"
    assert codec.parse(b'"\\udce9"') == "\udce9", "a name that is not UTF-8 comes back"


@pytest.mark.parametrize("text", [b"[]", b"null", b"5", b'"a"'])
def test_another_value_is_no_object(text: bytes) -> None:
    with pytest.raises(CodecError, match="expected a mapping"):
        codec.parse_object(text)
