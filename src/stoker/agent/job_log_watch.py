"""Follow the job's log from a node. While the store does not answer, the last state that was read stays in force."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from stoker.core.gate import Leave, Permission, Wait, may_train, should_leave
from stoker.model.errors import StokerError
from stoker.model.job_state import Claim, JobState
from stoker.model.node_facts import Exit
from stoker.store import job_log, node_facts
from stoker.store.base import Store

LOCAL_POLL_S = 0.25
REMOTE_POLL_S = 3.0

_log = logging.getLogger(__name__)


class JobLogWatch:
    """The newest state of the job that could be read. `poll` in any thread; `start` polls in one of its own."""

    def __init__(self, store: Store, job: str, claim: int, instance: str) -> None:
        self._store = store
        self._job = job
        self._claim = claim
        self._instance = instance
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.state: JobState | None = None
        self.error: str | None = None

    def poll(self) -> JobState | None:
        """Read new entries; return the newest known state, even if the store does not answer."""
        with self._lock:
            try:
                self.state = job_log.read(self._store, self._job, self.state)
                self.error = None
            except StokerError as error:
                self.error = str(error)
            return self.state

    def permission(self) -> Permission:
        """Return whether this node may train, by the log as it is now."""
        state = self.poll()
        if self.error is not None:
            return Wait(f"the store does not answer: {self.error}")
        return may_train(state, self._claim, self._instance, self._exits)

    def leave(self) -> Leave | None:
        """Return why this node must go, by the state that was read last; None if it may stay."""
        return should_leave(self.state, self._claim, self._instance)

    def claim(self) -> Claim | None:
        return self.state.claim(self._claim) if self.state else None

    def start(self, on_change: Callable[[], None]) -> None:
        """Poll in a thread, which calls `on_change` whenever it has read an entry."""
        pause_s = LOCAL_POLL_S if self._store.is_local else REMOTE_POLL_S

        def run() -> None:
            while not self._stop.wait(pause_s):
                before = self.state.seq if self.state else 0
                try:
                    state = self.poll()
                except Exception:  # noqa: BLE001 - edge of a thread: without it a stop or a limit would not be seen
                    _log.exception("reading the job's log failed")
                    continue
                if state is not None and state.seq != before:
                    on_change()

        threading.Thread(target=run, name="log-watch", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _exits(self, claim: Claim) -> tuple[Exit | None, ...]:
        return node_facts.read_exits(self._store, self._job, claim)
