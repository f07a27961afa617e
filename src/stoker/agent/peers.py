"""Watch the other ranks of the gang: when one leaves or is given notice, the others save too.

Rank 0 watches all others; the others watch rank 0, whose `saving` phase forwards the request.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stoker.agent.heartbeat import HeartbeatThread
from stoker.model.gang_messages import SaveAnswer, SaveProposal
from stoker.model.job_state import Claim
from stoker.model.node_facts import Heartbeat, NodeFacts
from stoker.store import node_facts
from stoker.store.base import Store

LOCAL_POLL_S = 0.25
REMOTE_POLL_S = 3.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PeerLeft:
    """Another rank is leaving. `grace_s` is the grace of its notice, if it was given one."""

    rank: int
    reason: str
    grace_s: float | None = None


class PeerWatch:
    """Polls the peers in a thread. `left` is set once and stays."""

    def __init__(self, store: Store, job: str, claim: Claim, rank: int) -> None:
        self._store = store
        self._job = job
        self._claim = claim
        self._watched = tuple(node for node in claim.launched or () if _watches(rank, node.rank))
        self._stop = threading.Event()
        self._beats: dict[int, int] = {}
        # The last answer of each rank, and the last proposal of rank 0.
        self._answers: dict[int, SaveAnswer] = {}
        self.proposal: SaveProposal | None = None
        self.left: PeerLeft | None = None
        # Rank 0 has written its exit, and commits nothing more.
        self.lead_finished = False

    def start(self, on_change: Callable[[], None]) -> None:
        if self._watched:
            threading.Thread(target=self._run, args=(on_change,), name="peers", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def answers(self) -> Mapping[int, SaveAnswer]:
        """The last answers of the watched ranks to proposals of saves, by rank."""
        return dict(self._answers)

    def _run(self, on_change: Callable[[], None]) -> None:
        pause_s = LOCAL_POLL_S if self._store.is_local else REMOTE_POLL_S
        lead_left = False
        while not self._stop.wait(pause_s):
            for node in self._watched:
                try:
                    found = node_facts.read_node(self._store, self._job, self._claim.number, node.rank, node.instance)
                except Exception:  # noqa: BLE001 - edge of a thread: a peer that cannot be read has not left
                    _log.exception("reading rank %d failed", node.rank)
                    continue
                heartbeat = found.known_heartbeat
                if heartbeat is not None:
                    self._note(node.rank, heartbeat.value)
                if node.rank == 0 and found.known_exit is not None:
                    # Its last heartbeat came before the exit, but perhaps after it was read in this round.
                    self.lead_finished, lead_left = lead_left, True
                left = _leaving(node.rank, found, heartbeat.value if heartbeat else None)
                if left is not None and self.left is None:
                    self.left = left
                    on_change()

    def _note(self, rank: int, heartbeat: Heartbeat) -> None:
        if heartbeat.beat < self._beats.get(rank, 0):
            return  # A late write has brought back an older one.
        self._beats[rank] = heartbeat.beat
        if heartbeat.save_answer is not None:
            self._answers[rank] = heartbeat.save_answer
        if rank == 0 and heartbeat.save_proposal is not None:
            self.proposal = heartbeat.save_proposal


class HeartbeatLink:
    """How this rank agrees with the others on saves: through the heartbeats of all."""

    def __init__(self, heartbeat: HeartbeatThread, peers: PeerWatch) -> None:
        self._heartbeat = heartbeat
        self._peers = peers

    def propose(self, proposal: SaveProposal) -> None:
        self._heartbeat.change(save_proposal=proposal)

    def answers(self) -> Mapping[int, SaveAnswer]:
        return self._peers.answers()

    def proposal(self) -> SaveProposal | None:
        return self._peers.proposal

    def answer(self, answer: SaveAnswer) -> None:
        self._heartbeat.change(save_answer=answer)


def _watches(rank: int, other: int) -> bool:
    return other != rank and (rank == 0 or other == 0)


def _leaving(rank: int, found: NodeFacts, heartbeat: Heartbeat | None) -> PeerLeft | None:
    notice, exit_ = found.known_notice, found.known_exit
    if notice is not None and notice.value.hard:
        return PeerLeft(rank, f"rank {rank} was given notice", notice.value.grace_s)
    if exit_ is not None:
        return PeerLeft(rank, f"rank {rank} left: {exit_.reason}") if exit_.outcome != "succeeded" else None
    if heartbeat is not None and heartbeat.phase == "saving":
        return PeerLeft(rank, f"rank {rank} is saving to leave")
    return None
