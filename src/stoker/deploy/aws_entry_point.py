"""Lambda's entry point: `stoker.deploy.aws_entry_point.handler`.

The first call creates everything that a call needs and caches it, so that a warm call makes only its own requests. The
imports here run in a cold start, before any event is read.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import stoker
from stoker.deploy import aws_models
from stoker.external_jobs.serverless_adapter import ServerlessExternalJobs
from stoker.governor.connected_providers import Fleet
from stoker.governor.price_keeper import PriceKeeper
from stoker.governor.serverless import events
from stoker.governor.serverless.event_governor import EventGovernor, log_result
from stoker.providers.ec2.client import Clients
from stoker.providers.ec2.errors import call_aws
from stoker.store.base import open_store

# Environment variables that the deployment sets for the function.
STORE = "STOKER_STORE"
RULE = "STOKER_RULE"
# The topic for alarms about training jobs.
TOPIC = "STOKER_ALARM_TOPIC"
# The name with which this governor signs its passes and decisions.
NAME = "aws-lambda"

# The folder of the function's package.
_PACKAGE = Path(stoker.__file__).parents[1]

_cached_governor: EventGovernor | None = None


class TickRule:
    """The EventBridge rule that ticks. Switching it is one small, idempotent call."""

    def __init__(self, name: str, region: str | None = None, clients: Clients | None = None) -> None:
        self._name = name
        self._region = region
        self._clients = clients or Clients()

    def on(self) -> None:
        self._switch("enable_rule")

    def off(self) -> None:
        self._switch("disable_rule")

    def _switch(self, operation: str) -> None:
        client = self._clients.get("events", self._region)
        call_aws(self._name, lambda: getattr(client, operation)(Name=self._name))


def handler(event: object, _context: object) -> dict[str, object]:
    """Govern the jobs that the event concerns. No content of an event makes it raise. Raises StoreError when the store
    does not answer, so that Lambda calls again."""
    return log_result(_event_governor().handle(events.of_aws(event)))


def _event_governor() -> EventGovernor:
    global _cached_governor
    if _cached_governor is None:
        logging.getLogger().setLevel(logging.WARNING)
        logging.getLogger("stoker").setLevel(logging.INFO)
        aws_models.use_newer(_PACKAGE)
        store = open_store(os.environ[STORE])
        others = ServerlessExternalJobs(store, NAME, os.environ.get(TOPIC))
        _cached_governor = EventGovernor(
            store,
            TickRule(os.environ[RULE]),
            name=NAME,
            fleet=Fleet(store.url),
            external_jobs=others,
            prices=PriceKeeper(store),
        )
    return _cached_governor
