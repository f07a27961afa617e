"""Open a bucket, or a folder standing in for one, by URL.

`Store` is all that the rest of Stoker knows of buckets. Each call is atomic, safe to repeat, and may raise
StoreUnavailable (nobody answered: conclude nothing) or StoreDenied (answered: not allowed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol


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

    def folders(self, prefix: str) -> list[str]:
        """The names one level below `prefix` (which ends with `/`) that have something below them, sorted."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove; absent keys are fine."""

    def put_file(self, source: Path, key: Callable[[str], str]) -> Sent:
        """Store a file under `key(sha256 of the bytes sent)`, create-only, durable on return.

        What is there already under that key is not sent again. Raises OSError if the file cannot be read.
        """

    def get_file(self, key: str, target: Path) -> str | None:
        """Fetch an object into a new file, with the bytes' sha256 as the answer; None when it is absent.

        `target` holds garbage if this raises; callers fetch into a temporary name.
        """


def open_store(url: str) -> Store:
    """The store at `url` (`file:///…`, `s3://bucket/prefix`). Raises UserError for a URL that cannot be one."""
    raise NotImplementedError
