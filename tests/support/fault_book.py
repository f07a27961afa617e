"""The faults in force in a cloud for tests: each ends after so many calls, after so long, or when it is cleared."""

from __future__ import annotations

import threading
import time
from typing import Generic, Protocol, TypeVar


class Bounded(Protocol):
    """A fault, as far as its end is concerned."""

    @property
    def times(self) -> int | None: ...

    @property
    def for_s(self) -> float | None: ...


F = TypeVar("F", bound=Bounded)


class FaultBook(Generic[F]):
    """Safe to use from many threads. What a call meets, each cloud says itself, under `_lock`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, tuple[F, float | None, int | None]] = {}
        self._next = 0

    def add(self, fault: F) -> int:
        """A number to clear it by."""
        with self._lock:
            self._next += 1
            ends_at = None if fault.for_s is None else time.monotonic() + fault.for_s
            self._held[self._next] = (fault, ends_at, fault.times)
            return self._next

    def clear(self, number: int | None = None) -> None:
        """Clear one, or all."""
        with self._lock:
            if number is None:
                self._held.clear()
            else:
                self._held.pop(number, None)

    def _in_force(self) -> list[tuple[int, F]]:
        now = time.monotonic()
        ended = [number for number, (_, ends_at, _) in self._held.items() if ends_at is not None and ends_at <= now]
        for number in ended:
            del self._held[number]
        return [(number, fault) for number, (fault, _, _) in self._held.items()]

    def _use(self, number: int) -> None:
        """Count one call that met it."""
        fault, ends_at, left = self._held[number]
        if left is not None:
            self._held[number] = (fault, ends_at, left - 1)
            if left <= 1:
                del self._held[number]
