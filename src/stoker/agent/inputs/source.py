"""The source of an input: a folder of a bucket or one object in it, and its current contents."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from stoker.model.errors import StoreError
from stoker.store.base import Meta, ObjectNamesUnusable, is_valid_key, open_store
from stoker.store.bucket import BucketStore

T = TypeVar("T")


class NothingThere(StoreError):
    """The URL names neither an object nor a folder with anything in it."""


@dataclass(frozen=True)
class Shard:
    """Every `nodes`-th file, starting with the `rank`-th."""

    rank: int
    nodes: int

    def of(self, files: tuple[T, ...]) -> tuple[T, ...]:
        """Return this shard's part of the files. They must be sorted, so that all nodes divide the same sequence."""
        return files[self.rank :: self.nodes]


@dataclass(frozen=True)
class InputListing:
    """The files to fetch, sorted by name. `single`: the URL names this one object, not a folder."""

    url: str
    bucket: BucketStore
    files: tuple[Meta, ...]
    single: str | None = None
    # The number of files in the whole input.
    total_files: int = 0

    @property
    def size(self) -> int:
        return sum(meta.size for meta in self.files)

    @property
    def url_digest(self) -> str:
        """The digest of the URL: the same for all contents that were ever found there."""
        return _digest([self.url])

    @property
    def digest(self) -> str:
        """The digest of the objects and their versions."""
        return listing_digest(self.url, self.files)

    def part(self, shard: Shard) -> InputListing:
        """Return one node's part of a complete listing."""
        return replace(self, files=shard.of(self.files))


def listing_digest(url: str, files: Iterable[Meta]) -> str:
    """Return the digest of a listing of these files."""
    return _digest(chain([url], (f"{meta.key}\0{meta.size}\0{meta.etag}" for meta in files)))


def local_path(source: str) -> str | None:
    """Return the path on this machine that a source names; None for a URL of any other kind."""
    if source.startswith("file://"):
        return unquote(source.removeprefix("file://").removeprefix("localhost"))
    return None if "://" in source else source


def list_files(folder: Path) -> list[str]:
    """Return the relative paths of all files below a folder of this machine.

    Links are followed, except links to a parent folder, which would never end. Raises OSError for a folder that cannot
    be read.
    """
    found: list[str] = []
    todo: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while todo:
        below, above = todo.pop()
        place = folder / below
        status = place.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            continue
        above |= {identity}
        with os.scandir(place) as entries:
            for entry in entries:
                if _is_folder(entry):
                    todo.append((f"{below}{entry.name}/", above))
                else:
                    found.append(f"{below}{entry.name}")
    return found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False  # A link to itself.


class InputSource:
    """The URL of an input. `say` writes a line to the job's log."""

    def __init__(self, url: str, say: Callable[[str], None] = lambda _: None) -> None:
        self.url = url
        self._say = say
        # The bucket's region, if it is known to differ from that of the environment.
        self.region: str | None = None

    def list(self) -> InputListing:
        """List the current contents. Raises NothingThere, ObjectNamesUnusable, UserError, and the store's errors."""
        return self._in_region(self._list)

    def with_files(self, files: tuple[Meta, ...]) -> InputListing:
        """Return a listing of these files, as they were when they were listed. Raises as `list`."""
        return self._in_region(lambda: InputListing(self.url, self._open_checked(), files, total_files=len(files)))

    def find(self) -> tuple[str, str | None]:
        """Return the URL of an existing folder, and the one file in it that the URL names, if any. Raises as `list`."""
        return self._in_region(self._find)

    def _list(self) -> InputListing:
        folder = self._open(self.url)
        files = _usable(self.url, [meta for meta in folder.list("") if meta.key])
        if files:
            return InputListing(self.url, folder, files, total_files=len(files))
        bucket, meta = self._single()
        return InputListing(self.url, bucket, (meta,), single=meta.key, total_files=1)

    def _open_checked(self) -> BucketStore:
        """Open the folder and send one request, which fails if the bucket is in another region."""
        folder = self._open(self.url)
        next(iter(folder.list("")), None)
        return folder

    def _find(self) -> tuple[str, str | None]:
        if any(meta.key for meta in self._open(self.url).list("")):
            return self.url, None
        return self.url.rpartition("/")[0], self._single()[1].key

    def _single(self) -> tuple[BucketStore, Meta]:
        """Return the one object that the URL names, and its folder.

        Called only if nothing is below the URL: permission to read a folder need not include a request for its own
        name.
        """
        above, _, name = self.url.rpartition("/")
        # A bucket's own name is not an object, nor is a name that ends with a slash.
        if name and not above.endswith(":/"):
            bucket = self._open(above)
            meta = bucket.head(name)
            if meta is not None:
                return bucket, meta
        raise NothingThere(f"there is nothing at {self.url}")

    def _in_region(self, question: Callable[[], T]) -> T:
        # Imported here, because other buckets do not need it.
        from stoker.store.s3 import WrongRegion

        try:
            return question()
        except WrongRegion:
            if not self._find_region():
                raise
            return question()

    def _open(self, url: str) -> BucketStore:
        place = url.partition("://")[2]
        if self.region is not None:
            from stoker.store.s3 import open_s3

            bucket, _, prefix = place.partition("/")
            return open_s3(bucket, prefix.strip("/"), region=self.region)
        store = open_store(url)
        assert isinstance(store, BucketStore)
        return store

    def _find_region(self) -> bool:
        from stoker.store.s3 import bucket_region

        bucket = self.url.partition("://")[2].partition("/")[0]
        self.region = bucket_region(bucket)
        if self.region is not None:
            self._say(f"the bucket is in {self.region}, another region: it takes longer, and the transfer is charged")
        return self.region is not None


def _usable(url: str, objects: list[Meta]) -> tuple[Meta, ...]:
    """Return the objects that are files, sorted. Raises ObjectNamesUnusable for names that a disk cannot hold."""
    folders: set[str] = set()
    for meta in objects:
        if not is_valid_key(meta.key):
            raise ObjectNamesUnusable(f"{url}: an object there is called {meta.key!r}, which leads out of its folder")
        above = meta.key.rpartition("/")[0]
        while above and above not in folders:
            folders.add(above)
            above = above.rpartition("/")[0]
    files = []
    for meta in objects:
        if meta.key not in folders:
            files.append(meta)
        elif meta.size:
            # An empty object is how some programs create a folder.
            raise ObjectNamesUnusable(f"{url}: {meta.key} is both an object and a folder, which no disk can hold")
    return tuple(sorted(files, key=lambda meta: meta.key))


def _digest(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
