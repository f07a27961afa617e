"""Which files the nodes of a job share out: what the first of them found, for all nodes and in every attempt.

Nodes look at different times, and later attempts look later still. Were each to take apart what it finds, a file that
came in between would move all that follow: some would be trained on twice, others by nobody, and nobody would know.
So the list is a fact in the store, create-only: gzip of lines of JSON, first what it is, then a file each.

Facts come from machines that run other people's code: what is read is bounded, and no name leads out of its folder.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

from stoker.agent.inputs.source import digest_of
from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.store.base import Meta, Store

# A million objects are about 30 MB: their ETags are as good as random.
MOST_BYTES = 256 << 20
MOST_FILES = 8_000_000
_MOST_UNPACKED_BYTES = 2 << 30
# The longest path that Linux takes, with every byte of it escaped, and more.
_LONGEST_LINE = 32 << 10
# Beyond this, what takes longer saves nothing: ETags do not shrink.
_LEVEL = 1
# When they were written: nobody asks.
UNTOLD = datetime.fromtimestamp(0, timezone.utc)


class Unreadable(StoreError):
    """The list that was kept makes no sense. Another one would be another sharing out."""


def agree(store: Store, key: str, url: str, find: Callable[[], tuple[Meta, ...]]) -> tuple[Meta, ...]:
    """The files at `url` that all nodes share out, sorted: what `find` answers, unless a list is kept under `key`.

    Idempotent. Raises Unreadable, UserError where there are too many, and what a store and `find` raise.
    """
    first = read(store, key, url)
    if first is not None:
        return first
    found = find()
    if store.create(key, pack(url, found)):
        return found
    # Somebody was faster; or it was this node, and it did not hear so.
    first = read(store, key, url)
    if first is None:
        raise StoreUnavailable(f"{store.url}: {key} is there and cannot be found")
    return first


def read(store: Store, key: str, url: str) -> tuple[Meta, ...] | None:
    """The list that is kept; None: nobody has made one. Raises Unreadable, and what a store raises."""
    try:
        found = store.get(key, limit=MOST_BYTES)
        return unpack(found.data, url) if found is not None else None
    except (StoreUnavailable, StoreDenied):
        raise
    except (StoreError, ValueError, TypeError, LookupError, RecursionError, EOFError, OSError, zlib.error) as error:
        raise Unreadable(f"the list of its files in the store, {key}, makes no sense; submit the job again") from error


def pack(url: str, files: tuple[Meta, ...]) -> bytes:
    """The list, to be kept. Raises UserError where there are more than can be read again."""
    written = io.BytesIO()
    # Without the time: the same list is the same bytes.
    with gzip.GzipFile(fileobj=written, mode="wb", compresslevel=_LEVEL, mtime=0) as packed:
        packed.write(_line({"url": url, "files": len(files), "digest": digest_of(url, files)}))
        for meta in files:
            packed.write(_line([meta.key, meta.size, meta.etag]))
        unpacked = packed.tell()
    if len(files) > MOST_FILES or written.tell() > MOST_BYTES or unpacked > _MOST_UNPACKED_BYTES:
        raise UserError(f"{len(files)} files are more than nodes can share out; pack them into fewer")
    return written.getvalue()


def unpack(data: bytes, url: str) -> tuple[Meta, ...]:
    """What `pack` was given. Raises errors of many kinds, ValueError above all, for anything else."""
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
        head = json.loads(packed.readline(_LONGEST_LINE))
        count = head["files"]
        if head["url"] != url or not 0 <= count <= MOST_FILES:
            raise ValueError(f"a list of {count} files at {head['url']}")
        files = tuple(_entries(packed, count))
        if packed.read(1):
            raise ValueError("more files than it says")
    if digest_of(url, files) != head["digest"]:
        raise ValueError("another digest than it says")
    return files


def _entries(packed: gzip.GzipFile, count: int) -> Iterator[Meta]:
    left = _MOST_UNPACKED_BYTES
    for _ in range(count):
        line = packed.readline(_LONGEST_LINE)
        left -= len(line)
        key, size, etag = json.loads(line)
        if left < 0 or not _can_be_file(key) or type(size) is not int or size < 0 or type(etag) is not str:
            raise ValueError("no such file can be")
        yield Meta(key, size, UNTOLD, etag)


def _can_be_file(key: object) -> bool:
    """Whether it is a path, and in its folder. Raises ValueError where no file system has such names."""
    if type(key) is not str or b"\0" in os.fsencode(key):
        return False
    return not {"", ".", ".."} & set(key.split("/"))


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
