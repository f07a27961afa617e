"""Collect the stack dumps that the job's log asks for, in threads of their own, and report them in the heartbeat."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from stoker.agent.heartbeat import HeartbeatThread
from stoker.agent.node import AgentNode
from stoker.model import keys
from stoker.model.job_state import JobState

_log = logging.getLogger(__name__)


class StackDumpRequests:
    """The requests to one boot of an agent. `collect` returns the text of a dump."""

    def __init__(self, node: AgentNode, heartbeat: HeartbeatThread, collect: Callable[[], bytes]) -> None:
        self._node = node
        self._heartbeat = heartbeat
        self._collect = collect
        self._started: list[str] = []
        # One dump after another: two cannot look into the same process at once.
        self._turn = threading.Lock()

    def start_requested(self, state: JobState | None) -> None:
        """Start a dump for each request of this claim in the log that has none yet. Quick."""
        own = f":{self._node.config.claim}"
        for code in state.evidence_codes if state is not None else ():
            if code.endswith(own) and code not in self._started:
                self._started.append(code)
                number = len(self._started)
                threading.Thread(target=self._work, args=(code, number), name="stack-dump", daemon=True).start()

    def _work(self, code: str, number: int) -> None:
        with self._turn:
            try:
                text = self._collect()
                self._node.store.put(keys.evidence(self._node.key, number), text)
                self._node.say("a stack dump of its processes is stored; `stoker logs --evidence` shows it")
            except Exception as error:  # noqa: BLE001 - edge of a thread: the governor waits for the report below
                _log.warning("no stack dump could be stored: %s", error)
            # Reported either way: the governor need not wait any longer.
            self._heartbeat.change(evidence=(*self._heartbeat.now.evidence, code))
