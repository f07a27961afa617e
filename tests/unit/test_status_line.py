"""The line below a log that is followed: what it tells, what of it fits, and that it does not lag behind the log."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest

from stoker.core.governor_settings import DEFAULT
from stoker.core.launch_history import next_try
from stoker.core.summary import summarize
from stoker.model import codec, keys
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, Record, Submitted
from stoker.model.node_facts import CheckpointRef, Heartbeat
from stoker.model.offerings import Offering
from stoker.model.submission import Submission
from stoker.read import follow as follow_module
from stoker.read.follow import Follower
from stoker.read.format import width
from stoker.read.logs import LogLine
from stoker.read.screens import TerminalScreen
from stoker.read.status_line import Status, StatusPart, heartbeat_parts, no_capacity_parts, status_of
from stoker.store import job_index, job_log
from stoker.testing.memory_store import MemoryStore
from tests.support.sim_data import JOB, at, make_beat, make_spec, make_state, nodes

NOW = datetime(2026, 11, 16, tzinfo=timezone.utc)
BEAT = Heartbeat(
    beat=1,
    phase="training",
    at=NOW,
    interval_s=1,
    trained_s=9.0,
    step=413,
    metrics={"loss": 0.123456, "accuracy": 0.51234, "lr": 0.001},
)
GCE = Offering("gce", "n1-standard-4", "us-central1-a", True, price=0.05)
CLAIM = Claimed(GCE, nodes=1)


def closed(claim: int, outcome: str, at_s: float) -> tuple[Event, float]:
    return Closed(claim, outcome, "rule"), at_s  # type: ignore[arg-type]


def texts(parts: list[StatusPart]) -> list[str]:
    return [part.text for part in parts]


def test_the_status_tells_step_metrics_and_safety() -> None:
    beat = replace(BEAT, metrics={"loss": 0.123456})
    waiting = Heartbeat(beat=1, phase="waiting", at=NOW, interval_s=1)
    assert texts(heartbeat_parts([beat, waiting], NOW)) == ["step 413", "loss 0.1235", "no checkpoint yet"]
    resumed = replace(beat, restored_from="00000002/000003-step-400")
    assert texts(heartbeat_parts([resumed], NOW))[-1] == "from step-400"
    saved = CheckpointRef(key="00000004/000001-step-410", name="step-410", committed_at=NOW - timedelta(seconds=3))
    assert texts(heartbeat_parts([replace(resumed, checkpoint=saved)], NOW))[-1] == "checkpoint step-410 3.0 s ago"


def test_what_does_not_fit_is_left_out_whole_and_step_and_cost_stay() -> None:
    saved = CheckpointRef(key="00000004/000001-step-410", name="step-410", committed_at=NOW - timedelta(seconds=3))
    beats = heartbeat_parts([replace(BEAT, checkpoint=saved)], NOW)
    status = Status(
        (StatusPart("first-7f3k", 1), StatusPart("running"), StatusPart("attempt 2", 3), *beats, StatusPart("$0.0123"))
    )
    assert status.fitted(200) == status.text
    whole = set(texts(list(status.parts)))
    for room in range(38, 140):
        line = status.fitted(room)
        assert len(line) <= room and set(line.split(" · ")) <= whole, line
        assert {"running", "step 413", "$0.0123"} <= set(line.split(" · ")), line
    assert status.fitted(79) == "first-7f3k · running · attempt 2 · step 413 · loss 0.1235 · $0.0123"
    assert status.fitted(10) == "running · "


# ── Everything is dry ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_waits_for_capacity_says_until_when() -> None:
    dry = make_state(CLAIM, closed(2, "dry", 100))
    assert next_try(dry, DEFAULT) == at(102) and next_try(dry, DEFAULT, 60.0) == at(160)
    assert texts(no_capacity_parts(dry, at(110))) == ["no machine available", "next try in 50 s"]
    assert texts(no_capacity_parts(dry, at(161))) == ["no machine available", "tries again"]
    assert no_capacity_parts(dry, at(101)) == [], "the next offering is tried in a moment"
    assert no_capacity_parts(make_state(), at(110)) == []
    assert no_capacity_parts(make_state(CLAIM, closed(2, "refused", 100)), at(110)) == []
    assert next_try(make_state(CLAIM, closed(2, "dry", 100), CLAIM), DEFAULT) is None
    # Of a provider that is not installed here nothing is known.
    strange = make_state(Claimed(replace(GCE, provider="mars"), nodes=1), closed(2, "dry", 100))
    assert texts(no_capacity_parts(strange, at(110))) == ["no machine available", "tries again"]


def test_so_the_line_tells_it() -> None:
    state = make_state(CLAIM, closed(2, "dry", 100))
    status = status_of(MemoryStore(lambda: NOW), JOB, state)
    assert status.text == f"{JOB} · queued · no machine available · tries again" and not status.running


def test_a_job_that_waits_says_what_for() -> None:
    store = MemoryStore(lambda: NOW)
    state = make_state()
    waits = "no room yet: 1 of at most 1 node is in use by first-7f3k"
    summary = summarize(state, Submission(JOB, make_spec(), "jane"), {}, NOW, waits)
    job_index.write_index(store, job_index.IndexRecord(state, summary))
    status = status_of(store, JOB, state)
    assert (status.text, status.waiting) == (f"{JOB} · queued · {waits}", waits)


# ── Not behind the log ────────────────────────────────────────────────────────────────────────────────────────────────


class Far(MemoryStore):
    @property
    def is_local(self) -> bool:
        return False


def test_what_the_log_shows_the_line_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far away it is looked at every few seconds; a launch, and a first line, are reasons to look at once."""
    store = Far(lambda: NOW)
    seen: list[str] = []
    clock_s = [1000.0]
    monkeypatch.setattr("stoker.read.follow.time.monotonic", lambda: clock_s[0])

    def append(event: Event) -> None:
        state = job_log.read(store, JOB)
        record = Record(token=job_log.new_token(), by="t", reason="because", event=event)
        assert job_log.append(store, JOB, state.seq + 1 if state else 1, record)

    def beat() -> None:
        key = keys.node(JOB, 2, 0, keys.boot("i-2-0", 0))
        store.put(keys.heartbeat(key), codec.dumps(make_beat(0.0, step=412).value))

    append(Submitted(spec_digest="", submitter="jane"))
    append(CLAIM)
    line = LogLine(attempt=1, rank=0, at=0.0, text="step 412", end="\n")

    def follow(_store: Any, _job: str, watch: Any, *, sleep: Any, **_: Any) -> Any:
        for change in (None, lambda: append(Launched(2, nodes(2))), beat):
            if change is not None:
                change()
            watch()
            if change is beat:
                yield line
            clock_s[0] += 1.0
            sleep(0.0)
        append(Closed(claim=2, outcome="succeeded", rule="finished"))
        append(Ended(outcome="succeeded", rule="finished"))

    monkeypatch.setattr(follow_module, "follow", follow)
    screen = TerminalScreen(StringIO(), prefix=False, live=True)
    monkeypatch.setattr(screen, "status", seen.append)
    Follower(store, JOB, screen, events=False).run(sleep=lambda _: None)
    assert [" · ".join(text.split(" · ")[1:3]) for text in seen] == [
        "launching",
        "launching · attempt 1",
        "running · attempt 1",
    ]


