"""Run a call that may hang beside the governor, which waits for it as long as it can afford, and then leaves it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """One call in a daemon thread of its own, so that a process can exit while the call hangs.

    Where no more threads can be started, the call is over at once, with that error.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self.began_s = time.monotonic()
        self._work = work
        self._done = threading.Event()
        self._result: T | None = None
        # The error of a call that is over: any library's.
        self.error: Exception | None = None
        try:
            threading.Thread(target=self._run, name="background-call", daemon=True).start()
        except RuntimeError as error:
            self.error = error
            self._done.set()

    @property
    def over(self) -> bool:
        return self._done.is_set()

    def wait(self, until_s: float) -> bool:
        """Wait until that time of the monotonic clock at most. Returns whether the call is over."""
        return self._done.wait(max(0.0, until_s - time.monotonic()))

    def result(self) -> T:
        """Return the result of a call that is over. Raises what the call raised."""
        assert self.over
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]

    def _run(self) -> None:
        try:
            self._result = self._work()
        except Exception as error:  # noqa: BLE001 - the edge of the thread: `error` holds it, and `result` raises it
            self.error = error
        finally:
            self._done.set()
