"""Open a bucket, or a folder standing in for one, by URL.

`Store` is the only interface to buckets in Stoker. Each call is atomic, safe to repeat, and may raise StoreUnavailable
(no answer: conclude nothing) or StoreDenied (answered: not allowed).
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

# A segment that is empty, `.` or `..` would lead elsewhere in a folder; control characters and halves of surrogate
# pairs do not survive every bucket. All stores refuse them, so that a job does not depend on its store.
_SEGMENT = r"(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f\ud800-\udfff]+"
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_PREFIX = re.compile(rf"(?:{_SEGMENT}/)*")
# The ways to give Google's credentials.
GOOGLE_LOGIN = "`gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"
# For each cloud: the pattern of bucket names, and the source of credentials, which the URL must not contain.
# https://cloud.google.com/storage/docs/buckets#naming
_BUCKETS = {
    "s3": (
        re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    ),
    "gs": (
        re.compile(r"(?=[^.]{1,63}(?:\.[^.]{1,63})*\Z)[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
        GOOGLE_LOGIN,
    ),
}
# A URL without its slashes would be read as a path, and jobs would wait in a folder forever.
_SCHEME = re.compile(r"(s3|gs|file):", re.IGNORECASE)

# The most bytes of one record: the index record of a job with thousands of attempts has fewer. Parsed, a record may
# take twenty times as much memory.
RECORD_BYTES = 16 * 1024 * 1024
# For objects whose content a digest in the log names: no limit of their own.
ANY_SIZE = 1 << 62

_FORMS = "a folder (/data/stoker, file:///data/stoker) or a bucket (s3://bucket/prefix, gs://bucket/prefix)"


class FileChanged(StoreError):
    """The file changed during its upload; nothing was stored under its digest. Upload it again later."""


class ObjectChanged(StoreUnavailable):
    """The requested version of the object does not exist any more."""


class ObjectNamesUnusable(StoreError):
    """An object of the bucket has a name that no key can have, such as one with `..` or a control character."""


@dataclass(frozen=True)
class Meta:
    """Metadata of an object. `modified` is by the store's clock, the only clock that ages are computed from."""

    key: str
    size: int
    modified: datetime
    etag: str


@dataclass(frozen=True)
class Object:
    """An object and the metadata of exactly this version."""

    data: bytes
    meta: Meta


@dataclass(frozen=True)
class StoredFile:
    """A file in the store. `moved` is the number of uploaded bytes: 0 if the store had the file already."""

    digest: str
    size: int
    moved: int


