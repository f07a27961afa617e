"""What a node may write beside a job's log, however absurd: nobody stumbles over it, and no job is blocked by it."""

from __future__ import annotations

import json
import os
import unicodedata
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stoker import client
from stoker.cli import cli
from stoker.cli.safe_terminal import SafeTerminal, guard
from stoker.core.attempt_evidence import evidence_of
from stoker.core.attempt_verdict import closed_entry, judge
from stoker.core.decide import decide_job
from stoker.core.governor_settings import DEFAULT
from stoker.core.snapshot import JobSnapshot
from stoker.jobfile import Job
from stoker.model import codec, keys
from stoker.model.errors import CodecError, StoreDenied, StoreError, StoreUnavailable
from stoker.model.job_state import fold
from stoker.model.log_entries import Claimed, Entry, Event, Launched, NodeRef, Record, Submitted, Warned
from stoker.model.node_facts import Exit, Heartbeat, NoticeFact
from stoker.model.observed import Known, Unknown
from stoker.model.submission import Submission
from stoker.read.format import duration
from stoker.read.safe_text import harmless, legible
from stoker.store import job_log, node_facts
from stoker.store.base import Store, open_store
from stoker.store.log_chunks import Sample, decode_lines, encode_line
from stoker.testing.memory_store import Fault, MemoryStore
from tests.support.sim_data import CAPABILITIES, SPOT_A, at, make_spec

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
INSTANCE = "machine-1"
NODE = keys.node("job-1", 2, 0, keys.boot(INSTANCE, 0))


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("STOKER_STORE", raising=False)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def left(**fields: Any) -> Exit:
    return Exit(outcome=fields.pop("outcome", "failed"), why=fields.pop("why", "finished"), at=NOW, **fields)


def beat(**fields: Any) -> Heartbeat:
    return Heartbeat(beat=1, phase="training", at=NOW, interval_s=fields.pop("interval_s", 2.0), **fields)


def observed(store: Store) -> JobSnapshot:
    """A job of one node whose facts are what the store holds."""
    events: list[Event] = [
        Submitted(spec_digest="0" * 64, submitter="jane"),
        Claimed(offering=SPOT_A, nodes=1),
        Launched(claim=2, nodes=(NodeRef(0, INSTANCE),)),
    ]
    state = fold("job-1", [Entry(seq, at(seq), "", event) for seq, event in enumerate(events, 1)])
    assert state is not None
    read = {2: node_facts.read_claim(store, "job-1", state.claims[0])}
    return JobSnapshot(state, make_spec(), CAPABILITIES, read, Known(()), Known({INSTANCE: "gone"}))


# ── Decoding ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nesting_of_any_depth_is_a_codec_error() -> None:
    # Each depth: one that can be parsed, yet not decoded or described, lies somewhere near the end.
    for depth in range(700, 1100):
        for name in ("outcome", "checkpoint", "tail"):
            tree = b"[" * depth + b"]" * depth
            with pytest.raises(CodecError):
                codec.loads(
                    Exit,
                    b'{"outcome":"failed","why":"stop","at":"2026-01-01T00:00:00Z","%s":%s}' % (name.encode(), tree),
                )


@pytest.mark.parametrize("kind", ["[]", "{}", "5", "null", "true", '"?"'])
def test_a_kind_that_is_no_text_is_left_out(kind: str) -> None:
    lines = b'{"kind":%s,"at":1}\n' % kind.encode() + encode_line(Sample(at=1.0, step=3))
    assert list(decode_lines(lines)) == [Sample(at=1.0, step=3)]


def test_numbers_without_end_are_refused() -> None:
    text = codec.dumps(left(step=0)).replace(b'"step":0', b'"step":' + b"9" * 4000)
    with pytest.raises(CodecError):
        codec.loads(Exit, text)


# ── Facts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("heartbeat", [b"", b"{", b"[" * 5000, b"null", b"x" * (node_facts.MAX_FACT_BYTES + 1)])
def test_an_exit_counts_whatever_the_heartbeat_says(store: Store, heartbeat: bytes) -> None:
    store.put(keys.heartbeat(NODE), heartbeat)
    store.put(keys.exit_(NODE), codec.dumps(left(outcome="succeeded")))
    read = node_facts.read_node(store, "job-1", 2, 0, INSTANCE)
    assert isinstance(read.exit, Known) and read.exit.value is not None
    assert read.exit.value.value.outcome == "succeeded"


