"""The time in which the reservation in calendar mode has machines. Always, until a test says when."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from tests.support.gce.errors import Json

_LONG = timedelta(days=3650)


class Calendar:
    """Safe to read from any thread: both times change together."""

    def __init__(self) -> None:
        self._window = self._always()

    @staticmethod
    def _always() -> tuple[datetime, datetime]:
        now = datetime.now(timezone.utc)
        return now - _LONG, now + _LONG

    def set(self, starts_in_s: float, ends_in_s: float) -> None:
        now = datetime.now(timezone.utc)
        self._window = now + timedelta(seconds=starts_in_s), now + timedelta(seconds=ends_in_s)

    def clear(self) -> None:
        self._window = self._always()

    def has_machines(self) -> bool:
        starts_at, ends_at = self._window
        return starts_at <= datetime.now(timezone.utc) < ends_at

    def resource(self) -> Json:
        """The `timeWindow` of its future reservation."""
        starts_at, ends_at = self._window
        return {"startTime": starts_at.isoformat(), "endTime": ends_at.isoformat()}


# One for the whole server.
CALENDAR_WINDOW = Calendar()
