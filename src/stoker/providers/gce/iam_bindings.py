"""Roles and bindings of Google's IAM as data: which role, on what, under which condition. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from stoker.model import keys
from stoker.model.errors import UserError
from stoker.providers.gce import permissions
from stoker.providers.gce.permissions import Permission

READER = "roles/storage.objectViewer"
# Creates objects, and cannot replace any: replacing needs the permission to delete as well.
CREATOR = "roles/storage.objectCreator"


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
class StoreBinding:
    """A role on folders of the store, for one member."""

    role: str
    title: str
    folders: tuple[str, ...]
    # Also on the entries of any job's log.
    log_entries: bool = False
    # Also on the object that has the very name of the store's folder, since an input may be a single object.
    itself: bool = False


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

    def bind(self, row: StoreBinding) -> Binding:
        """The binding of a row: below its folders alone, except that readers list the whole bucket.

        Cloud Storage evaluates a list against the bucket, not against its objects. A condition could limit the listed
        prefix (api.getAttribute), but without the permission to list, an absent object answers 403 instead of 404, and
        that request has no prefix. Therefore the whole bucket can be listed.
        """
        any_of = ['resource.type == "storage.googleapis.com/Bucket"'] if row.role == READER else []
        if row.log_entries:
            start = quoted(f"{self._objects()}{keys.JOBS}{{job}}/log/")
            any_of.append(f'resource.name.extract({start}) != ""')
        if row.itself and self.prefix:
            any_of.append(f"resource.name == {quoted(self._objects().rstrip('/'))}")
        any_of += [f"resource.name.startsWith({quoted(self._objects() + folder)})" for folder in row.folders]
        return Binding(f"gs://{self.name}", row.role, Condition(row.title, " || ".join(any_of)))

    def _objects(self) -> str:
        return f"projects/_/buckets/{self.name}/objects/{self.prefix}"


def quoted(text: str) -> str:
    """A string literal of the language of conditions."""
    return json.dumps(text, ensure_ascii=False)