@pytest.mark.parametrize(
    ("error", "told"),
    [(StoreUnavailable("away"), Unknown("away")), (StoreDenied("no"), Unknown("no")), (StoreError("big"), Known(None))],
)
def test_a_boot_whose_output_cannot_be_read_is_unknown_and_one_without_end_says_nothing(
    error: StoreError, told: object
) -> None:
    bucket = MemoryStore(lambda: NOW, faults=lambda _operation, _key: Fault(error=error))
    assert node_facts.read_boot(bucket, NODE) == told


def test_what_the_first_of_several_boots_said_stays_said(store: Store) -> None:
    for number in range(3):
        node = keys.node("job-1", 2, 0, keys.boot(INSTANCE, number))
        store.put(keys.heartbeat(node), codec.dumps(beat(step=number)))
        if number:
            notice = NoticeFact(hard=True, source=f"boot {number}", at=NOW, grace_s=9.0)
            store.put(keys.notice(node), codec.dumps(notice))
            store.put(keys.exit_(node), codec.dumps(left(reason=f"boot {number}")))
    found = node_facts.read_node(store, "job-1", 2, 0, INSTANCE)
    assert isinstance(found.heartbeat, Known) and found.heartbeat.value is not None
    assert isinstance(found.notice, Known) and found.notice.value is not None
    assert isinstance(found.exit, Known) and found.exit.value is not None
    assert found.heartbeat.value.value.step == 2, "of heartbeats the newest counts"
    assert (found.notice.value.value.source, found.exit.value.value.reason) == ("boot 1", "boot 1")


def test_a_senseless_heartbeat_does_not_hide_the_one_before(store: Store) -> None:
    store.put(keys.heartbeat(NODE), codec.dumps(beat(step=7)))
    store.put(keys.heartbeat(keys.node("job-1", 2, 0, keys.boot(INSTANCE, 1))), b"garbage")
    read = node_facts.read_node(store, "job-1", 2, 0, INSTANCE)
    assert isinstance(read.heartbeat, Known) and read.heartbeat.value is not None
    assert read.heartbeat.value.value.step == 7


HOSTILE = [
    left(reason="\x01" * 40_000),
    left(tail=("\x01" * 40_000,)),
    left(tail=tuple("語" * 100 for _ in range(800))),
    left(restored_from="k" * 200_000),
    left(outcome="infrastructure", why="agent", reason="r" * 200_000),
    left(evidence=tuple("e" * 100 for _ in range(2000))),
]


@pytest.mark.parametrize("fact", HOSTILE, ids=range(len(HOSTILE)))
def test_no_exit_makes_an_entry_that_cannot_be_read(store: Store, fact: Exit) -> None:
    store.put(keys.exit_(NODE), codec.dumps(fact))
    ref = {"key": "9" * 200_000, "name": "n"}
    store.put(keys.heartbeat(NODE), codec.dumps(beat())[:-1] + b',"checkpoint":' + json.dumps(ref).encode() + b"}")
    job = observed(store)
    evidence = evidence_of(job, job.state.claims[0], DEFAULT)
    closed = closed_entry(evidence, judge(evidence))
    assert decide_job(job, DEFAULT, at(100)).actions
    submitted = Record(token="t", by="t", reason="", event=Submitted(spec_digest="0" * 64, submitter="jane"))
    assert job_log.append(store, "job-1", 1, submitted)
    assert job_log.append(store, "job-1", 2, Record(token="t", by="t", reason=fact.reason, event=closed))
    state = job_log.read(store, "job-1")
    assert state is not None and state.seq == 2


def test_an_entry_that_nobody_could_read_is_not_written(store: Store) -> None:
    record = Record(token="t", by="t", reason="", event=Warned(code="c" * job_log.MAX_ENTRY_BYTES))
    with pytest.raises(StoreError, match="too large"):
        job_log.append(store, "job-1", 1, record)
    assert store.head(keys.log_entry("job-1", 1)) is None


def test_what_an_agent_writes_comes_back_as_it_is(store: Store) -> None:
    fact = left(reason="exit code 1", tail=tuple(f"line {n}" for n in range(20)), trained_s=12.5, restored_from="k")
    store.put(keys.exit_(NODE), codec.dumps(fact))
    read = node_facts.read_fact(store, keys.exit_(NODE), Exit)
    assert isinstance(read, Known) and read.value is not None and read.value.value == fact


