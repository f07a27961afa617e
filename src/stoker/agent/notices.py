"""The notice in force on this node, forwarded to the governors the moment it is seen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime

from stoker.agent.node import AgentNode, utcnow
from stoker.model import codec
from stoker.model.node_facts import Heartbeat, NoticeFact
from stoker.store.base import Object
from stoker.store.store_clock import StoreClock

# The grace of a shutdown: SIGTERM to the agent says nothing about the time that is left.
_SIGNAL_GRACE_S = 30.0
# An end that is known beforehand asks for a save this long before: as early as EC2 warns of a capacity block's end.
_HINT_S = 600.0


class KnownEnd:
    """The end of a machine that is known since its launch. It becomes a soft notice, and then a hard one."""

    def __init__(self, at: datetime, notice_s: float, source: str) -> None:
        self._at = at
        self._notice_s = notice_s
        self._source = source
        self._reported: NoticeFact | None = None

    def notice(self, now: datetime) -> NoticeFact | None:
        """The notice in force; the same object until a hard one follows a soft one."""
        left_s = (self._at - now).total_seconds()
        hard = left_s <= self._notice_s
        if left_s <= max(_HINT_S, self._notice_s) and (self._reported is None or hard > self._reported.hard):
            grace_s = max(0.0, left_s) if hard else 0.0
            self._reported = NoticeFact(hard=hard, source=self._source, at=now, grace_s=grace_s)
        return self._reported


def clock_of(written: Object | None) -> Callable[[], datetime]:
    """The store's clock, by a heartbeat that this machine wrote. It has the time of its writing by both clocks.

    From here on the monotonic clock counts, so that nothing depends on the machine's own, which may be wrong, and may
    be set meanwhile. Without a heartbeat there is no other clock.
    """
    if written is None:
        return utcnow
    age = utcnow() - codec.loads(Heartbeat, written.data).at
    return StoreClock(written.meta.modified + age, time.monotonic(), time.monotonic).now


class Notices:
    """Polls the machine for notices. A hard notice is final: its deadline never moves later."""

    def __init__(self, node: AgentNode) -> None:
        self._node = node
        # SIGTERM came: the machine is being shut down.
        self.signalled = False
        self.notice: NoticeFact | None = None
        # When the grace of the hard notice is over, in monotonic seconds.
        self.deadline_s: float | None = None
        # How many soft notices there were: each asks for a save.
        self.hints = 0
        # The end of the reservation in which the machine is, if that ends machines.
        self.known_end: KnownEnd | None = None
        # The clock by which that end comes.
        self.clock: Callable[[], datetime] = utcnow
        self._writer: threading.Thread | None = None

    def take_signal(self) -> None:
        """Count a shutdown of the machine as a hard notice. Safe in a signal handler."""
        self.signalled = True

    def poll(self) -> float | None:
        """Return the deadline of the hard notice in force, or None. A new notice, hard or soft, goes to the governors.

        Of several hard notices the earliest deadline counts: a later notice is no evidence of more time.
        """
        notice = self._node.machine.notice()
        if self.known_end is not None and (notice is None or not notice.hard):
            notice = self.known_end.notice(self.clock()) or notice
        if notice is not None and not notice.hard and (self.signalled or self.deadline_s is not None):
            # A soft notice may be in force for as long as the machine lives. It replaces no hard notice, no shutdown.
            notice = None
        if notice is None and self.signalled and self.deadline_s is None:
            notice = NoticeFact(hard=True, source="shutdown", at=utcnow(), grace_s=_SIGNAL_GRACE_S)
        if notice is not None and notice != self.notice:
            self.notice = notice
            if notice.hard:
                self._bound(notice.grace_s)
            else:
                self.hints += 1
            self._writer = self._node.write_notice(notice, after=self._writer)
        if self.signalled:
            # The machine goes down now, whatever grace an earlier notice gave.
            self._bound(_SIGNAL_GRACE_S)
        return self.deadline_s

    def _bound(self, grace_s: float) -> None:
        deadline_s = time.monotonic() + grace_s
        self.deadline_s = deadline_s if self.deadline_s is None else min(self.deadline_s, deadline_s)
