"""Roles and bindings of Google's IAM as data: which role, on what, under which condition. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stoker.model import keys
from stoker.model.errors import UserError
from stoker.providers.gce import permissions
from stoker.providers.gce.permissions import Permission

READER = "roles/storage.objectViewer"
# Creates objects, and cannot replace any: replacing needs the permission to delete as well.
CREATOR = "roles/storage.objectCreator"

_LISTS_BUCKET = 'resource.type == "storage.googleapis.com/Bucket"'


@dataclass(frozen=True)
class ProjectRole:
    """A custom role of the project."""

    id: str
    title: str
    permissions: tuple[Permission, ...]

    @property
    def path(self) -> str:
        """The role's path, with a variable that the shell expands."""
        return f"projects/$PROJECT/roles/{self.id}"

    def as_json(self) -> dict[str, Any]:
        """The role as `gcloud iam roles create --file` reads it."""
        return {"title": self.title, "stage": "GA", "includedPermissions": permissions.names(self.permissions)}


NODE = ProjectRole("stokerNode", "Stoker: a machine", permissions.NODE)
PERSON = ProjectRole("stokerPerson", "Stoker: a person", permissions.PERSON)
GOVERNOR = ProjectRole("stokerGovernor", "Stoker: a governor", permissions.GOVERNOR)
REMOVER = ProjectRole("stokerRemover", "Stoker: replace and remove objects", permissions.REMOVER)


@dataclass(frozen=True)
class Condition:
    """The condition under which a binding applies. `title` distinguishes it from others on the console."""

    title: str
    expression: str


@dataclass(frozen=True)
class Binding:
    """A role on a resource, for one member.

    `on`: `project`, a bucket's address, a secret (`projects/…/secrets/NAME`, or without its project), or the name of a
    service account.
    """

    on: str
    role: str
    condition: Condition | None = None

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"on": self.on, "role": self.role}
        if self.condition is not None:
            found["condition"] = {"title": self.condition.title, "expression": self.condition.expression}
        return found


@dataclass(frozen=True)
class BucketFolder:
    """A bucket, and a folder in it: builds the bindings that are limited to this folder."""

    name: str
    prefix: str

    @classmethod
    def of(cls, url: str, option: str) -> BucketFolder:
        bucket, _, prefix = url.removeprefix("gs://").strip("/").partition("/")
        if not url.startswith("gs://") or not bucket:
            raise UserError(
                f"{option}: machines on Compute Engine need a bucket; give it as gs://BUCKET/PREFIX, not {url!r}"
            )
        return cls(bucket, f"{prefix}/" if prefix else "")

    def reads(self, title: str, *folders: str) -> Binding:
        """Read below these folders, and list the whole bucket.

        Cloud Storage evaluates a list against the bucket, not against its objects. A condition could limit the listed
        prefix (api.getAttribute), but without the permission to list, an absent object answers 403 instead of 404, and
        that request has no prefix. Therefore the whole bucket can be listed.
        """
        return self._bound(READER, title, [_LISTS_BUCKET, *map(self._under, folders)])

    def reads_input(self, title: str) -> Binding:
        """Read below the folder, and the object of that exact name, since an input may be a single object."""
        name = f"projects/_/buckets/{self.name}/objects/{self.prefix.rstrip('/')}"
        itself = [f"resource.name == {quoted(name)}"] if self.prefix else []
        return self._bound(READER, title, [_LISTS_BUCKET, *itself, self._under("")])

    def creates(self, title: str, *folders: str, beside: Iterable[str] = ()) -> Binding:
        return self._bound(CREATOR, title, [*beside, *map(self._under, folders)])

    def removes(self, title: str, *folders: str) -> Binding:
        return self._bound(REMOVER.path, title, [self._under(folder) for folder in folders])

    def is_log_entry(self) -> str:
        """The condition that an object is an entry of any job's log."""
        start = quoted(f"projects/_/buckets/{self.name}/objects/{self.prefix}{keys.JOBS}{{job}}/log/")
        return f'resource.name.extract({start}) != ""'

    def _under(self, folder: str) -> str:
        return f"resource.name.startsWith({quoted(f'projects/_/buckets/{self.name}/objects/{self.prefix}{folder}')})"

    def _bound(self, role: str, title: str, any_of: list[str]) -> Binding:
        return Binding(f"gs://{self.name}", role, Condition(title, " || ".join(any_of)))


def quoted(text: str) -> str:
    """A string literal of the language of conditions."""
    return json.dumps(text, ensure_ascii=False)
