"""The tick of a serverless governor: on while there is something to govern, off otherwise, so that an idle store costs
nothing.

A submitter marks its job, opens the job's log, and then wakes the governor, which switches the tick on. A governor that
finds nothing left switches the tick off and *then checks again*: a job that was opened before is seen by that check,
and a job that is opened later wakes a governor later."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from stoker.core.governor_settings import DEFAULT
from stoker.governor.observe import is_idle
from stoker.model.errors import ProviderError
from stoker.policy.reader import PolicyReader
from stoker.store.base import Store

# After it was switched on, later events rely on that for this long.
_SURE_FOR_S = 300.0


class ScheduleNotOn(ProviderError):
    """The tick could not be switched on, so no pass may ever follow: the caller has to call again."""


class Schedule(Protocol):
    """The tick of one deployment. Both methods are idempotent, and raise `ProviderError`."""

    def on(self) -> None: ...

    def off(self) -> None: ...


class ScheduleSwitch:
    """Switches a schedule on and off as the store's jobs need it."""

    def __init__(self, store: Store, schedule: Schedule) -> None:
        self._store = store
        self._schedule = schedule
        self._on_at_s: float | None = None

    def wanted(self, *, surely: bool = False) -> None:
        """Switch the tick on. `surely`: do not rely on an earlier switch, since a new job came. Raises
        ScheduleNotOn."""
        if not surely and self._on_at_s is not None and time.monotonic() - self._on_at_s < _SURE_FOR_S:
            return
        try:
            self._schedule.on()
        except ProviderError as error:
            raise ScheduleNotOn(str(error)) from error
        self._on_at_s = time.monotonic()

    def begin(self) -> bool:
        """Set the tick after a deployment. Returns whether it is on. Where the policy governs external jobs, it is on,
        since only a tick can find out whether there are any."""
        settings = PolicyReader(self._store, DEFAULT).read()
        if settings.policy_error or settings.policy.sagemaker is not None or not self.rest_if_idle():
            self.wanted(surely=True)
            return True
        return False

    def rest_if_idle(self, others: Callable[[], bool] = lambda: False) -> bool:
        """Switch the tick off if no job is active. Returns whether it is off.

        `others` tells whether there are external jobs; it is called once the tick is off. Raises ProviderError and
        StoreError; the tick is then on where a job is active, or where that is unknown.
        """
        if not is_idle(self._store):
            return False
        self._on_at_s = None
        idle = False
        try:
            self._schedule.off()
        finally:
            # Also after an error: if only the reply was lost, the tick is off.
            try:
                idle = is_idle(self._store) and not others()
            finally:
                if not idle:
                    self.wanted(surely=True)
        return idle
