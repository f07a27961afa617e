"""The list of files that the nodes of a job divide: what the first node found, for all nodes and attempts.

Nodes list at different times, and later attempts list later still. If each divided what it finds, a file that was added
in between would shift all files after it: some would be trained on twice and others never, without any sign of it. The
list is therefore a create-only fact in the store: gzip of JSON lines, a header first, then one line per file.

Facts come from machines that run other people's code: their size is limited, and no name may leave its folder.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

from stoker.agent.inputs.source import listing_digest
from stoker.model import codec
from stoker.model.errors import CodecError, StoreDenied, StoreError, StoreUnavailable, UserError
from stoker.store.base import Meta, Store

# A million objects take about 30 MB, because their ETags do not compress.
MAX_BYTES = 256 << 20
MAX_FILES = 8_000_000
_MAX_UNPACKED_BYTES = 2 << 30
# More than the longest path of Linux with every byte escaped.
_LONGEST_LINE = 32 << 10
# Higher levels take longer and save nothing: ETags do not compress.
_LEVEL = 1
# The modification times are not used.
UNKNOWN_TIME = datetime.fromtimestamp(0, timezone.utc)


class ShardListUnreadable(StoreError):
    """The stored list is malformed. A new list would divide the files differently."""


def agree(store: Store, key: str, url: str, find: Callable[[], tuple[Meta, ...]]) -> tuple[Meta, ...]:
    """Return the files at `url` that the nodes divide, sorted: the list stored under `key`, else the result of `find`.

    Idempotent. Raises ShardListUnreadable, UserError if there are too many, and the errors of the store and of `find`.
    """
    first = read(store, key, url)
    if first is not None:
        return first
    found = find()
    if store.create(key, pack(url, found)):
        return found
    # Another node was first; or this node's write succeeded and its answer was lost.
    first = read(store, key, url)
    if first is None:
        raise StoreUnavailable(f"{store.url}: {key} exists and cannot be read")
    return first


def read(store: Store, key: str, url: str) -> tuple[Meta, ...] | None:
    """Return the stored list; None if there is none. Raises ShardListUnreadable, and the store's errors."""
    try:
        found = store.get(key, limit=MAX_BYTES)
        return unpack(found.data, url) if found is not None else None
    except (StoreUnavailable, StoreDenied):
        raise
    except (StoreError, CodecError, ValueError, TypeError, LookupError, EOFError, OSError, zlib.error) as error:
        raise ShardListUnreadable(
            f"the list of its files in the store, {key}, is malformed; submit the job again"
        ) from error


def pack(url: str, files: tuple[Meta, ...]) -> bytes:
    """Encode the list for the store. Raises UserError if there are more files than `unpack` accepts."""
    written = io.BytesIO()
    # Without a timestamp, so that the same list gives the same bytes.
    with gzip.GzipFile(fileobj=written, mode="wb", compresslevel=_LEVEL, mtime=0) as packed:
        packed.write(_line({"url": url, "files": len(files), "digest": listing_digest(url, files)}))
        for meta in files:
            packed.write(_line([meta.key, meta.size, meta.etag]))
        unpacked = packed.tell()
    if len(files) > MAX_FILES or written.tell() > MAX_BYTES or unpacked > _MAX_UNPACKED_BYTES:
        raise UserError(f"{len(files)} files are more than the nodes can divide; pack them into fewer")
    return written.getvalue()


def unpack(data: bytes, url: str) -> tuple[Meta, ...]:
    """Decode what `pack` returned. Raises errors of many kinds, mostly ValueError, for anything else."""
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
        head = codec.parse(packed.readline(_LONGEST_LINE))
        count = head["files"]
        if head["url"] != url or not 0 <= count <= MAX_FILES:
            raise ValueError(f"a list of {count} files at {head['url']}")
        files = tuple(_entries(packed, count))
        if packed.read(1):
            raise ValueError("more files than its header says")
    if listing_digest(url, files) != head["digest"]:
        raise ValueError("another digest than its header says")
    return files


def _entries(packed: gzip.GzipFile, count: int) -> Iterator[Meta]:
    left = _MAX_UNPACKED_BYTES
    for _ in range(count):
        line = packed.readline(_LONGEST_LINE)
        left -= len(line)
        key, size, etag = codec.parse(line)
        if left < 0 or not _can_be_file(key) or type(size) is not int or size < 0 or type(etag) is not str:
            raise ValueError("an entry is malformed")
        yield Meta(key, size, UNKNOWN_TIME, etag)


def _can_be_file(key: object) -> bool:
    """Tell if the key is a path inside its folder. Raises ValueError if no file system has such names."""
    if type(key) is not str or b"\0" in os.fsencode(key):
        return False
    return not {"", ".", ".."} & set(key.split("/"))


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
