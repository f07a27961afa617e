"""Open a bucket, or a folder standing in for one, by URL.

`Store` is all that the rest of Stoker knows of buckets. Each call is atomic, safe to repeat, and may raise
StoreUnavailable (nobody answered: conclude nothing) or StoreDenied (answered: not allowed).
"""

from __future__ import annotations

import builtins
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from stoker.model.errors import StoreError, StoreUnavailable, UserError
from stoker.model.keywords import checks_keywords
from stoker.store.home import default_store_url

# A segment that is empty, `.` or `..` would leave its place in a folder; control characters and halves of surrogate
# pairs do not survive every bucket. Refused everywhere alike, so that a job does not depend on where it is kept.
_SEGMENT = r"(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f\ud800-\udfff]+"
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_PREFIX = re.compile(rf"(?:{_SEGMENT}/)*")
# Of each cloud: names of buckets, and where credentials come from instead of the URL.
# https://cloud.google.com/storage/docs/buckets#naming
_BUCKETS = {
    "s3": (
        re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    ),
    "gs": (
        re.compile(r"(?=[^.]{1,63}(?:\.[^.]{1,63})*\Z)[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
        "`gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
    ),
}
# Without its slashes a URL would be a path like any other, and jobs would wait in a folder for ever.
_SCHEME = re.compile(r"(s3|gs|file):", re.IGNORECASE)

_FORMS = "a folder (/data/stoker, file:///data/stoker) or a bucket (s3://bucket/prefix, gs://bucket/prefix)"


class FileChanged(StoreError):
    """The file changed while it was being sent; nothing was stored under its digest. Send it again later."""


class ObjectChanged(StoreUnavailable):
    """The object is not there any more as the version that was asked for."""


class ObjectNamesUnusable(StoreError):
    """Some object has a name that cannot be one here: `..` in it, a control character."""


@dataclass(frozen=True)
class Meta:
    """What the store says about an object. `modified` is the store's clock, the only one ages are taken from."""

    key: str
    size: int
    modified: datetime
    etag: str


@dataclass(frozen=True)
class Object:
    """An object and what the store said about that very version of it."""

    data: bytes
    meta: Meta


@dataclass(frozen=True)
class Sent:
    """A file that is now in the store. `moved` is how many bytes had to travel: 0 when it was there already."""

    digest: str
    size: int
    moved: int


class Store(Protocol):
    """A flat map from keys to bytes, with one conditional write: create."""

    @property
    def url(self) -> str:
        """Where it is, without credentials; the same for everybody who uses it."""

    @property
    def near(self) -> bool:
        """True for a folder: a call costs microseconds and no money, so readers may poll often."""

    def get(self, key: str, *, limit: int | None = None) -> Object | None:
        """The object, or None when it is positively absent. More than `limit` bytes raises StoreError."""

    def get_from(self, key: str, start: int) -> bytes | None:
        """The object's bytes from `start` on; empty when there are no more, None when it is absent."""

    def head(self, key: str) -> Meta | None:
        """What the store says about the object, or None when it is positively absent."""

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite. Readers see the old bytes or the new, never a mixture."""

    def create(self, key: str, data: bytes) -> bool:
        """Write only if absent. False: somebody's object is there (perhaps mine, if an earlier reply was lost)."""

    def list(self, prefix: str) -> Iterator[Meta]:
        """Every object whose key begins with `prefix` (which ends with `/`, or is empty), sorted by key."""

    def folders(self, prefix: str) -> builtins.list[str]:
        """The names one level below `prefix` (which ends with `/`) that have something below them, sorted."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove; absent keys are fine."""

    def put_file(self, source: Path, key: Callable[[str], str], *, replace: bool = False) -> Sent:
        """Store a file under `key(sha256 of the bytes sent)`, durable on return: create-only, or over what is there.

        To `replace` is one write, and no delete before it: one that landed late would remove what was written since.
        What is there already under that key is not sent again. Raises OSError if the file cannot be read, and what
        `key` raises: then nothing was sent.
        """

    def get_file(self, key: str, target: Path) -> str | None:
        """Fetch an object into a new file, with the bytes' sha256 as the answer; None when it is absent.

        `target` holds garbage if this raises; callers fetch into a temporary name.
        """


def can_be_key(key: str) -> bool:
    """Whether every store can keep an object under this key."""
    return _KEY.fullmatch(key) is not None


def check_key(key: str) -> str:
    """`key` itself. Raises StoreError for one that not every store can keep."""
    if not can_be_key(key):
        raise StoreError(f"{key!r} cannot be a key: empty, `.` or `..` segments and control characters cannot be kept")
    return key


def check_prefix(prefix: str) -> str:
    """`prefix` itself. Raises StoreError for one that neither is empty nor ends with a slash."""
    if _PREFIX.fullmatch(prefix) is None:
        raise StoreError(f"{prefix!r} cannot be a prefix: it is empty, or whole segments with a slash at the end")
    return prefix


def open_store(url: str) -> Store:
    """The store at `url`: `file:///…`, a plain path, `s3://bucket[/prefix]` or `gs://bucket[/prefix]`.

    Nothing is created or asked yet.

    Raises UserError for a URL that cannot be one. What is wrong with the place itself shows when it is used, but for
    a path that plainly is no folder.
    """
    if not url.strip():
        raise UserError(f"the store is not named; give {_FORMS}")
    scheme, separator, _ = url.partition("://")
    if not separator:
        written = _SCHEME.match(url)
        if written:
            raise UserError(f"{url} is neither a bucket nor a folder; write {written[1]}://…, with two slashes")
        return _open_folder(Path(url).expanduser())
    match scheme.lower():
        case "file":
            return _open_folder(_file_path(url))
        case "s3" | "gs":
            return _open_bucket(url)
        case other:
            raise UserError(f"{other}:// is not a store; give {_FORMS}")


def _file_path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise UserError(f"{url} is not a folder on this machine; write file:///absolute/path, with three slashes")
    # `urlsplit` would cut a path at `?` or `#`, which are ordinary characters in a file's name.
    return Path(unquote(url[len("file://") + len(parts.netloc) :]))


def _open_folder(path: Path) -> Store:
    from stoker.store.folder import FolderStore

    # Links are followed, so that everybody who reaches this folder gives it the same name.
    root = Path(os.path.realpath(path))
    if root == root.parent:
        raise UserError("the root of the filesystem cannot be a store; name a folder below it")
    for place in (root, *root.parents):
        if place.exists() and not place.is_dir():
            raise UserError(f"the store {path} cannot be a folder: {place} is a file")
    return FolderStore(root)


def read_bucket(url: str) -> tuple[str, str, str]:
    """The cloud's scheme, the bucket and the prefix of `s3://bucket[/prefix]` or `gs://…`. Raises UserError."""
    scheme, _, place = url.partition("://")
    scheme = scheme.lower()
    bucket, _, prefix = place.partition("/")
    prefix = prefix.strip("/")
    names, credentials = _BUCKETS[scheme]
    # The URL is shown to people and tags machines: what was written into it must not be repeated here either.
    if "@" in bucket:
        raise UserError(f"the URL of a bucket carries no credentials; {credentials}")
    if names.fullmatch(bucket) is None:
        raise UserError(f"{bucket!r} is not the name of a bucket; write {scheme}://bucket or {scheme}://bucket/prefix")
    if prefix and ("?" in prefix or "#" in prefix or not can_be_key(prefix)):
        raise UserError(f"{prefix!r} cannot be a prefix in a bucket; write {scheme}://bucket/prefix")
    return scheme, bucket, prefix


def _open_bucket(url: str) -> Store:
    scheme, bucket, prefix = read_bucket(url)
    if scheme == "gs":
        from stoker.store.gcs import open_gcs

        return open_gcs(bucket, prefix)
    from stoker.store.s3 import open_s3

    return open_s3(bucket, prefix)


@checks_keywords
def open_any(store: str | Store | None = None) -> Store:
    """The store that is meant. Raises UserError for a URL that cannot be one."""
    if store is None or isinstance(store, str):
        return open_store(store or default_store_url())
    return store
