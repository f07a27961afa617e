"""The node's heartbeat: its present state in one object, written every few seconds and at every change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from stoker import codec, layout
from stoker.errors import StokerError
from stoker.model import Heartbeat
from stoker.store import Store

NEAR_INTERVAL_S = 2.0
FAR_INTERVAL_S = 10.0

_log = logging.getLogger(__name__)


class Beat:
    """Keeps the heartbeat going. `change` is quick and never fails; the thread brings it to the store."""

    def __init__(self, store: Store, node: str, refresh: Callable[[Heartbeat], Heartbeat]) -> None:
        self._store = store
        self._key = layout.heartbeat(node)
        self._refresh = refresh
        self._interval_s = NEAR_INTERVAL_S if store.near else FAR_INTERVAL_S
        self._lock = threading.Lock()
        self._due = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.error: str | None = None
        self._now = Heartbeat(beat=0, phase="booting", at=_utcnow(), interval_s=self._interval_s)

    @property
    def now(self) -> Heartbeat:
        """What the next heartbeat will say, before it is refreshed."""
        return self._now

    def change(self, **changes: Any) -> None:
        """Change what the heartbeat says, and have it written at once."""
        with self._lock:
            self._now = replace(self._now, **changes)
        self._due.set()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Beat no more: what comes last is the exit. A beat that the store does not take is left behind."""
        self._stopped = True
        self._due.set()
        self._thread.join(timeout=timeout_s)

    def write(self) -> None:
        """Write one heartbeat now. Raises StokerError when the store does not take it."""
        with self._lock:
            self._now = replace(self._refresh(self._now), beat=self._now.beat + 1, at=_utcnow())
            beat = self._now
        self._store.put(self._key, codec.dumps(beat))

    def _run(self) -> None:
        while not self._stopped:
            try:
                self.write()
                self.error = None
            except StokerError as error:
                self.error = str(error)
            except Exception:  # noqa: BLE001 - an agent without a heartbeat would be taken for dead
                _log.exception("the heartbeat failed")
            self._due.wait(self._interval_s)
            self._due.clear()


def _utcnow() -> datetime:
    return datetime.now(timezone.utc)
