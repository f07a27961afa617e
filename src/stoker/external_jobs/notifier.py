"""Notify people of what happens to external training jobs. No failure here harms a job."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from stoker.external_jobs import chain_log, notifications
from stoker.external_jobs.notifications import JobContext
from stoker.model.errors import StoreError, describe_error
from stoker.model.policy import Policy
from stoker.notifications.dispatcher import NotificationDispatcher
from stoker.notifications.events import Notification
from stoker.store.base import Store
from stoker.store.external_job_index import ExternalJobRow


class ExternalJobNotifier:
    """Records the events of clone chains in the outboxes, and sends them. An event that is recorded again, also by
    another governor, is sent once. Events that could not be recorded are retried with the next call.
    """

    def __init__(self, store: Store, by: str, dispatcher: NotificationDispatcher | None = None) -> None:
        self._store = store
        self._dispatcher = dispatcher or NotificationDispatcher(store, by)
        self._unrecorded: list[Notification] = []

    @property
    def unsent(self) -> bool:
        """Return whether something is still to be sent, by any governor."""
        return bool(self._unrecorded) or self._dispatcher.unsent

    @property
    def is_recorded(self) -> bool:
        """Return whether all collected events are in the outboxes, from where any governor can send them."""
        return not self._unrecorded

    def collect(self, policy: Policy, row: ExternalJobRow, before: ExternalJobRow | None) -> bool:
        """Collect the events that were written since the job's last row. False: the log could not be read."""
        after = before.seq if before is not None and before.origin == row.origin else 0
        if not policy.notify or row.seq <= after or row.own:
            return True
        where = f"{row.nodes} × {row.machine}" if row.nodes > 1 else row.machine
        context = JobContext(row.origin, row.region, f"{where}{' spot' if row.spot else ''} on SageMaker", row.tags)
        try:
            entries = list(chain_log.entries(self._store, row.region, row.origin, after + 1))
        except StoreError:
            return False
        known = {(event.stream, event.seq) for event in self._unrecorded}
        found = (notifications.notification_of(entry, context, policy) for entry in entries)
        self._unrecorded += [event for event in found if event is not None and (event.stream, event.seq) not in known]
        return True

    def send(self, policy: Policy, now: Callable[[], datetime]) -> dict[str, str]:
        """Record the collected events, and send what waits. Returns problems."""
        if not policy.notify:
            self._unrecorded = []
            return {}
        try:
            self._dispatcher.begin(policy)
            self._dispatcher.record({}, now(), more=self._unrecorded)
            self._unrecorded = []
            return self._dispatcher.send(now)
        except Exception as error:  # noqa: BLE001 - a side channel: no bug in it may end a pass
            return {"notify": describe_error(error)}
