"""When a node may train."""

from __future__ import annotations

import pytest

from stoker.core.gate import Go, Leave, Wait, may_train, should_leave
from stoker.model.job_state import Claim, JobState
from stoker.model.log_entries import Claimed, Closed, Draining, Ended, Launched, StopAsked
from stoker.model.node_facts import Exit, ExitOutcome, ExitWhy
from tests.support.sim_data import SPOT_A, make_exit, make_state, nodes

CLAIM = Claimed(offering=SPOT_A, nodes=1)
PAIR = Claimed(offering=SPOT_A, nodes=2)


def nobody(_claim: Claim) -> tuple[Exit | None, ...]:
    return (None,)


def ask(state: JobState | None, number: int = 2, instance: str = "i-2-0", *exits: Exit | None) -> object:
    return may_train(state, number, instance, lambda claim: exits or nobody(claim))


def test_the_only_claim_whose_machine_is_named_may_train() -> None:
    assert ask(make_state(CLAIM, Launched(2, nodes(2)))) == Go()


def test_nothing_was_read_yet() -> None:
    assert isinstance(ask(None), Wait)
    assert isinstance(ask(make_state()), Wait)
    assert isinstance(ask(make_state(CLAIM)), Wait)


def test_another_machine_was_named() -> None:
    left = ask(make_state(CLAIM, Launched(2, nodes(2))), 2, "i-other")
    assert isinstance(left, Leave) and left.why == "closed"


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (StopAsked("jane"), "stop"),
        (Draining(2, "lost", "gang"), "drain"),
        (Closed(2, "lost", "gone"), "closed"),
        (Ended("failed", "max_wait"), "closed"),
    ],
)
def test_it_leaves_on_a_positively_read_entry(event: object, why: str) -> None:
    state = make_state(CLAIM, Launched(2, nodes(2)), event)  # type: ignore[arg-type]
    left = should_leave(state, 2, "i-2-0")
    assert left is not None and left.why == why and left.reason
    assert ask(state) == left


def test_a_newer_claim_means_nothing() -> None:
    state = make_state(CLAIM, Launched(2, nodes(2)), CLAIM, Launched(4, nodes(4)))
    assert ask(state) == Go()


def test_an_older_claim_that_is_open_is_waited_for_even_if_it_never_got_machines() -> None:
    launched = make_state(CLAIM, Launched(2, nodes(2)), CLAIM, Launched(4, nodes(4)))
    unlaunched = make_state(CLAIM, CLAIM, Launched(3, nodes(3)))
    assert isinstance(ask(launched, 4, "i-4-0"), Wait)
    assert isinstance(ask(unlaunched, 3, "i-3-0"), Wait)


def test_every_older_claim_must_be_closed_not_only_the_one_before() -> None:
    state = make_state(
        CLAIM,
        Launched(2, nodes(2)),
        CLAIM,
        Launched(4, nodes(4)),
        Closed(4, "lost", "gone"),
        CLAIM,
        Launched(7, nodes(7)),
    )
    assert isinstance(ask(state, 7, "i-7-0"), Wait)


@pytest.mark.parametrize(
    ("outcome", "why", "released"),
    [
        ("interrupted", "notice", True),
        ("interrupted", "peer", True),
        ("interrupted", "waited", True),
        ("interrupted", "stop", False),
        ("interrupted", "limit", False),
        ("interrupted", "drain", False),
        ("succeeded", "finished", False),
        ("failed", "finished", False),
        ("infrastructure", "agent", False),
    ],
)
def test_exits_that_release_the_next_attempt(outcome: ExitOutcome, why: ExitWhy, released: bool) -> None:
    state = make_state(CLAIM, Launched(2, nodes(2)), CLAIM, Launched(4, nodes(4)))
    assert isinstance(ask(state, 4, "i-4-0", make_exit(outcome, why)), Go) == released


def test_every_rank_must_have_left() -> None:
    state = make_state(PAIR, Launched(2, nodes(2, 2)), PAIR, Launched(4, nodes(4, 2)))
    gone = make_exit("interrupted", "notice")
    assert isinstance(ask(state, 4, "i-4-0", gone, None), Wait)
    assert isinstance(ask(state, 4, "i-4-0", gone), Wait)
    assert isinstance(ask(state, 4, "i-4-0", gone, gone), Go)


def test_one_that_is_drained_releases_nobody_before_the_log_says_so() -> None:
    state = make_state(CLAIM, Launched(2, nodes(2)), CLAIM, Launched(4, nodes(4)), Draining(2, "limit", "max_cost"))
    assert isinstance(ask(state, 4, "i-4-0", make_exit("interrupted", "notice")), Wait)
