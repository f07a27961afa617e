"""The common part of stores in buckets, through obstore. The modules s3 and gcs have the parts of each cloud."""

from __future__ import annotations

import builtins
import hashlib
import random
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from stoker.model.errors import StoreError, StoreUnavailable, UserError
from stoker.store.base import (
    RECORD_BYTES,
    FileChanged,
    Meta,
    Object,
    ObjectChanged,
    StoredFile,
    check_key,
    check_prefix,
)
from stoker.store.obstore_errors import first_line, status
from stoker.store.upload_progress import UPLOADS
from stoker.store.upload_source import VerifiedParts, hash_rest, read_parts

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

# Up to this size an object is sent in one request with a short timeout; beyond, in parts that may take longer.
_SMALL = 1 << 20
# Parts of this size arrive within the short timeout even if many are requested at once.
_TINY = 64 << 10
_PART = 8 << 20
_PARTS_AT_ONCE = 4
_QUICK_TIMEOUT_S = 8.0
# A part in this time is 70 kB/s, which is too slow to train with.
_BULK_TIMEOUT_S = 120.0
_RETRIES = 4
# S3 and GCS accept at most 10,000 parts.
_MOST_PARTS = 9_000
_LIST_PAGE = 1_000
_DELETE_PAGE = 1_000
# Retries of a create after a conflict. Each conflict means that another write was in progress.
_CONFLICTS = 6

Client = TypeVar("Client")
T = TypeVar("T")


def open_pair(url: str, make: Callable[[dict[str, Any]], Client], *, allow_http: bool) -> tuple[Client, Client]:
    """Create a client for calls that must fail fast, and one for parts of large objects. Makes no request.

    `make` gets the options of each. Raises UserError if it cannot create a client.
    """

    def options(timeout_s: float, retry_s: float) -> dict[str, Any]:
        return {
            "client_options": {
                "allow_http": allow_http,
                "connect_timeout": timedelta(seconds=3),
                "timeout": timedelta(seconds=timeout_s),
            },
            # No retry begins after `retry_s`, so that an unreachable bucket is recognised after about `timeout_s`,
            # whether it refuses connections, ignores them, or accepts them and never answers.
            "retry_config": {
                "max_retries": _RETRIES,
                "retry_timeout": timedelta(seconds=retry_s),
                "backoff": {"max_backoff": timedelta(seconds=2)},
            },
        }

    try:
        quick = make(options(_QUICK_TIMEOUT_S, _QUICK_TIMEOUT_S / 2))
        return quick, make(options(_BULK_TIMEOUT_S, _BULK_TIMEOUT_S / 2))
    except (BaseError, ValueError) as error:
        raise UserError(f"{url} cannot be opened: {first_line(error)}") from error


