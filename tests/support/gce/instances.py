"""Instances and their disks: what exists, what it is called, and how it is told."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from tests.support.gce.drafts import Draft
from tests.support.gce.errors import Failure, Json, already_exists, not_found
from tests.support.gce.links import Links
from tests.support.gce.metadata import MetadataService
from tests.support.gce.operations import Numbers, now, stamp
from tests.support.machines.machine import Machine

Goes = Literal["", "stop", "delete"]


@dataclass
class Instance:
    """One instance, as long as anybody may ask about it. Changed only under the lock of `Instances`."""

    number: str
    name: str
    draft: Draft
    made: datetime = field(default_factory=now)
    made_at: float = field(default_factory=time.monotonic)
    status: str = "PROVISIONING"
    address: str = ""
    machine: Machine[MetadataService] | None = None
    # Why it goes: to be stopped or deleted by somebody; empty while nobody has asked.
    goes: Goes = ""
    preempting: bool = False
    started: datetime | None = None
    stopped: datetime | None = None
    # Set once a request in the queue (flex-start) has waited long enough.
    expired: threading.Event = field(default_factory=threading.Event)
    removed: threading.Event = field(default_factory=threading.Event)
    settled: threading.Event = field(default_factory=threading.Event)

    @property
    def project(self) -> str:
        return self.draft.project

    @property
    def zone(self) -> str:
        return self.draft.zone

    @property
    def id(self) -> str:
        """As tests name it."""
        return f"{self.zone}.{self.number}"

    @property
    def path(self) -> str:
        return f"projects/{self.project}/zones/{self.zone}/instances/{self.name}"

    @property
    def attributes(self) -> dict[str, str]:
        return {item["key"]: item.get("value", "") for item in self.draft.body["metadata"]["items"]}

    def resource(self, links: Links) -> Json:
        """It as Google tells it now."""
        # "Input only."
        body = {name: value for name, value in self.draft.body.items() if name != "params"}
        disk = {**body["disks"][0], "source": links.to(self.disk_path)}
        card = dict(body["networkInterfaces"][0])
        if self.address:
            card["networkIP"] = self.address
            if "accessConfigs" in card:
                # The only address there is; whoever may reach the machine reaches it there.
                card["accessConfigs"] = [{**config, "natIP": self.address} for config in card["accessConfigs"]]
        card["fingerprint"] = fingerprint(card)
        found = {
            **body,
            "kind": "compute#instance",
            "id": self.number,
            "name": self.name,
            "creationTimestamp": stamp(self.made),
            "zone": links.to(f"projects/{self.project}/zones/{self.zone}"),
            "selfLink": links.to(self.path),
            "status": self.status,
            "cpuPlatform": "Intel Haswell",
            "disks": [disk, *body["disks"][1:]],
            "networkInterfaces": [card, *body["networkInterfaces"][1:]],
            "labelFingerprint": fingerprint(body.get("labels", {})),
            "metadata": self.metadata_resource(),
            "tags": {**body["tags"], "fingerprint": fingerprint(body["tags"])},
            "startRestricted": False,
            "deletionProtection": body.get("deletionProtection", False),
            "fingerprint": fingerprint(body),
        }
        if self.started is not None:
            found["lastStartTimestamp"] = stamp(self.started)
        if self.stopped is not None:
            found["lastStopTimestamp"] = stamp(self.stopped)
        return found

    def metadata_resource(self) -> Json:
        held = self.draft.body["metadata"]
        return {"kind": "compute#metadata", "fingerprint": fingerprint(held), **held}

    @property
    def disk_path(self) -> str:
        return f"projects/{self.project}/zones/{self.zone}/disks/{self.draft.disk['name'] or self.name}"


@dataclass
class Disk:
    """One disk. `user` is the instance that it belongs to; None once that is gone and left it behind."""

    number: str
    path: str
    body: Json
    user: Instance | None
    made: datetime = field(default_factory=now)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def zone(self) -> str:
        return self.path.split("/")[3]

    @property
    def project(self) -> str:
        return self.path.split("/")[1]

    def resource(self, links: Links) -> Json:
        """It as Google tells it now."""
        found = {
            **self.body,
            "kind": "compute#disk",
            "id": self.number,
            "name": self.name,
            "creationTimestamp": stamp(self.made),
            "zone": links.to(f"projects/{self.project}/zones/{self.zone}"),
            "selfLink": links.to(self.path),
            "labelFingerprint": fingerprint(self.body.get("labels", {})),
            "physicalBlockSizeBytes": "4096",
        }
        if self.user is not None:
            found["users"] = [links.to(self.user.path)]
        return found


class Instances:
    """All instances and disks that exist, and the instances that did. `lock` guards every change."""

    def __init__(self, numbers: Numbers) -> None:
        self.lock = threading.RLock()
        self._numbers = numbers
        self._known: dict[str, Instance] = {}
        self._named: dict[str, Instance] = {}
        self._disks: dict[str, Disk] = {}

    def add(self, name: str, draft: Draft) -> Instance:
        """A new instance with its disk. Raises Failure (409) where the name of either is taken."""
        with self.lock:
            made = Instance(self._numbers.new(), name, draft)
            if made.path in self._named:
                raise already_exists(made.path)
            if made.disk_path in self._disks:
                raise already_exists(made.disk_path)
            self._known[made.id] = self._named[made.path] = made
            self._disks[made.disk_path] = Disk(self._numbers.new(), made.disk_path, dict(draft.disk), made)
            return made

    def remove(self, instance: Instance, *, with_disk: bool = False) -> None:
        """It exists no more, nor does its disk where that goes with it. Repeating it changes nothing."""
        with self.lock:
            if self._named.get(instance.path) is instance:
                del self._named[instance.path]
                disk = self._disks.get(instance.disk_path)
                if disk is not None and disk.user is instance:
                    disk.user = None
                    if with_disk or instance.draft.body["disks"][0]["autoDelete"]:
                        del self._disks[disk.path]
            instance.removed.set()
            instance.settled.set()

    def find(self, project: str, zone: str, name: str) -> Instance:
        """By its name, or by its number. Raises Failure (404)."""
        path = f"projects/{project}/zones/{zone}/instances/{name}"
        with self.lock:
            found = self._named.get(path)
            if found is None and name.isdigit():
                found = next(
                    (
                        each
                        for each in self._named.values()
                        if (each.project, each.zone, each.number) == (project, zone, name)
                    ),
                    None,
                )
        if found is None:
            raise not_found(path)
        return found

    def exists(self, path: str) -> bool:
        with self.lock:
            return path in self._named

    def known(self, instance_id: str) -> Instance:
        """By what tests call it, also when it is gone. Raises LookupError."""
        with self.lock:
            if instance_id not in self._known:
                raise LookupError(f"there is no machine {instance_id}")
            return self._known[instance_id]

    def all(self, project: str = "") -> list[Instance]:
        """Those that exist."""
        with self.lock:
            return [each for each in self._named.values() if project in ("", each.project)]

    def ever(self) -> list[Instance]:
        """Those that exist or did."""
        with self.lock:
            return list(self._known.values())

    def disks(self, project: str = "") -> list[Disk]:
        with self.lock:
            return [each for each in self._disks.values() if project in ("", each.project)]

    def disk(self, path: str) -> Disk:
        """By its path, with its name or its number. Raises Failure (404)."""
        with self.lock:
            for disk in self._disks.values():
                if path in (disk.path, f"{disk.path.rpartition('/')[0]}/{disk.number}"):
                    return disk
        raise not_found(path)

    def remove_disk(self, disk: Disk) -> None:
        with self.lock:
            self._disks.pop(disk.path, None)


def fingerprint(of: object) -> str:
    """What must be given back by whoever changes something."""
    digest = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(digest[:9]).decode()


def check_fingerprint(given: str, held: object) -> None:
    """Raises Failure (412) where somebody else changed it meanwhile, or where none was given."""
    if given != fingerprint(held):
        told = "Supplied fingerprint does not match current metadata fingerprint."
        raise Failure(412, "conditionNotMet", told)
