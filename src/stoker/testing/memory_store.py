"""A store in memory, with a clock and faults of the test's choice."""

from __future__ import annotations

import builtins
import hashlib
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from stoker.model.errors import StoreError, StoreUnavailable
from stoker.store.base import RECORD_BYTES, Meta, Object, StoredFile, check_key, check_prefix

T = TypeVar("T")


@dataclass(frozen=True)
class Fault:
    """The fault of one call: nothing happened, or (`after`) it did and the reply was lost.

    `later` is given a write or a delete that is still under way when the caller has given up, to let it land whenever
    it wants to. `again` is given one that is answered as usual, and lands once more: a client below tried it twice.
    """

    after: bool = False
    error: StoreError = field(default_factory=lambda: StoreUnavailable("injected fault"))
    later: Landing | None = None
    again: Landing | None = None


# Takes a write that lands when it is called.
Landing = Callable[[Callable[[], object]], None]


# Asked at every call with the name of the method and the key or prefix; `delete` asks for each key.
Faults = Callable[[str, str], Fault | None]


class _Bucket:
    """The state that all clients of one store share."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self.objects: dict[str, Object] = {}
        self.keys: list[str] = []
        self.writes = 0

    def write(self, key: str, data: bytes) -> None:
        """Call with the lock held."""
        self.writes += 1
        if key not in self.objects:
            insort(self.keys, key)
        self.objects[key] = Object(data, Meta(key, len(data), self.clock(), f"{self.writes:x}"))

    def remove(self, key: str) -> None:
        """Call with the lock held."""
        if self.objects.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def below(self, prefix: str) -> list[str]:
        """Call with the lock held."""
        if not prefix:
            return self.keys[:]
        # `prefix` ends with a slash, and "0" is the character after it.
        return self.keys[bisect_left(self.keys, prefix) : bisect_left(self.keys, prefix[:-1] + "0")]


class MemoryStore:
    """A `Store`. `clock` dates every write; `faults` may make any call fail; `counts` says how often each was made."""

    def __init__(
        self,
        clock: Callable[[], datetime],
        *,
        faults: Faults | None = None,
        url: str = "memory://store",
        is_local: bool = False,
    ) -> None:
        self._bucket = _Bucket(clock)
        self._url = url
        self._is_local = is_local
        self._out = False
        self.faults = faults
        self.counts: dict[str, int] = {}

    def client(self, faults: Faults | None = None) -> MemoryStore:
        """Another client of the same objects, with faults, outage and counts of its own."""
        other = MemoryStore(self._bucket.clock, faults=faults, url=self._url, is_local=self._is_local)
        other._bucket = self._bucket
        return other

    def outage(self, out: bool) -> None:
        """From now on every call of this client raises StoreUnavailable; or no longer."""
        self._out = out

    def holds(self, key: str) -> bool:
        """True if there is such an object, for assertions: no call, no fault, no count."""
        return key in self._bucket.objects

    @property
    def changes(self) -> tuple[int, int]:
        """Changes with every write and every delete, for the test's own eyes."""
        return self._bucket.writes, len(self._bucket.objects)

    @property
    def url(self) -> str:
        return self._url

    @property
    def is_local(self) -> bool:
        return self._is_local

    def get(self, key: str, *, limit: int | None = None) -> Object | None:
        fault = self._begin("get", check_key(key))
        found = self._bucket.objects.get(key)
        if found is not None and found.meta.size > (limit := RECORD_BYTES if limit is None else limit):
            raise StoreError(f"{key} has {found.meta.size} bytes, more than the {limit} it may have")
        return _end(fault, found)

    def get_from(self, key: str, start: int) -> bytes | None:
        fault = self._begin("get_from", check_key(key))
        found = self._bucket.objects.get(key)
        return _end(fault, None if found is None else found.data[start:])

    def head(self, key: str) -> Meta | None:
        fault = self._begin("head", check_key(key))
        found = self._bucket.objects.get(key)
        return _end(fault, None if found is None else found.meta)

    def put(self, key: str, data: bytes) -> None:
        fault = self._begin("put", check_key(key))
        return _end(fault, _land(fault, partial(self._write, key, bytes(data))))

    def create(self, key: str, data: bytes) -> bool:
        fault = self._begin("create", check_key(key))
        return _end(fault, _land(fault, partial(self._write_new, key, data)))

    def list(self, prefix: str) -> Iterator[Meta]:
        # A generator, as with real stores: errors come out of the loop, not out of the call.
        fault = self._begin("list", check_prefix(prefix))
        with self._bucket.lock:
            found = [self._bucket.objects[key].meta for key in self._bucket.below(prefix)]
        yield from _end(fault, found)

    def folders(self, prefix: str) -> builtins.list[str]:
        fault = self._begin("folders", check_prefix(prefix))
        with self._bucket.lock:
            below = self._bucket.below(prefix)
        names = {rest.partition("/")[0] for key in below if "/" in (rest := key[len(prefix) :])}
        return _end(fault, sorted(names))

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            fault = self._begin("delete", check_key(key))
            _end(fault, _land(fault, partial(self._remove, key)))

    def put_file(self, source: Path, key: Callable[[str], str], *, replace: bool = False) -> StoredFile:
        data = source.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        name = check_key(key(digest))
        fault = self._begin("put_file", name)
        if replace:
            _land(fault, partial(self._write, name, data))
            return _end(fault, StoredFile(digest, len(data), len(data)))
        moved = len(data) if _land(fault, partial(self._write_new, name, data)) else 0
        return _end(fault, StoredFile(digest, len(data), moved))

    def get_file(self, key: str, target: Path) -> str | None:
        fault = self._begin("get_file", check_key(key))
        found = self._bucket.objects.get(key)
        if found is None:
            return _end(fault, None)
        target.write_bytes(found.data)
        return _end(fault, hashlib.sha256(found.data).hexdigest())

    def _write(self, key: str, data: bytes) -> None:
        with self._bucket.lock:
            self._bucket.write(key, data)

    def _remove(self, key: str) -> None:
        with self._bucket.lock:
            self._bucket.remove(key)

    def _write_new(self, key: str, data: bytes) -> bool:
        with self._bucket.lock:
            if key in self._bucket.objects:
                return False
            self._bucket.write(key, bytes(data))
            return True

    def _begin(self, operation: str, key: str) -> Fault | None:
        self.counts[operation] = self.counts.get(operation, 0) + 1
        if self._out:
            raise StoreUnavailable("injected outage")
        fault = self.faults(operation, key) if self.faults is not None else None
        if fault is not None and not fault.after and fault.later is None and fault.again is None:
            raise fault.error
        return fault


def _land(fault: Fault | None, write: Callable[[], T]) -> T:
    """Let a write land now, later, or both."""
    if fault is not None and fault.later is not None:
        fault.later(write)
        raise fault.error
    if fault is not None and fault.again is not None:
        fault.again(write)
    return write()


def _end(fault: Fault | None, reply: T) -> T:
    """The reply, unless it is lost."""
    if fault is not None and fault.again is None:
        raise fault.error
    return reply
