"""The node's heartbeat: its present state in one object, written at every change, and now and then without one.

While something is being decided (boot, set-up, the first minutes of training, a standstill, a suspicion, the end) it is
written every few seconds. While a node trains steadily, each write would only repeat the last one: it is written once a
minute. The heartbeat contains its interval, and governors wait for it accordingly.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stoker.agent.node import utcnow
from stoker.model import codec, keys
from stoker.model.errors import StokerError
from stoker.model.job_state import JobState
from stoker.model.node_facts import Heartbeat
from stoker.store.base import Store

LOCAL_INTERVAL_S = 2.0
REMOTE_INTERVAL_S = 10.0
# A third of the time that governors wait for a silent node of a remote store: one or two writes may be lost.
STEADY_INTERVAL_S = 60.0
# A training that is younger is not steady yet.
_STEADY_AFTER_S = 120.0
# A node without progress for longer than this, and for longer than its steps usually take, may stand still.
_QUIET_S = 60.0
_STEP_FACTOR = 1.5

_log = logging.getLogger(__name__)


def is_steady(heartbeat: Heartbeat, state: JobState | None, claim: int, rank: int) -> bool:
    """Return whether a node trains steadily, and nothing about it is being decided."""
    mine = state.claim(claim) if state is not None else None
    if state is None or mine is None or not mine.open or state.stop is not None or state.ended is not None:
        return False
    if mine.drain is not None or str(rank) in mine.suspicions:
        return False
    if heartbeat.phase != "training" or heartbeat.trained_s < _STEADY_AFTER_S or heartbeat.activity is None:
        return False
    activity = heartbeat.activity
    if activity.debugged_s is not None:
        return False  # The rules about standstills depend on it.
    quiet_s = activity.silent_s if activity.stepped_s is None else activity.stepped_s
    return quiet_s <= max(_QUIET_S, _STEP_FACTOR * activity.longest_step_s)


class HeartbeatThread:
    """Writes the heartbeat, in a thread of its own. `change` is quick and never fails."""

    def __init__(
        self,
        store: Store,
        node: str,
        refresh: Callable[[Heartbeat], Heartbeat],
        is_steady: Callable[[Heartbeat], bool] = lambda _heartbeat: False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._key = keys.heartbeat(node)
        self._refresh = refresh
        self._is_steady = is_steady
        self._monotonic = monotonic
        self._interval_s = LOCAL_INTERVAL_S if store.is_local else REMOTE_INTERVAL_S
        self._steady_interval_s = self._interval_s if store.is_local else STEADY_INTERVAL_S
        self._lock = threading.Lock()
        self._due = threading.Event()
        # Fields were changed since the last write that the store took.
        self._changed = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.error: str | None = None
        self._now = Heartbeat(beat=0, phase="booting", at=utcnow(), interval_s=self._interval_s)
        # The last heartbeat in the store, and when it was written.
        self._written: tuple[Heartbeat, float] | None = None

    @property
    def now(self) -> Heartbeat:
        """The next heartbeat, before it is refreshed."""
        return self._now

    def change(self, **changes: Any) -> None:
        """Change fields of the heartbeat, and write it at once."""
        with self._lock:
            self._now = replace(self._now, **changes)
            self._changed = True
        self._due.set()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Write pending changes, and end the thread: the exit is the last fact.

        A write that the store does not take is left behind.
        """
        self._stopped = True
        self._due.set()
        self._thread.join(timeout=timeout_s)

    def write(self) -> None:
        """Write one heartbeat now. Raises StokerError if the store does not take it."""
        self._update()
        with self._lock:
            heartbeat = self._now = replace(self._now, beat=self._now.beat + 1, at=utcnow())
            self._changed = False
        try:
            self._store.put(self._key, codec.dumps(heartbeat))
        except BaseException:
            self._changed = True  # It is written with the next tick, or at the stop.
            raise
        self._written = heartbeat, self._monotonic()

    def tick(self) -> None:
        """Update the heartbeat; write it if it has news, or is due. Raises StokerError if the store does not take it.

        Called every few seconds: values that are sampled with each update keep their resolution, however rarely they
        are written.
        """
        self._update()
        if self._written is None:
            self.write()
            return
        last, written_s = self._written
        # The interval in the last heartbeat sets when the next one is due. A tick that is a little early counts: the
        # one after it would be too late.
        is_due = self._monotonic() - written_s >= self._now.interval_s - self._interval_s / 2
        if is_due or _news(last) != _news(self._now):
            self.write()

    def _update(self) -> None:
        with self._lock:
            found = self._refresh(self._now)
            interval_s = self._steady_interval_s if self._is_steady(found) else self._interval_s
            self._now = replace(found, interval_s=interval_s)

    def _run(self) -> None:
        while not self._stopped:
            self._beat()
            self._due.wait(self._interval_s)
            self._due.clear()
        if self._changed:
            self._beat()

    def _beat(self) -> None:
        try:
            if self._changed:
                self.write()
            else:
                self.tick()
            self.error = None
        except StokerError as error:
            self.error = str(error)
        except Exception:  # noqa: BLE001 - edge of a thread: an agent without a heartbeat would be declared dead
            _log.exception("the heartbeat failed")


def _news(heartbeat: Heartbeat) -> tuple[object, ...]:
    """The fields that other nodes or governors wait for, or that people want at once. The rest may be a minute old."""
    return (
        heartbeat.phase,
        heartbeat.interval_s,
        heartbeat.first_step is None,
        heartbeat.checkpoint,
        heartbeat.checkpoint_files > 0,
        heartbeat.restored_from,
        heartbeat.evidence,
        heartbeat.rendezvous,
        heartbeat.ack,
        heartbeat.save_proposal,
        heartbeat.save_answer,
        heartbeat.warnings,
        heartbeat.saves_elsewhere,
    )