# ── Showing it ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seconds", [float("inf"), float("-inf"), float("nan"), 1e300, -1.0])
def test_every_number_can_be_shown_as_a_duration(seconds: float) -> None:
    assert duration(seconds)


STEERS = [
    "\b",
    "\x7f",
    "\x85",
    "\x9b",
    "\r",
    "\v",
    "\u00ad",
    "\u061c",
    "\u180e",
    "\u200b",
    "\u200e",
    "\u200f",
    "\u2028",
    "\u2029",
    *map(chr, range(0x202A, 0x202F)),
    "\u2060",
    *map(chr, range(0x2066, 0x206A)),
    "\u3164",
    "\ufeff",
    "\ufff9",
    "\ud800",
    "\U000e0041",
    "\x1b]0;title\x07",
    "\x1b]52;c;Zm9v\x1b\\",
    "\x1b]8;;https://example.org\x1b\\",
    "\x1b[2J",
    "\x1b[J",
    "\x1b[H",
    "\x1b[5;1H",
    "\x1b[5;1f",
    *(f"\x1b[3{letter}" for letter in "ABEFdILMPSTXZr@hlstu"),
    "\x1b[A",
    "\x1b[1;2r",
    "\x1b[?1049h",
    "\x1b[?47h",
    "\x1b7",
    "\x1b8",
    "\x1bM",
    "\x1bD",
    "\x84",
    "\x8d",
    "\x1b[0;1G\x1b[1;1C",
    "\x1b[6n",
    "\x1bc",
    "\x07",
    "\x1bP$qm\x1b\\",
]


@pytest.mark.parametrize("steer", STEERS)
def test_others_words_do_not_steer_the_terminal(steer: str) -> None:
    assert legible(f"a{steer}b") == "ab"


@pytest.mark.parametrize("steer", STEERS)
def test_log_lines_on_a_terminal_hide_nothing(steer: str) -> None:
    if steer != "\r":  # A progress bar's.
        assert harmless(f"a{steer}b") == "ab"


