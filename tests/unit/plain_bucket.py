"""A bucket in memory that inputs are fetched from, and whose next answers can be made to fail."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

from plain_store import DAWN

from stoker.agent.inputs.source import InputListing
from stoker.store.base import Meta, ObjectChanged
from stoker.store.bucket import BucketStore

URL = "s3://bucket/data"


class PlainBucket:
    """`trouble` is called before each part with its key and its beginning, and may raise."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.objects = dict(files)
        self.asked: list[tuple[str, int]] = []
        self.trouble: Callable[[str, int], None] = lambda _key, _begin: None
        self._lock = threading.Lock()

    def _meta(self, key: str) -> Meta:
        data = self.objects[key]
        return Meta(key, len(data), DAWN, hashlib.md5(data).hexdigest())

    def get_part(self, meta: Meta, begin: int, end: int) -> memoryview:
        with self._lock:
            self.asked.append((meta.key, begin))
        self.trouble(meta.key, begin)
        if meta.key not in self.objects or self._meta(meta.key).etag != meta.etag:
            raise ObjectChanged(f"{meta.key} is not any more what it was")
        return memoryview(self.objects[meta.key])[begin:end]

    def head(self, key: str) -> Meta | None:
        return self._meta(key) if key in self.objects else None

    def list(self, prefix: str) -> Iterator[Meta]:
        return (self._meta(key) for key in sorted(self.objects) if key.startswith(prefix))

    def listing(self, **more: Any) -> InputListing:
        """What is there now."""
        files = tuple(self.list(""))
        return InputListing(URL, cast(BucketStore, self), files, **({"total_files": len(files)} | more))
