"""The notice in force on this node, passed on the moment it is seen."""

from __future__ import annotations

import threading
import time

from stoker.agent.node import Node, utcnow
from stoker.model.node_facts import NoticeFact

# A notice that comes as a signal to the agent (the machine is being shut down) says nothing about the time left.
_SIGNAL_GRACE_S = 30.0


class Notices:
    """Looks for a notice whenever it is asked. A hard one is final: its deadline never moves away again."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._signalled = False
        self.notice: NoticeFact | None = None
        # When a hard notice's grace is over, in monotonic seconds.
        self.deadline_s: float | None = None
        # How many soft notices there were: each asks for a save.
        self.saves_asked = 0
        self._telling: threading.Thread | None = None

    def take_signal(self) -> None:
        """The machine is being shut down: a hard notice by another way. Safe in a signal handler."""
        self._signalled = True

    def look(self) -> float | None:
        """The deadline of the hard notice in force, or None. A new notice, hard or soft, is told to the governors.

        Of several hard ones the earliest deadline counts: who spoke later does not know of more time.
        """
        notice = self._node.machine.notice()
        if notice is not None and not notice.hard and (self._signalled or self.deadline_s is not None):
            # A hint may be in force for as long as the machine lives. It answers no shutdown, and takes nothing back.
            notice = None
        if notice is None and self._signalled and self.deadline_s is None:
            notice = NoticeFact(hard=True, source="shutdown", at=utcnow(), grace_s=_SIGNAL_GRACE_S)
        if notice is not None and notice != self.notice:
            self.notice = notice
            if notice.hard:
                self._bound(notice.grace_s)
            else:
                self.saves_asked += 1
            self._telling = self._node.write_notice(notice, after=self._telling)
        if self._signalled:
            # Whatever was promised before, the machine goes down now.
            self._bound(_SIGNAL_GRACE_S)
        return self.deadline_s

    def _bound(self, grace_s: float) -> None:
        deadline_s = time.monotonic() + grace_s
        self.deadline_s = deadline_s if self.deadline_s is None else min(self.deadline_s, deadline_s)
