"""The tick of a serverless governor: on while there is something to govern, off otherwise, so that rest costs nothing.

Whoever submits a job marks it, opens its log, and then wakes the governor, which switches the tick on. Whoever finds
nothing left switches it off and *then looks again*: a job that was opened before is seen, and one that is opened later
wakes a governor later.
"""

from __future__ import annotations

import time
from typing import Protocol

from stoker.governor.observe import is_idle
from stoker.store import Store

# What switched it on a moment ago need not do so for every event that follows.
_SURE_FOR_S = 300.0


class Schedule(Protocol):
    """The tick of one deployment. Both are idempotent, and raise the errors of `ProviderError`."""

    def on(self) -> None: ...

    def off(self) -> None: ...


class Switch:
    """Keeps a schedule as the store's jobs want it."""

    def __init__(self, store: Store, schedule: Schedule) -> None:
        self._store = store
        self._schedule = schedule
        self._on_at_s: float | None = None

    def wanted(self, *, surely: bool = False) -> None:
        """Something is to be governed. `surely`: nobody may rely on what was switched on before, a new job did it."""
        if not surely and self._on_at_s is not None and time.monotonic() - self._on_at_s < _SURE_FOR_S:
            return
        self._schedule.on()
        self._on_at_s = time.monotonic()

    def rest_if_idle(self) -> bool:
        """Switch it off where no job is active. True: it is off."""
        if not is_idle(self._store):
            return False
        self._on_at_s = None
        self._schedule.off()
        if is_idle(self._store):
            return True
        self.wanted(surely=True)
        return False
