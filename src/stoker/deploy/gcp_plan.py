"""What a governor on Google Cloud is planned as: where it is, things that are made, and roles that are bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.providers.base import HttpRequest
from stoker.providers.gce.identity import email


@dataclass(frozen=True)
class Plan:
    """Everything that the requests are made of."""

    name: str
    project: str
    region: str
    store: str
    bucket: str
    object: str
    environ: Mapping[str, str] = field(default_factory=dict)
    # Where it tells, as for `stoker iam`.
    notify: tuple[str, ...] = ()
    # Accounts that machines may have, beside the one of `stoker iam`: addresses.
    accounts: tuple[str, ...] = ()
    # Addresses that are mailed when the governor itself is in trouble.
    alerts: tuple[str, ...] = ()

    @property
    def account(self) -> str:
        """Who the function is."""
        return email(self.project, self.name)

    @property
    def pusher(self) -> str:
        """Who calls it."""
        return email(self.project, f"{self.name}-push")

    @property
    def topic(self) -> str:
        return f"projects/{self.project}/topics/{self.name}"

    @property
    def folder(self) -> str:
        """Of the store in its bucket."""
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
        """The clock that never rests."""
        return f"{self.clock}-net"

    @property
    def undelivered(self) -> str:
        return f"{self.topic}-undelivered"

    @property
    def subscription(self) -> str:
        return f"projects/{self.project}/subscriptions/{self.name}"


@dataclass(frozen=True)
class Made:
    """A thing: how it is made, changed where it is there, looked at and removed. All of it is JSON over HTTP."""

    what: str
    make: HttpRequest
    # Where it stands.
    at: str
    # How it is changed; None where there is nothing to change.
    change: HttpRequest | None = None
    # Making, changing and removing it are operations that take their time.
    slow: bool = False


@dataclass(frozen=True)
class Bound:
    """Roles of members on something that is there, whoever made it. Others' bindings are left as they are."""

    what: str
    look: HttpRequest
    put: HttpRequest
    bindings: tuple[dict[str, Any], ...]
    # Some APIs want the policy inside another object.
    wrapped: bool = True
    # On a thing that goes with the deployment.
    own: bool = False
    # The governor does without it.
    optional: bool = False
