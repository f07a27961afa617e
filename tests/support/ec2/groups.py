"""Placement groups, which moto has none of."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from tests.support.ec2.faults import Failure


@dataclass(frozen=True)
class Group:
    """A placement group."""

    id: str
    name: str
    strategy: str
    region: str
    account: str
    tags: Mapping[str, str]

    def answer(self) -> dict[str, object]:
        """As EC2 describes it."""
        return {
            "GroupName": self.name,
            "GroupId": self.id,
            "GroupArn": f"arn:aws:ec2:{self.region}:{self.account}:placement-group/{self.name}",
            "State": "available",
            "Strategy": self.strategy,
            "Tags": [{"Key": key, "Value": value} for key, value in self.tags.items()],
        }

    def tag_rows(self) -> list[dict[str, str]]:
        """Its tags, as moto keeps those of other things."""
        kind = "placement-group"
        return [
            {"resource_id": self.id, "resource_type": kind, "key": key, "value": value}
            for key, value in self.tags.items()
        ]

    def passes(self, name: str, values: Sequence[str]) -> bool:
        """Whether it passes one filter."""
        if name.startswith("tag:"):
            value = self.tags.get(name[4:])
            return value is not None and any(fnmatchcase(value, pattern) for pattern in values)
        held: dict[str, tuple[str, ...]] = {
            "group-name": (self.name,),
            "group-id": (self.id,),
            "strategy": (self.strategy,),
            "state": ("available",),
            "tag-key": tuple(self.tags),
        }
        if name not in held:
            raise Failure("InvalidParameterValue", f"The filter '{name}' is invalid")
        return any(fnmatchcase(one, pattern) for one in held[name] for pattern in values)


class Groups:
    """All placement groups. `in_use` says whether an instance that is not terminated stands in a group."""

    def __init__(self, in_use: Callable[[str, str], bool]) -> None:
        self._in_use = in_use
        self._lock = threading.Lock()
        self._held: dict[tuple[str, str], Group] = {}

    def create(self, region: str, account: str, name: str, strategy: str, tags: Mapping[str, str]) -> Group:
        if not name:
            raise Failure("MissingParameter", "The request must contain the parameter groupName")
        with self._lock:
            if (region, name) in self._held:
                raise Failure("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
            made = Group(f"pg-{secrets.token_hex(8)}0", name, strategy or "cluster", region, account, dict(tags))
            self._held[region, name] = made
            return made

    def delete(self, region: str, name: str) -> None:
        self.find(region, name)
        if self._in_use(region, name):
            raise Failure(
                "InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use and may not be deleted."
            )
        with self._lock:
            self._held.pop((region, name), None)

    def find(self, region: str, name: str) -> Group:
        """By name or id. Raises Failure if there is none."""
        with self._lock:
            for group in self._held.values():
                if group.region == region and name in (group.name, group.id):
                    return group
        raise Failure("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")

    def tag(self, region: str, group_id: str, tags: Mapping[str, str]) -> None:
        group = self.find(region, group_id)
        with self._lock:
            self._held[region, group.name] = replace(group, tags={**group.tags, **tags})

    def all(self, region: str | None = None) -> list[Group]:
        with self._lock:
            return [group for group in self._held.values() if region in (None, group.region)]
