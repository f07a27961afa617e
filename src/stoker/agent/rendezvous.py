"""Agree with the other ranks before any starts: on everybody's address, and on the checkpoint that is restored.

Rank 0 proposes in rounds through its heartbeat; the others restore, verify and acknowledge through theirs. One failure
moves all back one checkpoint. When every rank has acknowledged a round, rank 0 repeats it with `go`. So only rank 0 is
read by all, and a gang of n costs n readers, not n².
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from stoker.agent.checkpoints.restore import RestoreError
from stoker.agent.heartbeat import Beat
from stoker.model.job_state import Claim
from stoker.model.node_facts import Ack, Heartbeat, Rendezvous
from stoker.model.observed import Known
from stoker.store import node_facts
from stoker.store.base import Store

T = TypeVar("T")

NEAR_POLL_S = 0.1
FAR_POLL_S = 1.0

# Restores a checkpoint, or raises RestoreError when what is in the store is not what was committed.
Restore = Callable[[str], None]


@dataclass(frozen=True)
class Agreement:
    """Where the ranks are, and what all of them have restored."""

    addresses: tuple[str, ...]
    port: int
    checkpoint: str | None


class Gang:
    """One rank's side of the agreement. `pause(seconds)` sleeps, and raises when this node must leave instead."""

    def __init__(
        self, store: Store, job: str, claim: Claim, rank: int, beat: Beat, pause: Callable[[float], None]
    ) -> None:
        self._store = store
        self._job = job
        self._claim = claim
        self._rank = rank
        self._beat = beat
        self._pause = pause
        self._poll_s = NEAR_POLL_S if store.near else FAR_POLL_S

    def lead(self, address: str, port: int, proposals: Iterator[str], restore: Restore) -> Agreement:
        """Rank 0: propose, newest checkpoint first, until every rank could restore the same one."""
        addresses = (address, *(self._wait_for(rank, _address) for rank in range(1, self._claim.nodes)))
        problem = ""
        for round_, key in enumerate(_or_none(proposals), start=1):
            if key is None and problem:
                break  # There are checkpoints and none can be restored: beginning anew would throw work away.
            proposal = Rendezvous(round=round_, addresses=addresses, port=port, checkpoint=key)
            self._beat.change(rendezvous=proposal)
            acks = [self._try(round_, key, restore)]
            acks += [self._wait_for(rank, _acked(round_)) for rank in range(1, self._claim.nodes)]
            failed = [(rank, ack.error) for rank, ack in enumerate(acks) if not ack.ok]
            if not failed:
                self._beat.change(rendezvous=replace(proposal, go=True), restored_from=key)
                return Agreement(addresses, port, key)
            problem = "; ".join(f"rank {rank}: {error}" for rank, error in failed)
        raise RestoreError(f"no checkpoint could be restored: {problem}")

    def follow(self, address: str, restore: Restore) -> Agreement:
        """Any other rank: restore what rank 0 proposes until it says go."""
        self._beat.change(address=address)
        answered = 0
        while True:
            plan = self._wait_for(0, lambda beat: beat.rendezvous)
            if plan.round > answered:
                self._beat.change(ack=self._try(plan.round, plan.checkpoint, restore))
                answered = plan.round
            elif plan.go:
                self._beat.change(restored_from=plan.checkpoint)
                return Agreement(plan.addresses, plan.port, plan.checkpoint)
            else:
                self._pause(self._poll_s)

    def _try(self, round_: int, key: str | None, restore: Restore) -> Ack:
        try:
            if key is not None:
                restore(key)
        except RestoreError as error:
            return Ack(round=round_, ok=False, error=str(error)[:500])
        return Ack(round=round_, ok=True)

    def _wait_for(self, rank: int, wanted: Callable[[Heartbeat], T | None]) -> T:
        """Read another rank's heartbeat until it says what is wanted."""
        instance = self._claim.instance(rank)
        while True:
            if instance is not None:
                found = node_facts.read_node(self._store, self._job, self._claim.number, rank, instance).heartbeat
                if isinstance(found, Known) and found.value is not None:
                    said = wanted(found.value.value)
                    if said is not None:
                        return said
            self._pause(self._poll_s)


def _address(beat: Heartbeat) -> str | None:
    return beat.address


def _acked(round_: int) -> Callable[[Heartbeat], Ack | None]:
    return lambda beat: beat.ack if beat.ack is not None and beat.ack.round == round_ else None


def _or_none(proposals: Iterator[str]) -> Iterator[str | None]:
    yield from proposals
    yield None


def sleep_interruptibly(seconds: float, check: Callable[[], None]) -> None:
    """Sleep in small pieces, calling `check` between them; it raises to end the wait."""
    end = time.monotonic() + seconds
    while True:
        check()
        left = end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(0.05, left))
