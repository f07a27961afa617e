"""Attempts that have ended, for tests of verdicts on them."""

from __future__ import annotations

from typing import Any

from stoker.core.attempt_evidence import AttemptEvidence
from stoker.core.governor_settings import DEFAULT
from stoker.model.job_state import JobState
from stoker.model.log_entries import Claimed, Closed, Ended, Event, Launched
from stoker.model.node_facts import Exit, Heartbeat
from tests.support.sim_data import (
    SPOT_A,
    make_exit,
    make_spec,
    make_state,
    nodes,
)

SAVED = make_exit("interrupted", "notice", step=40, started=True)
KEY = "00000002/000001-step-10"


def make_case(
    *exits: Exit | None,
    events: tuple[Event, ...] = (),
    history: tuple[Event, ...] = (),
    noticed: bool = False,
    beat: Heartbeat | None = None,
    named: int | None = None,
    user_errors: int = 0,
) -> AttemptEvidence:
    """An attempt with these exits, after what is in `history`; `events` happened to it."""
    number = 2 + len(history)
    count = len(exits)
    machines = nodes(number, count if named is None else named)
    state: JobState = make_state(*history, Claimed(SPOT_A, count), Launched(number, machines), *events)
    claim = state.claim(number)
    assert claim is not None
    return AttemptEvidence(
        claim=claim,
        exits=exits,
        heartbeats=(beat,) * count,
        noticed=noticed,
        state=state,
        spec=make_spec(count, user_errors=user_errors),
        settings=DEFAULT,
    )


def past(n: int, outcome: str = "failed", **rest: Any) -> tuple[Event, ...]:
    """So many earlier attempts."""
    events: list[Event] = []
    for index in range(n):
        number = 2 + 3 * index
        events += [Claimed(SPOT_A, 1), Launched(number, nodes(number)), Closed(number, outcome, "rule", **rest)]  # type: ignore[arg-type]
    return tuple(events)


def ended() -> Ended:
    return Ended(outcome="failed", rule="user-error")
