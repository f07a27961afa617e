"""The node's heartbeat: its present state in one object, written at every change, and now and then without one.

While something is decided (boot, set-up, the first minutes of training, a standstill, a suspicion, the end) it is
written every few seconds. While a node trains steadily, each write would only say so again: it is written once a
minute. The heartbeat tells its interval, and governors wait for it accordingly.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from stoker.model import codec, keys
from stoker.model.errors import StokerError
from stoker.model.job_state import JobState
from stoker.model.node_facts import Heartbeat
from stoker.store.base import Store

NEAR_INTERVAL_S = 2.0
FAR_INTERVAL_S = 10.0
# A third of what providers with far stores wait for a silent node (`silence_s`): one or two writes may be lost.
CALM_INTERVAL_S = 60.0
# A training that is younger is not steady yet.
_CALM_AFTER_S = 120.0
# Without progress for longer, and for longer than its steps usually take, a node may stand still.
_QUIET_S = 60.0
_STEP_FACTOR = 1.5

_log = logging.getLogger(__name__)


def is_calm(beat: Heartbeat, state: JobState | None, claim: int, rank: int) -> bool:
    """Whether a node trains steadily, and nothing about it is being decided."""
    mine = state.claim(claim) if state is not None else None
    if state is None or mine is None or not mine.open or state.stop is not None or state.ended is not None:
        return False
    if mine.drain is not None or str(rank) in mine.suspicions:
        return False
    if beat.phase != "training" or beat.trained_s < _CALM_AFTER_S or beat.activity is None:
        return False
    activity = beat.activity
    if activity.debugged_s is not None:
        return False  # Rules about standing still depend on it.
    quiet_s = activity.silent_s if activity.stepped_s is None else activity.stepped_s
    return quiet_s <= max(_QUIET_S, _STEP_FACTOR * activity.longest_step_s)


class Beat:
    """Keeps the heartbeat going. `change` is quick and never fails; the thread brings it to the store."""

    def __init__(
        self,
        store: Store,
        node: str,
        refresh: Callable[[Heartbeat], Heartbeat],
        calm: Callable[[Heartbeat], bool] = lambda _beat: False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._key = keys.heartbeat(node)
        self._refresh = refresh
        self._calm = calm
        self._monotonic = monotonic
        self._interval_s = NEAR_INTERVAL_S if store.near else FAR_INTERVAL_S
        self._calm_interval_s = self._interval_s if store.near else CALM_INTERVAL_S
        self._lock = threading.Lock()
        self._due = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.error: str | None = None
        self._now = Heartbeat(beat=0, phase="booting", at=_utcnow(), interval_s=self._interval_s)
        # What was last written, and when.
        self._written: Heartbeat | None = None
        self._written_s = 0.0

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
        self._look()
        with self._lock:
            beat = self._now = replace(self._now, beat=self._now.beat + 1, at=_utcnow())
        self._store.put(self._key, codec.dumps(beat))
        self._written, self._written_s = beat, self._monotonic()

    def tick(self) -> None:
        """Look at the node, and write what is news, or is due. Raises StokerError when the store does not take it.

        Called every few seconds: what is sampled with each look keeps its resolution, however rarely it is written.
        """
        self._look()
        # What was written last says until when the next one is due. A look that is a little early counts: the one after
        # it would be too late.
        if (
            self._written is None
            or _news(self._written) != _news(self._now)
            or self._monotonic() - self._written_s >= self._now.interval_s - self._interval_s / 2
        ):
            self.write()

    def _look(self) -> None:
        with self._lock:
            found = self._refresh(self._now)
            interval_s = self._calm_interval_s if self._calm(found) else self._interval_s
            self._now = replace(found, interval_s=interval_s)

    def _run(self) -> None:
        changed = False
        while not self._stopped:
            try:
                # A write that failed is repeated with the next look.
                if changed or self.error is not None:
                    self.write()
                else:
                    self.tick()
                self.error = None
            except StokerError as error:
                self.error = str(error)
            except Exception:  # noqa: BLE001 - an agent without a heartbeat would be taken for dead
                _log.exception("the heartbeat failed")
            changed = self._due.wait(self._interval_s)
            self._due.clear()


def _news(beat: Heartbeat) -> tuple[object, ...]:
    """What others wait for, or people want to know at once. Of the rest, a minute old is new enough."""
    return (
        beat.phase,
        beat.interval_s,
        beat.first_step is None,
        beat.checkpoint,
        beat.restored_from,
        beat.evidence,
        beat.rendezvous,
        beat.ack,
        beat.warnings,
        beat.saves_elsewhere,
    )


def _utcnow() -> datetime:
    return datetime.now(timezone.utc)
