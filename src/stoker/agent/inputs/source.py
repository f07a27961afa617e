"""Where an input comes from: a folder of a bucket or one object in it, and what is there now."""

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
from stoker.store.base import Meta, ObjectNamesUnusable, can_be_key, open_store
from stoker.store.bucket import BucketStore

T = TypeVar("T")


class NothingThere(StoreError):
    """The URL names neither an object nor a folder with anything in it."""


@dataclass(frozen=True)
class Shard:
    """Every `nodes`-th file, from the `rank`-th on."""

    rank: int
    nodes: int

    def of(self, files: tuple[T, ...]) -> tuple[T, ...]:
        """Its part of them. They are sorted, so that all nodes take apart the same."""
        return files[self.rank :: self.nodes]


@dataclass(frozen=True)
class Listing:
    """What is to be fetched, sorted by name. `single`: the URL names this one object, and no folder."""

    url: str
    bucket: BucketStore
    files: tuple[Meta, ...]
    single: str | None = None
    # Of how many files these are a part.
    found: int = 0

    @property
    def size(self) -> int:
        return sum(meta.size for meta in self.files)

    @property
    def family(self) -> str:
        """The same for whatever was ever found at this URL."""
        return _digest([self.url])

    @property
    def digest(self) -> str:
        """The same for the same objects in the same versions, and for nothing else."""
        return digest_of(self.url, self.files)

    def part(self, shard: Shard) -> Listing:
        """What of a whole listing one node gets."""
        return replace(self, files=shard.of(self.files))


def digest_of(url: str, files: Iterable[Meta]) -> str:
    """As of a listing of them."""
    return _digest(chain([url], (f"{meta.key}\0{meta.size}\0{meta.etag}" for meta in files)))


def local_path(source: str) -> str | None:
    """The path on this machine that a source names; None for a URL of any other kind."""
    if source.startswith("file://"):
        return unquote(source.removeprefix("file://").removeprefix("localhost"))
    return None if "://" in source else source


def list_files(folder: Path) -> list[str]:
    """Every file below a folder of this machine, by its path in it. Raises OSError for what cannot be looked into.

    Links are followed, but for those that lead back to a folder that they are in: they have no end.
    """
    found: list[str] = []
    todo: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while todo:
        below, above = todo.pop()
        place = folder / below
        found_here = place.stat()
        identity = (found_here.st_dev, found_here.st_ino)
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
        return False  # A link to itself leads nowhere.


class Source:
    """An input's URL. `told` hears what a person should know about it."""

    def __init__(self, url: str, told: Callable[[str], None] = lambda _: None) -> None:
        self.url = url
        self._told = told
        # The bucket's, where it is known to be another than that of the environment.
        self.region: str | None = None

    def list(self) -> Listing:
        """What is there now. Raises NothingThere, ObjectNamesUnusable, UserError, and what a store raises."""
        return self._in_region(self._list)

    def those(self, files: tuple[Meta, ...]) -> Listing:
        """What was there when these were listed. Raises as `list`."""
        return self._in_region(lambda: Listing(self.url, self._reached(), files, found=len(files)))

    def find(self) -> tuple[str, str | None]:
        """The URL of a folder that is there, and which one file in it is meant, if it is one. Raises as `list`."""
        return self._in_region(self._find)

    def _list(self) -> Listing:
        folder = self._open(self.url)
        files = _usable(self.url, [meta for meta in folder.list("") if meta.key])
        if files:
            return Listing(self.url, folder, files, found=len(files))
        bucket, meta = self._single()
        return Listing(self.url, bucket, (meta,), single=meta.key, found=1)

    def _reached(self) -> BucketStore:
        """The folder, asked once: that tells whether the bucket is in another region."""
        folder = self._open(self.url)
        next(iter(folder.list("")), None)
        return folder

    def _find(self) -> tuple[str, str | None]:
        if any(meta.key for meta in self._open(self.url).list("")):
            return self.url, None
        return self.url.rpartition("/")[0], self._single()[1].key

    def _single(self) -> tuple[BucketStore, Meta]:
        """The one object that the URL names, in the folder that it is in.

        Looked for where there is nothing below it: who may read a folder need not be allowed to ask for its name.
        """
        above, _, name = self.url.rpartition("/")
        # A bucket's own name is no object, and neither is what ends with a slash.
        if name and not above.endswith(":/"):
            bucket = self._open(above)
            meta = bucket.head(name)
            if meta is not None:
                return bucket, meta
        raise NothingThere(f"there is nothing at {self.url}")

    def _in_region(self, question: Callable[[], T]) -> T:
        # Where the bucket is not S3's, nobody needs to import it.
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
            self._told(f"the bucket is in {self.region}, another region: it takes longer, and the transfer is charged")
        return self.region is not None


def _usable(url: str, found: list[Meta]) -> tuple[Meta, ...]:
    """The objects that are files, sorted. Raises ObjectNamesUnusable for what no disk can hold."""
    folders: set[str] = set()
    for meta in found:
        if not can_be_key(meta.key):
            raise ObjectNamesUnusable(f"{url}: an object there is called {meta.key!r}, which leads out of its folder")
        above = meta.key.rpartition("/")[0]
        while above and above not in folders:
            folders.add(above)
            above = above.rpartition("/")[0]
    files = []
    for meta in found:
        if meta.key not in folders:
            files.append(meta)
        elif meta.size:
            # Empty ones are how some programs make folders.
            raise ObjectNamesUnusable(f"{url}: {meta.key} is both an object and a folder, which no disk can hold")
    return tuple(sorted(files, key=lambda meta: meta.key))


def _digest(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