class Store(Protocol):
    """A flat map from keys to bytes, with one conditional write: create."""

    @property
    def url(self) -> str:
        """Its URL, without credentials; the same for all its users."""

    @property
    def is_local(self) -> bool:
        """True for a folder: a call costs microseconds and no money, so readers may poll often."""

    def get(self, key: str, *, limit: int | None = None) -> Object | None:
        """Return the object, or None if it is positively absent.

        Raises StoreError for more than `limit` bytes, without reading them; None stands for RECORD_BYTES. So a read
        takes a bounded amount of memory, whatever others put into the store.
        """

    def get_from(self, key: str, start: int) -> bytes | None:
        """Return the object's bytes from `start` on; empty if there are no more, None if it is absent."""

    def head(self, key: str) -> Meta | None:
        """Return the object's metadata, or None if it is positively absent."""

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite. Readers see the old bytes or the new, never a mixture."""

    def create(self, key: str, data: bytes) -> bool:
        """Write only if absent. False: an object exists (perhaps the caller's own, if an earlier reply was lost)."""

    def list(self, prefix: str) -> Iterator[Meta]:
        """List the objects whose keys begin with `prefix` (which ends with `/`, or is empty), sorted by key."""

    def folders(self, prefix: str) -> builtins.list[str]:
        """List the names one level below `prefix` (which ends with `/`) that have objects below them, sorted."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; absent keys are ignored."""

    def put_file(self, source: Path, key: Callable[[str], str], *, replace: bool = False) -> StoredFile:
        """Store a file under `key(sha256 of its bytes)`, durable on return: create-only, or with `replace` overwriting.

        `replace` is one write without a delete before it: a delete that landed late would remove the new object.
        Without `replace`, an existing object under that key is not uploaded again. Raises OSError if the file cannot be
        read, and whatever `key` raises: then nothing was uploaded.
        """

    def get_file(self, key: str, target: Path) -> str | None:
        """Fetch an object into a new file and return the sha256 of its bytes; None if it is absent.

        If this raises, `target` holds garbage; callers fetch into a temporary name.
        """


def is_valid_key(key: str) -> bool:
    """Return whether every store accepts this key."""
    return _KEY.fullmatch(key) is not None


def check_key(key: str) -> str:
    """Return `key`. Raises StoreError if not every store accepts it."""
    if not is_valid_key(key):
        raise StoreError(f"{key!r} cannot be a key: empty, `.` or `..` segments and control characters cannot be kept")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix`. Raises StoreError unless it is empty or ends with a slash."""
    if _PREFIX.fullmatch(prefix) is None:
        raise StoreError(f"{prefix!r} cannot be a prefix: it is empty, or whole segments with a slash at the end")
    return prefix


def place_text(store: Store) -> str:
    """The store's URL for a message, and whether its folder is missing, as after a typing error."""
    if store.url.startswith("file://") and not _file_path(store.url).exists():
        return f"{store.url} (there is no such folder yet)"
    return store.url


def open_store(url: str | None) -> Store:
    """Open the store at `url`: `file:///…`, a plain path, `s3://bucket[/prefix]` or `gs://bucket[/prefix]`.

    None: the default store.

    Nothing is created, and no request is made yet. Raises UserError for an invalid URL, and for a path that is a file.
    Other problems of the place show at its first use.
    """
    if url is None:
        url = default_store_url()
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
    # `urlsplit` would cut the path at `?` or `#`, which are ordinary characters in file names.
    return Path(unquote(url[len("file://") + len(parts.netloc) :]))


def _open_folder(path: Path) -> Store:
    from stoker.store.folder import FolderStore

    # Links are resolved, so that all users of this folder get the same URL.
    root = Path(os.path.realpath(path))
    if root == root.parent:
        raise UserError("the root of the filesystem cannot be a store; name a folder below it")
    for place in (root, *root.parents):
        if place.exists() and not place.is_dir():
            raise UserError(f"the store {path} cannot be a folder: {place} is a file")
    return FolderStore(root)


# The ends of names that S3 reserves for buckets of other kinds:
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
_SPECIAL_KINDS = {
    "--x-s3": "a directory bucket (S3 Express One Zone)",
    "--xa-s3": "an access point of a directory bucket (S3 Express One Zone)",
    "--table-s3": "a table bucket",
    "--ol-s3": "an Object Lambda access point",
}
_SPECIAL_BUCKETS = re.compile("(" + "|".join(_SPECIAL_KINDS) + ")$")


def parse_bucket_url(url: str) -> tuple[str, str, str]:
    """Parse `s3://bucket[/prefix]` or `gs://…` into scheme, bucket and prefix. Raises UserError."""
    scheme, _, place = url.partition("://")
    scheme = scheme.lower()
    bucket, _, prefix = place.partition("/")
    prefix = prefix.strip("/")
    names, credentials = _BUCKETS[scheme]
    # URLs are shown to people and tag machines, so they must hold no credentials. The error must not repeat them
    # either.
    if "@" in bucket:
        raise UserError(f"the URL of a bucket carries no credentials; {credentials}")
    if names.fullmatch(bucket) is None:
        raise UserError(f"{bucket!r} is not the name of a bucket; write {scheme}://bucket or {scheme}://bucket/prefix")
    if scheme == "s3" and (kind := _SPECIAL_BUCKETS.search(bucket)):
        raise UserError(
            f"{bucket} is {_SPECIAL_KINDS[kind[0]]}, which lists and signs differently; name a general purpose bucket"
        )
    if prefix and ("?" in prefix or "#" in prefix or not is_valid_key(prefix)):
        raise UserError(f"{prefix!r} cannot be a prefix in a bucket; write {scheme}://bucket/prefix")
    return scheme, bucket, prefix


def _open_bucket(url: str) -> Store:
    scheme, bucket, prefix = parse_bucket_url(url)
    if scheme == "gs":
        from stoker.store.gcs import open_gcs

        return open_gcs(bucket, prefix)
    from stoker.store.s3 import open_s3

    return open_s3(bucket, prefix)


@checks_keywords
def open_any(store: str | Store | None = None) -> Store:
    """Open a store by URL, or the default store; an open store is returned as it is. Raises UserError for an invalid
    URL."""
    if store is None or isinstance(store, str):
        return open_store(store or None)
    return store
