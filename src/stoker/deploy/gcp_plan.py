"""The plan of a governor on Google Cloud: its names, the resources to create, and the roles to bind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.providers.base import HttpRequest
from stoker.providers.gce.identity import email


@dataclass(frozen=True)
class GcpPlan:
    """All inputs of the requests."""

    name: str
    project: str
    region: str
    store: str
    bucket: str
    object: str
    environ: Mapping[str, str] = field(default_factory=dict)
    # Channels through which the governor notifies, as for `stoker iam`.
    notify: tuple[str, ...] = ()
    # Addresses of accounts that machines may have, beside the one of `stoker iam`.
    accounts: tuple[str, ...] = ()
    # E-mail addresses to notify when the governor itself fails.
    alerts: tuple[str, ...] = ()

    @property
    def account(self) -> str:
        """The account of the function."""
        return email(self.project, self.name)

    @property
    def pusher(self) -> str:
        """The account that calls the function."""
        return email(self.project, f"{self.name}-push")

    @property
    def topic(self) -> str:
        return f"projects/{self.project}/topics/{self.name}"

    @property
    def folder(self) -> str:
        """The folder of the store in its bucket."""
        prefix = self.store.removeprefix("gs://").partition("/")[2]
        return f"{prefix}/" if prefix else ""

    @property
    def place(self) -> str:
        return f"projects/{self.project}/locations/{self.region}"

    @property
    def clock(self) -> str:
        return f"{self.place}/jobs/{self.name}"

    @property
    def net(self) -> str:
        """The slow clock, which is never paused."""
        return f"{self.clock}-net"

    @property
    def undelivered(self) -> str:
        return f"{self.topic}-undelivered"

    @property
    def subscription(self) -> str:
        return f"projects/{self.project}/subscriptions/{self.name}"


@dataclass(frozen=True)
class GcpResource:
    """A resource: the requests that create, update, read and delete it. All of them are JSON over HTTP."""

    what: str
    make: HttpRequest
    # The path of the resource.
    at: str
    # The update of an existing resource; None where there is nothing to update.
    change: HttpRequest | None = None
    # Its changes are long-running operations.
    slow: bool = False


@dataclass(frozen=True)
class RoleBindings:
    """Roles of members on an existing resource of any origin. Other bindings on it stay unchanged."""

    what: str
    look: HttpRequest
    put: HttpRequest
    bindings: tuple[dict[str, Any], ...]
    # Some APIs expect the policy inside another object.
    wrapped: bool = True
    # On a resource that is removed with the deployment.
    own: bool = False
    # The governor works without it.
    optional: bool = False
