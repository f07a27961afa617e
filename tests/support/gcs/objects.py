"""What the fake Cloud Storage holds, and its rules: generations, preconditions, listings, uploads in parts."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# https://cloud.google.com/storage/quotas#objects
_NAME_BYTES = 1024
_PARTS = 10_000
_SMALLEST_PART = 5 << 20
_WRITES_APART_S = 1.0
PAGE = 1000

_MESSAGES = {
    "AccessDenied": "Access denied.",
    "AuthenticationRequired": "Authentication required.",
    "BadDigest": "The MD5 you specified did not match what we received.",
    "EntityTooSmall": "Your proposed upload is smaller than the minimum allowed object size.",
    "InternalError": "We encountered an internal error. Please try again.",
    "InvalidArgument": "Invalid argument.",
    "InvalidPart": "One or more of the specified parts could not be found.",
    "InvalidPartOrder": "The list of parts was not in ascending order.",
    "InvalidRange": "The requested range cannot be satisfied.",
    "MalformedCompleteMultipartUploadRequest": "The XML you provided was not well-formed.",
    "MethodNotAllowed": "The specified method is not allowed against this resource.",
    "MissingContentLength": "You must provide the Content-Length HTTP header.",
    "NoSuchBucket": "The specified bucket does not exist.",
    "NoSuchKey": "The specified key does not exist.",
    "NoSuchUpload": "The requested upload was not found.",
    "PreconditionFailed": "At least one of the pre-conditions you specified did not hold.",
    "ServiceUnavailable": "The service is unavailable. Please try again.",
    "SlowDown": "The object exceeded the rate limit for object mutation operations (create, update, and delete). "
    "Please reduce your request rate. See https://cloud.google.com/storage/docs/gcs429.",
}


class Refusal(Exception):
    """An answer that is an error. https://cloud.google.com/storage/docs/xml-api/reference-status"""

    def __init__(self, status: int, code: str, details: str = "", size: int | None = None) -> None:
        super().__init__(f"{status} {code} {details}")
        self.status = status
        self.code = code
        self.message = _MESSAGES.get(code, code)
        self.details = details
        # Of the object, where a range lies outside of it.
        self.size = size


@dataclass(frozen=True)
class Stored:
    """One version of an object. `generation` is the time of its writing in microseconds, never the same twice."""

    name: str
    data: bytes
    generation: int
    etag: str
    md5: str
    headers: tuple[tuple[str, str], ...]

    @property
    def modified_s(self) -> float:
        return self.generation / 1e6


@dataclass(frozen=True)
class Page:
    """A part of a listing. `then` names where the next one begins, and is empty at the end."""

    objects: tuple[Stored, ...]
    prefixes: tuple[str, ...]
    then: str


@dataclass
class _Upload:
    bucket: str
    name: str
    headers: tuple[tuple[str, str], ...]
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)


@dataclass
class _Bucket:
    objects: dict[str, Stored] = field(default_factory=dict)
    # Sorted by the bytes of the names, as listings are.
    names: list[bytes] = field(default_factory=list)
    written: dict[str, float] = field(default_factory=dict)


