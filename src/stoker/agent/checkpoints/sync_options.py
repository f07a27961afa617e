"""Options of the checkpoint sync: which rank of which attempt, its folders, its sources of facts, and its timing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from stoker.agent.checkpoints.commit_chooser import BUSY_S
from stoker.agent.checkpoints.folder_snapshot import FolderView, Selection
from stoker.agent.checkpoints.restore import RestoredCheckpoint
from stoker.agent.confinement import Confinement
from stoker.agent.node import utcnow
from stoker.model.gang_messages import SaveAnswer, SaveProposal
from stoker.processes import FilesByInode, WritableFiles
from stoker.store.base import Store
from stoker.store.checkpoint_manifests import LOCAL_WORKERS, REMOTE_WORKERS, TrustedClaims

LOCAL_SETTLE_S = 2.0
REMOTE_SETTLE_S = 5.0
# Of several nodes, rank 0 waits a little longer: the others may begin the same save a few seconds later.
GANG_SETTLE_S = 10.0
# A folder that changes all the time is not committed more often than this.
LOCAL_SPACING_S = 5.0
REMOTE_SPACING_S = 20.0
# How often the other ranks look for commits of rank 0.
LOCAL_FOLLOW_S = 1.0
REMOTE_FOLLOW_S = 10.0


class GangLink(Protocol):
    """How the ranks agree on a save. Every call is quick, and returns what was heard last."""

    def propose(self, proposal: SaveProposal) -> None:
        """As rank 0: replace the last proposal by this one."""

    def answers(self) -> Mapping[int, SaveAnswer]:
        """As rank 0: the last answers of the other ranks, by rank."""

    def proposal(self) -> SaveProposal | None:
        """As another rank: the last proposal of rank 0."""

    def answer(self, answer: SaveAnswer) -> None:
        """As another rank: replace the last answer by this one."""


@dataclass(frozen=True)
class SyncOptions:
    """One rank of one attempt, and everything that its checkpoint sync needs.

    `channel` is the folder shared with the training. `scratch` is a folder of the agent, on the same disk as `folder`
    if possible, and the same for every agent of this node. `keep` is how many complete checkpoints pruning leaves.
    """

    store: Store
    job: str
    claim: int
    rank: int
    nodes: int
    folder: Path
    channel: Path
    scratch: Path
    keep: int = 3
    # Gives the files under `folder` that the training has open for writing.
    writing: Callable[[FilesByInode], WritableFiles] = lambda _aliased: WritableFiles({}, frozenset())
    # The other ranks. None: there are none, or this agent was restarted.
    gang: GangLink | None = None
    # Returns True when rank 0 will commit nothing more.
    lead_finished: Callable[[], bool] = lambda: False
    restored: RestoredCheckpoint | None = None
    # Says which manifests count; without it the job's log is read.
    trust: TrustedClaims | None = None
    # This agent was restarted and never trains: it only makes the final commit, and prunes nothing.
    recovering: bool = False
    # Says which files of the folder are checkpoints.
    selection: Selection | None = None
    # Returns True for a file of the folder that the job's `outputs` names or excludes.
    is_output: Callable[[str], bool] = lambda _path: False
    # Writes a line to the job's log.
    say: Callable[[str], None] = lambda _text: None
    # None: the default for the store and the number of nodes.
    settle_s: float | None = None
    busy_s: float = BUSY_S
    spacing_s: float | None = None
    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = utcnow

    @property
    def effective_settle_s(self) -> float:
        """How long nothing may be written before the folder counts as settled."""
        if self.settle_s is not None:
            return self.settle_s
        settle_s = LOCAL_SETTLE_S if self.store.is_local else REMOTE_SETTLE_S
        return max(settle_s, GANG_SETTLE_S) if self.nodes > 1 and self.rank == 0 else settle_s

    @property
    def effective_spacing_s(self) -> float:
        """The shortest time between two commits of the folder."""
        if self.spacing_s is not None:
            return self.spacing_s
        return LOCAL_SPACING_S if self.store.is_local else REMOTE_SPACING_S

    @property
    def follow_s(self) -> float:
        return LOCAL_FOLLOW_S if self.store.is_local else REMOTE_FOLLOW_S

    @property
    def kept(self) -> int:
        return max(1, self.keep)

    @property
    def workers(self) -> int:
        return LOCAL_WORKERS if self.store.is_local else REMOTE_WORKERS

    @property
    def confinement(self) -> Confinement | None:
        return self.selection.confinement if self.selection is not None else None

    @property
    def view(self) -> FolderView:
        return FolderView(self.folder, self.writing, self.selection or Selection())
