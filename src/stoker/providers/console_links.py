"""The contract of a provider's module `links`: addresses in its cloud's web console. Pure, needs nothing installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from stoker.model.spec import Logs


@dataclass(frozen=True)
class NodeIdentity:
    """A node's position in a job of a store, from which its machine's name is derived."""

    store: str
    job: str
    claim: int
    attempt: int
    nodes: int
    rank: int


class LinksModule(Protocol):
    """Addresses in the provider's console."""

    def name(self, node: NodeIdentity) -> str | None:
        """The name under which the console lists the node's machine; None if it has no name."""

    def machine(self, instance: str, region: str | None) -> str | None:
        """The page of one machine; None if the region is not known."""

    def log(self, logs: Logs, job: str, attempt: int, rank: int, region: str | None) -> str | None:
        """The page with the copy of one node's log; None if the job requests no copy, or the region is not known."""

    def own_logs(self, instance: str, region: str | None) -> str | None:
        """The query that finds the cloud's own log entries about a machine, even after its end; None if there are
        none."""

    def own_logs_link(self, instance: str, region: str | None) -> str | None:
        """The page that shows the result of that query; None if there is none, or it is not known."""