class BucketStore(ABC):
    """A `Store` in a bucket. `quick` is for calls that must fail fast, `bulk` for parts of large objects."""

    # HTTP statuses by which the cloud refuses a write while other writes of the same name are in progress.
    _busy_statuses: frozenset[int] = frozenset()

    def __init__(self, url: str, quick: ObjectStore, bulk: ObjectStore) -> None:
        self._url = url
        self._quick = quick
        self._bulk = bulk
        self._bucket_seen = False

    @property
    def url(self) -> str:
        return self._url

    @property
    def is_local(self) -> bool:
        return False

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, key: str, *, limit: int | None = None) -> Object | None:
        check_key(key)
        try:
            result = obstore.get(self._quick, key)
            meta = _meta(result.meta, key)
            if meta.size > (limit := RECORD_BYTES if limit is None else limit):
                # The length is known before the bytes, which are not fetched.
                raise StoreError(f"{key} has {meta.size} bytes, more than the {limit} it may have")
            if meta.size <= _SMALL:
                return Object(bytes(result.bytes()), meta)
            del result
            return Object(b"".join(self._parts(meta)), meta)
        except FileNotFoundError as error:
            self._check_absent(error)
            return None
        except (BaseError, OSError) as error:
            raise self._translated(error) from error

    def get_from(self, key: str, start: int) -> bytes | None:
        check_key(key)
        try:
            result = obstore.get(self._quick, key, options={"range": {"offset": start}})
            meta = _meta(result.meta, key)
            if meta.size - start <= _SMALL:
                return bytes(result.bytes())
            del result
            return b"".join(self._parts(meta, start))
        except FileNotFoundError as error:
            self._check_absent(error)
            return None
        except (BaseError, OSError) as error:
            if status(error) == 416:
                # No bytes from there on: the object exists.
                return b""
            raise self._translated(error) from error

    def head(self, key: str) -> Meta | None:
        check_key(key)
        try:
            return _meta(obstore.head(self._quick, key), key)
        except FileNotFoundError as error:
            self._check_absent(error)
            return None
        except (BaseError, OSError) as error:
            raise self._translated(error) from error

    def list(self, prefix: str) -> Iterator[Meta]:
        check_prefix(prefix)
        try:
            for page in obstore.list(self._quick, prefix or None, chunk_size=_LIST_PAGE):
                for found in page:
                    yield _meta(found, found["path"])
        except (BaseError, OSError) as error:
            raise self._translated(error) from error

    def folders(self, prefix: str) -> builtins.list[str]:
        check_prefix(prefix)
        try:
            found = obstore.list_with_delimiter(self._quick, prefix or None)
        except (BaseError, OSError) as error:
            raise self._translated(error) from error
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found["common_prefixes"])

    def get_file(self, key: str, target: Path) -> str | None:
        meta = self.head(key)
        if meta is None:
            return None
        digest = hashlib.sha256()
        # A failure to write `target` concerns the caller's disk and not the store: it stays an OSError.
        with target.open("wb") as out:
            for part in self._checked_parts(meta):
                if part is None:
                    return None
                digest.update(part)
                out.write(part)
        return digest.hexdigest()

    def get_part(self, meta: Meta, begin: int, end: int) -> memoryview:
        """Return the bytes from `begin` to `end` of exactly this version of the object.

        Raises ObjectChanged if that version does not exist any more.
        """
        client = self._quick if end - begin <= _TINY else self._bulk
        try:
            data = self._get_part(client, meta, begin, end)
        except FileNotFoundError as error:
            self._check_absent(error)
            raise ObjectChanged(f"{self._url}: {meta.key} is not there any more") from error
        except PreconditionError as error:
            raise ObjectChanged(f"{self._url}: {meta.key} is not any more what it was") from error
        except (BaseError, OSError) as error:
            raise self._translated(error) from error
        if len(data) != end - begin:
            raise StoreUnavailable(f"{self._url}: {meta.key} came with {len(data)} bytes instead of {end - begin}")
        return data

    def _get_part(self, client: ObjectStore, meta: Meta, begin: int, end: int) -> memoryview:
        # Without the condition, an object overwritten meanwhile would be assembled from two versions.
        options: GetOptions = {"if_match": meta.etag} if meta.etag else {}
        if (begin, end) != (0, meta.size):
            options["range"] = (begin, end)
        result = obstore.get(client, meta.key, options=options)
        # Some services compatible with S3 ignore the condition.
        if (result.meta["size"], result.meta["e_tag"] or "") != (meta.size, meta.etag):
            raise ObjectChanged(f"{self._url}: {meta.key} is not any more what it was")
        # Not copied to `bytes`, because it is only hashed, written and joined.
        return memoryview(result.bytes())

    def _checked_parts(self, meta: Meta) -> Iterator[memoryview | None]:
        parts = self._parts(meta)
        while True:
            try:
                part = next(parts)
            except StopIteration:
                return
            except FileNotFoundError as error:
                self._check_absent(error)
                yield None
                return
            except (BaseError, OSError) as error:
                raise self._translated(error) from error
            yield part

    def _parts(self, meta: Meta, start: int = 0) -> Iterator[memoryview]:
        """Fetch the object's bytes in order, all of one version, with a few parts ahead."""

        def fetch(begin: int) -> memoryview:
            return self._get_part(self._bulk, meta, begin, min(begin + _PART, meta.size))

        begins = iter(range(start, meta.size, _PART))
        with ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="fetch") as pool:
            ahead: deque[Future[memoryview]] = deque()
            try:
                ahead.extend(pool.submit(fetch, begin) for begin in islice(begins, _PARTS_AT_ONCE))
                while ahead:
                    part = ahead.popleft().result()
                    ahead.extend(pool.submit(fetch, begin) for begin in islice(begins, 1))
                    yield part
            finally:
                for waiting in ahead:
                    waiting.cancel()

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, key: str, data: bytes) -> None:
        check_key(key)
        try:
            self._retry_while_busy(lambda: self._write(key, data, "overwrite"))
        except (BaseError, OSError) as error:
            raise self._translated(error) from error

    def create(self, key: str, data: bytes) -> bool:
        check_key(key)
        for conflict in range(_CONFLICTS):
            try:
                self._write(key, data, "create")
                return True
            except AlreadyExistsError as error:
                # obstore raises the same for 412, the object exists, and for 409, another write is in progress and may
                # yet fail. https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
                if status(error) == 412 or self.head(key) is not None:
                    return False
            except (BaseError, OSError) as error:
                if not self._busy(error):
                    raise self._translated(error) from error
                # The other writer may have created it already: then there is no need to wait.
                if self.head(key) is not None:
                    return False
            _pause(conflict)
        raise StoreUnavailable(f"{self._url}: other writers keep {key} busy")

    def delete(self, keys: Iterable[str]) -> None:
        left = iter(keys)
        while page := [check_key(key) for key in islice(left, _DELETE_PAGE)]:
            try:
                self._remove(page)
            except FileNotFoundError as error:
                self._check_absent(error)
            except (BaseError, OSError) as error:
                raise self._translated(error) from error

    def put_file(self, source: Path, key: Callable[[str], str], *, replace: bool = False) -> StoredFile:
        return self.put_file_with_progress(source, key, lambda _: None, replace=replace)

    def put_file_with_progress(
        self, source: Path, key: Callable[[str], str], progress: Callable[[int], None], *, replace: bool = False
    ) -> StoredFile:
        """As `put_file`. `progress` gets the number of bytes of each part as it is sent, or of the whole file if
        nothing is sent."""
        with source.open("rb") as file, UPLOADS.one_try(file.fileno()) as moved:
            head = file.read(_PART)
            if len(head) < _PART:
                digest = hashlib.sha256(head).hexdigest()
                name = check_key(key(digest))
                if replace:
                    self.put(name, head)
                sent = replace or self.create(name, head)
                progress(len(head))
                moved(len(head))
                return StoredFile(digest, len(head), moved=len(head) if sent else 0)
            digest, size = hash_rest(file, head, moved)
            name = check_key(key(digest))
            if not replace and self.head(name) is not None:
                progress(size)
                return StoredFile(digest, size, moved=0)
            file.seek(0)

            def note(count: int) -> None:
                progress(count)
                moved(count)

            self._upload(name, VerifiedParts(read_parts(file), digest, source, note), size)
            return StoredFile(digest, size, moved=size)

    def _upload(self, key: str, parts: VerifiedParts, size: int) -> None:
        try:
            # An exception from `parts` aborts the upload, and obstore deletes its parts: an object under a digest that
            # is not its own never appears, not even for a moment.
            obstore.put(
                self._bulk,
                key,
                parts,
                chunk_size=max(_PART, size // _MOST_PARTS),
                max_concurrency=_PARTS_AT_ONCE,
            )
        except FileChanged:
            raise
        except (BaseError, OSError) as error:
            if parts.failure is not None:
                raise parts.failure from error
            raise self._translated(error) from error

    def _write(self, key: str, data: bytes, mode: Literal["create", "overwrite"]) -> None:
        """Write an object in one request. Errors of obstore pass through."""
        client = self._quick if len(data) <= _SMALL else self._bulk
        obstore.put(client, key, data, mode=mode, use_multipart=False)

    def _remove(self, keys: builtins.list[str]) -> None:
        """Delete up to a page of objects, including absent ones. Errors of obstore pass through."""
        obstore.delete(self._quick, keys)

    def _retry_while_busy(self, call: Callable[[], T]) -> T:
        """Make the call, and retry it while the bucket is busy with other writes of that name."""
        for conflict in range(_CONFLICTS - 1):
            try:
                return call()
            except BaseError as error:
                if not self._busy(error):
                    raise
            _pause(conflict)
        return call()

    # ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _translated(self, error: Exception) -> StoreError:
        """Map an error of obstore, other than an absent object, to an error of the store."""

    def _busy(self, error: Exception) -> bool:
        """Return whether the bucket refused a write only because of other recent writes of that name."""
        return status(error) in self._busy_statuses

    def _check_absent(self, error: FileNotFoundError) -> None:
        """Check the bucket when an object is absent: the absence is positive only if the bucket exists."""
        text = str(error)
        if "NoSuchBucket" in text:
            raise self._translated(error) from error
        if "NoSuchKey" not in text and not self._bucket_seen:
            # The answer to a HEAD has no body to distinguish bucket and object. One check is enough.
            for _ in self.list(""):
                break
        self._bucket_seen = True


def _pause(conflict: int) -> None:
    # Randomised, so that two writers that collided once do not collide again.
    time.sleep(0.05 * 2**conflict * random.uniform(0.8, 1.2))


def _meta(found: ObjectMeta, key: str) -> Meta:
    # obstore 0.11 omits the prefix of the store in the metadata of one object, but not in listings.
    return Meta(
        key=key,
        size=found["size"],
        # A listing may have fractions of a second, which the object's headers lack: use the same time everywhere.
        modified=found["last_modified"].replace(microsecond=0),
        etag=found["e_tag"] or "",
    )
