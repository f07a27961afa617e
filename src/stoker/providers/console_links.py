"""What a provider that has a console for people knows about it: its module `links`. Pure, needs nothing installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from stoker.model.spec import Logs


@dataclass(frozen=True)
class Seat:
    """A node's place in a job of a store: what its machine was named after."""

    store: str
    job: str
    claim: int
    attempt: int
    nodes: int
    rank: int


class Links(Protocol):
    """Addresses in the provider's console."""

    def name(self, seat: Seat) -> str | None:
        """What the console calls the machine that was launched for this; None where it has no name."""

    def machine(self, instance: str, region: str | None) -> str | None:
        """Where one machine is shown; None where the region is not known."""

    def log(self, logs: Logs, job: str, attempt: int, rank: int, region: str | None) -> str | None:
        """Where the copy of one node's log is shown; None where the job asks for none, or the region is not known."""

    def own_logs(self, instance: str, region: str | None) -> str | None:
        """The query that finds what the cloud itself logged about a machine, also when that is gone; None where there
        is no such thing."""

    def own_logs_link(self, instance: str, region: str | None) -> str | None:
        """Where a browser shows what that query finds; None where there is no such place, or it is not known."""
