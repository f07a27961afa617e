"""The entry points of a Cloud Run function: `wake` for HTTP, which Pub/Sub pushes to, and `on_event` for CloudEvents.

Both are called with a message of Pub/Sub: the tick's, an agent's or a person's. A message that cannot be understood is
acknowledged, because it would be repeated for ever; a message that could not be acted on is not, and is repeated.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from typing import Any

from stoker.external_jobs.serverless_adapter import ServerlessExternalJobs
from stoker.governor.connected_providers import Fleet
from stoker.governor.price_keeper import PriceKeeper
from stoker.governor.serverless import events
from stoker.governor.serverless.event_governor import EventGovernor, log_result
from stoker.model.errors import InvalidRequest
from stoker.providers.gce.client import Api
from stoker.store.base import open_store

# Environment variables that the deployment sets for the function.
STORE = "STOKER_STORE"
CLOCK = "STOKER_CLOCK"
NAME = "cloud-run"

_cached_governor: EventGovernor | None = None
# A governor is for one thread; the lock serialises concurrent requests.
_lock = threading.Lock()


class SchedulerJob:
    """The job of Cloud Scheduler that ticks. `path` is `projects/…/locations/…/jobs/…`."""

    def __init__(self, path: str, api: Api | None = None) -> None:
        self._path = path
        self._api = api or Api()

    def on(self) -> None:
        self._switch("resume", "ENABLED")

    def off(self) -> None:
        self._switch("pause", "PAUSED")

    def _switch(self, verb: str, wanted: str) -> None:
        try:
            self._api.send("POST", f"/v1/{self._path}:{verb}", {}, service="cloudscheduler", what="the clock")
        except InvalidRequest:
            # Cloud Scheduler refuses a change to the current state.
            if self._api.get(f"/v1/{self._path}", service="cloudscheduler").get("state") != wanted:
                raise


def wake(request: Any) -> tuple[str, int, dict[str, str]]:
    """Handle an HTTP request of Flask. Raises StoreError when the store does not answer, so that Pub/Sub repeats it."""
    result = _handled(request.get_json(silent=True, force=True))
    return json.dumps(result), 200, {"Content-Type": "application/json"}


def on_event(event: Any) -> None:
    """Handle a CloudEvent of the functions framework."""
    _handled(event.data)


def _handled(message: object) -> dict[str, object]:
    with _lock:
        return log_result(_event_governor().handle(events.of_message(message)))


def _event_governor() -> EventGovernor:
    global _cached_governor
    if _cached_governor is None:
        # Lines on standard output become entries of the function's log.
        logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(levelname)s %(message)s")
        logging.getLogger("stoker").setLevel(logging.INFO)
        store = open_store(os.environ[STORE])
        others = ServerlessExternalJobs(store, NAME)
        _cached_governor = EventGovernor(
            store,
            SchedulerJob(os.environ[CLOCK]),
            name=NAME,
            fleet=Fleet(store.url),
            external_jobs=others,
            prices=PriceKeeper(store),
        )
    return _cached_governor
