"""Count the bytes that uploads move: a slow upload is no standstill."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# How many tries of one file count. A store that fails at the end of a large file, again and again, makes no progress.
_COUNTED_TRIES = 3

_Identity = tuple[int, int, int]


@dataclass
class _FileProgress:
    """The tries of one file, and how many of its bytes were counted in the present one."""

    tries: int = 0
    counted: int = 0


class UploadProgress:
    """The bytes of files that this process has read for uploads or sent, whatever the store. Thread-safe.

    A file that is hashed before it is sent counts twice. Bytes that are moved again after a failure count for a few
    tries only. So the count is bounded by the sizes of the files, and cannot grow for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[_Identity, _FileProgress] = {}
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    def add(self, count: int) -> None:
        """Count an object that was sent as a whole."""
        with self._lock:
            self._total += count

    @contextmanager
    def one_try(self, file: int) -> Iterator[Callable[[int], None]]:
        """Count one try to upload this open file. Gives a function to call with the size of each part that moved."""
        found = os.fstat(file)
        identity = (found.st_dev, found.st_ino, found.st_mtime_ns)
        with self._lock:
            progress = self._files.setdefault(identity, _FileProgress())
        position = 0

        def moved(count: int) -> None:
            nonlocal position
            position += count
            with self._lock:
                if position > progress.counted:
                    self._total += position - progress.counted
                    progress.counted = position

        try:
            yield moved
        except BaseException:  # also an abort is a failed try; raised again
            with self._lock:
                progress.tries += 1
                if progress.tries < _COUNTED_TRIES:
                    progress.counted = 0
            raise
        with self._lock:
            self._files.pop(identity, None)


# One for the process: a pause in one upload is no standstill while another one moves.
UPLOADS = UploadProgress()
