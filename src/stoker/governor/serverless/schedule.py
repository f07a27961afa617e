"""The tick of a serverless governor: on while there is something to govern, off otherwise, so that rest costs nothing.

Whoever submits a job marks it, opens its log, and then wakes the governor, which switches the tick on. Whoever finds
nothing left switches it off and *then looks again*: a job that was opened before is seen, and one that is opened later
wakes a governor later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from stoker.core.governor_settings import DEFAULT
from stoker.governor.observe import is_idle
from stoker.model.errors import ProviderError
from stoker.policy.reader import HouseReader
from stoker.store.base import Store

# What switched it on a moment ago need not do so for every event that follows.
_SURE_FOR_S = 300.0


class NotOn(ProviderError):
    """The tick could not be switched on, so nobody may ever look again: whoever asked has to ask again."""


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
        """Something is to be governed. `surely`: nobody may rely on what was switched on before, a new job did it.

        Raises NotOn."""
        if not surely and self._on_at_s is not None and time.monotonic() - self._on_at_s < _SURE_FOR_S:
            return
        try:
            self._schedule.on()
        except ProviderError as error:
            raise NotOn(str(error)) from error
        self._on_at_s = time.monotonic()

    def begin(self) -> bool:
        """After a deployment. True: it is on. Where the house governs jobs of others, only a tick can tell whether
        there are some."""
        policy = HouseReader(self._store, DEFAULT).read()
        if policy.unread or policy.house.sagemaker is not None or not self.rest_if_idle():
            self.wanted(surely=True)
            return True
        return False

    def rest_if_idle(self, others: Callable[[], bool] = lambda: False) -> bool:
        """Switch it off where no job is active. True: it is off. `others`: whether there are jobs of others, asked once
        it is off. Raises ProviderError, and StoreError: then it is on where a job is active, or nobody can tell."""
        if not is_idle(self._store):
            return False
        self._on_at_s = None
        idle = False
        try:
            self._schedule.off()
        finally:
            # Whatever came of it: where only the reply was lost, it is off.
            try:
                idle = is_idle(self._store) and not others()
            finally:
                if not idle:
                    self.wanted(surely=True)
        return idle
