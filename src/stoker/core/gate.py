"""Decide whether a node may train. Guarantees that at most one attempt trains at any time.

Pure, and evaluated by the agent each time it reads the log. A node starts only when `launched` names its own instance,
its claim is open, the job is neither ended nor asked to stop, and every older claim is closed or has left for good:
every rank wrote an `exit` of *interrupted*, which happens only after its process group is dead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stoker.model.job_state import Claim, JobState
from stoker.model.node_facts import Exit, ExitWhy

# Exits after which the job certainly goes on. After a stop or a limit the job may end, so the successor waits for the
# log entry.
RELEASING: frozenset[ExitWhy] = frozenset({"notice", "peer", "waited"})


@dataclass(frozen=True)
class Go:
    """The node may train now."""


@dataclass(frozen=True)
class Wait:
    """The node may not train yet."""

    reason: str


@dataclass(frozen=True)
class Leave:
    """The node may never train: a log entry that was read says so. The node terminates itself."""

    reason: str
    why: ExitWhy


Permission = Go | Wait | Leave


def may_train(
    state: JobState | None,
    number: int,
    instance: str,
    exits: Callable[[Claim], tuple[Exit | None, ...]],
) -> Permission:
    """Decide whether the node `instance` of claim `number` may train, from the newest state it could read.

    `exits(claim)` returns the exits of all ranks of an older claim, None where there is none or it could not be read.
    """
    left = should_leave(state, number, instance)
    if left is not None:
        return left
    claim = state.claim(number) if state else None
    if state is None or claim is None:
        return Wait("the claim is not readable yet")
    if claim.launched is None:
        return Wait("the machines are not in the log yet")
    for older in state.claims:
        if older.number >= number:
            break
        if older.open and not _released(older, exits(older)):
            return Wait(f"attempt {older.attempt or '?'} has not left yet")
    return Go()


def should_leave(state: JobState | None, number: int, instance: str) -> Leave | None:
    """Return why this node must stop, or None. Only entries that were read count; a newer claim means nothing."""
    if state is None:
        return None
    if state.ended is not None:
        return Leave(f"the job has ended: {state.ended.reason}", "closed")
    claim = state.claim(number)
    if claim is None:
        return None
    if not claim.open:
        return Leave(f"this attempt is closed: {claim.closed_reason}", "closed")
    if claim.launched is not None and all(node.instance != instance for node in claim.launched):
        return Leave("the job's log names other machines for this attempt", "closed")
    if state.stop is not None:
        return Leave(f"stop asked by {state.stop.by}", "stop")
    if claim.drain is not None:
        return Leave(claim.drain.reason, "drain")
    return None


def left_for_good(exits: tuple[Exit | None, ...]) -> bool:
    """Return whether these exits of all ranks let the next attempt start before the claim is closed."""
    return all(left is not None and left.outcome == "interrupted" and left.why in RELEASING for left in exits)


def _released(older: Claim, exits: tuple[Exit | None, ...]) -> bool:
    return older.drain is None and len(exits) >= older.nodes and left_for_good(exits)
