"""What is told of an end comes after the last line that was printed before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.model import keys
from stoker.model.errors import StoreUnavailable
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched, NodeRef, Record, ResumeAsked, Submitted
from stoker.model.offerings import Offering
from stoker.read import follow
from stoker.read.follow import Follower
from stoker.read.logs import LogLine
from stoker.read.screens import PlainScreen
from stoker.store import job_log
from stoker.store.base import Store, open_store
from stoker.store.log_chunks import Segment, encode_segment

JOB = "job-1"
HERE = Offering(provider="local", machine="local", zone="this-computer", spot=True, price=0.0)


class Recorded(PlainScreen):
    """Keeps what is shown, in order."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def line(self, line: LogLine) -> None:
        self.shown.append(line.text)

    def event(self, text: str) -> None:
        self.shown.append(f"[stoker] {text}")

    def clear(self) -> None:
        pass

    def flush(self) -> None:
        pass


def append(store: Store, *events: Event) -> None:
    for event in events:
        seq = sum(1 for _ in job_log.entries(store, JOB)) + 1
        assert job_log.append(store, JOB, seq, Record(token=job_log.new_token(), by="t", reason="because", event=event))


def put_log(store: Store, claim: int, text: str) -> None:
    folder = keys.node(JOB, claim, 0, keys.boot(f"i-{claim}", 0))
    data, end = b"", 0
    for number, line in enumerate(text.encode().splitlines(keepends=True)):
        data += encode_segment(Segment(number, end, line))
        end += len(line)
    store.put(keys.log_chunk(folder, 0), data)


def test_ends_are_told_after_the_last_lines(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    screen = Recorded()
    append(
        store,
        Submitted(spec_digest="0" * 64, submitter="jane"),
        Claimed(offering=HERE, nodes=1),
        Launched(2, (NodeRef(0, "i-2"),)),
    )
    put_log(store, 2, "first\n")
    rounds = iter(
        [
            # Decided on in one pass, before the reader saw the last lines.
            lambda: (
                put_log(store, 2, "first\nlast of 1\n"),
                append(
                    store,
                    Closed(claim=2, outcome="reclaimed", rule="notice", restart=True),
                    Claimed(offering=HERE, nodes=1),
                ),
            ),
            lambda: append(store, Launched(5, (NodeRef(0, "i-5"),))),
            lambda: (
                put_log(store, 5, "second\nlast of 2\n"),
                append(store, Ended(outcome="succeeded", rule="finished")),
            ),
        ]
    )

    def sleep(_seconds: float) -> None:
        next(rounds)()

    Follower(store, JOB, screen).run(sleep=sleep)
    told = [line.partition(":")[0].partition(" (")[0] for line in screen.shown]
    assert told == [
        "[stoker] getting local in this-computer, spot",
        "[stoker] attempt 1 has its machine",
        "first",
        "last of 1",
        "[stoker] attempt 1 reclaimed",
        "[stoker] getting local in this-computer, spot",
        "[stoker] attempt 2 has its machine",
        "second",
        "last of 2",
        "[stoker] succeeded",
    ]


@pytest.mark.parametrize(
    ("launched", "events", "told"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_a_reason_to_wait_is_told_while_the_job_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launched: bool, events: bool, told: bool
) -> None:
    """A governor's record may be older than the launch."""
    asked: list[str] = []
    monkeypatch.setattr(follow, "waiting_reason", lambda _store, job: asked.append(job) or "no machine is free")
    store = open_store(str(tmp_path / "store"))
    screen = Recorded()
    append(store, Submitted(spec_digest="0" * 64, submitter="jane"))
    if launched:
        append(store, Claimed(offering=HERE, nodes=1), Launched(2, (NodeRef(0, "i-2"),)))
    Follower(store, JOB, screen, events=events).run(
        sleep=lambda _s: append(store, Ended(outcome="failed", rule="test"))
    )
    assert ("[stoker] waits: no machine is free" in screen.shown) is told
    assert bool(asked) is told


def test_a_job_that_is_removed_meanwhile_ends_the_following(tmp_path: Path) -> None:
    store, screen = open_store(str(tmp_path / "store")), Recorded()
    follower = Follower(store, JOB, screen)
    follower.run(sleep=lambda _s: pytest.fail("nothing is waited for"))
    assert (follower.state, screen.shown) == (None, [])


class Live(Recorded):
    """A screen with a status."""

    shows_status = True
    room = 80

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[str] = []
        self.closed: list[str] = []

    def status(self, text: str) -> None:
        self.statuses.append(text)

    def clear(self) -> None:
        self.closed.append("clear")

    def flush(self) -> None:
        self.closed.append("flush")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(5, "the terminal is gone")])
def test_the_status_is_removed_whatever_ends_the_following(tmp_path: Path, error: BaseException) -> None:
    store, screen = open_store(str(tmp_path / "store")), Live()
    append(store, Submitted(spec_digest="0" * 64, submitter="jane"))

    def interrupt(_seconds: float) -> None:
        screen.closed.clear()
        raise error

    with pytest.raises(type(error)):
        Follower(store, JOB, screen).run(sleep=interrupt)
    assert screen.closed == ["clear", "flush"]
    assert screen.statuses == [f"{JOB} · queued"]


def test_a_store_that_is_away_at_the_start_is_waited_for(tmp_path: Path) -> None:
    store, screen, failed = open_store(str(tmp_path / "store")), Live(), list[str]()
    append(store, Submitted(spec_digest="0" * 64, submitter="jane"), Ended(outcome="failed", rule="test"))

    class Away:
        url, is_local = store.url, True

        def __getattr__(self, name: str) -> object:
            if len(failed) < 2:
                failed.append(name)
                raise StoreUnavailable("no route")
            return getattr(store, name)

    Follower(Away(), JOB, screen).run(sleep=lambda _s: None)  # type: ignore[arg-type]
    assert len(failed) == 2 and screen.shown == ["[stoker] failed: because"]


def test_a_terminal_that_is_gone_does_not_hide_why_one_leaves(tmp_path: Path) -> None:
    class Gone(Live):
        def clear(self) -> None:
            raise OSError(5, "Input/output error")

    store = open_store(str(tmp_path / "store"))
    append(store, Submitted(spec_digest="0" * 64, submitter="jane"))

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Follower(store, JOB, Gone()).run(sleep=interrupt)


def test_decisions_before_a_resumption_are_not_told_again(tmp_path: Path) -> None:
    store, screen = open_store(str(tmp_path / "store")), Recorded()
    append(
        store,
        Submitted(spec_digest="0" * 64, submitter="jane"),
        Ended(outcome="failed", rule="test"),
        ResumeAsked(by="jane"),
        Claimed(offering=HERE, nodes=1),
    )
    Follower(store, JOB, screen, since=3).run(sleep=lambda _s: append(store, Ended(outcome="failed", rule="test")))
    assert screen.shown == ["[stoker] getting local in this-computer, spot (because)", "[stoker] failed: because"]
