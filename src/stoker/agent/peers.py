"""Watch the other ranks of the gang: when one leaves or is given notice, the others save too.

Rank 0 watches all others; the others watch rank 0, whose `saving` phase forwards the request.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

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
        self._files: dict[int, int] = {}
        self.left: PeerLeft | None = None
        # Rank 0 has written its exit, and commits nothing more.
        self.lead_finished = False

    def start(self, on_change: Callable[[], None]) -> None:
        if self._watched:
            threading.Thread(target=self._run, args=(on_change,), name="peers", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def ranks_with_files(self) -> tuple[int, ...]:
        """The watched ranks with files in their checkpoint folder."""
        return tuple(sorted(rank for rank, files in self._files.items() if files))

    def _run(self, on_change: Callable[[], None]) -> None:
        pause_s = LOCAL_POLL_S if self._store.is_local else REMOTE_POLL_S
        while not self._stop.wait(pause_s):
            for node in self._watched:
                try:
                    found = node_facts.read_node(self._store, self._job, self._claim.number, node.rank, node.instance)
                except Exception:  # noqa: BLE001 - edge of a thread: a peer that cannot be read has not left
                    _log.exception("reading rank %d failed", node.rank)
                    continue
                heartbeat = found.known_heartbeat
                if heartbeat is not None:
                    self._files[node.rank] = heartbeat.value.checkpoint_files
                if node.rank == 0 and found.known_exit is not None:
                    self.lead_finished = True
                left = _leaving(node.rank, found, heartbeat.value if heartbeat else None)
                if left is not None and self.left is None:
                    self.left = left
                    on_change()


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
