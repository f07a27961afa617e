"""Record what a node does on its way to its training: which processes work for it, and whether anything moves.

Code, inputs, images, packages and checkpoints take as long as they take, without a time limit. The rules about jobs
that stand still judge the set-up by these facts, as they judge the training by those of `activity`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from stoker.agent.health.activity import ActivityRecorder
from stoker.agent.health.activity_probe import ActivityProbe
from stoker.processes import Stat, process_table

# The processes that pull images for docker. podman pulls them itself.
_DAEMONS = frozenset({"dockerd", "containerd"})


class SetupActivity(ActivityRecorder):
    """Records the activity of a set-up; each phase of it begins anew. `group` returns the processes in the runtime.

    `pulling` returns whether an image is being pulled; `shared`: the computer has other users.
    """

    def __init__(self, group: Callable[[], set[int]], pulling: Callable[[], bool], *, shared: bool) -> None:
        probe = ActivityProbe(lambda: (), self.workers, shared=shared, agent=os.getpid())
        super().__init__(probe, agent_io_counts=True)
        self._group = group
        self._pulling = pulling
        self._shared = shared

    def members(self) -> set[int]:
        """Return the processes of this node that are at work: those in its runtime, and children of the agent."""
        return self._group() | descendants(process_table(), {os.getpid()})

    def workers(self) -> set[int] | None:
        """Return `members` and the daemons that pull an image for them; None if those may not be looked at."""
        if not self._pulling():
            return self.members()
        if self._shared:
            # The daemon of a shared computer may not be looked at, and works for others, too.
            return None
        table = process_table()
        daemons = {pid for pid in table if _name(pid) in _DAEMONS}
        return self.members() | daemons | descendants(table, daemons)


def descendants(table: dict[int, Stat], roots: set[int]) -> set[int]:
    """Return the children of these processes, the children's children, and so on; not the processes themselves."""
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
