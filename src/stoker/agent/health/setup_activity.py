"""What a node does on its way to its training: who works for it there, and whether anything moves.

Code, inputs, images, packages and checkpoints take as long as they take, and nobody bounds that. What the rules about
jobs that stand still need to know of it is told here, as `activity` tells it of the training.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from stoker.agent.health.activity import ActivityRecorder, Sight
from stoker.model.node_facts import Activity
from stoker.processes import Stat, process_table

# What pulls images for docker. podman does it itself.
_DAEMONS = frozenset({"dockerd", "containerd"})


class Preparing:
    """`group` are those who run in the node's enclosure; `pulling`: an image is being had for it."""

    def __init__(self, group: Callable[[], set[int]], pulling: Callable[[], bool], *, shared: bool) -> None:
        self._group = group
        self._pulling = pulling
        self._shared = shared
        sight = Sight(lambda: (), self.workers, shared=shared, agent=os.getpid())
        self._recorder = ActivityRecorder(sight, carrying=True)
        self._looking = False

    def begin(self) -> None:
        """Something else begins: from here on something must move."""
        self._recorder.begin(looking=not self._looking)
        self._looking = True

    def stop(self) -> None:
        self._recorder.stop()

    def waits(self) -> None:
        """For another node, now: to be called all the time while it does."""
        self._recorder.waits()

    def heard(self, data: bytes) -> None:
        """More of the log."""
        self._recorder.heard(data)

    def fact(self) -> Activity | None:
        """For the next heartbeat; None before anything began."""
        return self._recorder.fact()

    def members(self) -> set[int]:
        """Everybody of this node's who is at work: in its enclosure, and whoever else the agent has started."""
        return self._group() | below(process_table(), {os.getpid()})

    def workers(self) -> set[int] | None:
        """Those, and whoever pulls an image for them; None where nobody may see that one at work."""
        if not self._pulling():
            return self.members()
        if self._shared:
            # A daemon of somebody's own computer may not be looked into, and works for others, too.
            return None
        table = process_table()
        daemons = {pid for pid in table if _name(pid) in _DAEMONS}
        return self.members() | daemons | below(table, daemons)


def below(table: dict[int, Stat], roots: set[int]) -> set[int]:
    """All whom these started, and those whom they did."""
    found: set[int] = set()
    todo = roots
    while todo:
        todo = {pid for pid, stat in table.items() if stat.parent in todo and pid not in found}
        found |= todo
    return found - roots


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
