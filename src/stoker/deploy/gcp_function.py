"""The entry points of a Cloud Run function: `wake` for HTTP, which Pub/Sub pushes to, and `on_event` for CloudEvents.

Both are called with a message of Pub/Sub's: the tick's, an agent's or a person's. A message that nobody understands is
taken as delivered, for it would come again for ever; one that could not be acted on is not, and does.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from typing import Any

from stoker.external_jobs.waker import Foreign
from stoker.governor.connected_providers import Fleet
from stoker.governor.serverless import events
from stoker.governor.serverless.waker import Waker, tell
from stoker.model.errors import InvalidRequest
from stoker.providers.gce.client import Api
from stoker.store.base import open_store

# What the deployment tells the function.
STORE = "STOKER_STORE"
CLOCK = "STOKER_CLOCK"
NAME = "cloud-run"

_kept: Waker | None = None
# One governor is for one thread, however many requests are let in at once.
_lock = threading.Lock()


class SchedulerJob:
    """The job of Cloud Scheduler's that ticks, as `projects/…/locations/…/jobs/…`."""

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
            # It refuses what is so already.
            if self._api.get(f"/v1/{self._path}", service="cloudscheduler").get("state") != wanted:
                raise


def wake(request: Any) -> tuple[str, int, dict[str, str]]:
    """An HTTP request, as Flask has it. Raises StoreError when the store does not answer: Pub/Sub sends it again."""
    told = _handled(request.get_json(silent=True, force=True))
    return json.dumps(told), 200, {"Content-Type": "application/json"}


def on_event(event: Any) -> None:
    """A CloudEvent, as the functions framework has it."""
    _handled(event.data)


def _handled(message: object) -> dict[str, object]:
    with _lock:
        return tell(_waker().handle(events.of_message(message)))


def _waker() -> Waker:
    global _kept
    if _kept is None:
        # What is printed there becomes a line of the function's log.
        logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(levelname)s %(message)s")
        logging.getLogger("stoker").setLevel(logging.INFO)
        store = open_store(os.environ[STORE])
        others = Foreign(store, NAME)
        _kept = Waker(store, SchedulerJob(os.environ[CLOCK]), name=NAME, fleet=Fleet(store.url), foreign=others)
    return _kept
