"""A file that is read twice: once to hash it, once to send it. A change in between is detected."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stoker.store.base import FileChanged

_READ_BYTES = 1 << 20


class VerifiedParts:
    """The parts of a file, read a second time for the upload. Ends with FileChanged if they differ from the hashed
    bytes."""

    def __init__(self, parts: Iterator[bytes], digest: str, source: Path, progress: Callable[[int], None]) -> None:
        self._parts = parts
        self._progress = progress
        self._expected = digest
        self._source = source
        self._hash = hashlib.sha256()
        # The error of the source, stored here because obstore may wrap exceptions that pass through it.
        self.failure: OSError | FileChanged | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            part = next(self._parts, b"")
        except OSError as error:
            self.failure = error
            raise
        if part:
            self._hash.update(part)
            self._progress(len(part))
            return part
        if self._hash.hexdigest() != self._expected:
            self.failure = FileChanged(f"{self._source} changed while it was being sent")
            raise self.failure
        raise StopIteration


def read_parts(file: Any) -> Iterator[bytes]:
    while part := file.read(_READ_BYTES):
        yield part


def hash_rest(file: Any, head: bytes, moved: Callable[[int], None]) -> tuple[str, int]:
    digest, size = hashlib.sha256(head), len(head)
    for part in read_parts(file):
        digest.update(part)
        size += len(part)
        moved(len(part))
    return digest.hexdigest(), size
