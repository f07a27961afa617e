"""A message as JSON, for webhooks and for queues behind topics. Its fields are documented in docs/notifications.md."""

from __future__ import annotations

from typing import Any

from stoker.model import codec
from stoker.notifications.events import Message, Notification

# Fields are added without a new version. A field that changes its meaning, or is removed, needs one.
VERSION = 1


def body(message: Message) -> dict[str, Any]:
    """The message, ready for `json.dumps`."""
    return {
        "version": VERSION,
        "id": message.id,
        "store": message.store,
        "title": message.title,
        "text": message.text,
        "events": [_event(event) for event in message.events],
        "more": message.more,
    }


def _event(event: Notification) -> dict[str, Any]:
    return {
        "id": f"{event.stream}/{event.seq}",
        "kind": event.kind,
        "job": event.job,
        "name": event.name,
        "tags": event.tags,
        "at": codec.dump(event.at),
        "reason": event.reason,
        "rule": event.rule or None,
        "audit": event.audit,
        "attempt": event.attempt,
        "where": event.where or None,
        "cost": event.cost,
        "thing": event.thing or None,
    }
