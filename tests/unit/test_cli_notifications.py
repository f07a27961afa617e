"""What a person who follows a job is told while offering after offering has nothing."""

from __future__ import annotations

from datetime import datetime, timezone

from stoker.model.job_state import JobState, fold
from stoker.model.log_entries import Claimed, Closed, Ended, Entry, Event, Launched, NodeRef, Submitted
from stoker.model.offerings import Offering
from stoker.read.decision_text import NewsFeed

START = datetime(2026, 11, 16, tzinfo=timezone.utc)
A, B, C = (Offering("gce", "n2-standard-2", f"us-central1-{zone}", True, price=0.05) for zone in "abc")
DRY = "no capacity: n2-standard-2 spot in us-central1"
FULL = "the zone has none left (ZONE_RESOURCE_POOL_EXHAUSTED)"


class Followed:
    """A job that somebody follows, and the lines they see."""

    def __init__(self) -> None:
        self.dispatcher = NewsFeed()
        self.state: JobState | None = None
        self.now_s = 100.0
        self.lines: list[str] = []
        self.take(Submitted(spec_digest="", submitter="jane"), "submitted")

    def take(self, event: Event, reason: str) -> int:
        entry = Entry(self.state.seq + 1 if self.state else 1, START, reason, event)
        self.state = fold("job-1", [entry], self.state)
        self.lines += self.dispatcher.take(entry, self.state, self.now_s)
        return entry.seq

    def tries(self, offering: Offering, why: str = "next offering", reason: str = FULL) -> None:
        claim = self.take(Claimed(offering, nodes=1), why)
        self.take(Closed(claim=claim, outcome="dry", rule="no-capacity"), reason)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.lines += self.dispatcher.due(self.now_s)

    def told(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


def test_each_offering_that_has_nothing_is_one_short_line() -> None:
    job = Followed()
    job.tries(A, "first attempt; spot first")
    job.tries(B)
    job.tries(C)
    job.wait(1.0)
    assert job.told() == [
        "getting n2-standard-2 in us-central1-a, spot $0.0500/h (first attempt; spot first)",
        f"{DRY}-a; getting n2-standard-2 in us-central1-b, spot $0.0500/h (next offering)",
        f"{DRY}-b; getting n2-standard-2 in us-central1-c, spot $0.0500/h (next offering)",
    ]
    job.wait(5.0)
    assert job.told() == [f"{DRY}-c"], "nothing follows: it is told by itself"
    job.wait(60.0)
    assert job.told() == []


def test_what_has_nothing_again_is_not_told_again() -> None:
    job = Followed()
    for _ in range(3):
        job.tries(A)
        job.tries(B)
        job.wait(60.0)
    assert len(job.told()) == 3
    job.tries(A, reason="another reason")
    job.wait(60.0)
    assert job.told() == []


def test_what_comes_of_another_try_is_told() -> None:
    job = Followed()
    job.tries(A)
    job.wait(60.0)
    job.told()
    claim = job.take(Claimed(A, nodes=1), "next offering")
    job.take(Launched(claim=claim, nodes=(NodeRef(0, "us-central1-a.1"),)), "1 machine")
    first, second = job.told()
    assert first.startswith("getting n2-standard-2 in us-central1-a") and second == "attempt 1 has its machine"
    job.take(Closed(claim=claim, outcome="reclaimed", rule="notice"), "notice")
    job.tries(A)
    job.wait(60.0)
    assert len(job.told()) == 3, "after a launch it is news again"


def test_an_end_does_not_swallow_what_waits_to_be_told() -> None:
    job = Followed()
    job.tries(A)
    job.take(Ended(outcome="failed", rule="max-wait"), "limits.max_wait is reached")
    assert job.told()[1:] == [f"{DRY}-a", "failed: limits.max_wait is reached"]
