"""A store in memory whose next calls can be made to fail, for tests of what reads and writes chunks."""

from __future__ import annotations

import builtins
import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from stoker.model.errors import StoreDenied, StoreError, StoreUnavailable
from stoker.store.base import Meta, Object, StoredFile

DAWN = datetime(2026, 1, 1, tzinfo=timezone.utc)


class PlainStore:
    url = "memory://plain"

    def __init__(self, *, is_local: bool = True) -> None:
        self.is_local = is_local
        self.objects: dict[str, bytes] = {}
        self.down = False
        self.denied = False
        # How many more times `head`, and a look for one chunk, answers; None is for ever.
        self.heads_left: int | None = None
        # Done once, just before `head` answers about a key, or a look for the chunk whose first version it would be.
        self.before_head: dict[str, Callable[[], None]] = {}
        # Replies to lose: the put happens, the caller hears nothing good; after the last one the store is down.
        self.lose_replies = 0
        self.down_after_loss = False
        self.lost = threading.Event()
        self.puts: list[tuple[str, int]] = []
        self.refused = 0
        self.gets: list[str] = []

    def _answer(self) -> None:
        if self.denied:
            raise StoreDenied("not allowed")
        if self.down:
            self.refused += 1
            raise StoreUnavailable("down")

    def _meta(self, key: str) -> Meta:
        data = self.objects[key]
        return Meta(key, len(data), DAWN, hashlib.md5(data).hexdigest())

    def get(self, key: str, *, limit: int | None = None) -> Object | None:
        self._answer()
        if key not in self.objects:
            return None
        self.gets.append(key)
        if limit is not None and len(self.objects[key]) > limit:
            raise StoreError("too large")
        return Object(self.objects[key], self._meta(key))

    def get_from(self, key: str, start: int) -> bytes | None:
        self._answer()
        self.gets.append(key)
        data = self.objects.get(key)
        return None if data is None else data[start:]

    def head(self, key: str) -> Meta | None:
        self._look(key)
        return self._meta(key) if key in self.objects else None

    def _look(self, key: str) -> None:
        if self.heads_left is not None:
            self.heads_left -= 1
            if self.heads_left < 0:
                self.refused += 1
                raise StoreUnavailable("down")
        self._answer()
        self.before_head.pop(key, lambda: None)()

    def put(self, key: str, data: bytes) -> None:
        self._answer()
        before = self.objects.get(key, b"")
        assert data.startswith(before), "a chunk may only grow at its end"
        self.objects[key] = data
        self.puts.append((key, len(data)))
        if self.lose_replies:
            self.lose_replies -= 1
            self.down = self.down or (self.down_after_loss and not self.lose_replies)
            self.lost.set()
            raise StoreUnavailable("reply lost")

    def create(self, key: str, data: bytes) -> bool:
        self._answer()
        return self.objects.setdefault(key, data) is data

    def list(self, prefix: str) -> Iterator[Meta]:
        if re.search(r"/[0-9]{8}/$", prefix):
            self._look(f"{prefix}0")
        self._answer()
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield self._meta(key)

    def folders(self, prefix: str) -> builtins.list[str]:
        self._answer()
        below = (key[len(prefix) :] for key in self.objects if key.startswith(prefix))
        return sorted({name.split("/")[0] for name in below if "/" in name})

    def delete(self, keys: Iterable[str]) -> None:
        self._answer()
        for key in keys:
            self.objects.pop(key, None)

    def put_file(self, source: Path, key: Callable[[str], str]) -> StoredFile:
        raise NotImplementedError

    def get_file(self, key: str, target: Path) -> str | None:
        raise NotImplementedError


def wait_for(condition: Callable[[], bool], patience_s: float = 60.0) -> None:
    """Wait until something is so. The patience only bounds a test that fails."""
    give_up = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.005)
