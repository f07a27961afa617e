"""What the pages about the house show is what is printed and sent."""

from __future__ import annotations

import json
from datetime import datetime

from pages import DOCS, blocks

from stoker.core.telling import Told, compose
from stoker.notify.body import body


def shown(page: str, language: str) -> list[str]:
    return [block.text for block in blocks(DOCS / page) if block.language == language]


def test_what_a_webhook_is_sent() -> None:
    (page,) = [json.loads(text) for text in shown("notifications.md", "json")]
    (event,) = page["events"]
    stream, _, seq = event.pop("id").rpartition("/")
    given = {name: value for name, value in event.items() if value is not None}
    told = Told(**{**given, "at": datetime.fromisoformat(event["at"].replace("Z", "+00:00")), "seq": int(seq)})
    assert stream == told.job
    assert body(compose(page["id"], page["store"], (told,))) == {**page, "events": [{"id": f"{stream}/{seq}", **event}]}
