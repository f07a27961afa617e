"""Agree with the other ranks before any of them starts: on all addresses, and on the checkpoint to restore.

Rank 0 proposes a checkpoint per round through its heartbeat; the others restore, verify and acknowledge it through
theirs. If one rank fails, all go back one checkpoint. When every rank has acknowledged a round, rank 0 repeats it with
`go`. All ranks read only rank 0, so a gang of n nodes has n readers, not n².
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from stoker.agent.heartbeat import HeartbeatThread
from stoker.core.node_names import is_address
from stoker.model.errors import SetupFailed
from stoker.model.gang_messages import Ack, Rendezvous
from stoker.model.job_state import Claim
from stoker.model.node_facts import Heartbeat
from stoker.model.observed import Known
from stoker.store import node_facts
from stoker.store.base import Store
from stoker.store.checkpoints import RestoreError

T = TypeVar("T")

LOCAL_POLL_S = 0.1
REMOTE_POLL_S = 1.0

# Restores a checkpoint. Raises RestoreError if the store does not hold what was committed.
Restore = Callable[[str], None]


@dataclass(frozen=True)
class RendezvousResult:
    """The addresses of all ranks, and the checkpoint that all of them have restored."""

    addresses: tuple[str, ...]
    port: int
    checkpoint: str | None
    # The names that the ranks call themselves; empty for a rank that can have none.
    hosts: tuple[str, ...] = ()


class GangRendezvous:
    """One rank's side of the agreement. `pause(seconds)` sleeps, and raises if this node must leave."""

    def __init__(
        self,
        store: Store,
        job: str,
        claim: Claim,
        rank: int,
        heartbeat: HeartbeatThread,
        pause: Callable[[float], None],
    ) -> None:
        self._store = store
        self._job = job
        self._claim = claim
        self._rank = rank
        self._heartbeat = heartbeat
        self._pause = pause
        self._poll_s = LOCAL_POLL_S if store.is_local else REMOTE_POLL_S

    def lead(
        self, address: str, port: int, proposals: Iterator[str], restore: Restore, host: str = ""
    ) -> RendezvousResult:
        """As rank 0: propose checkpoints, newest first, until every rank has restored the same one.

        `host` is what this node calls itself. Raises SetupFailed if what a rank reports is no address.
        """
        found = ((address, host), *(self._wait_for(rank, _place) for rank in range(1, self._claim.nodes)))
        addresses, hosts = tuple(place[0] for place in found), tuple(place[1] for place in found)
        _check(addresses, self._claim.nodes)
        problem = ""
        for round_, key in enumerate(_or_none(proposals), start=1):
            if key is None and problem:
                break  # There are checkpoints, but none can be restored: starting anew would discard work.
            proposal = Rendezvous(round=round_, addresses=addresses, port=port, checkpoint=key, hosts=hosts)
            self._heartbeat.change(rendezvous=proposal)
            acks = [self._try(round_, key, restore)]
            acks += [self._wait_for(rank, _acked(round_)) for rank in range(1, self._claim.nodes)]
            failed = [(rank, ack.error) for rank, ack in enumerate(acks) if not ack.ok]
            if not failed:
                self._heartbeat.change(rendezvous=replace(proposal, go=True), restored_from=key)
                return RendezvousResult(addresses, port, key, hosts)
            problem = "; ".join(f"rank {rank}: {error}" for rank, error in failed)
        raise RestoreError(f"no checkpoint could be restored: {problem}")

    def follow(self, address: str, restore: Restore, host: str = "") -> RendezvousResult:
        """As any other rank: restore what rank 0 proposes, until it sends `go`. Otherwise as `lead`."""
        self._heartbeat.change(address=address, host=host)
        answered = 0
        while True:
            plan = self._wait_for(0, lambda heartbeat: heartbeat.rendezvous)
            if plan.round > answered:
                self._heartbeat.change(ack=self._try(plan.round, plan.checkpoint, restore))
                answered = plan.round
            elif plan.go:
                self._heartbeat.change(restored_from=plan.checkpoint)
                _check(plan.addresses, self._claim.nodes)
                return RendezvousResult(plan.addresses, plan.port, plan.checkpoint, plan.hosts)
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
        """Read another rank's heartbeat until `wanted` finds a value in it."""
        instance = self._claim.instance(rank)
        while True:
            if instance is not None:
                found = node_facts.read_node(self._store, self._job, self._claim.number, rank, instance).heartbeat
                if isinstance(found, Known) and found.value is not None:
                    value = wanted(found.value.value)
                    if value is not None:
                        return value
            self._pause(self._poll_s)


def _place(heartbeat: Heartbeat) -> tuple[str, str] | None:
    return (heartbeat.address, heartbeat.host) if heartbeat.address is not None else None


def _check(addresses: Sequence[str], nodes: int) -> None:
    """Raise SetupFailed unless there is an address for each rank: they reach the training and its `/etc/hosts`."""
    for rank, address in enumerate(addresses):
        if not is_address(address):
            raise SetupFailed(f"rank {rank} reports an address that is none: {address[:60]!r}", user=False)
    if len(addresses) != nodes:
        raise SetupFailed(f"rank 0 reports {len(addresses)} addresses for {nodes} nodes", user=False)


def _acked(round_: int) -> Callable[[Heartbeat], Ack | None]:
    return lambda heartbeat: heartbeat.ack if heartbeat.ack is not None and heartbeat.ack.round == round_ else None


def _or_none(proposals: Iterator[str]) -> Iterator[str | None]:
    yield from proposals
    yield None


def sleep_interruptibly(seconds: float, check: Callable[[], None]) -> None:
    """Sleep in small pieces, and call `check` between them, which raises to end the wait."""
    end = time.monotonic() + seconds
    while True:
        check()
        left = end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(0.05, left))
