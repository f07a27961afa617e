"""What a provider that has a console for people knows about it: its module `links`. Pure, needs nothing installed."""

from __future__ import annotations

from typing import Protocol


class Links(Protocol):
    """Addresses in the provider's console."""

    def machine(self, instance: str, region: str | None) -> str | None:
        """Where one machine is shown; None where the region is not known."""

    def log(self, group: str, stream: str, region: str | None) -> str | None:
        """Where one stream of a log group is shown; None where the region is not known."""
