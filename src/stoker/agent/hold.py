"""Keep the machine of a failed training for people to look at, as long as the job's spec and log allow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from stoker.core.hold import hold_of
from stoker.model.job_state import JobState
from stoker.model.node_facts import Exit, ExitWhy
from stoker.model.spec import Spec

# Failures that a look at the machine may explain. Whether the failure ends the job is the governor's decision.
_EXPLAINABLE: frozenset[ExitWhy] = frozenset({"finished", "setup"})
_POLL_S = 1.0


def may_hold(exit_: Exit, spec: Spec | None) -> bool:
    """Return whether an exit may be followed by a hold."""
    asked = spec is not None and spec.retry.hold_on_failure_s > 0
    return asked and exit_.outcome == "failed" and exit_.why in _EXPLAINABLE and not exit_.evidence


def hold_machine(
    spec: Spec, claim: int, state: Callable[[], JobState | None], leave: Callable[[], bool], wake: threading.Event
) -> str:
    """Wait until the hold is over; return the reason: its time, a person's request, or a verdict that keeps no machine.

    `state` returns the newest state that could be read: a store that does not answer neither ends the hold nor
    prolongs it. `leave` returns whether the machine is being shut down.
    """
    began_s, judged = time.monotonic(), False
    while True:
        limit = hold_limit(spec, claim, state())
        if limit.judged and not judged:
            # Counted from the job's end, as users are informed. Waiting for the verdict has its own limit.
            began_s, judged = time.monotonic(), True
        left_s = began_s + limit.longest_s - time.monotonic()
        if leave():
            return "the machine is being shut down"
        if left_s <= 0:
            return limit.message
        wake.wait(min(left_s, _POLL_S))
        wake.clear()


class HoldLimit(NamedTuple):
    """How long a machine may be held, from the verdict on if there is one, and the message when that is over."""

    longest_s: float
    judged: bool
    message: str


def hold_limit(spec: Spec, number: int, state: JobState | None) -> HoldLimit:
    """Return how long the spec and the log allow a machine of this claim to be held."""
    longest_s = spec.retry.hold_on_failure_s
    claim = state.claim(number) if state is not None else None
    if state is None or claim is None or (claim.open and state.ended is None and state.stop is None):
        return HoldLimit(longest_s, False, "the hold is over; no governor has judged the attempt yet")
    hold = hold_of(state, spec)
    if hold is None or hold.claim != number:
        return HoldLimit(0.0, True, "no job keeps the machine")
    return HoldLimit(min(longest_s, hold.longest_s), True, "the hold is over")
