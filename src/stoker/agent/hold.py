"""Stay on a machine whose training has failed, for as long as the job's spec and log allow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from stoker.core.hold import hold_of
from stoker.model.job_state import JobState
from stoker.model.node_facts import Exit, ExitWhy
from stoker.model.spec import Spec

# What a look at the machine may explain. Whether this was the job's end is the governor's to say.
_WORTH_A_LOOK: frozenset[ExitWhy] = frozenset({"finished", "setup"})
_LOOK_EVERY_S = 1.0


def may_hold(left: Exit, spec: Spec | None) -> bool:
    """Whether an exit may be followed by a hold."""
    asked = spec is not None and spec.retry.hold_on_failure_s > 0
    return asked and left.outcome == "failed" and left.why in _WORTH_A_LOOK and not left.evidence


def stay(
    spec: Spec, claim: int, state: Callable[[], JobState | None], leave: Callable[[], bool], wake: threading.Event
) -> str:
    """Return when the hold is over, with the reason: its time, a person's word, or a verdict that keeps no machine.

    `state` is the newest that could be read: a store that does not answer neither ends the hold nor makes it longer.
    `leave` says that the machine is about to be taken away.
    """
    began_s, judged = time.monotonic(), False
    while True:
        stay = allowed(spec, claim, state())
        if stay.judged and not judged:
            # From the job's end on, as everybody is told. Waiting for the verdict was bounded by itself.
            began_s, judged = time.monotonic(), True
        left_s = began_s + stay.longest_s - time.monotonic()
        if leave():
            return "the machine is being shut down"
        if left_s <= 0:
            return stay.over
        wake.wait(min(left_s, _LOOK_EVERY_S))
        wake.clear()


class Stay(NamedTuple):
    """How long a machine may stay, from the verdict on if there is one, and what to say when that is over."""

    longest_s: float
    judged: bool
    over: str


def allowed(spec: Spec, number: int, state: JobState | None) -> Stay:
    """What the spec and the log allow a machine of this claim."""
    longest_s = spec.retry.hold_on_failure_s
    claim = state.claim(number) if state is not None else None
    if state is None or claim is None or (claim.open and state.ended is None and state.stop is None):
        return Stay(longest_s, False, "the hold is over; no governor has judged the attempt yet")
    hold = hold_of(state, spec)
    if hold is None or hold.claim != number:
        return Stay(0.0, True, "no job keeps the machine")
    return Stay(min(longest_s, hold.longest_s), True, "the hold is over")