class Objects:
    """Every bucket. Each call is atomic. Raises Refusal."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[str, _Bucket] = {}
        self._uploads: dict[str, _Upload] = {}
        self._last_generation = 0
        self.rate_limited = False

    def new_bucket(self, name: str) -> None:
        with self._lock:
            self._buckets.setdefault(name, _Bucket())

    def open_uploads(self, bucket: str) -> int:
        with self._lock:
            return sum(upload.bucket == bucket for upload in self._uploads.values())

    # ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, bucket: str, name: str, generation: int | None = None) -> Stored:
        with self._lock:
            found = self._find(bucket).objects.get(name)
        if found is None or generation not in (None, found.generation):
            raise Refusal(404, "NoSuchKey", f"No such object: {bucket}/{name}")
        return found

    def list(self, bucket: str, prefix: str, delimiter: str, after: str, limit: int) -> Page:
        """`after` is an object's name, or a common prefix as a whole."""
        with self._lock:
            held = self._find(bucket)
            objects: list[Stored] = []
            prefixes: list[str] = []
            last = ""
            for name in _names(held.names, prefix, delimiter, after):
                if len(objects) + len(prefixes) == limit:
                    return Page(tuple(objects), tuple(prefixes), last)
                if name in held.objects and not (delimiter and delimiter in name[len(prefix) :]):
                    objects.append(held.objects[name])
                else:
                    prefixes.append(name)
                last = name
            return Page(tuple(objects), tuple(prefixes), "")

    # ── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def put(
        self,
        bucket: str,
        name: str,
        data: bytes,
        *,
        if_generation: int | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Stored:
        md5 = hashlib.md5(data).digest()
        with self._lock:
            held = self._find(bucket)
            _check_name(name)
            self._keep_the_rate(held, bucket, name)
            _check_generation(held.objects.get(name), if_generation)
            encoded = base64.b64encode(md5).decode()
            return self._keep(held, Stored(name, data, self._generation(), f'"{md5.hex()}"', encoded, headers))

    def delete(self, bucket: str, name: str, if_generation: int | None = None) -> None:
        with self._lock:
            held = self._find(bucket)
            found = held.objects.get(name)
            if found is None:
                raise Refusal(404, "NoSuchKey", f"No such object: {bucket}/{name}")
            self._keep_the_rate(held, bucket, name)
            _check_generation(found, if_generation)
            del held.objects[name]
            del held.names[bisect_left(held.names, name.encode())]
            held.written[name] = time.monotonic()

    def begin_upload(self, bucket: str, name: str, headers: tuple[tuple[str, str], ...]) -> str:
        with self._lock:
            self._find(bucket)
            _check_name(name)
            number = uuid.uuid4().hex
            self._uploads[number] = _Upload(bucket, name, headers)
            return number

    def put_part(self, bucket: str, name: str, number: str, part: int, data: bytes) -> str:
        if not 1 <= part <= _PARTS:
            raise Refusal(400, "InvalidArgument", f"partNumber must be from 1 to {_PARTS}")
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        with self._lock:
            self._upload(bucket, name, number).parts[part] = (etag, data)
        return etag

    def complete_upload(self, bucket: str, name: str, number: str, asked: Sequence[tuple[int, str]]) -> Stored:
        """Replaces what is there, unconditionally.

        https://cloud.google.com/storage/docs/xml-api/post-object-complete
        """
        with self._lock:
            upload = self._upload(bucket, name, number)
            held = self._find(bucket)
            self._keep_the_rate(held, bucket, name)
            numbers = [part for part, _ in asked]
            if not numbers or numbers != sorted(set(numbers)):
                raise Refusal(400, "InvalidPartOrder" if numbers else "MalformedCompleteMultipartUploadRequest")
            if any(upload.parts.get(part, ("",))[0] != etag for part, etag in asked):
                raise Refusal(400, "InvalidPart")
            parts = [upload.parts[part][1] for part in numbers]
            if any(len(part) < _SMALLEST_PART for part in parts[:-1]):
                raise Refusal(400, "EntityTooSmall")
            del self._uploads[number]
            # Not an MD5, and told apart from one by its look.
            etag = f'"{hashlib.md5("".join(etag for _, etag in asked).encode()).hexdigest()}-{len(parts)}"'
            return self._keep(held, Stored(name, b"".join(parts), self._generation(), etag, "", upload.headers))

    def abort_upload(self, bucket: str, name: str, number: str) -> None:
        with self._lock:
            self._upload(bucket, name, number)
            del self._uploads[number]

    # ── Under the lock ────────────────────────────────────────────────────────────────────────────────────────────────

    def _find(self, bucket: str) -> _Bucket:
        if bucket not in self._buckets:
            raise Refusal(404, "NoSuchBucket", bucket)
        return self._buckets[bucket]

    def _upload(self, bucket: str, name: str, number: str) -> _Upload:
        self._find(bucket)
        upload = self._uploads.get(number)
        if upload is None or (upload.bucket, upload.name) != (bucket, name):
            raise Refusal(404, "NoSuchUpload", number)
        return upload

    def _generation(self) -> int:
        self._last_generation = max(self._last_generation + 1, time.time_ns() // 1000)
        return self._last_generation

    def _keep(self, held: _Bucket, made: Stored) -> Stored:
        if made.name not in held.objects:
            name = made.name.encode()
            held.names.insert(bisect_left(held.names, name), name)
        held.objects[made.name] = made
        held.written[made.name] = time.monotonic()
        return made

    def _keep_the_rate(self, held: _Bucket, bucket: str, name: str) -> None:
        """Whether the condition would hold is not looked at: whoever loses a race may be told this instead."""
        if self.rate_limited and time.monotonic() - held.written.get(name, -_WRITES_APART_S) < _WRITES_APART_S:
            raise Refusal(429, "SlowDown", f"The object {bucket}/{name} exceeded the rate limit")


def _names(names: Sequence[bytes], prefix: str, delimiter: str, after: str) -> Iterator[str]:
    """Names of objects and common prefixes in order, each once. What is rolled up sorts as its prefix does."""
    begin = max(bisect_left(names, prefix.encode()), bisect_right(names, after.encode()) if after else 0)
    rolled = after if delimiter and after.endswith(delimiter) else ""
    for position in range(begin, len(names)):
        name = names[position].decode()
        if not name.startswith(prefix):
            return
        if rolled and name.startswith(rolled):
            continue
        below, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
        if found:
            rolled = prefix + below + found
            yield rolled
        else:
            yield name


def _check_generation(found: Stored | None, wanted: int | None) -> None:
    if wanted is not None and wanted != (found.generation if found else 0):
        raise Refusal(412, "PreconditionFailed", "x-goog-if-generation-match")


def _check_name(name: str) -> None:
    # https://cloud.google.com/storage/docs/objects#naming
    if not name or len(name.encode()) > _NAME_BYTES or name in (".", "..") or {"\r", "\n"} & set(name):
        raise Refusal(400, "InvalidObjectName", name[:80])
