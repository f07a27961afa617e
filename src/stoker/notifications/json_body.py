"""A letter for programs: what webhooks, and queues behind topics, are sent. Its fields are in docs/notifications.md."""

from __future__ import annotations

from typing import Any

from stoker.model import codec
from stoker.notifications.events import Letter, Told

# Fields are added without a new version; one that changes its meaning, or goes, makes one.
VERSION = 1


def body(letter: Letter) -> dict[str, Any]:
    """JSON-ready."""
    return {
        "version": VERSION,
        "id": letter.id,
        "store": letter.store,
        "title": letter.title,
        "text": letter.text,
        "events": [_event(told) for told in letter.events],
        "more": letter.more,
    }


def _event(told: Told) -> dict[str, Any]:
    return {
        "id": f"{told.stream}/{told.seq}",
        "kind": told.kind,
        "job": told.job,
        "name": told.name,
        "tags": told.tags,
        "at": codec.dump(told.at),
        "reason": told.reason,
        "rule": told.rule or None,
        "audit": told.audit,
        "attempt": told.attempt,
        "where": told.where or None,
        "cost": told.cost,
        "thing": told.thing or None,
    }
