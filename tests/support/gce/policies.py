"""Resource policies: those that place machines close to one another."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from tests.support.gce.errors import Json, already_exists, invalid, not_found
from tests.support.gce.links import Links
from tests.support.gce.listing import Row
from tests.support.gce.operations import Numbers, now, stamp

if TYPE_CHECKING:
    from tests.support.gce.compute import Call


@dataclass
class Policy:
    """One policy. It is there at once, and READY when its operation has ended."""

    number: str
    path: str
    body: Json
    links: Links
    made: datetime = field(default_factory=now)
    status: str = "CREATING"

    @property
    def resource(self) -> Json:
        """It as Google tells it now."""
        parts = self.path.split("/")
        return {
            **self.body,
            "kind": "compute#resourcePolicy",
            "id": self.number,
            "creationTimestamp": stamp(self.made),
            "region": self.links.to("/".join(parts[:4])),
            "selfLink": self.links.to(self.path),
            "status": self.status,
        }


class Policies:
    """All policies. Safe to use from many threads."""

    def __init__(self, numbers: Numbers, links: Links) -> None:
        self._numbers = numbers
        self._links = links
        self._lock = threading.Lock()
        self._held: dict[str, Policy] = {}

    def add(self, call: Call) -> Policy:
        """A new one. Raises Failure where its name is taken, or where it is no placement policy."""
        if "groupPlacementPolicy" not in call.body:
            raise invalid("resource", call.body["name"], "This Compute Engine knows placement policies only.")
        count = call.body["groupPlacementPolicy"].get("vmCount", 2)
        if not 1 <= count <= 1500:
            raise invalid("resource.groupPlacementPolicy.vmCount", count, "It is out of range.")
        path = f"projects/{call.project}/{call.place}/resourcePolicies/{call.body['name']}"
        with self._lock:
            if path in self._held:
                raise already_exists(path)
            made = self._held[path] = Policy(self._numbers.new(), path, call.body, self._links)
            return made

    def ready(self, policy: Policy) -> None:
        policy.status = "READY"

    def remove(self, policy: Policy) -> None:
        with self._lock:
            self._held.pop(policy.path, None)

    def find(self, call: Call) -> Policy:
        """The one that a call names, by its name or number. Raises Failure (404)."""
        named = f"projects/{call.project}/{call.place}/resourcePolicies/{call.method.path['resourcePolicy']}"
        with self._lock:
            for policy in self._held.values():
                if named in (policy.path, f"{policy.path.rpartition('/')[0]}/{policy.number}"):
                    return policy
        raise not_found(named)

    def at(self, path: str) -> Json | None:
        """What the policy at a path says."""
        with self._lock:
            policy = self._held.get(path)
        return policy.body if policy is not None else None

    def rows(self, project: str = "") -> list[Row]:
        with self._lock:
            return [
                Row("/".join(policy.path.split("/")[2:4]), policy.resource)
                for policy in self._held.values()
                if project in ("", policy.path.split("/")[1])
            ]

    def names(self) -> list[str]:
        with self._lock:
            return [policy.path.rpartition("/")[2] for policy in self._held.values()]

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
