"""The time of a cloud for tests: the real one, until a test sets it."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone


class Clock:
    """Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set: datetime | None = None

    def now(self) -> datetime:
        with self._lock:
            return self._set or datetime.now(timezone.utc)

    def set(self, now: datetime | None) -> None:
        """From now on it stands still there; None: it is the real time again."""
        with self._lock:
            self._set = now

    def move(self, seconds: float) -> None:
        """Let time pass, at once. It stands still afterwards."""
        with self._lock:
            self._set = (self._set or datetime.now(timezone.utc)) + timedelta(seconds=seconds)
