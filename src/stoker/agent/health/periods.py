"""Means over periods of growing length: fine and short, coarse and long, small enough for a heartbeat."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from stoker.model.node_facts import Series
from stoker.model.usage_series import pack

# Two minutes, an hour and a half, a day (`usage_series.LONGEST_S`): each period is made of so many of the one before.
_LEVELS = ((1, 120), (60, 90), (10, 144))


class PeriodMeans:
    """The values of some devices at all resolutions. The devices stay the same."""

    def __init__(self) -> None:
        self._levels = [_Level(count, most) for count, most in _LEVELS]

    @property
    def newest(self) -> Sequence[float | None]:
        """The last values, by device; empty if there are none."""
        return self._levels[0].newest

    def add(self, values: Sequence[float | None]) -> None:
        """Add the values of one more period, by device. None is a value that could not be read."""
        for level in self._levels:
            made = level.add(values)
            if made is None:
                return
            values = made

    def pack(self, period_s: float) -> tuple[Series, ...]:
        """Return all values for a heartbeat. `period_s` is the length of the finest period."""
        found = []
        for level in self._levels:
            period_s *= level.count
            found.append(level.pack(period_s))
        return tuple(each for each in found if each is not None)


class _Level:
    """Means over `count` values each, the newest `most` of them, by device. The devices stay the same."""

    def __init__(self, count: int, most: int) -> None:
        self.count = count
        self._made: deque[tuple[float | None, ...]] = deque(maxlen=most)
        self._open: list[Sequence[float | None]] = []
        self.newest: Sequence[float | None] = ()

    def add(self, values: Sequence[float | None]) -> Sequence[float | None] | None:
        """Add one more; return the period that it completed, or None."""
        self.newest = values
        self._open.append(values)
        if len(self._open) < self.count:
            return None
        made = tuple(_mean([each[device] for each in self._open]) for device in range(len(values)))
        self._made.append(made)
        self._open.clear()
        return made

    def pack(self, period_s: float) -> Series | None:
        if not self._made or not self.newest:
            return None
        return pack(period_s, [[period[device] for period in self._made] for device in range(len(self.newest))])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