def test_no_invisible_character_of_unicode_is_shown() -> None:
    """Formatting characters and variants. Some count as formatting and are seen: signs of Arabic, Syriac and Kaithi."""
    seen = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD, 0x09, 0x0A, 0x0D}
    formatting = (code for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zl", "Zp", "Cs"))
    hidden = [*(code for code in formatting if code not in seen), *range(0xFE00, 0xFE0E), *range(0xE0100, 0xE01F0)]
    assert [hex(code) for code in hidden if harmless(chr(code))] == []
    assert harmless("❤️ 👍🏽") == "❤️ 👍🏽"


@pytest.mark.parametrize("mark", ["\u0301", "\u0489", "\u20dd", "\U0001e000"])
@pytest.mark.parametrize("between", ["", "\x1b[m", "\x1b[31m", "\u200b", "\x1b]8;;x\x07"])
def test_marks_on_one_character_do_not_cover_the_lines_around(mark: str, between: str) -> None:
    flood = "a" + (mark + between) * 300 + "b"
    for shown in (harmless(flood), legible(flood)):
        assert shown.count(mark) == 5
        assert shown.startswith("a") and "b" in shown
    words = "שָׁלוֹם e\u0323\u0302 བསྒྲུབས สิ้น"
    assert harmless(words) == words, "scripts keep theirs"


def test_others_words_are_one_line() -> None:
    assert legible(("failed\n[stoker] succeeded",)) == ("failed [stoker] succeeded",)


def read_until(terminal: int, end: str) -> str:
    """Read up to this end: one read may return a part of what was written."""
    shown = b""
    while not shown.endswith(end.encode()):
        shown += os.read(terminal, 1000)
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("steer", [each for each in STEERS if each != "\r"])
def test_no_command_can_forget(steer: str) -> None:
    """Whatever is written to a terminal, also by a command that shows text as it is."""
    terminal, other = os.openpty()
    stream = guard(os.fdopen(other, "w", encoding="utf-8"))
    stream.write(f"a{steer}b \x1b[31mred\x1b[0m\n")
    stream.flush()
    assert read_until(terminal, "\n") == "ab \x1b[31mred\x1b[0m\n"
    stream.write(f"a{chr(0x301) * 400}b\n")
    stream.flush()
    assert read_until(terminal, "\n") == f"a{chr(0x301) * 5}b\n"
    stream.close()
    os.close(terminal)


def test_what_is_no_terminal_gets_every_byte(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        assert guard(file) is file


def test_log_lines_keep_their_colours_and_nothing_else() -> None:
    assert harmless("\x1b[31mred\x1b[0m \x1b[1A\x1b[Kbar\r") == "\x1b[31mred\x1b[0m \x1b[Kbar\r"
    within = "\x1b[3C\x1b[2D\x1b[G\x1b[10G\x1b[K\x1b[2K\x1b[38;5;8ma\x1b[38:2::1:2:3mb\x1b[m"
    assert harmless(within) == within
    assert harmless("a\x1b]52;c;Zm9v\x07b\x1b[6nc\x1b[cd") == "abcd"


@pytest.mark.parametrize("colour", ["\x1b[8m", "\x1b[30;40m", "\x1b[31m", "\x1b[0;1m"])
def test_colours_of_a_line_end_with_it(colour: str) -> None:
    assert harmless(f"a{colour}b") == f"a{colour}b\x1b[0m"
    assert harmless(f"a{colour}b\x1b[0m") == f"a{colour}b\x1b[0m"


def test_only_a_page_of_stoker_itself_is_drawn_from_the_top() -> None:
    terminal, other = os.openpty()
    screen = SafeTerminal.of(guard(os.fdopen(other, "w", encoding="utf-8")))
    screen.draw_page(["\x1b[31mone\x1b[0m", "t\x1b[2Jw\x1b[Ho"])
    assert read_until(terminal, "\x1b[J") == "\x1b[H\x1b[31mone\x1b[0m\x1b[K\ntwo\x1b[K\n\x1b[J"
    screen.close()
    os.close(terminal)


def submitted_job(store: Store, folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text("")
    return client.submit(Job(run="python train.py", code=str(folder)), store=store)


def append(store: Store, job: str, *events: Any) -> None:
    for event in events:
        state = job_log.read(store, job)
        assert state is not None
        assert job_log.append(
            store, job, state.seq + 1, Record(token="t", by="t", reason="\x1b]0;owned\x07", event=event)
        )


def test_every_command_survives_an_absurd_node(store: Store, tmp_path: Path) -> None:
    job = submitted_job(store, tmp_path / "code")
    append(store, job, Claimed(offering=SPOT_A, nodes=1), Launched(claim=2, nodes=(NodeRef(0, INSTANCE),)))
    node = keys.node(job, 2, 0, keys.boot(INSTANCE, 0))
    absurd = codec.dump(beat())
    absurd |= {"trained_s": "inf", "step": 10**30, "metrics": {"\x1b]0;owned\x07": "nan"}, "warnings": ["\x1b[2J"] * 9}
    absurd |= {"training_since": "2026-01-01T00:00:00Z", "checkpoint_files": 10**30, "interval_s": "nan"}
    store.put(keys.heartbeat(node), json.dumps(absurd).encode())
    store.put(
        f"{node}/metrics/00000000/0",
        b'{"kind":[]}\n{"kind":"sample","at":1,"step":%d,"values":{"a\\u001b[2J":1}}\n' % 10**30,
    )
    store.put(f"{node}/log/00000000/0", b"@1 1 9999999\nnot so long")
    store.put(f"{keys.checkpoints(job)}00000002/000001-x.json", b"[" * 3000)
    for command in (["ps"], ["show", job], ["explain", job], ["compare", job], ["checkpoints", job], ["logs", job]):
        result = CliRunner().invoke(cli, ["--store", store.url, *command], color=True)
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exception)
        assert "owned" not in result.output and "\x1b[2J" not in result.output, command


def test_a_job_that_no_governor_could_read_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    with pytest.raises(Exception, match="cannot be stored"):
        client.submit(Job(run="python train.py", code=str(tmp_path / "code"), params={"n": 10**400}), store=store)
    assert not list(store.list("jobs/")) and not list(store.list("active/"))


def test_a_submission_says_where_it_runs(store: Store, tmp_path: Path) -> None:
    job = submitted_job(store, tmp_path / "code")
    found = store.get(keys.spec(job))
    assert found is not None and codec.loads(Submission, found.data).place
