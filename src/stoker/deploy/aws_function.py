"""Lambda's entry point: `stoker.deploy.aws_function.handler`.

Everything that a call needs is made by the first one and kept, so a warm call makes its requests and no more. What is
imported here is imported by a cold start, before any event is looked at.
"""

from __future__ import annotations

import logging
import os

from stoker.external_jobs.waker import Foreign
from stoker.governor.connected_providers import Fleet
from stoker.governor.serverless import events
from stoker.governor.serverless.waker import Waker, tell
from stoker.providers.ec2.client import Clients
from stoker.providers.ec2.errors import calling
from stoker.store.base import open_store

# What the deployment tells the function.
STORE = "STOKER_STORE"
RULE = "STOKER_RULE"
# Where alarms about training jobs are to go.
TOPIC = "STOKER_ALARM_TOPIC"
# As this governor signs its passes and decisions.
NAME = "aws-lambda"

_kept: Waker | None = None


class Rule:
    """The EventBridge rule that ticks. Switching is one small call, idempotent by nature."""

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
        calling(self._name, lambda: getattr(client, operation)(Name=self._name))


def handler(event: object, _context: object) -> dict[str, object]:
    """Govern what the event is about. Never raises for what is in it; raises StoreError when the store does not
    answer, upon which Lambda calls again."""
    return tell(_waker().handle(events.of_aws(event)))


def _waker() -> Waker:
    global _kept
    if _kept is None:
        logging.getLogger().setLevel(logging.WARNING)
        logging.getLogger("stoker").setLevel(logging.INFO)
        store = open_store(os.environ[STORE])
        others = Foreign(store, NAME, os.environ.get(TOPIC))
        _kept = Waker(store, Rule(os.environ[RULE]), name=NAME, fleet=Fleet(store.url), foreign=others)
    return _kept
