"""A node's machine that gives notice when a test says so."""

from __future__ import annotations

from datetime import datetime, timezone

from stoker.model.node_facts import NoticeFact


class Here:
    """A machine as its agent sees it. Nothing else about it matters."""

    def __init__(self) -> None:
        self.now: NoticeFact | None = None

    def notice(self) -> NoticeFact | None:
        return self.now

    def give(self, grace_s: float) -> None:
        self.now = NoticeFact(hard=True, source="test", at=datetime.now(timezone.utc), grace_s=grace_s)

    def master_port(self, preferred: int) -> int:
        return preferred

    def address(self) -> str:
        return "127.0.0.1"

    def wake_governors(self) -> None: ...

    def give_back(self) -> None: ...