def test_a_progress_bar_leaves_room_for_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    screen = TerminalScreen(StringIO(), prefix=False, live=True)
    assert screen.room == 79
    screen.line(LogLine(attempt=1, rank=0, at=0.0, text="#" * 20, end="\r"))
    assert screen.room == 56
    screen.line(LogLine(attempt=1, rank=0, at=0.0, text="#" * 200, end="\r"))
    assert screen.room == 40


# ── Only where it is shown ────────────────────────────────────────────────────────────────────────────────────────────


def test_wide_characters_do_not_push_the_status_into_another_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs into another line is not erased with the next status."""
    monkeypatch.setenv("COLUMNS", "61")
    screen = TerminalScreen(StringIO(), prefix=False, live=True)
    screen.line(LogLine(attempt=1, rank=0, at=0.0, text="学習 🚀" * 20, end="\r"))
    assert screen.room == 40
    written = StringIO()
    monkeypatch.setattr("sys.stderr", written)
    screen.status(Status((StatusPart("訓練" * 40),)).fitted(screen.room))
    assert width(written.getvalue().removeprefix("\r")) <= 60
    assert width("❤️e\u0323\u0302") == 2


@pytest.mark.parametrize("live", [True, False])
def test_a_status_is_read_only_where_one_is_shown(live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output to files and pipes, and with --json on no terminal, has no status: facts and metrics are not read then."""
    store = MemoryStore(lambda: NOW)
    asked: list[str] = []
    monkeypatch.setattr(follow_module, "status_of", lambda *_: asked.append("status") or Status())

    def append(event: Event) -> None:
        state = job_log.read(store, JOB)
        record = Record(token=job_log.new_token(), by="t", reason="because", event=event)
        assert job_log.append(store, JOB, state.seq + 1 if state else 1, record)

    def end(_pause_s: float) -> None:
        append(Closed(claim=2, outcome="succeeded", rule="finished"))
        append(Ended(outcome="succeeded", rule="finished"))

    for event in (Submitted(spec_digest="", submitter="jane"), CLAIM):
        append(event)
    Follower(store, JOB, TerminalScreen(StringIO(), prefix=False, live=live), events=False).run(sleep=end)
    assert bool(asked) == live


@pytest.mark.parametrize(("is_local", "read"), [(True, 21), (False, 3)])
def test_a_status_far_away_is_read_less_often(is_local: bool, read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within ten seconds without news: every half second from a folder, every five seconds from a bucket."""
    store = MemoryStore(lambda: NOW, is_local=is_local)
    asked: list[float] = []
    clock_s = [1000.0]
    monkeypatch.setattr(follow_module, "status_of", lambda *_: asked.append(clock_s[0]) or Status())
    monkeypatch.setattr("stoker.read.follow.time.monotonic", lambda: clock_s[0])
    record = Record(token=job_log.new_token(), by="t", reason="because", event=Submitted(spec_digest="", submitter="j"))
    assert job_log.append(store, JOB, 1, record)

    def follow(_store: Any, _job: str, watch: Any, *, sleep: Any, **_: Any) -> list[LogLine]:
        watch()
        for _ in range(41):
            sleep(0.25)
        return []

    def pass_time(pause_s: float) -> None:
        clock_s[0] += pause_s

    monkeypatch.setattr(follow_module, "follow", follow)
    Follower(store, JOB, TerminalScreen(StringIO(), prefix=False, live=True), events=False).run(sleep=pass_time)
    assert len(asked) == read
