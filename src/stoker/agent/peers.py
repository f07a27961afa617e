"""Watch the other ranks of the gang: when one leaves or is given notice, the others save too.

Rank 0 watches all, the others watch rank 0, whose `saving` phase passes the word on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from stoker.model.job_state import Claim
from stoker.model.node_facts import Heartbeat, NodeFacts
from stoker.model.observed import Known
from stoker.store import node_facts
from stoker.store.base import Store

NEAR_POLL_S = 0.25
FAR_POLL_S = 3.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PeerLeft:
    """Another rank is leaving. `grace_s` is what the cloud gave it, where it was a notice."""

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
        # Rank 0 has written its exit: it commits nothing more.
        self.lead_finished = False

    def start(self, on_change: Callable[[], None]) -> None:
        if self._watched:
            threading.Thread(target=self._run, args=(on_change,), name="peers", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def ranks_with_files(self) -> tuple[int, ...]:
        """The watched ranks that have something in their checkpoint folder."""
        return tuple(sorted(rank for rank, files in self._files.items() if files))

    def _run(self, on_change: Callable[[], None]) -> None:
        pause_s = NEAR_POLL_S if self._store.near else FAR_POLL_S
        while not self._stop.wait(pause_s):
            for node in self._watched:
                try:
                    found = node_facts.read_node(self._store, self._job, self._claim.number, node.rank, node.instance)
                except Exception:  # noqa: BLE001 - a peer that cannot be read is not a peer that left
                    _log.exception("reading rank %d failed", node.rank)
                    continue
                beat = found.heartbeat.value if isinstance(found.heartbeat, Known) else None
                if beat is not None:
                    self._files[node.rank] = beat.value.checkpoint_files
                if node.rank == 0 and isinstance(found.exit, Known) and found.exit.value is not None:
                    self.lead_finished = True
                left = _leaving(node.rank, found, beat.value if beat else None)
                if left is not None and self.left is None:
                    self.left = left
                    on_change()


def _watches(rank: int, other: int) -> bool:
    return other != rank and (rank == 0 or other == 0)


def _leaving(rank: int, found: NodeFacts, beat: Heartbeat | None) -> PeerLeft | None:
    if isinstance(found.notice, Known) and found.notice.value is not None and found.notice.value.value.hard:
        return PeerLeft(rank, f"rank {rank} was given notice", found.notice.value.value.grace_s)
    if isinstance(found.exit, Known) and found.exit.value is not None:
        left = found.exit.value.value
        return PeerLeft(rank, f"rank {rank} left: {left.reason}") if left.outcome != "succeeded" else None
    if beat is not None and beat.phase == "saving":
        return PeerLeft(rank, f"rank {rank} is saving to leave")
    return None
