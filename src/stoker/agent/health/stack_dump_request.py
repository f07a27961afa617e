"""Collects evidence when the log asks for it, in a thread of its own, and says so in the heartbeat."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from stoker.agent.heartbeat import Beat
from stoker.agent.node import Node
from stoker.model import keys
from stoker.model.job_state import JobState

_log = logging.getLogger(__name__)


class Witness:
    """One for each life of an agent. `collect` gives the text."""

    def __init__(self, node: Node, beat: Beat, collect: Callable[[], bytes]) -> None:
        self._node = node
        self._beat = beat
        self._collect = collect
        self._asked: list[str] = []
        # One after another: two cannot look into the same process at once.
        self._turn = threading.Lock()

    def look(self, state: JobState | None) -> None:
        """Begin with what the log asks of this claim and was not begun yet. Quick."""
        own = f":{self._node.config.claim}"
        for code in state.witnessed if state is not None else ():
            if code.endswith(own) and code not in self._asked:
                self._asked.append(code)
                number = len(self._asked)
                threading.Thread(target=self._work, args=(code, number), name="witness", daemon=True).start()

    def _work(self, code: str, number: int) -> None:
        with self._turn:
            try:
                text = self._collect()
                self._node.store.put(keys.evidence(self._node.key, number), text)
                self._node.say("evidence of what it is doing is kept; `stoker logs --evidence` shows it")
            except Exception as error:  # noqa: BLE001 - whoever waits for it would wait for nothing
                _log.warning("no evidence could be kept: %s", error)
            # Whoever waits for it need not wait any longer, either way.
            self._beat.change(evidence=(*self._beat.now.evidence, code))
