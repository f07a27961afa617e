"""Spot prices, settable per machine type and zone. Where nothing was set they differ by type and by zone."""

from __future__ import annotations

import threading
from datetime import datetime, timezone

_DEFAULT = 0.05
# Zones differ by this much, in the order of their letters.
_STEP = 0.01


class SpotPrices:
    """What spot machines cost, in dollars an hour."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set: dict[tuple[str, str], float] = {}
        self.since = datetime.now(timezone.utc)

    def put(self, machine: str, zone: str, price: float) -> None:
        """From now on; an empty zone means every zone."""
        with self._lock:
            self._set[machine, zone] = price

    def of(self, machine: str, zone: str) -> float:
        with self._lock:
            for key in ((machine, zone), (machine, "")):
                if key in self._set:
                    return self._set[key]
        # Large machines cost more: "8xlarge" eight times an "xlarge".
        size = machine.rpartition(".")[2].removesuffix("xlarge")
        return _DEFAULT * (int(size) if size.isdigit() else 1) + _STEP * (ord(zone[-1:] or "a") - ord("a"))

    def machines(self) -> list[str]:
        """Types that somebody has set a price of."""
        with self._lock:
            return sorted({machine for machine, _ in self._set})
