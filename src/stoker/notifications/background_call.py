"""Work that may hang, done beside the governor: it is waited for as long as somebody likes, and then left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Errand(Generic[T]):
    """One call in a thread of its own. A daemon: a process need not wait for it to end. Where there can be no more
    threads, it is over at once."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.began_s = time.monotonic()
        self._work = work
        self._done = threading.Event()
        self._found: T | None = None
        self._error: Exception | None = None
        try:
            threading.Thread(target=self._run, name="errand", daemon=True).start()
        except RuntimeError as error:
            self._error = error
            self._done.set()

    @property
    def over(self) -> bool:
        return self._done.is_set()

    def wait(self, until_s: float) -> bool:
        """Whether it is over by then, on the monotonic clock."""
        return self._done.wait(max(0.0, until_s - time.monotonic()))

    def result(self) -> T:
        """What came of it, once it is over. Raises what it raised."""
        assert self.over
        if self._error is not None:
            raise self._error
        return self._found  # type: ignore[return-value]

    def _run(self) -> None:
        try:
            self._found = self._work()
        except Exception as error:  # noqa: BLE001 - the edge of the thread: whoever asks for the result gets it
            self._error = error
        finally:
            self._done.set()
