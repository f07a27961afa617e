"""Decisions in words: what `explain` lists, and what a person who follows a job reads."""

from __future__ import annotations

import pytest

from stoker.model.log_entries import (
    Claimed,
    Closed,
    Draining,
    Ended,
    Entry,
    Event,
    Launched,
    Opaque,
    RemovalAsked,
    ResumeAsked,
    StopAsked,
    Submitted,
    Suspected,
    Warned,
)
from stoker.read.decision_text import NewsFeed, describe, news, offering_text, outcome_text, rule_text
from tests.support.sim_data import ON_DEMAND, SPOT_A, at, make_state, nodes

# Claim 2 is the first attempt, claim 4 never got a machine.
STATE = make_state(
    Claimed(SPOT_A, 1),
    Launched(2, nodes(2)),
    Claimed(ON_DEMAND, 2),
)
SPOT, OTHER = offering_text(SPOT_A, 1), offering_text(ON_DEMAND, 2)
MACHINES = f"the request for {ON_DEMAND.title}"


def entry(event: Event, reason: str = "because", seq: int = 9) -> Entry:
    return Entry(seq, at(0), reason, event)


@pytest.mark.parametrize(
    ("event", "text", "line"),
    [
        (Submitted("0" * 64, "jane"), "submitted", None),
        (Claimed(SPOT_A, 1), f"asked for 1 × {SPOT}", f"getting {SPOT} (because)"),
        (
            Claimed(ON_DEMAND, 2, successor_of=2),
            f"asked for 2 × {OTHER}, to take over from attempt 1",
            f"getting 2 × {OTHER} (because)",
        ),
        (Launched(2, nodes(2)), "launched attempt 1 (i-2-0)", "attempt 1 has its machine"),
        (Launched(2, nodes(2, 2)), "launched attempt 1 (i-2-0, i-2-1)", "attempt 1 has its machines: because"),
        (Launched(7, ()), "launched claim 7 (no machine)", "claim 7 has its machines: because"),
        (Suspected(2, 3, "etag"), "node 3 of attempt 1 is silent", None),
        (
            Draining(2, "reclaimed", "boot-failed"),
            "asked attempt 1 to save and leave [boot-failed: the machine could not start its agent]",
            "because",
        ),
        (
            Closed(4, "dry", "no-capacity"),
            f"{MACHINES} found no machine [no-capacity]",
            f"no capacity: {ON_DEMAND.title}",
        ),
        (Closed(7, "dry", "no-capacity"), "claim 7 found no machine [no-capacity]", "no capacity: because"),
        (
            Closed(4, "dry", "subnet-full"),
            f"{MACHINES} found no machine [subnet-full]",
            f"{MACHINES} came to nothing: because",
        ),
        (
            Closed(4, "refused", "AuthDenied"),
            f"{MACHINES} was refused [AuthDenied: a permission is missing]",
            f"{MACHINES} was refused: because",
        ),
        (
            Closed(2, "reclaimed", "notice"),
            "attempt 1 ended: reclaimed [notice]",
            "attempt 1 reclaimed: because",
        ),
        (StopAsked("jane"), "stop asked for", "because"),
        (ResumeAsked("jane"), "resume asked for", "because"),
        (ResumeAsked("jane", "00000002/000001-step"), "resume asked for, from 1.1 (step)", "because"),
        (RemovalAsked("jane"), "removal asked for", "because"),
        (Warned("stall"), "warned", "because"),
        (Ended("failed", "no-offering"), "failed [no-offering: no offering can be launched]", "failed: because"),
        (Opaque("later"), "later", None),
    ],
)
def test_each_decision_in_words(event: Event, text: str, line: str | None) -> None:
    assert describe(event, STATE) == text
    assert news(entry(event), STATE) == line


def test_without_a_state_claims_have_their_numbers() -> None:
    assert describe(Suspected(2, 0, "etag"), None) == "node 0 of claim 2 is silent"
    assert news(entry(Closed(2, "dry", "no-capacity")), None) == "no capacity: because"


@pytest.mark.parametrize(
    "rule",
    [
        *("AuthDenied", "InvalidRequest", "NoSuchResource", "QuotaExceeded", "boot-failed", "gone", "no-capacity"),
        *("no-offering", "partial-gang", "subnet-full", "unexplained"),
    ],
)
def test_rules_whose_names_say_little_are_explained(rule: str) -> None:
    assert rule_text(rule).startswith(f"{rule}: ")


def test_rules_that_explain_themselves_stand_alone() -> None:
    assert rule_text("gone") == "gone: the machine is gone"
    assert rule_text("finished") == "finished"
    assert outcome_text("failed", None) == outcome_text("failed", "") == "failed"
    assert outcome_text("failed", "failed at its start") == "failed at its start"
    assert outcome_text("failed", "failedly") == "failed: failedly"


# ── One line for each offering that is tried ──────────────────────────────────────────────────────────────────────────


def test_an_offering_without_capacity_is_told_once_and_with_the_next() -> None:
    feed = NewsFeed()
    events: list[Event] = [
        Claimed(SPOT_A, 1),
        Closed(2, "dry", "no-capacity"),
        Claimed(ON_DEMAND, 1),
        Closed(4, "dry", "no-capacity"),
        # Both again, in silence.
        Claimed(SPOT_A, 1),
        Closed(6, "dry", "no-capacity"),
        Claimed(ON_DEMAND, 1),
        Launched(8, nodes(8)),
        Closed(8, "reclaimed", "notice"),
        # After a success it is news again.
        Claimed(SPOT_A, 1),
        Closed(11, "dry", "no-capacity"),
    ]
    one = offering_text(ON_DEMAND, 1)
    expected = [
        [f"getting {SPOT} (because)"],
        [],
        [f"no capacity: {SPOT_A.title}; getting {one} (because)"],
        [],
        [f"no capacity: {ON_DEMAND.title}"],
        [],
        [],
        [f"getting {one} (because)", "attempt 1 has its machine"],
        ["attempt 1 reclaimed: because"],
        [f"getting {SPOT} (because)"],
        [],
    ]
    for number in range(len(events)):
        lines = feed.take(entry(events[number], seq=number + 2), make_state(*events[: number + 1]), 100.0)
        assert lines == expected[number], number
    assert feed.due(104.9) == []
    assert feed.due(105.0) == [f"no capacity: {SPOT_A.title}"]
    assert feed.due(200.0) == []
