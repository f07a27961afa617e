"""What a test can make go wrong with the fake Cloud Storage."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """What befalls a request of one of these methods (none named: of any) for a name that begins so.

    `status` is answered instead, or the reply is lost after all was done; so often, or for so long, or until cleared.
    """

    status: int = 500
    code: str = "InternalError"
    methods: tuple[str, ...] = ()
    prefix: str = ""
    times: int | None = None
    for_s: float | None = None
    lose_reply: bool = False


class Faults:
    """Those that are set. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set: list[tuple[Fault, float]] = []
        self._met: dict[int, int] = {}

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._set.append((fault, time.monotonic()))

    def clear(self) -> None:
        with self._lock:
            self._set.clear()
            self._met.clear()

    def meet(self, method: str, name: str) -> Fault | None:
        """The first that this request runs into; it counts as met."""
        with self._lock:
            for number, (fault, since) in enumerate(self._set):
                over = fault.for_s is not None and time.monotonic() - since > fault.for_s
                over = over or (fault.times is not None and self._met.get(number, 0) >= fault.times)
                if not over and name.startswith(fault.prefix) and (not fault.methods or method in fault.methods):
                    self._met[number] = self._met.get(number, 0) + 1
                    return fault
        return None
