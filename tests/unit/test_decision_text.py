"""Decisions in words: `explain` shows every one, and who follows a job reads its news."""

from __future__ import annotations

import pytest

from stoker.model.job_state import JobState
from stoker.model.log_entries import (
    Claimed,
    Closed,
    Draining,
    Ended,
    Event,
    Launched,
    NodeRef,
    Opaque,
    RemovalAsked,
    ResumeAsked,
    StopAsked,
    Submitted,
    Suspected,
    Warned,
)
from stoker.model.offerings import Offering
from stoker.read.decision_text import NewsFeed, describe, news, outcome_name, outcome_text, price_terms, rate, rule_text
from tests.support.sim_data import ON_DEMAND, SPOT_A, SPOT_B, entries, make_state, nodes

LAUNCHED = make_state(Claimed(SPOT_A, 1), Launched(2, nodes(2)))
ASKED = make_state(Claimed(SPOT_A, 2))


@pytest.mark.parametrize(
    ("event", "state", "text"),
    [
        (Submitted("0" * 64, "jane"), None, "submitted"),
        (Claimed(SPOT_A, 2), LAUNCHED, "asked for 2 × m1 in a, spot $1.00/h each"),
        (
            Claimed(SPOT_B, 1, successor_of=2),
            LAUNCHED,
            "asked for 1 × m1 in b, spot $1.10/h, to take over from attempt 1",
        ),
        (Launched(2, nodes(2, 2)), LAUNCHED, "launched attempt 1 (i-2-0, i-2-1)"),
        (Launched(2, ()), ASKED, "launched the request for m1 spot in a (no machine)"),
        (Suspected(2, 1, "e"), LAUNCHED, "node 1 of attempt 1 is silent"),
        (Draining(2, "stopped", "user-stop"), LAUNCHED, "asked attempt 1 to save and leave [user-stop]"),
        (Closed(2, "dry", "no-capacity"), ASKED, "the request for m1 spot in a found no machine [no-capacity]"),
        (
            Closed(2, "refused", "QuotaExceeded"),
            ASKED,
            "the request for m1 spot in a was refused [QuotaExceeded: a quota of the account is reached]",
        ),
        (Closed(2, "infrastructure", "gone"), LAUNCHED, "attempt 1 ended: infrastructure [gone: the machine is gone]"),
        (Closed(9, "reclaimed", "notice"), LAUNCHED, "claim 9 ended: reclaimed [notice]"),
        (Closed(9, "reclaimed", "notice"), None, "claim 9 ended: reclaimed [notice]"),
        (StopAsked("jane"), None, "stop asked for"),
        (ResumeAsked("jane"), None, "resume asked for"),
        (ResumeAsked("jane", "00000002/000003-step-412"), LAUNCHED, "resume asked for, from 1.3 (step-412)"),
        (RemovalAsked("jane"), None, "removal asked for"),
        (Warned("empty-folder"), None, "warned"),
        (Ended("failed", "no-offering"), None, "failed [no-offering: no offering can be launched]"),
        (Opaque("hibernated"), None, "hibernated"),
    ],
)
def test_each_decision_in_a_few_words(event: Event, state: JobState | None, text: str) -> None:
    assert describe(event, state) == text


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("AuthDenied", "AuthDenied: a permission is missing"),
        ("InvalidRequest", "InvalidRequest: the cloud refuses this request for good"),
        ("NoSuchResource", "NoSuchResource: the job names something that does not exist"),
        ("boot-failed", "boot-failed: the machine could not start its agent"),
        ("no-capacity", "no-capacity: no machine is available now"),
        ("partial-gang", "partial-gang: not all nodes came"),
        ("subnet-full", "subnet-full: the subnet has no free address"),
        ("unexplained", "unexplained: no other rule recognises how it ended"),
        ("user-stop", "user-stop"),
    ],
)
def test_a_rule_whose_name_explains_nothing_is_explained(rule: str, text: str) -> None:
    assert rule_text(rule) == text


@pytest.mark.parametrize(
    ("event", "state", "text"),
    [
        (Submitted("0" * 64, "jane"), None, None),
        (Suspected(2, 0, "e"), LAUNCHED, None),
        (Opaque("hibernated"), None, None),
        (Claimed(SPOT_A, 1), LAUNCHED, "getting m1 in a, spot $1.00/h (because)"),
        (Claimed(SPOT_A, 2), LAUNCHED, "getting 2 × m1 in a, spot $1.00/h each (because)"),
        (Launched(2, nodes(2)), LAUNCHED, "attempt 1 has its machine"),
        (Launched(2, nodes(2, 2)), LAUNCHED, "attempt 1 has its machines: because"),
        (Closed(2, "dry", "no-capacity"), ASKED, "no capacity: m1 spot in a"),
        (Closed(2, "dry", "no-capacity"), None, "no capacity: because"),
        (Closed(2, "dry", "dry-run"), ASKED, "the request for m1 spot in a came to nothing: because"),
        (Closed(2, "refused", "AuthDenied"), ASKED, "the request for m1 spot in a was refused: because"),
        (Closed(2, "infrastructure", "gone"), LAUNCHED, "attempt 1 infrastructure: because"),
        (Closed(2, "infrastructure", "stall"), LAUNCHED, "attempt 1 stalled: because"),
        (Ended("succeeded", "finished"), None, "succeeded: because"),
        (Draining(2, "stopped", "user-stop"), LAUNCHED, "because"),
        (StopAsked("jane"), None, "because"),
        (ResumeAsked("jane"), None, "because"),
        (RemovalAsked("jane"), None, "because"),
        (Warned("empty-folder"), None, "because"),
    ],
)
def test_what_a_follower_is_told_of_it(event: Event, state: JobState | None, text: str | None) -> None:
    (entry,) = entries([event])
    assert news(type(entry)(entry.seq, entry.at, "because", event), state) == text


