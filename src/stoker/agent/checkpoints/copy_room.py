"""The disk that a copy to `checkpoints.copy_to` takes: each file lies on the node's disk while it is sent."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.agent.inputs.download import size_text
from stoker.model.errors import StokerError

# Files of this size in all may lie there at the same time. A larger one is there alone: its parts are sent in parallel
# anyway.
TOGETHER_BYTES = 256 * 1024 * 1024


class NoCopyRoom(StokerError):
    """The disk has too little room for a file."""


class CopyRoom:
    """The room for files in one folder, for the threads of one copy.

    `trains`: the training may save meanwhile, and must not run out of disk by the copy.
    """

    def __init__(self, folder: Path, trains: Callable[[], bool]) -> None:
        self._folder = folder
        self._trains = trains
        self._taken = 0
        self._users = 0
        self._changed = threading.Condition()

    @contextmanager
    def take(self, path: str, size: int) -> Iterator[None]:
        """Hold room for a file of this size; waits for other files. Raises NoCopyRoom."""
        with self._changed:
            while not self._may_take(path, size):
                self._changed.wait()
            self._taken += size
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._taken -= size
                self._users -= 1
                self._changed.notify_all()

    def check(self, path: str, size: int) -> None:
        """Raise NoCopyRoom where a file of this size does not fit, even alone."""
        free, needed = shutil.disk_usage(self._folder).free, self._needed(size)
        if needed > free:
            also = ", and the training may need as much for its next save" if needed > size else ""
            what = f"{path} takes {size_text(size)} of this node's disk while it is copied{also}"
            raise NoCopyRoom(f"{what}; {size_text(free)} are free")

    def _may_take(self, path: str, size: int) -> bool:
        if not self._users:
            self.check(path, size)
            return True
        # The written part of the other files counts twice, which only makes this file wait.
        fits = self._taken + self._needed(size) <= shutil.disk_usage(self._folder).free
        return fits and self._taken + size <= TOGETHER_BYTES

    def _needed(self, size: int) -> int:
        # As much again for a file that the training writes meanwhile.
        return size * (2 if self._trains() else 1)
