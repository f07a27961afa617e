"""Reasons to leave before the training starts, and calls to the store that end when there is one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from stoker.agent.health.stack_dump import StackDumpRequests
from stoker.agent.job_log_watch import JobLogWatch
from stoker.agent.notices import Notices
from stoker.agent.peers import PeerWatch
from stoker.agent.rendezvous import sleep_interruptibly
from stoker.model.errors import StoreUnavailable
from stoker.model.node_facts import ExitWhy
from stoker.store.parallel import run_watched

_log = logging.getLogger(__name__)

T = TypeVar("T")

# Pauses between two calls to a store that does not answer.
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


class LeaveEarly(Exception):
    """This node leaves before its training started."""

    def __init__(self, why: ExitWhy, reason: str) -> None:
        super().__init__(reason)
        self.why = why
        self.reason = reason


class LeaveChecks:
    """Raises LeaveEarly as soon as this node must go: a notice, a peer that left, or an entry of the job's log."""

    def __init__(self, log_watch: JobLogWatch, notices: Notices, stack_dumps: StackDumpRequests) -> None:
        self._log_watch = log_watch
        self._notices = notices
        self._stack_dumps = stack_dumps
        # Known when the log has named the ranks of this claim.
        self.peers: PeerWatch | None = None
        self._has_left = threading.Event()
        # When the log's request to leave is over, in monotonic seconds.
        self._leave_by_s: float | None = None

    def deadline_s(self, grace_s: float | None) -> float | None:
        """The monotonic time by which a notice or an entry of the log demands that this node be gone; None: neither.

        An entry, such as for `limits.max_cost`, allows `grace_s` from the first call that sees it: the governors end
        the machine `checkpoints.grace` and half a minute after the entry. Without `grace_s` it sets no deadline.
        """
        if self._leave_by_s is None and grace_s is not None and self._log_watch.leave() is not None:
            self._leave_by_s = time.monotonic() + grace_s
        ends = (self._notices.poll(), self._leave_by_s)
        return min((end for end in ends if end is not None), default=None)

    def check_notices(self) -> None:
        """Raise LeaveEarly on a notice or a peer that left. The log may ask for stack dumps meanwhile."""
        self._stack_dumps.start_requested(self._log_watch.state)
        if self._notices.poll() is not None:
            raise LeaveEarly("notice", "given notice before the training started")
        if self.peers is not None and self.peers.left is not None:
            raise LeaveEarly("peer", self.peers.left.reason)

    def check(self) -> None:
        """Raise LeaveEarly on any reason to leave, by the state of the log that was read last."""
        self.check_notices()
        leave = self._log_watch.leave()
        if leave is not None:
            raise LeaveEarly(leave.why, leave.reason)

    def mark_left(self) -> None:
        """Record that this node leaves: downloads and imports on other threads end at `stop_if_left`."""
        self._has_left.set()

    def stop_if_left(self, *_progress: int) -> None:
        """End an abandoned restore or import before its next file.

        The rest of the bandwidth is for the log and the exit, and nothing may be committed after the exit.
        """
        if self._has_left.is_set():
            raise LeaveEarly("notice", "this node has left")

    def ask_store(self, question: Callable[[], T]) -> T:
        """Call the store until it answers: before the training there is nothing better to do. Raises LeaveEarly.

        `question` must be repeatable, and may be abandoned half done: a notice leaves less time than a large checkpoint
        takes to download.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return run_watched(question, self.check)
            except StoreUnavailable as error:
                _log.warning("%s", error)
            self.pause(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    def pause(self, seconds: float) -> None:
        """Sleep. Raises LeaveEarly as soon as this node must go."""
        sleep_interruptibly(seconds, self.check)