def test_an_outcome_is_not_said_twice() -> None:
    assert outcome_text("failed", "it broke") == "failed: it broke"
    assert outcome_text("failed", "failed while it started") == "failed while it started"
    assert outcome_text("failed", "failedly") == "failed: failedly"
    assert outcome_text("failed", "") == outcome_text("failed", None) == "failed"
    assert outcome_name("infrastructure", "stall") == "stalled"
    assert outcome_name("stopped", "stall") == "stopped"
    assert outcome_name("infrastructure", "gone") == "infrastructure"


def test_prices_are_those_of_one_node() -> None:
    assert rate(None) == rate(None, 2) == "at an unknown price"
    assert rate(1.0) == "$1.00/h" and rate(1.0, 2) == "$1.00/h each"
    assert price_terms("spot", 0, 1) == ", spot"
    assert price_terms("on-demand", 0, 1) == ""
    assert price_terms("on-demand", None, 1) == ", on-demand at an unknown price"


class TestNewsFeed:
    """What is told, and when, of offerings that are tried in turn."""

    def tell(self, *steps: tuple[Event, float]) -> list[list[str]]:
        """The lines after each event; the numbers of entries begin with 2, as after a submission."""
        feed, told = NewsFeed(), []
        state = make_state()
        for nth, (_, now_s) in enumerate(steps, 1):
            state = make_state(*(event for event, _ in steps[:nth]))
            entry = entries([steps[nth - 1][0]], start=nth + 1)[0]
            told.append(feed.take(entry, state, now_s))
        return [*told, feed.due(steps[-1][1] + 4.9), feed.due(steps[-1][1] + 5.0)]

    def test_an_offering_without_capacity_is_told_with_the_next(self) -> None:
        told = self.tell(
            (Claimed(SPOT_A, 1), 0.0), (Closed(2, "dry", "no-capacity"), 1.0), (Claimed(ON_DEMAND, 1), 2.0)
        )
        assert told == [
            ["getting m1 in a, spot $1.00/h (claimed at 2)"],
            [],
            ["no capacity: m1 spot in a; getting m1 in a, on-demand $3.00/h (claimed at 4)"],
            [],
            [],
        ]

    def test_it_is_told_alone_when_nothing_else_is_tried_for_five_seconds(self) -> None:
        told = self.tell((Claimed(SPOT_A, 1), 0.0), (Closed(2, "dry", "no-capacity"), 1.0))
        assert told[1:] == [[], [], ["no capacity: m1 spot in a"]]

    def test_it_is_told_once_however_often_it_is_tried_until_a_launch_succeeds(self) -> None:
        dry = Closed(2, "dry", "no-capacity")
        told = self.tell(
            (Claimed(SPOT_A, 1), 0.0),
            (dry, 1.0),
            (Claimed(SPOT_A, 1), 8.0),
            (Closed(4, "dry", "no-capacity"), 9.0),
            (Claimed(SPOT_A, 1), 20.0),
            (Launched(6, nodes(6)), 21.0),
            (Closed(6, "reclaimed", "notice"), 30.0),
            (Claimed(SPOT_A, 1), 31.0),
            (Closed(9, "dry", "no-capacity"), 32.0),
        )
        assert told[1:4] == [[], ["no capacity: m1 spot in a"], []]
        assert told[4:6] == [[], ["getting m1 in a, spot $1.00/h (claimed at 6)", "attempt 1 has its machine"]]
        assert told[7:] == [["getting m1 in a, spot $1.00/h (claimed at 9)"], [], [], ["no capacity: m1 spot in a"]]

    def test_what_waits_is_told_before_anything_else(self) -> None:
        told = self.tell(
            (Claimed(SPOT_A, 1), 0.0), (Closed(2, "dry", "no-capacity"), 1.0), (Ended("stopped", "user-stop"), 2.0)
        )
        assert told[2] == ["no capacity: m1 spot in a", "stopped: ended at 4"]


def test_a_free_offering_has_no_price() -> None:
    free = Offering("local", "local", "this-computer", spot=False, price=0.0, on_demand_price=0.0)
    assert describe(Claimed(free, 1), None) == "asked for 1 × local in this-computer"
    assert describe(Launched(2, (NodeRef(0, "box"),)), None) == "launched claim 2 (box)"
